"""Faults to plant: what the tests put in the place of what compiling does right."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import register_backend

from pytest_compilecontract.facts.lanes import Lane

_numbers = itertools.count()


def by(wrong: int) -> int:
    """1 in eager, `wrong` in compiled code."""
    return wrong if torch.compiler.is_compiling() else 1


def spoiled(*wrong: Callable[[torch.Tensor], torch.Tensor]) -> Lane:
    """A lane whose backend runs the graph, and does `wrong` to copies of its first output, its second, ..."""
    name = f"spoils_{next(_numbers)}"

    def backend(graph: Any, _inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            out = graph(*args)
            changed = [change(each.clone()) for change, each in zip(wrong, out, strict=False)]
            return (*changed, *out[len(changed) :])

        return run

    register_backend(backend, name=name)
    return Lane(name=name, backend=name)


class Doubled(torch.autograd.Function):
    """The identity, whose gradient is twice what it should be."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return 2 * grad
