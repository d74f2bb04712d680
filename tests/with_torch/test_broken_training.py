"""What the contracts of the training loop catch: each test plants the fault that one of them is there for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from holding import hold_contract, kept_limits
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from contracts import test_policy_training as contracts
from contracts.policies import training as policy
from contracts.policies.training import Batch

pytestmark = pytest.mark.insides

DIFFERENT = "Tensor-likes are not (close|equal)"


def test_the_policy_as_it_is_holds() -> None:
    assert hold_contract(contracts.test_a_checkpoint_resumes_into_the_compiled_model).verdict == "held"


def test_a_backward_in_the_region_breaks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Whole(policy.Loop):
        def __init__(self, model: nn.Module, optimizer: Any, *, compile_model: Any, **rest: Any) -> None:
            super().__init__(model, optimizer, compile_model=lambda each: each, **rest)
            self.train_step = compile_model(super().train_step)  # type: ignore[method-assign]

    monkeypatch.setattr(policy, "Loop", Whole)

    verdict, broken = kept_limits(hold_contract(contracts.test_a_scaler_around_the_region_costs_nothing))

    assert verdict == "violated"
    assert "max_graph_breaks=0" in broken


def test_losses_that_are_not_divided_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Undivided(policy.Loop):
        def _loss(self, batch: Batch) -> Tensor:
            return 4 * super()._loss(batch)

    monkeypatch.setattr(policy, "Loop", Undivided)

    with pytest.raises(AssertionError, match="not close"):
        hold_contract(contracts.test_accumulated_gradients_are_those_of_the_whole_batch)


def test_clipping_before_unscaling_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Early(policy.Loop):
        def train_step(self, batches: Sequence[Batch]) -> Tensor:
            loss = self._loss(batches[0])
            self.scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
            return loss

    monkeypatch.setattr(policy, "Loop", Early)

    with pytest.raises(AssertionError, match=DIFFERENT):
        hold_contract(contracts.test_a_scaler_around_the_region_costs_nothing)


def test_an_evaluation_that_stays_in_eval_loses_the_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    class Staying(policy.Loop):
        def evaluate(self, batches: Sequence[Batch]) -> Tensor:
            loss = super().evaluate(batches)
            self.model.eval()
            return loss

    monkeypatch.setattr(policy, "Loop", Staying)

    with pytest.raises(AssertionError, match=DIFFERENT):
        hold_contract(contracts.test_evaluation_between_steps_is_one_graph_more)


def test_an_evaluation_with_another_number_of_rows_compiles_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rest(policy.Loop):
        def evaluate(self, batches: Sequence[Batch]) -> Tensor:
            return super().evaluate([*batches, contracts.batch(0, rows=3)])

    monkeypatch.setattr(policy, "Loop", Rest)

    verdict, broken = kept_limits(hold_contract(contracts.test_evaluation_between_steps_is_one_graph_more))

    assert (verdict, broken["max_recompiles=1"]) == ("violated", 2)


def test_masks_from_the_state_of_the_process_are_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shared(policy.OwnedRandom):
        @contextlib.contextmanager
        def drawing(self) -> Iterator[None]:
            yield

    monkeypatch.setattr(policy, "OwnedRandom", Shared)

    with pytest.raises(AssertionError):
        hold_contract(contracts.test_owned_random_state_draws_the_same_masks)


class Kept(policy.Recomputed):
    """Makes nothing again."""

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)  # type: ignore[no-any-return]


class Unlike(policy.Recomputed):
    """Draws other numbers when it makes its activations again."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]


def test_a_recompute_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "Recomputed", Kept)

    with pytest.raises(AssertionError, match="assert 0 == 2"):
        hold_contract(contracts.test_recompute_inside_the_region, save_products=False, again=2)


def test_products_that_are_not_saved_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "SAVED", ())

    with pytest.raises(AssertionError, match="assert 2 == 0"):
        hold_contract(contracts.test_recompute_inside_the_region, save_products=True, again=0)


def test_a_mask_that_is_drawn_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "Recomputed", Unlike)

    with pytest.raises(AssertionError, match="equal"):
        hold_contract(contracts.test_recompute_draws_the_same_mask, inside=False)


@pytest.mark.parametrize("lost", ["optimizer", "random", "scaler"])
def test_a_checkpoint_that_lacks_a_part_is_found(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    class Lacking(policy.Loop):
        def state_dict(self) -> dict[str, Any]:
            return {name: state for name, state in super().state_dict().items() if name != lost}

    monkeypatch.setattr(policy, "Loop", Lacking)

    with pytest.raises(AssertionError):
        hold_contract(contracts.test_a_checkpoint_resumes_into_the_compiled_model)
