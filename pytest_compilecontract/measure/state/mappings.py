"""Dicts and attributes: each entry is a piece; also what a run adds or reorders."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any

import torch

from .. import numerics
from .reached import Reached
from .tensors_saved import save_tensor
from .values import MISSING, PLAIN, is_same_value

# Entries up to which a dict is kept one by one; a larger one is as a whole.
ENTRIES = 10_000


def save_mapping(
    walk: Reached,
    mapping: dict[Any, Any],
    name: str,
    *,
    depth: int,
    without: frozenset[str] = frozenset(),
    stays: Callable[[Any], bool] = lambda _: False,
    new_counts: bool = False,
    learned: bool = False,
) -> None:
    if len(mapping) > ENTRIES:
        save_large(walk, mapping, name)
        return
    saved = {key: value for key, value in numerics.entries(mapping) if key not in without}
    keep_new(walk, mapping, name, without=without, stays=stays, counts=new_counts)
    for key, value in saved.items():
        save_entry(walk, mapping, key, value, f"{name}.{key}" if name else str(key), learned=learned)
    if new_counts:
        save_order(walk, mapping, list(saved), name)
    for key, value in saved.items():
        inner = f"{name}.{key}" if name else str(key)
        if learned and isinstance(value, torch.Tensor) and id(value) not in walk.seen:
            walk.seen[id(value)] = value
            save_tensor(walk, value, inner, depth=depth, learned=True)
        else:
            walk.reach(value, inner, depth=depth + 1)


def keep_new(
    walk: Reached,
    mapping: dict[Any, Any],
    name: str,
    *,
    without: Collection[object] = (),
    stays: Callable[[object], bool] = lambda _: False,
    counts: bool = False,
) -> None:
    """Remove keys that a mapping gains on restore, unless they stay; with `counts` they are a change."""
    known = {*(key for key, _ in numerics.entries(mapping)), *without}

    def added() -> dict[object, object]:
        return {key: value for key, value in numerics.entries(mapping) if key not in known and not stays(key)}

    nothing: dict[object, object] = {}
    wanted = walk.pieces.wanted(nothing, added)

    def new() -> dict[object, object]:
        return {key: value for key, value in added().items() if key not in wanted.wanted}

    def put_away_new() -> None:
        for key in new():
            del mapping[key]
        for key, value in wanted.wanted.items():
            if mapping.get(key, MISSING) is not value:
                mapping[key] = value

    walk.pieces.keep(f"{name}, new keys", new if counts else dict, lambda now: not now, put_away_new)
    if not counts:
        walk.pieces.note_made(name, new)


def save_large(walk: Reached, mapping: dict[object, object], name: str) -> None:
    """Save a very large dict: its keys and values, but not what the values hold."""
    walk.pieces.leave_out(f"the contents of the {len(mapping)} entries of {name!r}")
    saved = walk.pieces.wanted(dict(mapping), lambda: dict(mapping))

    def is_as_saved() -> bool:
        was = saved.wanted
        return len(was) == len(mapping) and all(is_same_value(mapping.get(key), was[key]) for key in was)

    def put_back() -> None:
        if not is_as_saved():
            mapping.clear()
            mapping.update(saved.wanted)

    walk.pieces.keep(name, lambda: mapping, lambda now: is_as_saved(), put_back)


def save_order(walk: Reached, mapping: dict[object, object], saved: list[object], name: str) -> None:
    """Save the order of the existing keys, on which a program may depend."""

    def order() -> list[str]:
        keys = [key for key, _ in numerics.entries(mapping) if key in known]
        return [str(key) if isinstance(key, PLAIN) else type(key).__name__ for key in keys]

    def put_back() -> None:
        # After the entries, and so with the same keys.
        if any(now is not was for now, was in zip(mapping, saved, strict=False)):
            for key in saved:
                mapping[key] = mapping.pop(key)

    known = dict.fromkeys(saved)
    before = order()
    walk.pieces.keep(f"{name}, order of keys", order, lambda now: now == before or len(now) < len(before), put_back)


def save_entry(
    walk: Reached, mapping: dict[Any, object], key: object, value: object, name: str, *, learned: bool = False
) -> None:
    def write(put: object) -> None:
        mapping[key] = put

    walk.pieces.keep_place(name, lambda: mapping.get(key, MISSING), write, value, learned=learned)


def save_slot(walk: Reached, owner: object, attribute: str, name: str) -> None:
    value = getattr(owner, attribute, MISSING)

    def write(put: object) -> None:
        # A frozen dataclass refuses setattr, and nothing could have written to it.
        with contextlib.suppress(AttributeError, TypeError):
            delattr(owner, attribute) if put is MISSING else setattr(owner, attribute, put)

    def read() -> object:
        return getattr(owner, attribute, MISSING)

    if value is not MISSING:
        walk.pieces.keep_place(name, read, write, value)
        return
    saved = walk.pieces.wanted(MISSING, read)

    def put_back() -> None:
        if read() is not saved.wanted:
            write(saved.wanted)

    walk.pieces.keep(name, dict, lambda now: True, put_back)
    walk.pieces.note_made("", lambda: {} if read() is saved.wanted else {name: read()})
