"""Tensor subclasses: the tensors that one consists of, one that consists of others, and plain ones for autograd.

All that walks into a subclass does so here. A wrapper subclass names its parts, and says what else it is, by torch's
protocol: `__tensor_flatten__` and `__tensor_unflatten__`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..probes.tensors import waited, without_torch_function

_DEEPCOPIES = (torch.Tensor.__deepcopy__, torch.nn.Parameter.__deepcopy__)


class NotOpened(Exception):  # noqa: N818 - no error of anybody's: the reason why there is no gradient
    """A tensor that no plain tensor can be had from through which autograd goes to it."""


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor consists of others, and has no memory of its own."""
    return hasattr(type(tensor), "__tensor_flatten__")


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its memory: a plain one, or of a subclass that changes no operator, and not how it is copied.

    One that refuses to be asked, such as a parameter that is not initialized, copies itself.
    """
    kind: Any = type(tensor)
    if kind in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return True
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__ and kind.__deepcopy__ in _DEEPCOPIES


def parts_of_wrapper(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors that a wrapper consists of, by attribute."""
    found, _ = _flattened(tensor)
    return {name: each for name, each in found.items() if isinstance(each, torch.Tensor)}


def compared_parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The parts that are its content."""
    # A jagged tensor notes its longest part once somebody asked for it.
    return {name: each for name, each in parts_of_wrapper(tensor).items() if not name.endswith("seqlen_tensor")}


def metadata_of(tensor: torch.Tensor) -> object:
    """What a wrapper is besides its parts."""
    return _flattened(tensor)[1]


def rebuilt(tensor: torch.Tensor, of: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A wrapper that consists of what `of` gives for each part of this one."""
    found, metadata = _flattened(tensor)
    parts = {name: of(each) if isinstance(each, torch.Tensor) else each for name, each in found.items()}
    kind: Any = type(tensor)
    made: torch.Tensor = kind.__tensor_unflatten__(parts, metadata, tensor.size(), tensor.stride())
    return made


def _flattened(tensor: Any) -> tuple[dict[str, object], object]:
    names, metadata = tensor.__tensor_flatten__()
    return {name: getattr(tensor, name) for name in names}, metadata


def with_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor, and all that it consists of, as far as it tells."""
    yield tensor
    if is_wrapper(tensor):
        try:
            found = compared_parts(tensor)
        except Exception:  # noqa: BLE001 - a snapshot of it says what it refuses
            return
        for each in found.values():
            yield from with_parts(each)


def opened(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that have the elements of a tensor of any kind, through which autograd goes to it.

    Raises:
        NotOpened: there are none.
    """
    try:
        with without_torch_function():
            return [*_opened(tensor)]
    except (RuntimeError, NotImplementedError, TypeError, AttributeError, ValueError, AssertionError) as error:
        message = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise NotOpened(f"a gradient of a {type(tensor).__qualname__} cannot be made: {message}") from error


def _opened(tensor: Any) -> Iterator[torch.Tensor]:
    if tensor.is_nested:
        inner = [tensor.values()] if is_wrapper(tensor) else tensor.unbind()
        for each in inner:
            yield from _opened(each)
    elif _is_distributed(tensor):
        yield from _opened(tensor.to_local())
    elif is_wrapper(tensor):
        yield from _Opened.apply(tensor) if _is_of_its_parts(tensor) else (_without_wrapper(tensor),)  # type: ignore[no-untyped-call]
    elif type(tensor) is torch.Tensor or not is_plain(tensor):
        yield tensor
    else:
        yield tensor.as_subclass(torch.Tensor)


def _is_distributed(tensor: torch.Tensor) -> bool:
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def _is_of_its_parts(tensor: torch.Tensor) -> bool:
    """Whether a gradient may consist of the gradients of the parts: not where they are codes and scales."""
    dtypes = {each.dtype for each in _floats(tensor)}
    return dtypes == {tensor.dtype}


def _without_wrapper(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor * 1
    if type(plain) is not torch.Tensor:
        raise TypeError(f"it has parts in another dtype than {tensor.dtype}")
    return plain


def _floats(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The floating-point tensors at the bottom."""
    if is_wrapper(tensor):
        for each in parts_of_wrapper(tensor).values():
            yield from _floats(each)
    elif tensor.is_floating_point():
        yield tensor


class _Opened(torch.autograd.Function):
    """The floating-point parts of a wrapper; its gradient is one that consists of theirs."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        waited(tensor)
        ctx.like = tensor.detach()
        return tuple(each.detach() for each in _floats(tensor))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        given = iter(grads)

        def grad(part: torch.Tensor) -> torch.Tensor:
            if is_wrapper(part):
                return rebuilt(part, grad)
            return next(given) if part.is_floating_point() else part

        return rebuilt(ctx.like, grad)
