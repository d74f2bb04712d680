"""What the contracts of the recurrent blocks catch: each test plants the fault that one of them is there for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from holding import hold, hold_contract, kept_limits
from torch import Tensor

from contracts import test_policy_recurrent as contracts
from contracts.policies import recurrent as policy

pytestmark = pytest.mark.insides


def test_the_policy_as_it_is_holds() -> None:
    assert hold_contract(contracts.test_a_carried_state_is_one_graph).verdict == "held"


def test_a_counter_in_the_region_compiles_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(policy.Recurrent):
        calls = 0

        def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            self.calls += 1
            return super().forward(x, state)

    monkeypatch.setattr(contracts, "Recurrent", Counting)

    verdict, broken = kept_limits(hold_contract(contracts.test_a_carried_state_is_one_graph))

    assert (verdict, broken["max_recompiles=0"]) == ("violated", 7)
    assert broken["allow_recompile_limit=False (default)"] == "reached by 1 frame"


def test_a_state_that_is_a_view_compiles_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class View(policy.Recurrent):
        def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            states = policy.Scan.apply(torch.sigmoid(self.decay), self.enter(x), state)
            return self.leave(torch.tanh(states)), states[:, -1]

    monkeypatch.setattr(contracts, "Recurrent", View)

    verdict, broken = kept_limits(hold_contract(contracts.test_a_carried_state_is_one_graph))

    assert (verdict, broken) == ("violated", {"max_graphs=1": 2, "max_recompiles=0": 1})


def test_a_state_detached_and_not_attached_again_compiles_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Detached(policy.Carried):
        def __call__(self, x: Tensor) -> Tensor:
            if self.calls % self.attached == 0:
                self.state = self.state.detach()
            self.calls += 1
            y, self.state = self.run(x, self.state)
            return y

    monkeypatch.setattr(policy, "Carried", Detached)

    verdict, broken = kept_limits(hold_contract(contracts.test_a_state_attached_for_two_chunks_is_one_graph))

    assert (verdict, broken["max_recompiles=0"]) == ("violated", 1)


def test_a_state_that_is_let_go_of_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Early(policy.Carried):
        def __call__(self, x: Tensor) -> Tensor:
            self.state = self.state.detach().requires_grad_()
            return super().__call__(x)

    monkeypatch.setattr(policy, "Carried", Early)

    with pytest.raises(AssertionError, match="not close"):
        hold_contract(contracts.test_a_carried_state_is_the_whole_text)


def test_a_state_that_is_never_detached_reaches_a_backward_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Attached(policy.Carried):
        def __call__(self, x: Tensor) -> Tensor:
            y, self.state = self.run(x, self.state)
            return y

    monkeypatch.setattr(policy, "Carried", Attached)

    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        hold_contract(contracts.test_a_carried_state_is_one_graph)


def test_a_wrong_backward_of_ones_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = policy.Scan

    class Wrong(right):  # type: ignore[misc, valid-type]
        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
            decay, taken, start = right.backward(ctx, gradient)
            return decay, taken, 2 * start

    monkeypatch.setattr(policy, "Scan", Wrong)

    with pytest.raises(AssertionError, match="not close"):
        hold_contract(contracts.test_a_backward_of_ones_own_is_compiled)


def test_a_stream_that_forgets_its_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Replacing(policy.Streaming):
        def forward(self, x: Tensor) -> Tensor:
            y, self.state = self.model(x, self.state)
            return y

    monkeypatch.setattr(policy, "Streaming", Replacing)

    with pytest.raises(AssertionError):
        hold_contract(contracts.test_a_state_written_in_place_without_gradients)


def test_the_mend_written_in_place_has_the_wrong_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracts, "Rebound", contracts.Overwritten)

    with pytest.raises(AssertionError, match=r"\[3.0, 3.0, 3.0\] == \[2.0, 2.0, 2.0\]"):
        hold_contract(contracts.test_a_state_in_another_tensor_has_the_right_gradient)


def test_comparing_with_eager_finds_the_overwritten_state() -> None:
    def body(compile: contracts.Compile) -> object:
        model = contracts.Overwritten()
        return contracts.third_gradient(model, compile(model))

    verdict, broken = kept_limits(hold(lambda compile_lane: compile_lane.compare(body)))

    assert verdict == "violated"
    assert [limit for limit in broken if limit.startswith("numerics")]
