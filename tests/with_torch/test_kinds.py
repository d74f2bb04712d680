"""Kinds of faults, planted in programs that compile right: each is seen, and its healthy twin is held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from holding import hold, kept_limits, measured

from pytest_compilecontract.lane import CompileLane
from pytest_compilecontract.receipt import Entry

HELD: tuple[str, dict[str, int | str]] = ("held", {})
X = torch.linspace(-1, 1, 32).reshape(4, 8)
compiling = torch.compiler.is_compiling


def running(target: Any, *calls: tuple[Any, ...]) -> Callable[[CompileLane], Any]:
    return lambda lane: lane.run(target, *calls)


def differences(entry: Entry) -> list[str]:
    """The kinds of differences, with where they are."""
    found = measured(entry).numerics
    return [] if found is None else [f"{each.at}: {each.kind}" for each in found.differences]


# ---------------------------------------------------------------------------------------------------------------------
# Arguments are what the test gave


def adds_to_the_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.sum() + y.sum()


def whole() -> torch.Tensor:
    return torch.arange(12.0)


ARGUMENTS: list[Any] = [
    pytest.param(lambda: ((base := whole())[:8], base[4:]), id="overlapping"),
    pytest.param(lambda: (base := whole(), base[2:]), id="base-first"),
    pytest.param(lambda: ((base := whole())[2:], base), id="base-last"),
    pytest.param(lambda: ((base := whole()).view(3, 4), base.view(3, 4)), id="same-view"),
    pytest.param(lambda: ((base := whole().requires_grad_() * 1)[:8], base[4:]), id="in-a-graph"),
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("lane", ["aot", "dynamic"])
def test_views_of_one_base_are_given_as_views(arguments: Callable[[], Any], lane: str) -> None:
    entry = hold(running(adds_to_the_first, arguments()), lane=lane)

    assert kept_limits(entry) == HELD


def test_a_size_that_the_test_marked_dynamic_is_dynamic() -> None:
    marked = torch.ones(5, 8)
    torch._dynamo.mark_dynamic(marked, 0)

    entry = hold(running(torch.sin, (marked,), (torch.ones(7, 8),)), max_recompiles=0)

    assert kept_limits(entry) == HELD


class Doubled(torch.autograd.Function):
    """The identity, whose gradient is twice what it should be."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return 2 * grad


def doubles_gradients(x: torch.Tensor) -> torch.Tensor:
    return Doubled.apply(x) if compiling() else x.view_as(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", [lambda: whole().requires_grad_()[2:], lambda: whole().requires_grad_() * 2])
def test_gradients_of_arguments_that_are_no_leaves(make: Callable[[], torch.Tensor]) -> None:
    healthy = hold(running(torch.sin, (make(),)), lane="capture", check_grads=True)
    planted = hold(running(doubles_gradients, (make(),)), lane="capture", check_grads=True)

    assert kept_limits(healthy) == HELD
    assert differences(planted) == ["call 0 grad['input tensor 0']: value"]
