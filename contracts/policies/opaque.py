"""Opaque functions: four ways to hide one fragile function from the compiler, and what each costs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn


def smooth(x: Tensor) -> Tensor:
    """The fragile function: it goes through numpy, without a gradient."""
    smoothed = np.convolve(x.detach().cpu().double().numpy().ravel(), np.full(3, 1 / 3), "same")
    return torch.from_numpy(smoothed).reshape(x.shape).to(x)


smooth_op = torch.library.custom_op(
    "compilecontract_policies::smooth", smooth, mutates_args=(), schema="(Tensor x) -> Tensor"
)
smooth_op.register_fake(torch.empty_like)

smooth_disabled = torch.compiler.disable(smooth)


@torch.compiler.allow_in_graph
def smooth_allowed(x: Tensor) -> Tensor:
    """One call in the graph that Dynamo does not trace into; AOTAutograd does, with fake tensors."""
    return torch.nn.functional.avg_pool1d(x.reshape(1, 1, -1), 3, stride=1, padding=1).reshape(x.shape)


@torch._dynamo.nonstrict_trace
def smooth_nonstrict(x: Tensor) -> Tensor:
    """Traced by AOTAutograd without Dynamo: Python that Dynamo cannot follow, over torch operations."""
    kernel = x.new_full((1, 1, 3), 1 / 3)
    return torch.nn.functional.conv1d(x.reshape(1, 1, -1), kernel, padding=1).reshape(x.shape)


class Around(nn.Module):
    """A block with the fragile function in its middle."""

    def __init__(self, middle: Callable[[Tensor], Tensor], width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.middle = middle

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.second(x + self.middle(x))
