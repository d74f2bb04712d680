"""The optimizer as a region of its own: values that change are tensors, and the state that a step writes exists before.

    optimizer = torch.optim.AdamW(decay_groups(model, weight_decay=0.1), lr=torch.tensor(1e-3))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)   # outside: it only fills the tensor
    step = torch.compile(step_of(optimizer, max_norm=1.0))

A learning rate that is a Python float is a constant of the compiled code; so is the set of parameters with a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


def decay_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups of parameters: matrices decay; vectors (biases, the scales of norms) do not.

    Parameters that require no gradient are left out: freeze first what stays frozen.
    """
    trained = [each for each in model.parameters() if each.requires_grad]
    return [
        {"params": [each for each in trained if each.dim() >= 2], "weight_decay": weight_decay},
        {"params": [each for each in trained if each.dim() < 2], "weight_decay": 0.0},
    ]


def step_of(optimizer: torch.optim.Optimizer, *, max_norm: float | None = None) -> Callable[[], Tensor | None]:
    """The function to compile: clip, then step. Returns the norm before clipping, a tensor: reading it is a host sync.

    A function around `step`, because a scheduler replaces `optimizer.step` by a wrapper.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"]]

    def step() -> Tensor | None:
        norm = None if max_norm is None else nn.utils.clip_grad_norm_(parameters, max_norm)
        optimizer.step()
        return norm

    return step


def freeze(parameter: nn.Parameter, *, frozen: bool) -> None:
    """Freeze or unfreeze a parameter between two steps.

    With a leftover gradient, even of zeros, the optimizer would make a step: the weight and its moments would decay.
    """
    parameter.requires_grad_(not frozen)
    if frozen:
        parameter.grad = None


def make_momentum(optimizer: torch.optim.SGD) -> torch.optim.SGD:
    """Create SGD's momentum before the first step, as zeros, which does not change the result of that step.

    Otherwise the first step creates it, and the second finds other state than the first was compiled for.

    Raises:
        ValueError: with dampening, the first step differs from one that starts with zeros.
    """
    for group in optimizer.param_groups:
        if group["dampening"]:
            raise ValueError(f"dampening={group['dampening']!r} makes a first step that zeros do not give")
        if group["momentum"]:
            for each in group["params"]:
                optimizer.state[each].setdefault("momentum_buffer", torch.zeros_like(each))
    return optimizer


def load_in_place(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load a state dict into the tensors that compiled code knows, the learning rates among them.

    `optimizer.load_state_dict` replaces the tensors by others, for which the step was not compiled. Values that are not
    tensors, or do not exist yet, are set.

    Raises:
        ValueError: the state has another number of groups or parameters.
    """
    now = optimizer.state_dict()
    shapes = [[len(group["params"]) for group in each["param_groups"]] for each in (now, saved)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"the optimizer has groups of {shapes[0]} parameters, the saved state of {shapes[1]}")
    for group, values in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        _fill(group, {name: value for name, value in values.items() if name != "params"})
        for parameter, index in zip(group["params"], values["params"], strict=True):
            _fill(optimizer.state[parameter], saved["state"].get(index, {}))


@torch.no_grad()
def _fill(into: dict[str, Any], values: dict[str, Any]) -> None:
    for name in set(into) - set(values) - {"params"}:
        del into[name]
    for name, value in values.items():
        held = into.get(name)
        if isinstance(held, Tensor):
            held.copy_(torch.as_tensor(value))
        else:
            into[name] = value.clone() if isinstance(value, Tensor) else value


def orthogonal(matrix: Tensor, *, iterations: int = 5) -> Tensor:
    """Approximately the closest orthogonal matrix (rows, columns): Newton-Schulz iterations with Muon's factors."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(iterations):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Orthogonalized momentum for matrices: K. Jordan's Muon, written to be compiled.

    `lr` is a 0-dimensional tensor. The momentum is created with the optimizer, so that all steps are alike.

    Raises:
        ValueError: a parameter is not a matrix, or `lr` is not a tensor.
    """

    def __init__(self, params: Iterable[Any], *, lr: Tensor, momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        if not isinstance(lr, Tensor):
            raise ValueError(f"lr is a tensor, got {lr!r}: a number is compiled again when it moves")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            for each in group["params"]:
                if each.dim() != 2:
                    raise ValueError(f"Muon is for matrices, got a parameter of shape {list(each.shape)}")
                self.state[each]["momentum_buffer"] = torch.zeros_like(each)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step over every parameter that has a gradient."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for each in group["params"]:
                if each.grad is None:
                    continue
                buffer = self.state[each]["momentum_buffer"]
                buffer.lerp_(each.grad, 1 - momentum)
                update = orthogonal(each.grad.lerp(buffer, momentum))
                # Products with the tensor: `alpha=lr` would read it on the host.
                each.mul_(1 - lr * group["weight_decay"])
                each.sub_(update * lr * max(1, each.shape[0] / each.shape[1]) ** 0.5)
