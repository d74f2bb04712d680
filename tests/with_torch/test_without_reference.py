"""Where compiled has eager's bits everywhere, no float64 run is made; anywhere else one is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from holding import hold, lane_of, measured, results_of
from planting import spoiled
from torch import nn

from pytest_compilecontract.lane import CompileLane
from pytest_compilecontract.measure.beside import Lanes
from pytest_compilecontract.measure.passes import Passes

pytestmark = pytest.mark.torch

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def proved() -> None:
    """Not here: what is counted are the float64 runs."""


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The float64 runs that are made."""
    return results_of(monkeypatch, Passes, "reference")


def run(compile_lane: CompileLane) -> None:
    compile_lane.run(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), (X,), (X + 1,))


def train(compile_lane: CompileLane) -> None:
    compile_lane.train(nn.Linear(4, 4), [(X,), (X + 1,)], optimizer=lambda of: torch.optim.AdamW(of, lr=0.1))


@pytest.mark.parametrize("body", [run, train])
def test_with_the_same_bits_none_is_made(body: Callable[[CompileLane], None], wide: list[Any]) -> None:
    entry = hold(body, lane="capture")

    numerics = measured(entry).numerics
    assert entry.verdict == "held"
    assert numerics is not None
    assert (numerics.method, numerics.note, numerics.worst_error) == ("bitwise", "", 0.0)
    assert numerics.compared
    assert not wide


@pytest.mark.parametrize(
    ("spoil", "verdict"),
    [
        (lambda out: out.nextafter(torch.full_like(out, 9.0)), "held"),
        (lambda out: out * 1.01, "violated"),
        (lambda out: out.double(), "violated"),
        (lambda out: out.masked_fill(out == out.max(), torch.nan), "violated"),
    ],
    ids=["a neighbor", "a factor", "another dtype", "NaN"],
)
def test_with_any_other_bit_one_is_made(spoil: Any, verdict: str, wide: list[Any]) -> None:
    entry = hold(run, lane=spoiled(spoil))

    assert entry.verdict == verdict
    assert len(wide) == 1


def test_the_other_sign_of_a_zero_is_another_bit(wide: list[Any]) -> None:
    hold(lambda lane: lane.run(lambda x: (x - x).abs(), (X,)), lane=spoiled(torch.neg))

    assert len(wide) == 1


def test_a_bit_that_differs_in_a_later_call_is_enough(wide: list[Any]) -> None:
    calls = [0]

    def late(out: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return out.nextafter(torch.full_like(out, 9.0)) if calls[0] == 2 else out

    assert hold(run, lane=spoiled(late)).verdict == "held"
    assert len(wide) == 1


def test_eager_that_differs_from_itself_is_judged_by_one(wide: list[Any]) -> None:
    state = iter(range(9))

    class Counts:
        """Not a function, so that the passes do not put it back."""

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x + next(state)

    hold(lambda lane: lane.run(Counts(), (X,)), lane="capture", max_graph_breaks=9, max_eager_frames=9)

    assert len(wide) == 1


def test_numbers_outside_of_tensors_are_judged_by_one(wide: list[Any]) -> None:
    hold(lambda lane: lane.run(lambda x: (x.sin(), 0.5), (X,)), lane="capture")

    assert len(wide) == 1


def test_what_another_lane_is_compared_with_is_judged_by_one(wide: list[Any]) -> None:
    """Each may agree with eager, and not with the other."""
    with lane_of("capture") as compile_lane:
        compile_lane.beside = Lanes(keeps=True)
        run(compile_lane)

    assert len(wide) == 1
