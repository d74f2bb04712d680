"""Placement: a contract's target and calls on the lane's device and in its dtype."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence

import torch

from pytest_compilecontract.calls import call

from . import numerics
from .probes.modules import Tensors, buffers_of
from .state import State
from .tensors import Data

# `tensor.data = other` changes the dtype of such a tensor alone, and not its values (seen on torch 2.13).
COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


@contextlib.contextmanager
def placed(
    target: object, calls: Sequence[call], *, device: torch.device, dtype: torch.dtype | None
) -> Iterator[tuple[call, ...]]:
    """Copies of the calls on the device and in the dtype; the target is there too while the `with` lasts.

    If the test has put a tensor on the device itself, it has decided which ones belong there, and none is moved. The
    same holds for the dtype of the target; floating-point inputs always get the lane's. Parameters and buffers of the
    target are moved, and the tensors that a plain function reaches get the dtype.
    """
    state = State(target)
    own, given = state.tensors.values(), [*numerics.tensors_in([(each.args, each.kwargs) for each in calls])]
    device_to = None if any(each.device.type == device.type for each in (*own, *given)) else device
    own_dtype = None if any(each.dtype == dtype for each in own) else dtype
    if device_to is None and dtype is None:
        yield tuple(calls)
        return
    learned = [*itertools.chain.from_iterable((*each.parameters(), *each.buffers()) for each in state.modules)]
    with contextlib.ExitStack() as undo:
        for module in itertools.chain.from_iterable(each.modules() for each in state.modules):
            undo.enter_context(_replaced(buffers_of(module), device_to, own_dtype))
        for tensor in learned or own:
            if tensor.layout in COMPRESSED:
                continue
            undo.enter_context(_moved(tensor, device_to if learned else None, own_dtype))
        # All at once: what the arguments of one call share with those of another, they still share.
        arguments = [(each.args, each.kwargs) for each in calls]
        moved = numerics.moved(arguments, device=device_to, dtype=dtype)
        yield tuple(call(*args, **kwargs) for args, kwargs in moved)


@contextlib.contextmanager
def _replaced(buffers: Tensors, device: torch.device | None, dtype: torch.dtype | None) -> Iterator[None]:
    """Replace each buffer whose data cannot be set, as nn.Module.to does with buffers."""
    own = {name: each for name, each in buffers.items() if each is not None and each.layout in COMPRESSED}
    for name, each in own.items():
        buffers[name] = each.to(device or each.device, dtype if dtype and each.is_floating_point() else each.dtype)
    try:
        yield
    finally:
        buffers.update(own)


@contextlib.contextmanager
def _moved(tensor: torch.Tensor, device: torch.device | None, dtype: torch.dtype | None) -> Iterator[None]:
    """Set the data of a tensor, as nn.Module.to does with a parameter; complex numbers stay complex."""
    to_dtype = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    to_device = device if device is not None else tensor.device
    if (to_device, to_dtype) == (tensor.device, tensor.dtype):
        yield
        return
    data, grad = Data(tensor), tensor.grad if tensor.is_leaf else None
    try:
        with _new_gradient(tensor, None if grad is None else grad.to(to_device, to_dtype)):
            data.give(data.own.to(to_device, to_dtype))
        yield
    finally:
        with _new_gradient(tensor, grad):
            data.give_back()


@contextlib.contextmanager
def _new_gradient(tensor: torch.Tensor, grad: torch.Tensor | None) -> Iterator[None]:
    """Give a leaf another gradient once it has its new data, which the old one does not fit."""
    if tensor.is_leaf:
        tensor.grad = None
    yield
    if grad is not None:
        tensor.grad = grad
