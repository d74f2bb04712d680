"""What the contracts of shapes catch: each test plants the fault that one of them is there for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from holding import hold_contract, kept_limits
from torch import Tensor, nn

from contracts import test_policy_shapes as contracts
from contracts.policies import shapes
from contracts.policies.shapes import Bucketed

pytestmark = pytest.mark.insides


def test_the_policy_as_it_is_holds() -> None:
    for contract in (
        contracts.test_buckets_are_as_many_graphs,
        contracts.test_padding_changes_no_valid_token,
        contracts.test_a_marked_length_is_one_graph,
    ):
        assert hold_contract(contract).verdict == "held"


def next_bucket(length: int, buckets: Sequence[int]) -> int:
    """A bucket edge off by one: a length that fills its bucket goes to the next."""
    return min((each for each in sorted(buckets) if each > length), default=max(buckets) + 1)


def test_a_bucket_edge_off_by_one_is_a_graph_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "bucket_of", next_bucket)

    verdict, broken = kept_limits(hold_contract(contracts.test_buckets_are_as_many_graphs))

    assert verdict == "violated"
    assert broken == {"max_graphs=2": 3, "max_recompiles=1": 2}


def test_a_mask_that_is_dropped_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unmasked(Bucketed):
        def forward(self, x: Tensor) -> Tensor:
            length = x.shape[1]
            padded = nn.functional.pad(x, (0, 0, 0, shapes.bucket_of(length, self.buckets) - length))
            return self.model(padded, torch.ones(padded.shape[:2], dtype=torch.bool))[:, :length]

    monkeypatch.setattr(contracts, "Bucketed", Unmasked)

    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        hold_contract(contracts.test_padding_changes_no_valid_token)


def test_padding_that_is_not_cut_off_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Uncut(Bucketed):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.pad(super().forward(x), (0, 0, 0, 1))

    monkeypatch.setattr(contracts, "Bucketed", Uncut)

    with pytest.raises(AssertionError, match="do not match"):
        hold_contract(contracts.test_padding_changes_no_valid_token)


def test_padding_inside_the_region_is_a_graph_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(bucketed: Bucketed, compile_model: Callable[[nn.Module], object]) -> Bucketed:
        compile_model(bucketed)
        return bucketed

    monkeypatch.setattr(contracts, "compile_inner", whole)

    verdict, broken = kept_limits(hold_contract(contracts.test_buckets_are_as_many_graphs))

    assert verdict == "violated"
    assert broken == {"max_graphs=2": 6, "max_recompiles=1": 5}


def test_a_length_beyond_the_largest_that_is_not_refused_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracts, "bucket_of", lambda length, buckets: min(max(length, 1), max(buckets)))

    for length, message in ((17, "a sequence of length 17 fits in no bucket"), (0, "a sequence of length 0")):
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            contracts.test_a_length_that_no_bucket_takes_is_refused(length, message)


def test_a_length_that_is_not_marked_is_compiled_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracts, "marked", lambda x, dim, *, low, high: x)

    verdict, broken = kept_limits(hold_contract(contracts.test_a_marked_length_is_one_graph))

    assert verdict == "violated"
    assert broken == {"max_graphs=1": 2, "max_recompiles=0": 1}


def test_a_range_that_leaves_out_a_length_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(x: Tensor, dim: int, *, low: int, high: int) -> Tensor:
        return shapes.marked(x, dim, low=low, high=high // 4)

    monkeypatch.setattr(contracts, "marked", narrow)

    verdict, broken = kept_limits(hold_contract(contracts.test_a_marked_length_is_one_graph))

    assert verdict == "broken"
    assert broken["no exception (default)"] == "raised ConstraintViolationError"


def test_a_model_that_asks_for_its_length_is_not_free_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard that a model's code adds: marked as free, the length is made a constant again, and torch says so."""

    class Asking(shapes.Tagger):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return super().forward(x, mask) * (2 if x.shape[1] % 2 == 0 else 1)

    monkeypatch.setattr(contracts, "Tagger", Asking)

    verdict, broken = kept_limits(hold_contract(contracts.test_a_marked_length_is_one_graph))

    assert verdict == "broken"
    assert broken["no exception (default)"] == "raised ConstraintViolationError"
