"""Causes: what does not hold in a run, once per cause, however many contracts and lanes it affects. No file access.

`run_view` says what is wrong with a contract, this module what is wrong with the code.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_compilecontract.facts.verdict import NO_EXCEPTION, STEADY

from .run_marks import KINDS, Kind
from .run_view import WEIGHTS, LaneView, PlacedMark, does_not_hold

# The marks that a limit is about, by its name.
_MARKS_OF: dict[str, tuple[Kind, ...]] = {
    "numerics": ("numbers",),
    "max_graph_breaks": ("break",),
    "fullgraph": ("break", "eager"),
    "max_recompiles": ("recompile",),
    "max_graphs": ("break", "recompile"),
    "max_eager_frames": ("eager", "skipped"),
    "max_eager_ops": ("skipped", "operators", "eager"),
    "min_ops_captured": ("error", "eager", "skipped"),
    "allow_recompile_limit": ("limit",),
    "cudagraphs": ("cudagraph",),
    "max_host_syncs": ("sync",),
    NO_EXCEPTION: ("error",),
    STEADY: ("error", "limit", "eager"),
}
# A guard as Dynamo writes it in Python: "self.steps == 0", "2 <= x.size()[0]", "x is None".
_COMPARED = re.compile(r"\s*(?:[=!]=|[<>]=?|\bis not\b|\bis\b|\bnot in\b|\bin\b)\s*")
# torch/csrc/dynamo/guards.cpp: "tensor 'x' size mismatch at index 0. expected 8, actual 9".
_EXPECTED = re.compile(r"(?P<source>.*\bmismatch\b.*?)[.,:;]?\s+expected\b")
_VALUE = re.compile(r"[-+]?[0-9.]+(?:e[-+]?[0-9]+)?|'[^']*'|\"[^\"]*\"|None|True|False", re.IGNORECASE)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_INNERMOST = re.compile(r"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}")
# Of a guard: none that names a value is nearly as long.
_LONGEST = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """One thing that is wrong, called `title`; marks and lanes are by number.

    `marks` are its occurrences, `follows` is what runs in eager because of its graph break. `lanes` are those that do
    not hold because of it, each with the limits that it violates there.
    """

    title: str
    marks: tuple[int, ...]
    follows: tuple[int, ...] = ()
    lanes: tuple[tuple[int, tuple[str, ...]], ...] = ()


@dataclass(slots=True)
class _Found:
    marks: dict[int, None] = field(default_factory=dict)
    follows: dict[int, None] = field(default_factory=dict)
    lanes: dict[int, dict[str, None]] = field(default_factory=dict)


def causes_of(lanes: Sequence[LaneView], marks: Sequence[PlacedMark]) -> tuple[Cause, ...]:
    """The causes of lanes that do not hold, those that affect the most contracts first."""
    by_lane: dict[int, list[int]] = {}
    for number, each in enumerate(marks):
        for seen_by, _ in each.seen:
            by_lane.setdefault(seen_by, []).append(number)
    groups: dict[Hashable, _Found] = {}
    for number, lane in enumerate(lanes):
        if wanted := _wanted(lane):
            for mark, root in _roots(by_lane.get(number, ()), marks, wanted):
                found = groups.setdefault(_key(marks[root]), _Found())
                found.marks[root] = None
                if mark != root:
                    found.follows[mark] = None
                found.lanes.setdefault(number, {}).update(dict.fromkeys(wanted[marks[mark].mark.kind]))

    def order(each: Cause) -> tuple[int, int, int]:
        kind = marks[each.marks[0]].mark.kind
        contracts = {lanes[lane].entry.contract for lane, _ in each.lanes}
        return -WEIGHTS[kind] * len(contracts), KINDS.index(kind), each.marks[0]

    return tuple(sorted((_cause(each, marks) for each in groups.values()), key=order))


def source_of(guard: str) -> str:
    """What a guard is about, without the expected value; empty if it does not say.

    It is the same for "self.steps == 0" and "self.steps == 1", and for two sizes of one tensor.
    """
    guard = guard[:_LONGEST].strip()
    if found := _EXPECTED.match(guard):
        return found["source"]
    sides = [each.strip() for each in _COMPARED.split(guard)]
    named = [each for each in sides if each and not _VALUE.fullmatch(each)]
    return named[0] if len(sides) > 1 and named and all(map(_is_expression, named)) else ""


def _is_expression(text: str) -> bool:
    """Whether it can be an expression: no bracket or quote is cut in two, and it is not a sentence."""
    bare = _QUOTED.sub("", text)
    while (inner := _INNERMOST.sub("", bare)) != bare:
        bare = inner
    return not re.search(r"[\s()\[\]{}'\"]", bare)


def _wanted(lane: LaneView) -> Mapping[Kind, Sequence[str]]:
    """The kinds of marks because of which a lane does not hold, each with the limits that it violates."""
    wanted: dict[Kind, list[str]] = {}
    if not does_not_hold(lane):
        return wanted
    for violation in lane.entry.violations:
        for kind in _MARKS_OF.get(violation.name, ()):
            wanted.setdefault(kind, []).append(violation.limit)
    if lane.verdict == "broken":
        wanted.setdefault("error", [])
    return wanted


def _roots(
    numbers: Sequence[int], marks: Sequence[PlacedMark], wanted: Mapping[Kind, Sequence[str]]
) -> Iterator[tuple[int, int]]:
    """Each wanted mark of a lane, with its cause: a graph break of that lane, or itself."""
    breaks: dict[tuple[str, int], int] = {}
    for number in numbers:
        mark = marks[number].mark
        if mark.kind == "break" and mark.at is not None:
            breaks.setdefault((mark.at.file, mark.at.line), number)
    for number in numbers:
        mark = marks[number].mark
        if mark.kind not in wanted:
            continue
        # A frame that is given up for a break in it is told at the line of that break.
        because = mark.broke or (mark.at if mark.kind in ("eager", "operators") else None)
        yield number, number if because is None else breaks.get((because.file, because.line), number)


def _key(each: PlacedMark) -> Hashable:
    mark, place = each.mark, each.place
    file, function = (place.file, place.function) if place is not None else ("", "")
    if mark.kind == "recompile" and (source := source_of(mark.title)):
        # A local variable of another function is another thing, whatever its name.
        return mark.kind, file, "" if source.startswith("self.") else function, source
    return mark.kind, file, place.line if place is not None else 0, mark.title


def _cause(found: _Found, marks: Sequence[PlacedMark]) -> Cause:
    titles = list(dict.fromkeys(marks[each].mark.title for each in found.marks))
    recompiles = all(marks[each].mark.kind == "recompile" for each in found.marks)
    source = source_of(titles[0]) if recompiles else ""

    def telling(number: int) -> tuple[bool, int]:
        place = marks[number].place
        return place is None or source not in place.source, number

    return Cause(
        title=_title(titles, source),
        # Where what changes is named in the line, that says more than where its frame begins.
        marks=tuple(sorted(found.marks, key=telling)),
        follows=tuple(sorted(found.follows.keys() - found.marks.keys())),
        lanes=tuple((lane, tuple(limits)) for lane, limits in sorted(found.lanes.items())),
    )


def _title(titles: Sequence[str], source: str) -> str:
    if not source or (len(titles) == 1 and "mismatch" in source):
        return titles[0]
    return source if "mismatch" in source else f"`{source}` changes"
