"""What the contracts of the compiled optimizer catch: each test plants the fault that one of them is there for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from holding import hold_contract, kept_limits
from torch import nn

from contracts import test_policy_optimizer as contracts
from contracts.policies import optimizer as policy

pytestmark = pytest.mark.insides


def test_the_policy_as_it_is_holds() -> None:
    entry = hold_contract(contracts.test_a_scheduled_step_is_compiled_once, make=contracts.muon)

    assert entry.verdict == "held"


@pytest.mark.parametrize(("make", "recompiles"), [(contracts.adamw, 1), (contracts.sgd, 7)], ids=["adamw", "sgd"])
def test_a_number_in_the_place_of_the_tensor_compiles_again(
    monkeypatch: pytest.MonkeyPatch, make: contracts.Make, recompiles: int
) -> None:
    monkeypatch.setattr(contracts, "learning_rate", lambda: 0.01)

    verdict, broken = kept_limits(hold_contract(contracts.test_a_scheduled_step_is_compiled_once, make=make))

    assert verdict == "violated"
    assert broken["max_recompiles=0"] == recompiles


def test_a_learning_rate_read_on_the_host_breaks_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reading(policy.Muon):
        @torch.no_grad()
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            for each in self.param_groups[0]["params"]:
                each.sub_(self.state[each]["momentum_buffer"].lerp_(each.grad, 0.05), alpha=self.param_groups[0]["lr"])

    monkeypatch.setattr(contracts, "Muon", Reading)

    verdict, broken = kept_limits(hold_contract(contracts.test_a_scheduled_step_is_compiled_once, make=contracts.muon))

    assert verdict == "violated"
    assert broken == {"min_ops_captured=1 (default)": 0}


def test_momentum_that_is_not_made_compiles_the_second_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracts, "make_momentum", lambda optimizer: optimizer)

    verdict, broken = kept_limits(hold_contract(contracts.test_a_scheduled_step_is_compiled_once, make=contracts.sgd))

    assert (verdict, broken) == ("violated", {"max_graphs=1": 2, "max_recompiles=0": 1})


def test_one_group_for_all_decays_the_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_group(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
        return [{"params": list(model.parameters()), "weight_decay": weight_decay}]

    monkeypatch.setattr(contracts, "decay_groups", one_group)

    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        hold_contract(contracts.test_only_matrices_decay, make=contracts.adamw)


def test_a_step_before_the_clipping_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unclipped(optimizer: torch.optim.Optimizer, *, max_norm: float | None = None) -> Callable[[], object]:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]

        def step() -> object:
            optimizer.step()
            return nn.utils.get_total_norm([each.grad for each in parameters])

        return step

    monkeypatch.setattr(contracts, "step_of", unclipped)

    with pytest.raises(AssertionError, match="not close"):
        hold_contract(contracts.test_clipping_is_compiled_with_the_step, make=contracts.muon)


def test_a_gradient_that_is_left_moves_the_frozen_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    def freeze(parameter: nn.Parameter, *, frozen: bool) -> None:
        parameter.requires_grad_(not frozen)

    monkeypatch.setattr(policy, "freeze", freeze)

    with pytest.raises(AssertionError, match="Tensor-likes are not equal"):
        hold_contract(contracts.test_freezing_costs_a_recompile_and_unfreezing_none, make=contracts.muon)


def test_state_in_other_tensors_compiles_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "load_in_place", lambda optimizer, saved: optimizer.load_state_dict(saved))

    verdict, broken = kept_limits(
        hold_contract(contracts.test_state_loaded_in_place_compiles_nothing, make=contracts.sgd)
    )

    assert (verdict, broken) == ("violated", {"max_graphs=1": 2, "max_recompiles=0": 1})


def test_state_that_is_not_loaded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "load_in_place", lambda optimizer, saved: None)

    with pytest.raises(AssertionError, match="Tensor-likes are not equal"):
        hold_contract(contracts.test_state_loaded_in_place_compiles_nothing, make=contracts.sgd)
