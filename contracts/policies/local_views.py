"""Local views: code that needs plain memory of a distributed tensor asks for it, and gets the same of a plain one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def local_view(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, sharing its memory and its gradient; a plain tensor is its own.

    Of a parameter the view is of its values: what is written into it under `torch.no_grad()` is the parameter's.
    """
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_view(tensor: Tensor) -> Tensor:
    """All of a tensor, gathered from the ranks where it is spread over them. It is a copy where it was gathered."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class Scaled(nn.Module):
    """A product and a scale of each channel by hand: (rows, width) in and out.

    The scale is code that knows nothing of DTensor, as a kernel of one's own: it is given local memory alone.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(local_view(self.linear(x)))
        return y * local_view(self.scale)


@torch.no_grad()
def clip_(model: nn.Module, most: float) -> None:
    """Keep every parameter within `most`, shard by shard: nothing is gathered."""
    for each in model.parameters():
        local_view(each).clamp_(-most, most)
