"""Python's own iterators: where one stands, another at the same position, and what it still gives.

All of it is read from what `__reduce__` gives, without advancing the iterator.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

_PLAIN = (int, float, complex, bool, str, bytes, type(None))
_HELD = (list, tuple, dict, set, frozenset, range, *_PLAIN)
_ENDLESS = (itertools.count, itertools.cycle, itertools.repeat)


def is_iterator(value: object) -> bool:
    """Whether a value is one of Python's own iterators, or a generator."""
    return type(value).__module__ in ("builtins", "itertools") and isinstance(value, Iterator)


def position(value: object) -> tuple[object, ...] | None:
    """The position of a built-in iterator, as plain values; None for anything else, or if it cannot be told."""
    if (made := made_from(value)) is None:
        return None
    arguments, *rest = made
    return tuple(_plainly(each) for each in (*arguments, *rest))


def again(value: object) -> Any:
    """Another iterator over the same values at the same position; anything else is returned as it is."""
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


def made_from(value: object) -> tuple[Any, ...] | None:
    """What a built-in iterator was made from, and how far it is; None for anything else, or if it cannot be told."""
    parts = _reduced(value)
    return parts[1:] if parts is not None else None


def left(value: Any) -> Iterator[object] | None:
    """What an iterator still gives; None of one that runs code or another's iterator for it, or that never ends."""
    return again(value) if is_iterator(value) and _only_gives(value) else None


def _only_gives(value: object) -> bool:
    if type(value) in _HELD:
        return True
    if type(value) in _ENDLESS or (made := made_from(value)) is None:
        return False
    arguments, *rest = made
    return all(map(_only_gives, (*arguments, *rest)))


def _plainly(value: object) -> object:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple):
        return tuple(map(_plainly, value))
    return position(value) or (len(value) if isinstance(value, (list, range)) else type(value).__name__)


def _reduced(value: object) -> tuple[Any, ...] | None:
    """What a built-in iterator can be rebuilt from. None for a generator, whose position is in its frame."""
    if not is_iterator(value):
        return None
    try:
        with warnings.catch_warnings():
            # Those of itertools do not tell from Python 3.14 on, and warn of it before.
            warnings.simplefilter("ignore", DeprecationWarning)
            parts = value.__reduce__()
    except TypeError:
        return None
    return parts if isinstance(parts, tuple) else None
