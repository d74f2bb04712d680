"""Warm-up: which shapes are compiled, in how many steps, before anything is served; afterwards nothing may compile.

serve = torch.compile(model, dynamic=False, fullgraph=may_ask_for_fullgraph())
warm_up(serve, [(batch_of(rows),) for rows in SIZES])
with nothing_compiles():
    ...
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode


def warm_up(serve: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, steps: int = 2) -> None:
    """Make this many calls with each shape: the first compiles, the second is already steady.

    Raises:
        ValueError: no calls to warm up with, or no steps.
    """
    if not calls or steps < 1:
        raise ValueError(f"a warm-up is at least one step of one shape, got {steps} of {len(calls)}")
    for arguments in calls:
        for _ in range(steps):
            serve(*arguments)


@contextmanager
def nothing_compiles() -> Iterator[None]:
    """Inside, anything that would be compiled raises a RuntimeError, so that no request waits for it."""
    with torch.compiler.set_stance("fail_on_recompile"):
        yield


def may_ask_for_fullgraph() -> bool:
    """Whether `fullgraph=True` can be used here: not if compiling is disabled, nor in a dispatch mode.

    There nothing is compiled. Up to torch 2.12, `fullgraph=True` is silent about it; from 2.13 on it raises that it
    found no compiled frame: a server that always uses it does not start if compiling is disabled.
    """
    off = os.environ.get("TORCH_COMPILE_DISABLE") == "1" or torch._dynamo.config.disable
    return not off and _get_current_dispatch_mode() is None


class Padded(nn.Module):
    """Serves any number of rows up to the largest size with as many graphs as there are sizes.

    Rows (first dimension) are padded with zeros to the next size, and the output for the padding is cut off: the model
    must treat each row by itself. `serve` is compiled with `dynamic=False`: a graph for each size.
    """

    def __init__(self, serve: Callable[[Tensor], Tensor], sizes: Sequence[int]) -> None:
        super().__init__()
        self.serve = serve
        self.sizes = sorted(sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Rows in, as many rows out.

        Raises:
            ValueError: more rows than the largest size, or none.
        """
        rows = x.shape[0]
        if not 1 <= rows <= self.sizes[-1]:
            raise ValueError(f"1 to {self.sizes[-1]} rows were warmed up, got {rows}")
        size = self.sizes[bisect.bisect_left(self.sizes, rows)]
        padding = x.new_zeros(size - rows, *x.shape[1:])
        return self.serve(torch.cat([x, padding]))[:rows]
