"""Tensors: their values, gradients and hooks."""

from __future__ import annotations

import torch

from pytest_compilecontract.errors import message_of
from pytest_compilecontract.wording import first_said

from .. import tensors
from ..probes.tensors import backward_hooks, version
from .reached import Reached


def _with_values(own: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Restore a gradient: the same tensor object, which may be a view of a user's buffer."""
    try:
        if not tensors.same(own, values):
            own.detach().copy_(values)
    except RuntimeError:  # of a kind that cannot be written to
        return values.clone()
    return own


def save_tensor(walk: Reached, tensor: torch.Tensor, name: str, *, depth: int, learned: bool = False) -> None:
    name = name or f"tensor {len(walk.tensors)}"
    walk.tensors[name if name not in walk.tensors else f"{name} ({len(walk.tensors)})"] = tensor
    own = tensor.grad if tensor.is_leaf else None
    grad = None if own is None else own.detach().clone()
    requires_grad = tensor.requires_grad
    try:
        found = tensors.Saved(tensor)
    except Exception as error:  # noqa: BLE001 - a subclass refuses in its own way
        # Whether it was written to is known even so.
        walk.pieces.leave_out(
            f"{name!r} (a {type(tensor).__name__} that cannot be saved: {first_said(message_of(error))})"
        )
        written = version(tensor)
        walk.pieces.keep(name, lambda: tensor, lambda now: version(now) == written, lambda: None, learned=learned)
        return
    saved = walk.pieces.wanted(found, lambda: saved.wanted if saved.wanted.is_in(tensor) else tensors.Saved(tensor))

    def put_back() -> None:
        try:
            saved.wanted.put_in(tensor)
        except Exception as error:  # noqa: BLE001 - as above
            walk.pieces.leave_out(f"{name!r} (cannot be restored: {first_said(message_of(error))})")
        if tensor.is_leaf:
            tensor.grad = None if own is None or grad is None else _with_values(own, grad)
        if tensor.is_leaf and tensor.requires_grad != requires_grad:
            tensor.requires_grad_(requires_grad)

    def is_as_saved(now: torch.Tensor) -> bool:
        return now.requires_grad == requires_grad and bool(saved.wanted.has_values_of(now))

    def has_same_grad(now: torch.Tensor | None) -> bool:
        return (now is None) == (grad is None) and (now is None or grad is None or tensors.same(now, grad))

    walk.pieces.keep(name, lambda: tensor, is_as_saved, put_back, learned=learned)
    if tensor.is_leaf:
        walk.pieces.keep(f"{name}.grad", lambda: tensor.grad, has_same_grad, lambda: None, gradient=True)
    for _, hooks in backward_hooks(tensor):
        for hook in hooks.values():
            walk.reach(hook, f"{name} hook", depth=depth + 1)
