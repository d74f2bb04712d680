"""Contents: what values of Python's own types hold that is in no attribute, as the parts of an exception or a buffer.

One table, by type. What is in none of its rows and has no attributes is compared by type alone, which is said.
"""

from __future__ import annotations

import array
import datetime
import io
import ipaddress
import itertools
import random
import re
import types
import weakref
from collections import UserList, UserString, defaultdict, deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView
from functools import partial
from typing import Any

import torch

from .iterators import left, made_from
from .parts import VALUES

Parts = Iterable[tuple[str, object]]


def contents_of(value: object) -> Parts | None:
    """What a value holds beside its attributes, each with its accessor as text; None of a type without a row.

    May be infinite, as an iterator that repeats is: callers need a bound.
    """
    for kinds, parts in _BY_TYPE:
        if isinstance(value, kinds):
            return parts(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        return _array(value)
    return _iterator(value)


def referred_by(value: object) -> Parts | None:
    """What a function made by another, a bound method, or another value that an object keeps for itself, refers to.

    To be asked of what a run itself gave: in an object it leads to its machinery. None of anything else.
    """
    return next((parts(value) for kinds, parts in _REFERRING if isinstance(value, kinds)), None)


def _closure(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    yield ".__qualname__", function.__qualname__
    # Two lambdas of one line have the same name and line.
    for name in ("co_firstlineno", "co_code", "co_consts", "co_names"):
        yield f".__code__.{name}", getattr(function.__code__, name)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f".__closure__[{name!r}]", cell.cell_contents
        except ValueError:  # a cell that is empty yet
            continue
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__


def _numbers(kind: str, raw: bytes) -> Parts:
    """The numbers in a buffer: floats as a tensor, since compiled code may round them otherwise; others as they are."""
    dtype = {"f": torch.float32, "d": torch.float64}.get(kind)
    if dtype is None or not raw:
        return [(".format", kind), (".tobytes()", raw)]
    return [(".tolist()", torch.frombuffer(bytearray(raw), dtype=dtype))]


def _iterator(value: object) -> Parts | None:
    """What an iterator still gives, or else what it was made from."""
    if (given := left(value)) is not None:
        return ((f"[{index}]", each) for index, each in enumerate(given))
    made = made_from(value)
    if made is None:
        return None
    return [(f".__reduce__()[{index}]", _given(each)) for index, each in enumerate(made, 1)]


def _given(value: object) -> object:
    """An iterator within another as a list of what it gives: nobody can see whether it is over a list or a tuple."""
    if isinstance(value, tuple):
        return tuple(map(_given, value))
    given = left(value)
    return value if given is None else [*itertools.islice(given, VALUES)]


def _array(value: Any) -> Parts:
    """An array of numpy's that is none of numbers: of objects, text, times or records."""
    if value.dtype.kind == "O":
        return [(".tolist()", value.tolist())]
    return [(".dtype", str(value.dtype)), (".shape", value.shape), (".tobytes()", value.tobytes())]


_BY_TYPE: tuple[tuple[Any, Callable[[Any], Parts]], ...] = (
    (OSError, lambda error: [(".args", error.args), (".filename", error.filename), (".filename2", error.filename2)]),
    (BaseException, lambda error: [(".args", error.args)]),
    (defaultdict, lambda table: [(".default_factory", table.default_factory)]),
    (deque, lambda queue: [] if queue.maxlen is None else [(".maxlen", queue.maxlen)]),
    (partial, lambda call: [(".func", call.func), (".args", call.args), (".keywords", call.keywords)]),
    (bytearray, lambda buffer: [("[:]", bytes(buffer))]),
    (array.array, lambda buffer: _numbers(buffer.typecode, buffer.tobytes())),
    (memoryview, lambda buffer: [(".shape", buffer.shape), *_numbers(buffer.format, buffer.tobytes())]),
    ((io.BytesIO, io.StringIO), lambda file: [(".getvalue()", file.getvalue()), (".tell()", file.tell())]),
    (re.Pattern, lambda pattern: [(".pattern", pattern.pattern), (".flags", pattern.flags)]),
    (re.Match, lambda match: [(".re", match.re), (".string", match.string), (".regs", match.regs)]),
    (datetime.tzinfo, lambda zone: [(".tzname(None)", zone.tzname(None)), (".utcoffset(None)", zone.utcoffset(None))]),
    ((ipaddress.IPv4Address, ipaddress.IPv6Address), lambda address: [(".packed", address.packed)]),
    (UserList, lambda values: [(".data", values.data)]),
    (UserString, lambda text: [(".data", text.data)]),
    ((KeysView, ItemsView), lambda view: [(f"[{index}]", each) for index, each in enumerate(view)]),
    ((torch.finfo, torch.iinfo), lambda limits: [(".dtype", limits.dtype)]),
    (torch.UntypedStorage, lambda storage: [("[:]", torch.empty(0, dtype=torch.uint8).set_(storage))]),
)

_REFERRING: tuple[tuple[Any, Callable[[Any], Parts]], ...] = (
    (types.FunctionType, _closure),
    (types.MethodType, lambda method: [(".__func__", method.__func__), (".__self__", method.__self__)]),
    (weakref.ref, lambda reference: [("()", reference())]),
    (random.Random, lambda generator: [(".getstate()", generator.getstate())]),
    (torch.Generator, lambda generator: [(".get_state()", generator.get_state())]),
)
