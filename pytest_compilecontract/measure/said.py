"""What an exception says and holds: its type, arguments and attributes, as far as two runs can be held to the same.

Numbers that were computed are not said: compiled code may round them otherwise, in a text as well as in a tensor. Those
that it holds beside its texts are judged as outputs are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import torch

from pytest_compilecontract.errors import message_of

from . import numerics

# Floats in a text, and what torch puts around them when it prints a tensor.
_COMPUTED = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE][-+]?\d))(?:[eE][-+]?\d+)?|\b(?:nan|inf)\b")
_SPACES = re.compile(r"\s+")
# What Dynamo adds to a message (`torch._dynamo.exc.augment_exc_message`).
_ADDED = re.compile(r"\n\s*from user code:.*", re.DOTALL)
DEPTH = 8


def said(error: BaseException) -> tuple[object, ...]:
    """What an exception says, to be compared by `==`; what is deeper than `DEPTH` is left out."""
    return _of_error(error, 0)


def held_by(error: BaseException) -> dict[str, object]:
    """What an exception holds and does not say, by its place: tensors, floats, and values of further types."""
    return {at.removeprefix("."): value for at, value in _held("", error, 0)}


def _held(at: str, value: object, depth: int) -> Iterator[tuple[str, object]]:
    if isinstance(value, (str, bool, int, bytes, type(None))) or depth > DEPTH:
        return
    inside: Iterable[tuple[str, object]]
    if isinstance(value, BaseException):
        inside = [(".args", value.args), *_own(value)]
    elif isinstance(value, (list, tuple)):
        inside = ((f"[{index}]", each) for index, each in enumerate(numerics.elements(value)))
    else:
        yield at, value
        return
    for place, each in inside:
        yield from _held(f"{at}{place}", each, depth + 1)


def _own(error: BaseException) -> list[tuple[str, object]]:
    """The attributes of an exception, without private ones."""
    own = (numerics.own_dict(error) or {}).items()
    return sorted(((f".{name}", value) for name, value in own if not name.startswith("_")), key=lambda each: each[0])


def _of_error(error: BaseException, depth: int) -> tuple[object, ...]:
    own = [(name, _of(value, depth + 1)) for name, value in _own(error)]
    # A KeyError that Dynamo added to says what it says in another way.
    return type(error).__qualname__, _text(message_of(error)), _of_all(error.args, depth), tuple(own)


def _of_all(values: Iterable[object], depth: int) -> tuple[object, ...]:
    return tuple(_of(value, depth + 1) for value in values)


def _of(value: object, depth: int) -> object:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (bool, int, bytes, type(None))):
        return type(value).__qualname__, value
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), tuple(map(str, value.shape))
    if depth < DEPTH and isinstance(value, BaseException):
        return _of_error(value, depth)
    if depth < DEPTH and isinstance(value, (list, tuple)):
        return type(value).__qualname__, _of_all(numerics.elements(value), depth)
    return type(value).__qualname__


def _text(text: str) -> str:
    return _SPACES.sub(" ", _COMPUTED.sub("#", _ADDED.sub("", text))).strip()
