"""The facts of each metric: how each is identified, and how it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pytest_compilecontract.facts.collectives import by_kind
from pytest_compilecontract.facts.limits import LIMITS
from pytest_compilecontract.facts.measurement import (
    CompileFailure,
    Difference,
    EagerFrame,
    EagerOps,
    GraphBreak,
    LimitHit,
    Location,
    Measurement,
    Recompile,
)
from pytest_compilecontract.facts.metrics import FIELDS_OF_DEVICE, METRICS, OF_DEVICE
from pytest_compilecontract.facts.own_failure import kind_of
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.structure import PLAIN
from pytest_compilecontract.facts.verdict import NO_EXCEPTION, STEADY
from pytest_compilecontract.wording import after_break

from .drift import Drift, Fact
from .identity import (
    WRAPPER,
    Key,
    break_keys,
    comparable,
    difference_key,
    eager_key,
    eager_ops_key,
    failure_key,
    limit_hit_key,
    normalised_guard,
    recompile_key,
    until,
)

T = TypeVar("T")


def facts_of(entry: Entry) -> dict[str, tuple[tuple[Key, Fact], ...]]:
    """Every fact of an entry by metric, each with its identity; metrics that were not measured are left out.

    A fact with two keys, such as a graph break under two inlined stacks, appears twice.
    """
    seen = entry.measurement or Measurement()
    found = {
        "errors": read_errors(entry),
        "limits": read_limits(entry, but_steady=False),
        **{metric: read(seen) for metric, read in READERS.items()},
    }
    return {
        metric: tuple((key, tell()) for key, tell in facts.of) for metric, facts in found.items() if facts is not None
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The facts of a metric with their identities, and the number that is shown for them."""

    of: tuple[tuple[Key, Callable[[], Fact]], ...]
    count: int


def without(facts: Sequence[tuple[Key, Callable[[], Fact]]], others: Sequence[tuple[Key, object]]) -> tuple[Fact, ...]:
    """The facts without a match among the others; of several equal ones, the excess."""
    keys, other_keys = comparable([key for key, _ in facts], [key for key, _ in others])
    left = Counter(other_keys)
    alone: Counter[Fact] = Counter()
    for key, (_, fact) in zip(keys, facts, strict=True):
        if left[key] > 0:
            left[key] -= 1
        else:
            alone[fact()] += 1
    return tuple(replace(fact, times=times) for fact, times in alone.items())


def facts_by(found: Sequence[T] | None, key: Callable[[T], Key], tell: Callable[[T], Fact]) -> Facts | None:
    if found is None:
        return None
    return Facts(of=tuple((key(each), _telling(tell, each)) for each in found), count=len(found))


def _telling(tell: Callable[[T], Fact], found: T) -> Callable[[], Fact]:
    # Most facts are the same on both sides, and are never told.
    return lambda: tell(found)


def _breaks(seen: Measurement) -> Facts | None:
    if seen.graph_breaks is None:
        return None
    of: list[tuple[Key, Callable[[], Fact]]] = []
    wrappers: set[Key] = set()
    for each in seen.graph_breaks:
        for key in break_keys(each):
            # How many breaks lie in a wrapper of Python's is for torch to decide as well.
            if key[0] != WRAPPER or key not in wrappers:
                of.append((key, _telling(_break_fact, each)))
            wrappers.add(key)
    return Facts(of=tuple(of), count=len(seen.graph_breaks))


def _break_fact(found: GraphBreak) -> Fact:
    longest = max(found.stacks, key=len, default=())
    wording = found.reason.strip() or found.kind
    return Fact(
        where=str(found.location),
        at=found.location,
        source=found.location.source.strip(),
        reason=f"{wording} ({found.registry_id})" if found.registry_id else wording,
        hint=next(iter(found.hints), ""),
        stack=tuple(map(str, until(found.location, longest)[:-1])),
    )


def _recompiles(seen: Measurement) -> Facts | None:
    return facts_by(seen.recompiles, recompile_key, _recompile_fact)


def _recompile_fact(found: Recompile) -> Fact:
    fact = _in_frame(found.location or found.frame, found.continuation)
    source = found.location.source.strip() if found.location else ""
    reason = found.guard or f"{found.kind} recompile, torch reports no guard"
    return replace(fact, source=source, reason=reason, hint=found.hint or found.meaning)


