"""Local views: code that needs the local memory of a distributed tensor, and works for plain tensors too."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def local_view(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, sharing its memory and gradient; a plain tensor is returned as it is.

    For a parameter it is a view of the values: writes to it under `torch.no_grad()` change the parameter.
    """
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_view(tensor: Tensor) -> Tensor:
    """The full tensor, gathered if it is distributed over ranks. A gathered tensor is a copy."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class Scaled(nn.Module):
    """A matrix product and a scale per channel, written by hand: (rows, width) in and out.

    The scale is code without DTensor support, like a custom kernel: it only gets local memory.
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
