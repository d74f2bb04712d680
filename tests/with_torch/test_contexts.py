"""Context variables that a run sets for the first time: no later run has their values, nor has the test."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from holding import hold, kept_limits, measured
from torch import nn

from pytest_compilecontract.measure.compile_lane import CompileLane

pytestmark = pytest.mark.torch

SEEN: ContextVar[int] = ContextVar("SEEN")
X = torch.linspace(-1, 1, 8)


class Notes(nn.Module):
    """Adds how often it was called; in compiled code a call counts `wrong` times."""

    def __init__(self, wrong: int) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        number = self.wrong if torch.compiler.is_compiling() else 1
        seen = SEEN.get(0)
        SEEN.set(seen + number)
        return x + seen


def running(wrong: int) -> Callable[[CompileLane], Any]:
    return lambda lane: lane.run(Notes(wrong), (X,), (X,))


def test_a_variable_without_a_value_has_none_in_each_run() -> None:
    entry = hold(running(1), lane="capture")

    assert kept_limits(entry) == ("held", {})
    assert SEEN.get(None) is None


def test_what_compiled_gives_it_otherwise_is_a_difference() -> None:
    numerics = measured(hold(running(5), lane="capture")).numerics

    assert numerics is not None
    assert [each.at for each in numerics.differences if each.at.startswith("afterwards['SEEN")]
    assert SEEN.get(None) is None
