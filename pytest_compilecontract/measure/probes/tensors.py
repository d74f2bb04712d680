"""Tensors as torch keeps them: what only private attributes tell of one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch


def version(tensor: torch.Tensor) -> int:
    """How often a tensor was written to; 0 for one of inference mode, which does not count."""
    # A subclass may refuse to be asked anything, as a lazy parameter that has no values yet.
    with torch._C.DisableTorchFunctionSubclass():
        return 0 if tensor.is_inference() else tensor._version


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that this is a view of."""
    return tensor._base


def backward_hooks(tensor: torch.Tensor) -> Iterator[tuple[str, dict[object, Callable[..., object]]]]:
    """The tables of the hooks on a tensor's gradient, of each kind that there is any of, by attribute."""
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if hooks := getattr(tensor, name, None):
            yield name, hooks


def coo_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices and values of a sparse COO tensor, coalesced or not."""
    return tensor._indices(), tensor._values()


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no values: one of a meta device, or of a trace."""
    fake: Any = importlib.import_module("torch._subclasses").FakeTensor
    return tensor.device.type == "meta" or isinstance(tensor, fake)


def waited(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a functional collective fills, once it has; any other as it is.

    Eager waits for it where it is used first, in a tensor of a class of its own until then, and a compiled graph before
    it returns (`_maybe_wrap_tensor` in torch/distributed/_functional_collectives.py).
    """
    kind = getattr(sys.modules.get("torch.distributed._functional_collectives"), "AsyncCollectiveTensor", None)
    wait = getattr(tensor, "trigger_wait", None) if kind is not None and isinstance(tensor, kind) else None
    made: torch.Tensor = wait() if wait is not None else tensor
    return made


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """The view of a tensor that has its sign bit set."""
    return torch._neg_view(tensor)


def viewed_again(tensor: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """The view that a tensor is, of another base."""
    made: torch.Tensor = tensor._view_func_unsafe(base)
    return made


def without_torch_function() -> AbstractContextManager[object]:
    """No `__torch_function__` of a subclass is called within."""
    left_out: AbstractContextManager[object] = torch._C.DisableTorchFunctionSubclass()
    return left_out
