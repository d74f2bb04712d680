"""Conditional and sparse paths: data-dependent code with static shapes, or kept outside of the compiled region."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


class Experts(nn.Module):
    """A router over experts, each of which takes a limited number of tokens, so that every shape is static.

    Each token goes to its `top_k` most likely experts. An expert has `capacity(tokens)` places, given to first choices
    before second ones, and within a choice in the order of the tokens; a choice that finds its expert full is dropped,
    and adds nothing. An expert that no token chose multiplies zeros.
    """

    def __init__(self, width: int, *, experts: int, top_k: int, capacity_factor: float) -> None:
        """
        Raises:
            ValueError: there are fewer experts than `top_k`, or the capacity factor is not positive.
        """
        super().__init__()
        if not 1 <= top_k <= experts:
            raise ValueError(f"a token goes to 1 to {experts} of {experts} experts, not to {top_k}")
        if capacity_factor <= 0:
            raise ValueError(f"a capacity factor is more than 0, got {capacity_factor}")
        self.experts, self.top_k, self.capacity_factor = experts, top_k, capacity_factor
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / math.sqrt(2 * width))

    def capacity(self, tokens: int) -> int:
        """The number of tokens that an expert takes of this many; at least 1."""
        return max(1, math.ceil(self.capacity_factor * self.top_k * tokens / self.experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output (tokens, width), and the number of choices of each expert (experts,)."""
        tokens, width = x.shape
        places = self.capacity(tokens)
        weights, chosen = self.router(x).softmax(-1).topk(self.top_k)
        taken = nn.functional.one_hot(chosen, self.experts)
        # Before this one: every earlier choice of any token, then this choice of the tokens in front.
        in_order = taken.transpose(0, 1).reshape(-1, self.experts)
        before = (in_order.cumsum(0) - in_order).reshape(self.top_k, tokens, self.experts).transpose(0, 1)
        place = (before * taken).sum(-1)
        kept = place < places
        # One row more than there are places: what finds none is written there, and read back as zero.
        none = self.experts * places
        slot = torch.where(kept, chosen * places + place, none)
        rows = x.new_zeros(none + 1, width).index_add(0, slot.flatten(), x.repeat_interleave(self.top_k, 0))
        hidden = torch.relu(rows[:none].reshape(self.experts, places, width) @ self.up)
        found = nn.functional.pad((hidden @ self.down).reshape(none, width), (0, 0, 0, 1))
        return (found[slot] * (weights * kept).unsqueeze(-1)).sum(1), (taken * kept.unsqueeze(-1)).sum((0, 1))


class LoopedExperts(Experts):
    """The same as a loop over the experts with their own tokens, whose number depends on the data. Not to copy."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = self.router(x).softmax(-1).topk(self.top_k)
        out = torch.zeros_like(x)
        for index in range(self.experts):
            token, choice = torch.where(chosen == index)
            y = torch.relu(x[token] @ self.up[index]) @ self.down[index]
            out = out.index_add(0, token, y * weights[token, choice].unsqueeze(-1))
        return out, torch.bincount(chosen.flatten(), minlength=self.experts)


class Path(nn.Module):
    """A path of a model, in a class of its own: up to torch 2.13, `nn.Linear.compile()` compiles nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(self.linear(x))


class Either(nn.Module):
    """Two paths, chosen by a condition on the data, both in the graph: `torch.cond` runs one of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.calm, self.loud = Path(width), Path(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.abs().mean() > 1, self.loud, self.calm, (x,))


class Branching(Either):
    """The same with an `if` inside: Dynamo cannot know the condition, and breaks the graph. Not to copy."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        if x.abs().mean() > 1:
            return self.loud(x)
        return self.calm(x)


class Outside(Either):
    """The condition is evaluated outside: each path is a region of its own, with plain Python between them.

    Reading the condition is one visible host sync per step on a GPU. `compile_paths` compiles the paths.
    """

    def forward(self, x: Tensor) -> Tensor:
        return self.loud(x) if x.abs().mean().item() > 1 else self.calm(x)


def compile_paths(model: Outside, compile_path: Callable[[nn.Module], object]) -> Outside:
    """Compile each path in place, but not the condition."""
    compile_path(model.calm)
    compile_path(model.loud)
    return model
