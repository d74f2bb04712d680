"""What the contracts of conditional paths catch: each test plants the fault that one of them is there for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from holding import hold_contract, kept_limits
from torch import Tensor, nn

from contracts import test_policy_conditional as contracts
from contracts.policies.conditional import Branching, Either, Experts, LoopedExperts, Outside

pytestmark = pytest.mark.insides


def test_the_policy_as_it_is_holds() -> None:
    assert hold_contract(contracts.test_a_router_with_capacity_is_one_graph).verdict == "held"
    assert hold_contract(contracts.test_cond_is_one_graph_for_both_paths).verdict == "held"
    assert hold_contract(contracts.test_a_branch_outside_is_no_break).verdict == "held"


def test_experts_given_what_is_theirs_lose_the_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracts, "Experts", LoopedExperts)

    verdict, broken = kept_limits(hold_contract(contracts.test_a_router_with_capacity_is_one_graph))

    assert verdict == "violated"
    assert broken["max_graph_breaks=0"] == 1
    assert broken["max_eager_frames=0 (default)"] == 1


def test_one_place_too_many_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    capacity = Experts.capacity
    monkeypatch.setattr(Experts, "capacity", lambda self, tokens: capacity(self, tokens) + 1)

    with pytest.raises(AssertionError, match=r"assert \[0, 4, 0, 0\] == \[0, 3, 0, 0\]"):
        hold_contract(contracts.test_a_full_expert_drops_the_last_and_no_others)


def test_an_expert_left_out_where_it_has_no_tokens_compiles_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Skipping(Experts):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            output, load = super().forward(x)
            if (load == 0).any():  # "nothing to do for these"
                return output * 1.0, load
            return output, load

    monkeypatch.setattr(contracts, "Experts", Skipping)

    verdict, broken = kept_limits(hold_contract(contracts.test_an_expert_with_no_tokens_is_no_case_of_its_own))

    assert verdict == "violated"
    assert broken["max_graph_breaks=0"] == 1


def test_a_question_inside_is_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracts, "Either", Branching)

    verdict, broken = kept_limits(hold_contract(contracts.test_cond_is_one_graph_for_both_paths))

    assert verdict == "violated"
    assert broken == {"max_graphs=1": 3, "max_graph_breaks=0": 1}


def test_a_boundary_that_is_gone_is_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(model: Outside, compile_path: Callable[[nn.Module], object]) -> Outside:
        compile_path(model)
        return model

    monkeypatch.setattr(contracts, "compile_paths", whole)

    verdict, broken = kept_limits(hold_contract(contracts.test_a_branch_outside_is_no_break))

    assert verdict == "violated"
    assert broken["max_graph_breaks=0"] == 1


def test_paths_the_wrong_way_round_are_wrong_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Swapped(Either):
        def forward(self, x: Tensor) -> Tensor:
            loud = x.abs().mean() > 1
            return torch.cond(~loud if torch.compiler.is_compiling() else loud, self.loud, self.calm, (x,))

    monkeypatch.setattr(contracts, "Either", Swapped)

    verdict, broken = kept_limits(hold_contract(contracts.test_cond_is_one_graph_for_both_paths))

    assert verdict == "violated"
    assert any(limit.startswith("numerics") for limit in broken)
