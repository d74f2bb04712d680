"""Shape policies: how many lengths a model is compiled for, and who decides that."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class Tagger(nn.Module):
    """Scores each token of a sequence and the mean of the valid ones; `mask` is True for valid tokens."""

    def __init__(self, width: int = 16, tags: int = 3) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.out = nn.Linear(width, tags)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        weight = mask.unsqueeze(-1).to(x.dtype)
        mean = (x * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True)
        return self.out(torch.tanh(self.inner(x + mean)))


class Guarded(nn.Module):
    """A model whose code checks whether a length is even: each result is compiled separately, dynamic or not."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        if x.shape[1] % 2 == 0:
            return x[:, ::2]
        return x


def bucket_of(length: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that a length fits in.

    Raises:
        ValueError: the length is larger than every bucket, or there is nothing to pad.
    """
    if length < 1:
        raise ValueError(f"a sequence of length {length} has nothing to pad")
    fitting = [bucket for bucket in sorted(buckets) if bucket >= length]
    if not fitting:
        raise ValueError(f"a sequence of length {length} fits in no bucket (the largest is {max(buckets)})")
    return fitting[0]


class Bucketed(nn.Module):
    """Pads each batch up to a bucket, masks the padding, and cuts it off the result.

    Only as many lengths as there are buckets reach the model, so there are only as many graphs. `model` takes
    (batch, length, width) and a mask of (batch, length).
    """

    def __init__(self, model: nn.Module, buckets: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        self.buckets = tuple(buckets)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        padding = bucket_of(length, self.buckets) - length
        mask = torch.ones(batch, length, dtype=torch.bool, device=x.device)
        padded = nn.functional.pad(x, (0, 0, 0, padding))
        return self.model(padded, nn.functional.pad(mask, (0, padding)))[:, :length]


def marked(x: Tensor, dim: int, *, low: int, high: int) -> Tensor:
    """A tensor whose size in `dim` is dynamic from the first call on, between two bounds."""
    torch._dynamo.mark_dynamic(x, dim, min=low, max=high)
    return x


def compile_inner(bucketed: Bucketed, compile_model: Callable[[nn.Module], object]) -> Bucketed:
    """Compile the inner model: the padding around it depends on the length, and is not part of the region."""
    compile_model(bucketed.model)
    return bucketed
