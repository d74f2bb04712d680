"""`compile_with=`: a target compiled as its project does, held to eager like any other, and put back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from holding import hold, lane_of, measured
from torch import Tensor, nn

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.lane import CompileLane

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Region(nn.Module):
    """A class of the project's: torch 2.11 to 2.13 compile nothing of a bare `nn.Linear` in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Pair(nn.Module):
    """Two regions with a line between them that does not compile."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Region(), Region()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.sum().item() > 1e9:
            raise ValueError("too large")
        return self.dropout(self.second(x))


def regions(lane: CompileLane, *, in_place: bool) -> Any:
    def compile_pair(pair: Pair) -> Pair:
        pair.first = lane.compile(pair.first, in_place=in_place)
        pair.second = lane.compile(pair.second, in_place=in_place)
        return pair

    return compile_pair


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "wrapped"])
def test_regions_are_compiled_and_the_code_between_them_is_not(in_place: bool) -> None:
    pair = Pair().eval()
    first = pair.first

    entry = hold(lambda lane: lane.run(pair, (X,), (X,), compile_with=regions(lane, in_place=in_place)))

    seen = measured(entry)
    assert (entry.verdict, seen.graph_breaks, seen.graphs_executed) == ("held", (), 4)
    # The second region alone is given a tensor that requires a gradient.
    assert (seen.graphs, [each.kind for each in seen.recompiles or ()]) == (2, ["instance"])
    assert pair.first is first
    assert not hasattr(pair.first, "_orig_mod")
    assert pair.first._compiled_call_impl is None


def test_keys_that_wrapped_regions_change_are_seen() -> None:
    entry = hold(
        lambda lane: lane.run(Pair().eval(), (X,), compile_with=regions(lane, in_place=False)), check_state_dict=True
    )

    assert [each.limit for each in entry.violations] == ["check_state_dict=True"]


def test_a_second_pass_starts_from_the_target_as_it_was() -> None:
    entry = hold(lambda lane: lane.run(Pair(), (X,), (X,), compile_with=regions(lane, in_place=False)), lane="inductor")

    assert entry.verdict == "held"
    assert "fallback_random" in (measured(entry).numerics or pytest.fail("not compared")).note


def test_what_it_makes_of_the_target_is_held_to_eager() -> None:
    def wrong(pair: Pair) -> Any:
        compiled = torch.compile(pair, backend="aot_eager")
        return lambda x: compiled(x) * 1.01

    entry = hold(lambda lane: lane.run(Pair().eval(), (X,), compile_with=wrong))

    assert entry.verdict == "violated"
    assert [each.limit for each in entry.violations] == ["numerics='fp64' (default)"]


def test_regions_train() -> None:
    entry = hold(lambda lane: lane.train(Pair().eval(), [(X,), (X,)], compile_with=regions(lane, in_place=True)))

    assert (entry.verdict, measured(entry).backward_graphs) == ("held", 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("inductor", "compile_with= is a function of the target, got 'str'"),
        (lambda _: None, "compile_with= returned 'NoneType': it returns what is to be called"),
    ],
    ids=["no function", "returns nothing"],
)
def test_what_cannot_compile_a_target_is_refused(given: Any, message: str) -> None:
    with lane_of() as lane, pytest.raises(UsageError) as caught:
        lane.run(nn.Linear(4, 4), (X,), compile_with=given)

    assert str(caught.value) == message
