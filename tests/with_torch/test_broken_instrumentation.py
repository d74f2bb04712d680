"""What the contracts of instrumentation catch: each test plants the fault that one of them is there for."""

from __future__ import annotations

import pytest
import torch
from holding import hold_contract, kept_limits
from torch import Tensor

from contracts import test_policy_instrumentation as contracts
from contracts.policies import instrumentation
from contracts.policies.instrumentation import Region, Watched

pytestmark = pytest.mark.insides


def test_the_policy_as_it_is_holds() -> None:
    assert hold_contract(contracts.test_watched_from_around_the_region_costs_nothing).verdict == "held"
    assert hold_contract(contracts.test_readings_are_told_together_and_in_order).verdict == "held"


def test_a_line_of_the_log_moved_into_the_region_is_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    class Logging(Region):
        def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(instrumentation.logs(x + 1), noise)

    monkeypatch.setattr(contracts, "Region", Logging)

    verdict, broken = kept_limits(hold_contract(contracts.test_watched_from_around_the_region_costs_nothing))

    assert verdict == "violated"
    assert broken["max_graph_breaks=0"] == 1


def test_noise_drawn_in_the_region_is_not_that_of_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    class Drawing(Region):
        def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(x, torch.randn_like(noise))

    monkeypatch.setattr(contracts, "Region", Drawing)

    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        hold_contract(contracts.test_numbers_drawn_outside_are_those_of_eager)


def test_a_reading_taken_at_each_step_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reading(Watched):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            if self._unread:
                self._unread[-1].item()
            return y

    monkeypatch.setattr(contracts, "Watched", Reading)

    with pytest.raises(AssertionError, match="assert 6 == 0"):
        hold_contract(contracts.test_readings_are_told_together_and_in_order)


def test_the_whole_compiled_in_place_of_the_region_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(watched: Watched, compile_model: object) -> Watched:
        return torch.compile(watched, backend="aot_eager")  # type: ignore[return-value]

    monkeypatch.setattr(contracts, "compile_region", whole)

    verdict, broken = kept_limits(hold_contract(contracts.test_watched_from_around_the_region_costs_nothing))

    assert verdict == "violated"
    assert broken["max_recompiles=0"] == 3
