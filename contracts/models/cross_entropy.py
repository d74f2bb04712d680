"""The last layer and its loss as one: cross-entropy in chunks, so that the logits never exist all at once."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LinearCrossEntropy(torch.autograd.Function):
    """The mean cross-entropy of `hidden @ weight.T` against `target`; the forward makes the gradients too.

    hidden (tokens, width), weight (classes, width), target (tokens,) of class numbers.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, chunks: int) -> Tensor:
        loss = hidden.new_zeros(())
        hidden_grads = []
        weight_grad = torch.zeros_like(weight)
        for part, wanted in zip(hidden.chunk(chunks), target.chunk(chunks), strict=True):
            logits = part @ weight.t()
            loss = loss + F.cross_entropy(logits, wanted, reduction="sum")
            slope = (logits.softmax(-1) - F.one_hot(wanted, weight.shape[0]).to(logits.dtype)) / target.numel()
            hidden_grads.append(slope @ weight)
            weight_grad = weight_grad + slope.t() @ part
        ctx.save_for_backward(torch.cat(hidden_grads), weight_grad)
        return loss / target.numel()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden_grad, weight_grad = ctx.saved_tensors
        return grads[0] * hidden_grad, grads[0] * weight_grad, None, None


class Head(nn.Module):
    """A language model's head that gives the loss, not the logits."""

    def __init__(self, width: int = 32, classes: int = 50, chunks: int = 4) -> None:
        super().__init__()
        self.chunks = chunks
        self.norm = nn.LayerNorm(width)
        self.weight = nn.Parameter(torch.randn(classes, width) / width**0.5)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return LinearCrossEntropy.apply(self.norm(hidden), self.weight, target, self.chunks)
