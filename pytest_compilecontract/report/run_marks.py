"""Marks: facts of a lane that belong to a source line, as text to show next to it. No file access.

A mark contains neither counts nor a lane, so that lanes with the same fact share one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from pytest_compilecontract.facts.measurement import (
    RECOMPILE_KINDS,
    CompileFailure,
    CudaGraphs,
    EagerFrame,
    EagerOps,
    GraphBreak,
    HostSync,
    LimitHit,
    Location,
    Measurement,
    Numerics,
    Raised,
    Recompile,
)
from pytest_compilecontract.judge.tell import STACK
from pytest_compilecontract.wording import after_break, first_line, first_said

# What hurts most first.
Kind = Literal["error", "numbers", "limit", "break", "eager", "skipped", "recompile", "operators", "sync", "cudagraph"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# As a tag beside a line.
TAGS: dict[Kind, str] = {
    "error": "error",
    "numbers": "wrong numbers",
    "limit": "recompile limit",
    "break": "graph break",
    "eager": "ran in eager",
    "skipped": "skipped",
    "recompile": "recompiled",
    "operators": "eager operators",
    "sync": "host sync",
    "cudagraph": "no CUDA graph",
}
# As what is counted.
NOUNS: dict[Kind, tuple[str, str]] = {
    "error": ("error", "errors"),
    "numbers": ("difference from eager", "differences from eager"),
    "limit": ("recompile limit", "recompile limits"),
    "break": ("graph break", "graph breaks"),
    "eager": ("eager frame", "eager frames"),
    "skipped": ("skipped frame", "skipped frames"),
    "recompile": ("recompile", "recompiles"),
    "operators": ("eager call", "eager calls"),
    "sync": ("host sync", "host syncs"),
    "cudagraph": ("CUDA graph skip", "CUDA graph skips"),
}
# torch/_dynamo/guards.py and torch/csrc/dynamo/guards.cpp: "... size mismatch at index 0. expected 8, actual 9".
_MOVED = re.compile(r"expected:? (?P<before>.+?),? actual:? (?P<after>.+)$")
# Differences of a lane that are told beside its first.
MOST = 4
# Of a guard: none that says what moved is nearly as long.
_LONGEST = 1000
_WHY_OPERATORS = {
    "graph break": "run by Dynamo's code around the graphs: a call that breaks the graph, or what reads numbers for a "
    "graph and combines its results",
    "frame": "their frame fell back to eager, or reached its recompile limit",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """One fact: where it is, and what to say there; `said` are labels and texts.

    Without `at` its line is unknown. `broke` is the graph break that caused it. `callers` lead there, the innermost
    first: one of them is used if `at` is not in a file of the project. `more` may differ from lane to lane. Marks that
    only differ in `callers` or `more` are one.
    """

    kind: Kind
    title: str
    at: Location | None = None
    said: tuple[tuple[str, str], ...] = ()
    broke: Location | None = None
    callers: tuple[Location, ...] = field(default=(), compare=False)
    more: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    @property
    def places(self) -> tuple[Location, ...]:
        """Where it may be shown, the best place first."""
        return (self.at, *self.callers) if self.at is not None else self.callers


def marks_of(seen: Measurement) -> Iterator[tuple[Mark, int]]:
    """Every mark of a measurement, and how often it was seen."""
    if seen.raised is not None:
        yield _raised(seen.raised), 1
    for failure in seen.backend_failures or ():
        yield _failure(failure, "compiling failed"), 1
    for failure in seen.errors_suppressed or ():
        yield _failure(failure, "compiling failed, and torch fell back to eager"), 1
    if seen.numerics is not None and seen.numerics.differences:
        yield _numbers(seen.numerics), len(seen.numerics.differences)
    for hit in seen.limit_hits or ():
        yield _limit_hit(hit), 1
    for found in seen.graph_breaks or ():
        yield _break(found), found.events
    for frame in seen.lost_frames or ():
        yield _eager(frame), 1
    for group in seen.operators_run.groups if seen.operators_run is not None else ():
        yield _operators(group), 1 if group.why == "skipped" else sum(group.operators.values())
    for again in seen.compiled_again or ():
        yield _recompile(again), 1
    for sync in seen.host_syncs or ():
        yield _sync(sync), sync.count
    yield from _graph_skips(seen.cuda_graphs)


def moved(guard: str) -> tuple[str, str] | None:
    """The values before and after, from a guard; None if it does not say."""
    found = _MOVED.search(first_line(guard)[:_LONGEST])
    return (found["before"].strip().rstrip(","), found["after"].strip()) if found else None


def _said(*pairs: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((label, text.strip()) for label, text in pairs if text.strip())


def _break(found: GraphBreak) -> Mark:
    reason = first_line(found.reason) or found.kind
    longest: Sequence[Location] = max(found.stacks, key=len, default=())
    callers = [each for each in reversed(longest) if each != found.location]
    return Mark(
        kind="break",
        title=reason,
        at=found.location,
        callers=tuple(dict.fromkeys(callers)),
        more=_said(("called from", ", ".join(map(str, callers)))),
        said=_said(
            ("why", found.explanation if first_line(found.explanation) != reason else ""),
            ("kind", found.kind if found.kind != reason else ""),
            *(("hint", hint) for hint in found.hints),
            ("frame", "the whole frame fell back to eager" if found.whole_frame else ""),
            ("registry id", found.registry_id or ""),
        ),
    )


def _recompile(found: Recompile) -> Mark:
    guard = first_line(found.guard)
    change = moved(found.guard)
    after = after_break(continuation=found.continuation)
    others = [each for each in map(first_line, found.guards) if each != guard]
    return Mark(
        kind="recompile",
        title=guard or "torch reports no guard",
        at=found.location or found.frame,
        callers=(found.frame,),
        said=_said(
            ("changed", f"{change[0]} → {change[1]}" if change else ""),
            ("kind", _kind_told(found)),
            ("frame", f"{found.frame}{after}" if found.location is not None or after else ""),
            ("module", found.module or ""),
            ("meaning", found.meaning),
            ("meaning", STACK if "___stack" in found.guard else ""),
            ("hint", found.hint),
        ),
        more=(
            *_said(("recompile limit", found.used)),
            *(("older code's guard", each) for each in dict.fromkeys(others)),
        ),
    )


def _kind_told(found: Recompile) -> str:
    # Beside the guard that failed, "another guard" would be one more.
    means = "the one above failed" if found.kind == "guard" and found.guard else RECOMPILE_KINDS.get(found.kind)
    return f"{found.kind}: {means}" if means else found.kind


def _limit_hit(found: LimitHit) -> Mark:
    return Mark(
        kind="limit",
        title=f"{found.limit}: from here on, calls that match no compiled code run in eager",
        at=found.frame,
        said=_said(("why", found.reason), ("guard", found.guard)),
    )


def _eager(found: EagerFrame) -> Mark:
    after = after_break(continuation=found.continuation)
    return Mark(
        kind="eager",
        title=f"{found.frame.function}{after} runs in eager: {found.cause}",
        at=found.location or found.frame,
        callers=(found.frame,),
        said=_said(("why", found.reason), ("frame", str(found.frame) if found.location is not None else "")),
    )


def _operators(found: EagerOps) -> Mark:
    if found.why == "skipped":
        return Mark(
            kind="skipped",
            title=f"{found.name or 'a frame'}, called here, runs in eager: {found.told}",
            at=found.location or found.frame,
            said=_said(("why", found.sentence), ("frame", str(found.frame or ""))),
            broke=found.broke,
        )
    return Mark(
        kind="operators",
        title=", ".join(found.operators),
        at=found.location or found.frame,
        said=_said(("why", _WHY_OPERATORS.get(found.why, found.why)), ("frame", found.name)),
        broke=found.broke,
    )


def _sync(found: HostSync) -> Mark:
    return Mark(kind="sync", title="the CPU waits for the device here", at=found.location)


def _graph_skips(found: CudaGraphs | None) -> Iterator[tuple[Mark, int]]:
    for each in found.failures(whole=True) if found is not None else ():
        yield Mark(kind="cudagraph", title=first_line(str(each)), at=each.location), 1


def _numbers(found: Numerics) -> Mark:
    """What compiled has otherwise than eager; no line is known that made it so."""
    first, *others = found.differences
    most, _, rest = first.detail.partition("; ")
    return Mark(
        kind="numbers",
        title=f"{first.at}: {first.kind}: {most}",
        said=_said(("more", rest)),
        more=tuple(("also", f"{each.at}: {each.kind}: {each.detail.partition('; ')[0]}") for each in others[:MOST]),
    )


def _failure(found: CompileFailure, what: str) -> Mark:
    said = first_said(found.message)
    return Mark(
        kind="error",
        title=f"{what}: {found.type.rpartition('.')[2]}{f': {said}' if said else ''}",
        at=found.frame,
        said=_said(("message", found.message if found.message.strip() != said else "")),
    )


def _raised(found: Raised) -> Mark:
    said = first_said(found.message)
    return Mark(
        kind="error",
        title=f"raises {found.type.rpartition('.')[2]}{f': {said}' if said else ''}, and eager does not",
        at=found.location,
        said=_said(("message", found.message if found.message.strip() != said else "")),
    )
