"""Eager's noise runs that are kept from one planted fault to the next: used for the same program, and no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from holding import hold, measured
from planting import spoiled

from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.measure import noise_runs
from pytest_compilecontract.measure.noise_runs import FEW, Kept, keeping
from pytest_compilecontract.measure.numerics import Run, Snapshot, same_run, snapshot
from pytest_compilecontract.measure.passes import Passes
from pytest_compilecontract.measure.probes.rounding import Choices
from pytest_compilecontract.measure.probes.source import Paths

pytestmark = pytest.mark.torch

X = torch.linspace(-1, 1, 64).reshape(8, 8)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One item for each noise run that is made."""
    found: list[object] = []
    real = Passes.rounded

    def rounded(self: Passes, *given: Any) -> Any:
        found.append(None)
        return real(self, *given)

    monkeypatch.setattr(Passes, "rounded", rounded)
    return found


def wrong_by(factor: float) -> Callable[..., Any]:
    return spoiled(lambda out: out * factor)


def held(target: Callable[[torch.Tensor], torch.Tensor], factor: float = 2.0) -> Entry:
    return hold(lambda lane: lane.run(target, (X,)), lane=wrong_by(factor))


def softmax(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 3).softmax(-1)


def test_the_next_run_of_a_program_makes_one_and_is_judged_alike(made: list[object]) -> None:
    alone = held(softmax, 3.0)
    without = len(made)

    with keeping(Kept()):
        held(softmax)
        made.clear()
        again = held(softmax, 3.0)

    assert without >= FEW
    assert len(made) == 1
    assert measured(again).numerics == measured(alone).numerics
    assert (again.verdict, again.violations) == (alone.verdict, alone.violations)


def test_what_needs_more_runs_makes_those_that_are_not_there(made: list[object]) -> None:
    alone = held(softmax, 1.001)
    all_made = len(made)

    with keeping(Kept()):
        held(softmax)
        few = len(made) - all_made
        made.clear()
        again = held(softmax, 1.001)

    assert few < all_made
    assert len(made) == 1 + all_made - few
    assert measured(again).numerics == measured(alone).numerics


def test_another_program_of_the_same_numbers_has_noise_of_its_own(made: list[object]) -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        (x.cos() + 1).sum()
        return softmax(x)

    assert torch.equal(other(X), softmax(X))
    with keeping(Kept()):
        held(softmax)
        made.clear()
        held(other)

    assert len(made) >= FEW


def test_nothing_is_kept_where_nobody_asks_for_it(made: list[object]) -> None:
    with keeping(Kept()):
        held(softmax)
    made.clear()

    held(softmax)

    assert len(made) >= FEW


def test_what_is_too_much_to_keep_is_made_each_time(made: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_runs, "MOST_KEPT", X.numel())

    with keeping(Kept()):
        held(softmax)
        made.clear()
        held(softmax)

    assert len(made) >= FEW


# The same to the bit


def a_run(output: object, given: object = 0.0, **parts: Any) -> Run:
    groups = {"output": snapshot(output, at="call 0 output")}
    return Run(groups=groups, before=snapshot(given, at="call 0 input"), **parts)


NAN = float("nan")
VALUES: dict[str, object] = {
    "a number": torch.tensor([1.0, NAN, -0.0]),
    "a scalar": 1.5,
    "in a list": [torch.ones(2), "text", NAN],
    "none": None,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_the_same_values_are_the_same_run(value: object) -> None:
    copy = value.clone() if isinstance(value, torch.Tensor) else value

    assert same_run(a_run(value, value), a_run(copy, copy))


OTHERS: dict[str, tuple[Run, Run]] = {
    "one bit": (a_run(torch.tensor(1.0)), a_run(torch.tensor(1.0).nextafter(torch.tensor(2.0)))),
    "the sign of zero": (a_run(torch.zeros(1)), a_run(-torch.zeros(1))),
    "the sign of zero, of a scalar": (a_run(0.0), a_run(-0.0)),
    "dtype": (a_run(torch.ones(1)), a_run(torch.ones(1, dtype=torch.float64))),
    "shape": (a_run(torch.ones(2, 1)), a_run(torch.ones(1, 2))),
    "stride": (a_run(torch.zeros(2, 3)), a_run(torch.zeros(3, 2).t())),
    "requires_grad": (a_run(torch.ones(1)), a_run(torch.ones(1).requires_grad_())),
    "kind": (a_run(1), a_run(1.0)),
    "a part more": (a_run([1.0]), a_run([1.0, 2.0])),
    "what it was given": (a_run(1.0, torch.ones(1)), a_run(1.0, torch.zeros(1))),
    "aliases": (a_run(1.0), a_run(1.0, aliases=frozenset({("a", "b")}))),
    "facts": (a_run(1.0), a_run(1.0, facts={("random numbers", "cpu"): "drawn"})),
    "a group more": (a_run(1.0), Run(groups={**a_run(1.0).groups, "grad": Snapshot()}, before=a_run(1.0).before)),
}


@pytest.mark.parametrize("pair", OTHERS.values(), ids=OTHERS.keys())
def test_what_differs_at_all_is_another_run(pair: tuple[Run, Run]) -> None:
    one, other = pair

    assert not same_run(one, other)
    assert not same_run(other, one)


def test_another_eager_run_or_first_noise_run_is_another_program() -> None:
    kept = Kept()
    choices = Choices(Paths(Path(__file__).parent))
    known = kept.of(a_run(torch.ones(1)), a_run(torch.zeros(1)), choices)

    assert kept.of(a_run(torch.ones(1)), a_run(torch.zeros(1)), choices) is known
    assert kept.of(a_run(torch.ones(1)), a_run(torch.ones(1)), choices) is not known
    assert kept.of(a_run(torch.zeros(1)), a_run(torch.zeros(1)), choices) is not known