def _eager_frames(seen: Measurement) -> Facts | None:
    return facts_by(seen.lost_frames, eager_key, _eager_fact)


def _eager_fact(found: EagerFrame) -> Fact:
    fact = _in_frame(found.location or found.frame, found.continuation)
    reason = f"ran in eager, {found.cause}: {found.reason}" if found.reason else f"ran in eager, {found.cause}"
    return replace(fact, reason=reason)


def _eager_ops(seen: Measurement) -> Facts | None:
    if seen.operators_run is None:
        return None
    skipped = seen.operators_run.skipped
    found = facts_by(skipped, eager_ops_key, _eager_ops_fact)
    return found and replace(found, count=sum(sum(each.operators.values()) for each in skipped))


def _eager_ops_fact(found: EagerOps) -> Fact:
    place = found.location or found.frame
    assert place is not None
    return _at(place, found.sentence)


def _limit_hits(seen: Measurement) -> Facts | None:
    return facts_by(seen.limit_hits, limit_hit_key, _limit_hit_fact)


def _limit_hit_fact(found: LimitHit) -> Fact:
    reason = f"{found.limit}: {found.guard}" if found.guard else found.limit
    return _at(found.frame, reason)


def _numerics(seen: Measurement) -> Facts | None:
    return facts_by(seen.numerics.differences if seen.numerics else None, difference_key, _difference_fact)


def _difference_fact(found: Difference) -> Fact:
    return Fact(where=found.at, name=found.kind, reason=f"{found.kind}: {found.detail}")


def _state_dict(seen: Measurement) -> Facts | None:
    if seen.state_change is None:
        return None
    changes = [
        *(("key added", key) for key in seen.state_change.keys_added),
        *(("key removed", key) for key in seen.state_change.keys_removed),
        *((("type changed", seen.state_change.type_changed),) if seen.state_change.type_changed else ()),
    ]
    return facts_by(changes, tuple, lambda change: Fact(where=change[1], reason=change[0]))


def _cuda_graphs(seen: Measurement) -> Facts | None:
    if seen.cuda_graphs is None:
        return None
    return facts_by(
        seen.cuda_graphs.failures(whole=True),
        # Not how often: a run of more steps says so more often.
        lambda each: (each.kind, each.cause, str(each.location and each.location.source)),
        lambda each: _at(each.location, str(each)),
    )


def _collectives(seen: Measurement) -> Facts | None:
    if seen.collectives is None:
        return None
    # Not in which order, nor by which of torch's operators.
    kinds = [kind for kind, times in by_kind(seen.collectives.compiled).items() for _ in range(times)]
    return facts_by(kinds, lambda kind: (kind,), lambda kind: Fact(where=kind, reason="one more or less"))


def _placements(seen: Measurement) -> Facts | None:
    if seen.placements is None:
        return None
    # What has lost its place, in eager too or not: where a parameter is placed by intent is no fact to hold against it.
    lost = [(each.name, each.sentence) for each in seen.placements.changed]
    lost += [(name, PLAIN) for name in seen.placements.plain]
    return facts_by(lost, tuple, lambda each: Fact(where=each[0], reason=each[1]))


def _recomputed(seen: Measurement) -> Facts | None:
    if seen.recomputed_graphs is None:
        return None
    each_time = range(seen.recomputed_graphs)
    return facts_by(each_time, lambda _: ("again",), lambda _: Fact(where="a compiled graph runs again in a backward"))


def _host_syncs(seen: Measurement) -> Facts | None:
    if seen.host_syncs is None:
        return None
    each_time = [sync for sync in seen.host_syncs for _ in range(sync.count)]
    return facts_by(
        each_time,
        lambda each: (each.location and (each.location.file, each.location.function, each.location.source),),
        lambda each: _at(each.location, "the CPU waits for the device"),
    )


def read_errors(entry: Entry) -> Facts | None:
    seen = entry.measurement
    found: list[tuple[Key, Callable[[], Fact]]] = []
    if seen is not None and seen.raised is not None:
        raised = seen.raised
        fact = _at(raised.location, f"{raised.type}: {raised.message}")
        found.append((("raised", _last_name(raised.type)), _telling(lambda told: told, fact)))
    elif entry.verdict == "broken":
        key = ("failed", *kind_of(entry.own_failure, entry.reason))
        found.append((key, _telling(lambda reason: Fact(where=reason), entry.reason)))
    for kind, failures in (
        ("backend", seen.backend_failures if seen else None),
        ("suppressed", seen.errors_suppressed if seen else None),
    ):
        for failure in failures or ():
            found.append(((kind, *failure_key(failure)), _telling(_failure_fact, failure)))
    if (
        not found
        and entry.verdict != "broken"
        and (seen is None or None in (seen.backend_failures, seen.errors_suppressed))
    ):
        return None
    return Facts(of=tuple(found), count=len(found))


