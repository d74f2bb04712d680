"""Values as state has them: which are plain, which are the same, where an iterator or a generator of numbers is."""

from __future__ import annotations

import array
import copy
import functools
import random
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

import torch

from .. import numerics
from ..numerics import HOLDERS, is_users, own_dict

MISSING = object()
PLAIN = (int, float, complex, bool, str, bytes, type(None))
CONTAINERS = (dict, list, set, deque, bytearray, array.array)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """Where an object that draws random numbers is, and how to put it there."""

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
    """Whether an attribute that a function has got may be a note of torch's on it, which stays."""
    return name.startswith("_") or "dynamo" in name or name == "get_compiler_config"


def copy_of(container: object) -> Any:
    """A copy of what a container holds, whatever its class gives out."""
    for kind in (list, set, deque):
        if isinstance(container, kind) and type(container) is not kind:
            return kind(numerics.elements(container))
    return copy.copy(container)


def label(name: str, value: object) -> str:
    """What to call the piece that keeps which object a name stands for; what the object holds goes by the name."""
    return name if isinstance(value, PLAIN) else f"{name} (reassigned)"


def is_same_value(now: object, saved: object) -> bool:
    """Whether a name still stands for what it did; what an object holds is kept by pieces of its own."""
    if now is saved or type(now) is not type(saved):
        return now is saved
    if isinstance(saved, (float, complex)) and now != now:
        return bool(saved != saved)  # NaN is as NaN
    return now == saved if isinstance(saved, PLAIN) else (at := position(saved)) is not None and position(now) == at


def position(value: object) -> tuple[object, ...] | None:
    """Where one of Python's own iterators is, in plain values; None for all else, and where it does not tell."""
    if (parts := _reduced(value)) is None:
        return None
    _, arguments, *rest = parts
    return tuple(_plainly(each) for each in (*arguments, *rest))


def again(value: object) -> object:
    """Another iterator that is where this one is, over the same values; what is not an iterator stays itself."""
    if isinstance(value, tuple):
        return tuple(map(again, value))
    if (parts := _reduced(value)) is None:
        return value
    make, arguments, *rest = parts
    made = make(*map(again, arguments))
    for state in rest:
        if state is not None:
            made.__setstate__(again(state))
    return made


def _plainly(value: object) -> object:
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, tuple):
        return tuple(map(_plainly, value))
    return position(value) or (len(value) if isinstance(value, (list, range)) else type(value).__name__)


def _reduced(value: object) -> tuple[Any, ...] | None:
    """What one of Python's own iterators could be made from again. A generator's place is in its frame: none."""
    if type(value).__module__ not in ("builtins", "itertools") or not isinstance(value, Iterator):
        return None
    try:
        with warnings.catch_warnings():
            # Those of itertools do not tell from Python 3.14 on, and warn of it before.
            warnings.simplefilter("ignore", DeprecationWarning)
            parts = value.__reduce__()
    except TypeError:
        return None
    return parts if isinstance(parts, tuple) else None


def is_user_object(value: object) -> bool:
    """An object of a user's class, or one of Python's that holds what its user puts there; none of torch's."""
    if isinstance(value, (type, ModuleType)):
        return False
    if own_dict(value) is None and not numerics.slots_of(value):
        return False
    module = type(value).__module__
    return module in HOLDERS or is_users(module)
