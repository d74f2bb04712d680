"""Recurrent blocks: the state enters and leaves the region as a value, and counting calls stays outside.

    carried = Carried(torch.compile(model), model.start(batch))
    for chunk in text:                       # (batch, length, channels)
        loss(carried(chunk)).backward()      # ends where the chunk began

A state that compiled code writes in place, and that its backward reads, silently gives wrong gradients (torch 2.11 to
2.15, pytorch/pytorch#197039): the backward reads it after the write. Without a backward it is correct.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Scan(torch.autograd.Function):
    """The states of state(t) = decay * state(t-1) + taken(t), with a custom backward that only saves the states.

    decay (channels), taken (batch, length, channels), start (batch, channels); returns (batch, length, channels).
    """

    @staticmethod
    def forward(decay: Tensor, taken: Tensor, start: Tensor) -> Tensor:
        states, state = [], start
        for time in range(taken.shape[1]):
            state = decay * state + taken[:, time]
            states.append(state)
        return torch.stack(states, dim=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        decay, _, start = inputs
        ctx.save_for_backward(decay, start, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        decay, start, states = ctx.saved_tensors
        later = torch.zeros_like(start)
        taken = []
        for time in range(gradient.shape[1] - 1, -1, -1):
            later = gradient[:, time] + decay * later
            taken.append(later)
        of_taken = torch.stack(taken[::-1], dim=1)
        before = torch.cat([start.unsqueeze(1), states[:, :-1]], dim=1)
        return (of_taken * before).sum((0, 1)), of_taken, decay * later


class Recurrent(nn.Module):
    """A layer around a scan that takes and returns the state (batch, channels): forward(x, state) -> (y, state)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(-1.0, 1.0, channels))
        self.enter = nn.Linear(channels, channels)
        self.leave = nn.Linear(channels, channels)

    def start(self, batch: int) -> Tensor:
        """The state before the first chunk."""
        return self.decay.new_zeros(batch, len(self.decay))

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        states = Scan.apply(torch.sigmoid(self.decay), self.enter(x), state)
        # Not a view: that has other strides than the first state, so a graph of its own, and keeps all states alive.
        return self.leave(torch.tanh(states)), states[:, -1].clone(memory_format=torch.contiguous_format)


class Carried:
    """A recurrent model that carries its state from call to call; `calls` counts them, outside of compiled code.

    With `attached`, a backward continues through that many calls: the state is detached once in `attached` calls. It
    then also requires a gradient in the first of them, so that compiled code gets the same input in each.
    """

    def __init__(self, run: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], start: Tensor, *, attached: int = 1):
        self.run = run
        self.state = start
        self.attached = attached
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        if self.calls % self.attached == 0:
            self.state = self.state.detach()
            if self.attached > 1:
                self.state.requires_grad_()
        self.calls += 1
        y, self.state = self.run(x, self.state)
        return y


class Streaming(nn.Module):
    """A recurrent model that keeps its state in a buffer and writes it in place, for calls without gradients."""

    state: Tensor

    def __init__(self, model: Recurrent, batch: int) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("state", model.start(batch), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y, state = self.model(x, self.state)
        self.state.copy_(state)
        return y
