"""Tensors: what only private attributes of a tensor tell."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch


def version(tensor: torch.Tensor) -> int:
    """How often a tensor was written to; 0 for an inference tensor, which does not count."""
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


def storage_of(tensor: torch.Tensor) -> int:
    """The identity of a tensor's storage.

    Raises:
        NotImplementedError, RuntimeError: a tensor of this kind has no storage.
    """
    return int(tensor.untyped_storage()._cdata)


def coo_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices and values of a sparse COO tensor, coalesced or not."""
    return tensor._indices(), tensor._values()


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no values: on the meta device, or a FakeTensor."""
    fake: Any = importlib.import_module("torch._subclasses").FakeTensor
    return tensor.device.type == "meta" or isinstance(tensor, fake)


def waited(tensor: torch.Tensor) -> torch.Tensor:
    """Wait for a functional collective, and return the tensor that it filled; any other tensor as it is.

    Eager wraps it in a tensor subclass that waits at the first use; a compiled graph waits before it returns
    (`_maybe_wrap_tensor` in torch/distributed/_functional_collectives.py).
    """
    kind = getattr(sys.modules.get("torch.distributed._functional_collectives"), "AsyncCollectiveTensor", None)
    wait = getattr(tensor, "trigger_wait", None) if kind is not None and isinstance(tensor, kind) else None
    made: torch.Tensor = wait() if wait is not None else tensor
    return made


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a tensor with the negative bit set."""
    return torch._neg_view(tensor)


def viewed_again(tensor: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """The same view of another base."""
    made: torch.Tensor = tensor._view_func_unsafe(base)
    return made


def without_torch_function() -> AbstractContextManager[object]:
    """A context in which no `__torch_function__` of a subclass is called."""
    left_out: AbstractContextManager[object] = torch._C.DisableTorchFunctionSubclass()
    return left_out
