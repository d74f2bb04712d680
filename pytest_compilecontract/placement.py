"""Placement: a contract's target and calls on the lane's device and in its dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import numerics
from .calls import call
from .state import State


def placed(target: Any, calls: Sequence[call], *, device: torch.device, dtype: torch.dtype | None) -> tuple[call, ...]:
    """Move the modules of `target`, in place, and the tensors of `calls`, copied.

    Where the test has put one tensor on the device itself, it has decided which ones belong there, and none is moved;
    the same with the dtype.
    """
    state = State(target)
    tensors = [*state.tensors.values(), *(t for each in calls for t in numerics.tensors_in((each.args, each.kwargs)))]
    device_to = None if any(each.device.type == device.type for each in tensors) else device
    dtype_to = None if any(each.dtype == dtype for each in tensors) else dtype
    if device_to is None and dtype_to is None:
        return tuple(calls)
    for module in state.modules:
        module.to(device=device_to, dtype=dtype_to)
    # All at once: what the arguments of one call share with those of another, they still share.
    arguments = [(each.args, each.kwargs) for each in calls]
    return tuple(call(*args, **kwargs) for args, kwargs in numerics.moved(arguments, device=device_to, dtype=dtype_to))