def _failure_fact(found: CompileFailure) -> Fact:
    return _at(found.frame, f"{_last_name(found.type)}: {found.message}")


def _at(place: Location | None, reason: str) -> Fact:
    if place is None:
        return Fact(where=reason)
    return replace(_in_frame(place, continuation=False), reason=reason)


def _in_frame(place: Location, continuation: bool) -> Fact:
    where = f"{place}{after_break(continuation=continuation)}"
    return Fact(where=where, at=place, continuation=continuation, source=place.source.strip())


def _last_name(dotted: str) -> str:
    return dotted.rpartition(".")[2]


def read_limits(entry: Entry, *, but_steady: bool, of_device: bool = True) -> Facts:
    """The limits that an entry exceeds; of those on what depends on the device only if asked for."""
    exceeded = [
        each
        for each in entry.violations
        if each.name != NO_EXCEPTION
        and not (but_steady and each.name == STEADY)
        and (of_device or not limit_of_device(each.name))
    ]
    found = facts_by(
        exceeded,
        # "max_recompiles=0" and "max_recompiles=1" are the same promise.
        lambda each: (each.name,),
        lambda each: Fact(where=each.limit, name=each.name, reason=f"measured {each.measured}"),
    )
    assert found is not None
    return found


def limit_of_device(name: str) -> bool:
    """Whether a limit is on what depends on the device."""
    limit = LIMITS.get(name)
    if limit is None:
        return False
    return limit.measures in OF_DEVICE if limit.measures else limit.metric in FIELDS_OF_DEVICE


READERS: dict[str, Callable[[Measurement], Facts | None]] = {
    "graph_breaks": _breaks,
    "recompiles": _recompiles,
    "eager_frames": _eager_frames,
    "eager_ops": _eager_ops,
    "limit_hits": _limit_hits,
    "numerics": _numerics,
    "state_dict": _state_dict,
    "collectives": _collectives,
    "placements": _placements,
    "recomputed_graphs": _recomputed,
    "cuda_graphs": _cuda_graphs,
    "host_syncs": _host_syncs,
}


def in_brief(drift: Drift) -> str:
    """A drift in the few words of a cell, with its first fact."""
    return _IN_BRIEF.get(drift.metric, _change)(drift)


def _change(drift: Drift, label: str = "") -> str:
    return f"{label or METRICS[drift.metric].label} {_value(drift.before)}→{_value(drift.after)}"


def _change_at(drift: Drift, label: str = "") -> str:
    # The line of the first fact that has one.
    lines = (f" at {fact.at.file}:{fact.at.line}" for fact in _came(drift) if fact.source and fact.at is not None)
    return f"{_change(drift, label)}{next(lines, '')}"


def _error_in_brief(drift: Drift) -> str:
    said = _came(drift)[0].said or _came(drift)[0].where
    # Beside "improved" it would read as an error of now.
    return said if drift.direction == "worse" else f"gone: {said}"


def _capture_in_brief(drift: Drift) -> str:
    what = METRICS["capture"].label if drift.direction == "worse" else "captured again"
    return f"{what}: {_came(drift)[0].where} {_came(drift)[0].said}"


def _came(drift: Drift) -> tuple[Fact, ...]:
    return drift.came or drift.went


def _value(value: float | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


# Metrics that a cell shows by more than their change.
_IN_BRIEF: dict[str, Callable[[Drift], str]] = {
    "capture": _capture_in_brief,
    "errors": _error_in_brief,
    "recompiles": lambda drift: f"{_change(drift)}: {normalised_guard(_came(drift)[0].said)}",
    "graph_breaks": lambda drift: _change_at(drift, "breaks"),
    "eager_frames": _change_at,
    "limit_hits": _change_at,
    "numerics": lambda drift: f"numerics: {_came(drift)[0].where} {_came(drift)[0].said}",
    "limits": lambda drift: f"over {_came(drift)[0].where}",
}
