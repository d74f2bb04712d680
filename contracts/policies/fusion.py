"""Fusion and memory: counts the kernels that run and the bytes that are allocated, to check what fusion promises.

It counts what a call ran and not what was generated: the numbers are the same whether the code was compiled now or
comes from a cache, and include libraries. For the CPU; on a GPU, torch's profiler lists the kernels themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.profiler import profile

# For `torch.compile(options=...)`: each C++ kernel of Inductor's marks itself in a profile, `graph_0_cpp_fused_add_1`.
MARKED = {"cpp.enable_kernel_profile": True}
_KERNEL = re.compile(r"^(?:graph_\d+_)?(cpp_\w+)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What one call ran on the CPU, in order: Inductor's kernels and torch's operators; and the bytes it allocated."""

    kernels: tuple[str, ...]
    operators: tuple[str, ...]
    allocated_bytes: int


def ran(step: Callable[[], object]) -> Ran:
    """Run one step under torch's profiler. Call it once before: the first call compiles."""
    with profile(profile_memory=True) as taken:
        step()
    events = taken.events() or []
    return Ran(
        kernels=tuple(found[1] for each in events if (found := _KERNEL.match(each.name))),
        # An operator that another one called is part of that one.
        operators=tuple(each.name for each in events if _is_operator(each) and not _is_operator(each.cpu_parent)),
        allocated_bytes=sum(max(each.self_cpu_memory_usage, 0) for each in events if each.name != "[memory]"),
    )


def _is_operator(event: object) -> bool:
    return getattr(event, "name", "").startswith("aten::")


def gated(x: Tensor, y: Tensor) -> Tensor:
    """A pointwise chain: six operators, with five intermediate tensors that should not be materialized."""
    return torch.sigmoid(torch.relu(x + y) * y - 0.5) * x


def energy(x: Tensor, y: Tensor) -> Tensor:
    """A reduction with the operators before it: (rows, width) to (rows,)."""
    return ((x - y) * (x - y)).sum(-1)


def normalised(x: Tensor, y: Tensor) -> Tensor:
    """A residual and its layer normalization over the last dimension."""
    return nn.functional.layer_norm(x + y, x.shape[-1:])


class Projected(nn.Module):
    """A matrix product, and an epilogue of bias, activation and scale. `x` is (rows, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) * 2
