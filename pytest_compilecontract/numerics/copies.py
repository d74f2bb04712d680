"""Copies of the arguments of a call, one for each run, as they are or in float64."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, TypeVar

import torch

from .snapshot import DEPTH, is_numpy, is_scalar, parts_of

T = TypeVar("T")


def copied(value: T) -> T:
    """A deep copy for one run: strides, offsets, `requires_grad` and shared memory stay; nothing has a graph.

    A tensor in the middle of a graph becomes a leaf. What cannot be copied is shared.
    """
    return _deep(value, _Tensors(double=False))


def to_float64(value: T) -> T:
    """`copied`, with floating tensors in float64 and complex ones in complex128, in modules and objects too."""
    return _deep(value, _Tensors(double=True))


class _Tensors:
    """Copies of tensors that share their storages as the tensors do."""

    def __init__(self, *, double: bool) -> None:
        self.double = double
        self.memo: dict[int, Any] = {}
        self._storages: dict[tuple[int, torch.dtype | None], torch.Tensor | torch.UntypedStorage] = {}

    def copy(self, tensor: torch.Tensor) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            new = self._copy(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            new = torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
        elif new.is_floating_point() or new.is_complex():
            new.requires_grad_(tensor.requires_grad)
        self.memo[id(tensor)] = new
        if tensor.is_leaf and tensor.grad is not None:
            self.copy(tensor.grad)
            new.grad = self.memo[id(tensor.grad)]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = self._dtype(tensor.dtype)
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            return tensor.detach().to(dtype, copy=True)
        storage = tensor.untyped_storage()
        if dtype == tensor.dtype:
            new = self._storages.get((storage.data_ptr(), None))
            if new is None:
                new = self._storages[storage.data_ptr(), None] = storage.clone()  # type: ignore[no-untyped-call]
        else:
            new = self._storages.get((storage.data_ptr(), tensor.dtype))
            if new is None:
                whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                whole.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
                new = self._storages[storage.data_ptr(), tensor.dtype] = whole.to(dtype).untyped_storage()
        view = torch.empty(0, dtype=dtype, device=tensor.device)
        view.set_(new, tensor.storage_offset(), tensor.size(), tensor.stride())  # type: ignore[arg-type]
        view = view.conj() if tensor.is_conj() else view
        return torch._neg_view(view) if tensor.is_neg() else view

    def _dtype(self, dtype: torch.dtype) -> torch.dtype:
        if not self.double:
            return dtype
        return wide(dtype)


def _deep(value: T, tensors: _Tensors) -> T:
    for tensor in _tensors_in(value, set(), 0):
        if id(tensor) in tensors.memo:
            continue
        try:
            tensors.copy(tensor)
        except (RuntimeError, NotImplementedError, TypeError):
            # deepcopy below tries its own way, and what it cannot copy is shared.
            continue
    whole: T = _deepcopy(value, tensors.memo)
    return whole


def _deepcopy(value: Any, memo: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # noqa: BLE001 - a lock, a stream, a library's handle: each refuses in its own way
        if type(value) in (tuple, list):
            return type(value)(_deepcopy(part, memo) for part in value)
        if type(value) is dict:
            return {key: _deepcopy(part, memo) for key, part in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_make"):
            return value._make(_deepcopy(part, memo) for part in value)
        return value


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that the float64 run has in the place of one: float64, complex128, or the same."""
    return torch.float64 if dtype.is_floating_point else torch.complex128 if dtype.is_complex else dtype


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in containers and objects, in order, each once."""
    yield from _tensors_in(value, set(), 0)


def _tensors_in(value: Any, seen: set[int], depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        # A wrapper subclass copies itself: only it knows what its parts mean.
        if type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            yield value
        return
    if id(value) in seen or depth > DEPTH or is_scalar(value) or is_numpy(value):
        return
    seen.add(id(value))
    try:
        if isinstance(value, torch.nn.Module):
            parts: list[Any] = list(vars(value).values())
        else:
            parts = [part for _, part in parts_of(value)[0] or []]
    except Exception:  # noqa: BLE001 - as in a snapshot
        return
    for part in parts:
        yield from _tensors_in(part, seen, depth + 1)
