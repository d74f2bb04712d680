"""Lists, sets, arrays, random number generators, and objects with a state dict of their own."""

from __future__ import annotations

import copy
import io
import itertools
from collections import deque
from contextvars import ContextVar
from typing import Any

from ..numerics import again, position
from ..probes.randomness import mark
from .reached import Reached
from .values import MISSING, Stream, copy_of, is_same_value

REACHED = 100_000


def save_container(walk: Reached, container: Any, name: str, *, depth: int) -> None:
    found = copy_of(container)
    saved = walk.pieces.wanted(found, lambda: copy_of(container))

    def fill(values: Any) -> None:
        if isinstance(container, set):
            container.clear()
            container.update(values)
        elif isinstance(container, deque):
            container.clear()
            container.extend(values)
        else:
            container[:] = values

    iterators = isinstance(container, (list, deque)) and any(position(each) is not None for each in found)
    if iterators:
        walk.pieces.at_the_end(lambda: fill(found))

    def put_back() -> None:
        fill([again(each) for each in saved.wanted] if iterators else saved.wanted)

    def is_as_saved(now: Any) -> bool:
        return len(now) == len(saved.wanted) and all(map(is_same_value, now, saved.wanted))

    walk.pieces.keep(name, lambda: copy_of(container), is_as_saved, put_back)
    for index, value in enumerate(itertools.islice(found, REACHED)):
        walk.reach(value, f"{name}[{index}]", depth=depth + 1)


def save_buffer(walk: Reached, file: io.BytesIO | io.StringIO, name: str, *, depth: int) -> None:
    """What is in a file that is in memory, and where it is read or written next."""
    if file.closed:
        return

    def read() -> tuple[str | bytes, int]:
        return (file.getvalue(), file.tell()) if not file.closed else ("closed", 0)

    def put_back() -> None:
        if read() == saved.wanted or file.closed:
            return
        value, at = saved.wanted
        file.seek(0)
        file.truncate()
        file.write(value)  # type: ignore[arg-type]
        file.seek(at)

    saved = walk.pieces.wanted(read(), read)
    walk.pieces.keep(name, read, lambda now: now == saved.wanted, put_back)


def save_stream(walk: Reached, value: object, name: str, *, depth: int, stream: Stream) -> None:
    saved = stream.read()
    at = mark(saved)
    walk.pieces.keep(name, lambda: mark(stream.read()), lambda now: now == at, lambda: stream.write(saved))


def save_array(walk: Reached, value: Any, name: str, *, depth: int) -> None:
    saved = value.copy()

    def put_back() -> None:
        if value.flags.writeable:
            value[...] = saved

    walk.pieces.keep(name, lambda: value, lambda now: now.tobytes() == saved.tobytes(), put_back)


def save_state_dict(walk: Reached, value: Any, name: str, *, depth: int) -> None:
    saved = copy.deepcopy(value.state_dict())
    walk.pieces.keep(
        name, lambda: value.state_dict(), lambda now: False, lambda: value.load_state_dict(copy.deepcopy(saved))
    )


def save_context_variable(walk: Reached, variable: ContextVar[object], name: str, *, depth: int) -> None:
    """Save the value of a variable in this context; without one it is reset with the run's own context."""

    def write(put: object) -> None:
        if put is not MISSING:
            variable.set(put)

    value = variable.get(MISSING)
    walk.pieces.keep_place(name, lambda: variable.get(MISSING), write, value)
    walk.reach(value, name, depth=depth + 1)


def leave_alone(walk: Reached, value: object, name: str, *, depth: int, large: bool) -> None:
    """Skip an object of an installed package that is code, or too large to classify."""
    if large:
        walk.pieces.leave_out(f"{name!r} (a {type(value).__module__}.{type(value).__qualname__} of many values)")
