"""What the contracts of the opaque wrapper catch: each test plants the fault that one of them is there for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from holding import hold_contract, kept_limits
from torch import Tensor

from contracts import test_policy_opaque as contracts
from contracts.policies.opaque import smooth, smooth_allowed, smooth_disabled, smooth_nonstrict, smooth_op

pytestmark = pytest.mark.insides


@pytest.mark.parametrize(
    ("middle", "operations"),
    [(smooth_op, 5), (smooth_allowed, 5), (smooth_nonstrict, 6)],
    ids=["custom_op", "allowed", "nonstrict"],
)
def test_the_policy_as_it_is_holds(middle: Callable[[Tensor], Tensor], operations: int) -> None:
    assert hold_contract(contracts.test_the_block_stays_whole, middle=middle, operations=operations).verdict == "held"


def test_a_disabled_function_as_it_is_holds() -> None:
    assert hold_contract(contracts.test_disabled_it_costs_a_break_and_a_graph).verdict == "held"


def test_a_disabled_function_does_not_leave_the_block_whole() -> None:
    verdict, broken = kept_limits(
        hold_contract(contracts.test_the_block_stays_whole, middle=smooth_disabled, operations=4)
    )

    assert verdict == "violated"
    assert broken["fullgraph=True"]
    assert broken["max_graphs=1"] == 2


def test_a_function_left_bare_is_looked_into() -> None:
    """Without a wrapper Dynamo follows numpy into torch: the block is whole, but nothing in it is opaque."""
    with pytest.raises(AssertionError, match=r"assert 14 == 5"):
        hold_contract(contracts.test_the_block_stays_whole, middle=smooth, operations=5)


def test_an_operator_whose_fake_has_another_shape_is_caught() -> None:
    @torch.library.custom_op("compilecontract_tests::misshapen", mutates_args=())
    def misshapen(x: Tensor) -> Tensor:
        return smooth(x)

    misshapen.register_fake(lambda x: x.new_empty(x.shape[0] + 1, x.shape[1])[1:, 1:])

    entry = hold_contract(contracts.test_the_block_stays_whole, middle=misshapen, operations=5)

    assert entry.verdict == "broken"


def test_an_operator_that_is_not_what_eager_computes_is_caught() -> None:
    def differs(x: Tensor) -> Tensor:
        return smooth_op(x) * 1.1 if torch.compiler.is_compiling() else smooth_op(x)

    verdict, broken = kept_limits(hold_contract(contracts.test_the_block_stays_whole, middle=differs, operations=6))

    assert verdict == "violated"
    assert any(limit.startswith("numerics") for limit in broken)


def test_a_function_that_is_followed_after_all_is_no_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapper is lost, say by a decorator over it: what was to stay out of the graph is in it."""
    monkeypatch.setattr(contracts, "smooth_disabled", lambda x: torch.nn.functional.avg_pool1d(x[None], 3, 1, 1)[0])

    with pytest.raises(AssertionError, match=r"assert \(1, 0\) == \(2, 1\)"):
        hold_contract(contracts.test_disabled_it_costs_a_break_and_a_graph)
