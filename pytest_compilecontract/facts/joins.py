"""Joins: one value for a test that measured several times. Counts add up, facts are concatenated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from .collectives import Collectives
from .measurement import (
    PARTS,
    CaptureTargets,
    CudaGraphs,
    Goodput,
    GraphBreak,
    Numerics,
    Raised,
    RaisedInBoth,
    StateChange,
    StepOperators,
    merge_breaks,
)
from .structure import Placements, SavedBytes

T = TypeVar("T")


def added(values: Sequence[Any]) -> Any:
    """The sum of numbers and of tables, facts one after another; None where a part was not measured."""
    if any(value is None for value in values):
        return None
    if isinstance(values[0], dict):
        return _tables(values)
    if isinstance(values[0], tuple):
        return tuple(item for value in values for item in value)
    return sum(values)


def seconds(values: Sequence[float | None]) -> float | None:
    """The sum of those that were taken."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def breaks(values: Sequence[tuple[GraphBreak, ...] | None]) -> tuple[GraphBreak, ...] | None:
    """The distinct breaks of all parts."""
    known = [value for value in values if value is not None]
    return merge_breaks([each for value in known for each in value]) if len(known) == len(values) else None


def calls(values: Sequence[tuple[object, ...] | None]) -> tuple[object, ...] | None:
    """The calls of all parts: one that makes its own calls does not hide those of another."""
    return tuple(item for value in values if value is not None for item in value) or None


def once(values: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The texts in order, each once."""
    return tuple(dict.fromkeys(text for value in values for text in value))


def first_said(values: Sequence[str]) -> str:
    """The first text that is not empty."""
    return next(filter(None, values), "")


def reasons(values: Sequence[dict[str, str]]) -> dict[str, str]:
    """All reasons by name; the later wins."""
    return {key: reason for value in values for key, reason in value.items()}


def first(values: Sequence[Raised | RaisedInBoth | None]) -> Raised | RaisedInBoth | None:
    """The first that happened."""
    return next((value for value in values if value is not None), None)


def first_change(values: Sequence[StateChange | None]) -> StateChange | None:
    """The first part in which anything changed."""
    known = [value for value in values if value is not None]
    return next((value for value in known if value), known[0] if known else None)


def loops(values: Sequence[Goodput | None]) -> Goodput | None:
    """The seconds and steps of all loops. A step of one is not like a step of another, so theirs are left out."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return next(iter(known), None)
    return Goodput(
        seconds={part: sum(each.seconds[part] for each in known) for part in PARTS},
        warmed_up=sum(each.warmed_up for each in known),
        steady=sum(each.steady for each in known),
    )


def numerics(values: Sequence[Numerics | None]) -> Numerics | None:
    """The part with the largest error, with the comparisons and differences of all parts."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    worst = max(known, key=lambda each: (bool(each.differences), each.worst_error or 0.0))
    return replace(
        worst,
        compared=sum(each.compared for each in known),
        note="; ".join(dict.fromkeys(each.note for each in known if each.note)),
        uncompared=tuple(item for each in known for item in each.uncompared),
        differences=tuple(item for each in known for item in each.differences),
    )


def worst(badness: Callable[[T], float]) -> Callable[[Sequence[T | None]], T | None]:
    """The worst part; one that could not be measured is not known to be better than the others."""

    def join(values: Sequence[T | None]) -> T | None:
        known = [value for value in values if value is not None]
        return max(known, key=badness) if len(known) == len(values) else None

    return join


def cuda_graphs(values: Sequence[CudaGraphs | None]) -> CudaGraphs | None:
    """The part with the most failures, with the calls and skips of all: a part that replays nothing fails the whole."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return replace(
        max(known, key=lambda each: len(each.failures(whole=True))),
        calls=tuple(step for each in known for step in each.calls),
        partitions=sum(each.partitions for each in known),
        skips=tuple(dict.fromkeys(skip for each in known for skip in each.skips)),
    )


def targets(values: Sequence[CaptureTargets | None]) -> CaptureTargets | None:
    """The classes that any part found."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    requested = tuple(dict.fromkeys(name for each in known for name in each.requested))
    compiled = {name for each in known for name in each.compiled}
    return CaptureTargets(
        requested=requested,
        compiled=tuple(name for name in requested if name in compiled),
        missing=tuple(name for name in requested if name not in compiled),
    )


def collectives(values: Sequence[Collectives | None]) -> Collectives | None:
    """The collectives of all parts, in order."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    eager = [each.eager for each in known if each.eager is not None]
    return Collectives(
        compiled=tuple(one for each in known for one in each.compiled),
        eager=tuple(one for each in eager for one in each) if len(eager) == len(known) else None,
    )


def placements(values: Sequence[Placements | None]) -> Placements | None:
    """The placements of all parts; of a name that several have, those of the part in which it moved, or the last."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    ordered = sorted(known, key=lambda each: len(each.changed))
    return Placements(
        compiled={name: at for each in ordered for name, at in each.compiled.items()},
        eager={name: at for each in ordered for name, at in each.eager.items()},
    )


def saved(values: Sequence[SavedBytes | None]) -> SavedBytes | None:
    """The sum of all parts."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return SavedBytes(compiled=sum(each.compiled for each in known), eager=sum(each.eager for each in known))


def operators(values: Sequence[StepOperators | None]) -> StepOperators | None:
    """The operators of all parts, by module and line."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return StepOperators(
        compiled=sum(each.compiled for each in known),
        eager=sum(each.eager for each in known),
        modules=_pairs([each.modules for each in known]),
        lines=_pairs([each.lines for each in known]),
        groups=tuple(group for each in known for group in each.groups),
    )


def _pairs(tables: Sequence[dict[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    listed = sorted({name for table in tables for name in table})
    found = {name: [table[name] for table in tables if name in table] for name in listed}
    return {name: (sum(each[0] for each in pairs), sum(each[1] for each in pairs)) for name, pairs in found.items()}


def _tables(values: Sequence[dict[str, object]]) -> dict[str, object]:
    joined: dict[str, Any] = {}
    for value in values:
        for key, item in value.items():
            if isinstance(item, dict):
                joined[key] = _tables([joined.get(key, {}), item])
            else:
                joined[key] = joined.get(key, 0) + item
    return joined
