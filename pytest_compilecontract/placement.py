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

    Where the test has put one tensor on the device itself, it has decided which ones belong there, and none is moved.
    The same with the dtype, of the target and of the calls each by itself: a model made in the lane has its dtype from
    the start, and an input made before the lane does not.
    """
    state = State(target)
    own, given = list(state.tensors.values()), [*numerics.tensors_in([(each.args, each.kwargs) for each in calls])]
    device_to = None if any(each.device.type == device.type for each in (*own, *given)) else device
    own_dtype, given_dtype = (None if any(each.dtype == dtype for each in some) else dtype for some in (own, given))
    if device_to is not None or own_dtype is not None:
        for module in state.modules:
            module.to(device=device_to, dtype=own_dtype)
    if device_to is None and given_dtype is None:
        return tuple(calls)
    # All at once: what the arguments of one call share with those of another, they still share.
    arguments = [(each.args, each.kwargs) for each in calls]
    moved = numerics.moved(arguments, device=device_to, dtype=given_dtype)
    return tuple(call(*args, **kwargs) for args, kwargs in moved)
