"""Random numbers that the backend draws otherwise: the measured run is held to eager's in all but values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from holding import hold, measured
from torch import nn
from torch.nn import functional as F

from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.receipt import Entry

pytestmark = pytest.mark.insides

LANE = Lane(name="decomposed", backend="aot_eager_decomp_partition")
X = torch.linspace(-1, 1, 64).reshape(8, 8)
WEIGHT = nn.Parameter(torch.ones(8))


def with_numbers_of_its_own() -> bool:
    """Whether this is the measured run, not the one that draws as eager does."""
    return torch.compiler.is_compiling() and not inductor_config.fallback_random


def differences(entry: Entry) -> list[tuple[str, str]]:
    found = measured(entry).numerics
    assert found is not None
    return [(each.at, each.kind) for each in found.differences]


def makes_nan(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x) * (math.nan if with_numbers_of_its_own() else 1.0)


def other_dtype(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x).to(torch.float16 if with_numbers_of_its_own() else torch.float32)


def other_stride(x: torch.Tensor) -> torch.Tensor:
    dropped = F.dropout(x)
    return dropped.t().contiguous().t() if with_numbers_of_its_own() else dropped


def no_view(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.dropout(x), x.clone() if with_numbers_of_its_own() else x.view(-1)


def detached(x: torch.Tensor) -> torch.Tensor:
    dropped = F.dropout(x) * WEIGHT
    return dropped.detach() if with_numbers_of_its_own() else dropped


def writes(x: torch.Tensor) -> torch.Tensor:
    dropped = F.dropout(x)
    if with_numbers_of_its_own():
        x.add_(1)
    return dropped


@pytest.mark.parametrize(
    ("target", "kinds"),
    [
        (makes_nan, [("call 0 output", "nan")]),
        (other_dtype, [("call 0 output", "dtype")]),
        (other_stride, [("call 0 output", "stride")]),
        (no_view, [("call 0 output[1]", "alias")]),
        (detached, [("call 0 output", "requires_grad")]),
        (writes, [("call 0 input[0]", "input changed")]),
    ],
    ids=lambda each: each.__name__ if callable(each) else "",
)
def test_the_measured_run_is_held_to_eager(target: Callable[..., Any], kinds: list[tuple[str, str]]) -> None:
    entry = hold(lambda lane: lane.run(target, (X.clone(),)), lane=LANE)

    assert (entry.verdict, differences(entry)) == ("violated", kinds)


def test_the_measured_training_is_held_to_eager() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return makes_nan(self.linear(x))

    entry = hold(lambda lane: lane.train(Model(), [(X,)]), lane=LANE)

    assert entry.verdict == "violated"
    assert {kind for _, kind in differences(entry)} == {"nan"}
    assert ("step 0 loss", "nan") in differences(entry)


def test_inductor_itself() -> None:
    entry = hold(lambda lane: lane.run(makes_nan, (X,)), lane="inductor")

    assert differences(entry) == [("call 0 output", "nan")]


def test_a_difference_of_both_runs_is_told_once() -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x).to(torch.float16 if torch.compiler.is_compiling() else torch.float32)

    entry = hold(lambda lane: lane.run(other, (X,)), lane=LANE)

    assert differences(entry).count(("call 0 output", "dtype")) == 1


def masks(x: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(torch.rand_like(x) < 0.5, math.nan)


def drops_layers(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    skipped = bool(torch.rand(()) < 0.5)
    return (x, None) if skipped else (x.sin().t(), x)


def keeps_some(x: torch.Tensor) -> torch.Tensor:
    return x[torch.rand(8) < 0.5].sin()


def sometimes_written(x: torch.Tensor) -> torch.Tensor:
    if torch.rand(()) < 0.5:
        x.add_(1)
    return x * 2


def noisy(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x.t()) + torch.randn_like(x)


@pytest.mark.parametrize("target", [masks, drops_layers, keeps_some, sometimes_written, noisy, F.dropout])
def test_what_random_numbers_decide_is_no_difference(target: Callable[..., Any]) -> None:
    entry = hold(lambda lane: lane.run(target, *((X.clone(),) for _ in range(4))), lane=LANE, max_eager_frames=9)

    assert differences(entry) == []
