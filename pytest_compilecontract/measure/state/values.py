"""Values: which are plain, which are equal, and the position of an iterator or random number generator."""

from __future__ import annotations

import array
import copy
import functools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

import torch

from .. import numerics
from ..numerics import HOLDERS, is_users, own_dict, position

MISSING = object()
PLAIN = (int, float, complex, bool, str, bytes, type(None))
CONTAINERS = (dict, list, set, deque, bytearray, array.array)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """The state of an object that draws random numbers, and how to restore it."""

    read: Callable[[], object]
    write: Callable[[Any], object]


def stream_of(value: Any) -> Stream | None:
    if isinstance(value, torch.Generator):
        return Stream(read=value.get_state, write=value.set_state)
    if isinstance(value, random.Random):
        return Stream(read=value.getstate, write=value.setstate)
    if type(value).__module__.startswith("numpy.random"):
        if (bits := getattr(value, "bit_generator", None)) is not None:
            return Stream(read=lambda: bits.state, write=functools.partial(setattr, bits, "state"))
        if hasattr(value, "set_state"):  # numpy.random.RandomState
            return Stream(read=value.get_state, write=value.set_state)
    return None


def names_in(code: CodeType) -> set[str]:
    """The global and attribute names in a function and in those defined inside it."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*(names_in(each) for each in inner))


def is_torchs(name: str) -> bool:
    """Whether a new attribute of a function may be torch's own mark, which stays."""
    return name.startswith("_") or "dynamo" in name or name == "get_compiler_config"


def copy_of(container: object) -> Any:
    """A copy of what a container holds, whatever its class yields."""
    for kind in (list, set, deque):
        if isinstance(container, kind) and type(container) is not kind:
            return kind(numerics.elements(container))
    return copy.copy(container)


def label(name: str, value: object) -> str:
    """The label of the piece that saves which object a name refers to; the name itself is for what the object holds."""
    return name if isinstance(value, PLAIN) else f"{name} (reassigned)"


def is_same_value(now: object, saved: object) -> bool:
    """Whether a name still refers to the same; what an object holds is saved in other pieces."""
    if now is saved or type(now) is not type(saved):
        return now is saved
    if isinstance(saved, PLAIN):
        mine, theirs = numerics.exact(now), numerics.exact(saved)
        return bool(mine == theirs or (mine != mine and theirs != theirs))  # NaN is as NaN
    return (at := position(saved)) is not None and position(now) == at


def is_user_object(value: object) -> bool:
    """Whether it is an object of a user's class, or a standard one that holds what its user stores."""
    if isinstance(value, (type, ModuleType)):
        return False
    if own_dict(value) is None and not numerics.slots_of(value):
        return False
    module = type(value).__module__
    return module in HOLDERS or is_users(module)
