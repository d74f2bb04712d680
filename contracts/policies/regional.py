"""Regional compile: compile the repeated block, not the model around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A residual layer. `scale` and `layer_idx` distinguish the layers of a stack."""

    def __init__(self, width: int, *, scale: int = 1, layer_idx: int | None = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)
        self.scale = scale
        self.layer_idx = layer_idx

    def forward(self, x: Tensor) -> Tensor:
        y = torch.nn.functional.gelu(self.linear(self.norm(x)))
        if self.layer_idx is not None:
            y = y * (1.0 + self.layer_idx)
        return x + self.scale * y


class ScaledBlock(Block):
    """The fix: what differs between the blocks is a buffer, which is data to compiled code and not a constant."""

    depth: Tensor

    def __init__(self, width: int, *, layer_idx: int) -> None:
        super().__init__(width)
        self.register_buffer("depth", torch.tensor(1.0 + layer_idx), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.depth * torch.nn.functional.gelu(self.linear(self.norm(x)))


class Stack(nn.Module):
    """A stem, blocks one after the other, and a head."""

    def __init__(self, blocks: list[Block], width: int) -> None:
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def compile_regions(model: nn.Module, region: type[nn.Module], compile_region: Callable[..., Any]) -> nn.Module:
    """Compile each `region` of a model in place, and nothing around them: the model stays the same object.

    Raises:
        ValueError: the model has no such region, so nothing would be compiled.
    """
    found = [each for each in model.modules() if isinstance(each, region)]
    if not found:
        raise ValueError(f"{type(model).__name__} has no {region.__name__} to compile")
    for each in found:
        compile_region(each)
    return model
