"""What the page of a run shows, as data: the answer, what does not hold, files line by line, modules.

Pure: a receipt and the lines of source files go in, frozen data comes out. `run_page` renders it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_compilecontract.compare.drift import LaneComparison
from pytest_compilecontract.facts.limits import LIMITS
from pytest_compilecontract.facts.measurement import Location, Numerics
from pytest_compilecontract.facts.receipt import Entry, Receipt
from pytest_compilecontract.facts.verdict import Violation
from pytest_compilecontract.files.sources import Source
from pytest_compilecontract.wording import counted

from .baselines import what_drifted
from .run_marks import KINDS, NOUNS, Kind, Mark, marks_of
from .terminal import Row, Shown, hunt_told, is_held, row_of

Outcome = Literal["yes", "no", "not known"]
# How much one mark of a kind hurts, by contract: files are in this order, and no number of it is ever shown.
WEIGHTS: dict[Kind, int] = {
    "error": 100,
    "numbers": 80,
    "limit": 60,
    "break": 50,
    "eager": 40,
    "skipped": 30,
    "recompile": 20,
    "operators": 10,
    "sync": 10,
    "cudagraph": 10,
}
# How much more it hurts where the lane does not hold.
NOT_HELD_WEIGHT = 4
# Below that a module is told by the rest of its path.
_DEEPEST = 32
# The eager frames of a baseline are without those that Dynamo skips, and those of a limit are with them.
_LABELS = {"eager_frames": "eager frames that Dynamo gave up on"}
# The worst first: what a contract is called by, of its lanes.
_WORST: tuple[Shown, ...] = ("broken", "violated", "drifted", "unstable", "unverified", "unmeasured")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleRow:
    """A module in the tree, with the numbers of compiled and eager operators in it and its submodules."""

    path: str
    depth: int
    compiled: int
    eager: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneView:
    """A lane as the page shows it; `verdict` and `reason` may be about drift from its baseline.

    `drift` is the drift of a lane with a worse verdict than drifted.
    """

    entry: Entry
    verdict: Shown
    reason: str
    drift: LaneComparison | None = None
    modules: tuple[ModuleRow, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedMark:
    """A mark at its place, with the lanes that saw it, by number, and how often.

    `more` are labels and texts that not all lanes have. `moved`: the line has changed since the run.
    """

    mark: Mark
    place: Location | None
    seen: tuple[tuple[int, int], ...]
    more: tuple[tuple[str, str], ...] = ()
    moved: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FileView:
    """A file that lanes touched. `marks` are by number; `ran` has, by line, lanes with compiled and eager operators.

    `changed`: a line has changed since the run, so `ran`, which only has line numbers, is left out. `written_after`:
    the file was written after the run, which is all that is known.
    """

    name: str
    lines: tuple[str, ...] | None
    problem: str = ""
    outside: bool = False
    changed: bool = False
    written_after: bool = False
    marks: tuple[int, ...] = ()
    ran: Mapping[int, tuple[tuple[int, int, int], ...]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """A contract that does not hold: its worst verdict, and what is wrong in which lanes."""

    contract: str
    verdict: Shown
    said: tuple[tuple[tuple[str, ...], str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unmeasured:
    """Why lanes could not be measured."""

    reason: str
    lanes: tuple[str, ...]
    contracts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """Everything that the page shows."""

    outcome: Outcome
    sentence: str
    lanes: tuple[LaneView, ...]
    marks: tuple[PlacedMark, ...]
    files: tuple[FileView, ...]
    troubles: tuple[Trouble, ...]
    unmeasured: tuple[Unmeasured, ...]
    source_note: str = ""
    tolerated: str = ""


def named_files(receipt: Receipt) -> tuple[str, ...]:
    """Every file that the receipt names a line of."""
    names: dict[str, None] = {}
    for entry in receipt.entries:
        if entry.measurement is None:
            continue
        for mark, _ in marks_of(entry.measurement):
            names.update((place.file, None) for place in mark.places)
        names.update((name, None) for name, _, _, _ in _lines_run(entry))
    return tuple(sorted(names))


def run_view(
    receipt: Receipt,
    sources: Mapping[str, Source],
    drifted: Mapping[tuple[str, str], LaneComparison] | None = None,
    checkout: tuple[str, bool] | None = None,
) -> RunView:
    """The view of a receipt. `drifted` are the lanes that drifted from their baseline, by contract and lane.

    `checkout` is the commit of the sources, and whether they differ from it, if that is known.
    """
    # Lanes mostly agree in their modules.
    trees: dict[Hashable, tuple[ModuleRow, ...]] = {}
    lanes = tuple(_lane(entry, (drifted or {}).get((entry.contract, entry.lane)), trees) for entry in receipt.entries)
    marks = _placed(receipt.entries, sources)
    rows = [replace(row_of(each.entry), verdict=each.verdict) for each in lanes]
    outcome, sentence = _answer(rows, receipt.setup.failure if receipt.setup is not None else "")
    return RunView(
        outcome=outcome,
        sentence=sentence,
        lanes=lanes,
        marks=marks,
        files=_files(receipt, marks, sources, same=_is_of(receipt, checkout)),
        source_note=_source_note(receipt, checkout),
        tolerated=_tolerated(marks, lanes),
        troubles=tuple(_troubles(lanes)),
        unmeasured=tuple(_unmeasured(rows)),
    )


def lane_notes(entry: Entry) -> tuple[str, ...]:
    """Notes on a lane: how far it holds, how it was compared, and what was not measured."""
    seen = entry.measurement
    notes = [entry.frontier.told()] if entry.frontier is not None else []
    if entry.repeats > 1:
        notes.append(f"measured {entry.repeats} times")
    if seen is None:
        return tuple(notes)
    if seen.numerics is not None:
        how = _agreement(seen.numerics)
        compared = f"{how}: {counted(seen.numerics.compared, 'tensor')} compared"
        notes.append(f"{compared} ({seen.numerics.note})" if seen.numerics.note else compared)
        notes += [f"not compared: {each}" for each in seen.numerics.uncompared]
    if seen.raised_in_both is not None:
        notes.append(str(seen.raised_in_both))
    notes += [f"cut short: {seen.cut_short}"] if seen.cut_short else []
    notes += [hunt_told(seen.hunted)] if seen.hunted is not None else []
    notes += [seen.elsewhere] if seen.elsewhere else []
    return tuple(notes)


def _agreement(found: Numerics) -> str:
    if found.differences:
        return f"differs from eager by {found.method}"
    if not found.compared:
        return f"not known to agree with eager by {found.method}"
    return "agrees with eager " + ("bit for bit" if found.method == "bitwise" else f"by {found.method}")


def module_rows(modules: Mapping[str, tuple[int, int]]) -> tuple[ModuleRow, ...]:
    """The tree of modules, each before its submodules, with the sums over them."""
    sums: dict[tuple[str, ...], list[int]] = {}
    for path, (compiled, eager) in modules.items():
        parts = tuple(path.split(".", _DEEPEST)) if path else ()
        for depth in range(len(parts) + 1):
            both = sums.setdefault(parts[:depth], [0, 0])
            both[0] += compiled
            both[1] += eager
    return tuple(
        ModuleRow(path=".".join(parts), depth=len(parts), compiled=sums[parts][0], eager=sums[parts][1])
        for parts in sorted(sums, key=_natural)
    )


def _natural(parts: Sequence[str]) -> list[tuple[int, int, str]]:
    """A sort key by which layer 10 comes after layer 9."""
    return [(0, int(each), "") if re.fullmatch("[0-9]{1,9}", each) else (1, 0, each) for each in parts]


def _lane(entry: Entry, drift: LaneComparison | None, trees: dict[Hashable, tuple[ModuleRow, ...]]) -> LaneView:
    seen = entry.measurement
    modules = seen.operators_run.modules if seen is not None and seen.operators_run is not None else {}
    key = tuple(modules.items())
    if key not in trees:
        trees[key] = module_rows(modules)
    drifts = drift is not None and entry.verdict == "held"
    return LaneView(
        entry=entry,
        verdict="drifted" if drifts else entry.verdict,
        reason=what_drifted(drift, _LABELS) if drift is not None and drifts else entry.reason,
        drift=None if drifts else drift,
        modules=trees[key],
    )


# Lines


def _lines_run(entry: Entry) -> Iterator[tuple[str, int, int, int]]:
    """The lines with known operators: file, line, compiled, eager."""
    seen = entry.measurement
    for at, (compiled, eager) in seen.operators_run.lines.items() if seen is not None and seen.operators_run else ():
        name, _, line = at.rpartition(":")
        if name and line.isascii() and line.isdecimal():
            yield name, int(line), compiled, eager


def _placed(entries: Iterable[Entry], sources: Mapping[str, Source]) -> tuple[PlacedMark, ...]:
    seen: dict[tuple[Mark, Location | None], Counter[int]] = {}
    more: dict[tuple[Mark, Location | None], dict[tuple[str, str], None]] = {}
    for number, entry in enumerate(entries):
        for mark, times in marks_of(entry.measurement) if entry.measurement is not None else ():
            key = (mark, _place(mark, sources))
            seen.setdefault(key, Counter())[number] += times
            more.setdefault(key, {}).update(dict.fromkeys(mark.more))
    placed = (
        PlacedMark(
            mark=mark,
            place=place,
            seen=tuple(sorted(lanes.items())),
            more=tuple(more[mark, place]),
            moved=place is not None and _is_moved(place, sources.get(place.file)),
        )
        for (mark, place), lanes in seen.items()
    )
    return tuple(sorted(placed, key=_order))


def _order(each: PlacedMark) -> tuple[str, int, int]:
    place = each.place
    return (place.file if place else "", place.line if place else 0, KINDS.index(each.mark.kind))


def _place(mark: Mark, sources: Mapping[str, Source]) -> Location | None:
    own = (place for place in mark.places if not _is_outside(sources.get(place.file)))
    return next(own, mark.at)


def _is_outside(source: Source | None) -> bool:
    return source is None or source.outside


def _is_moved(place: Location, source: Source | None) -> bool:
    """Whether the file exists and its line has changed."""
    if source is None or source.lines is None:
        return False
    if not 0 < place.line <= len(source.lines):
        return True
    was = place.source.strip().splitlines()
    return bool(was) and source.lines[place.line - 1].strip() != was[0].strip()


def _is_of(receipt: Receipt, checkout: tuple[str, bool] | None) -> bool:
    """Whether the sources are known to be those of the run."""
    environments = receipt.environments.values()
    return (
        checkout is not None
        and all((each.commit, each.dirty) == (checkout[0], False) for each in environments)
        and (not checkout[1])
    )


def _source_note(receipt: Receipt, checkout: tuple[str, bool] | None) -> str:
    commits = {each.commit for each in receipt.environments.values() if each.commit}
    if checkout is None or not commits or checkout[0] in commits:
        return ""
    measured = ", ".join(sorted(each[:12] for each in commits))
    return f"The source shown is from commit {checkout[0][:12]}, but the run measured {measured}."


def _files(
    receipt: Receipt, marks: Sequence[PlacedMark], sources: Mapping[str, Source], *, same: bool
) -> tuple[FileView, ...]:
    of_file: dict[str, list[int]] = {}
    for number, each in enumerate(marks):
        if each.place is not None:
            of_file.setdefault(each.place.file, []).append(number)
    ran: dict[str, dict[int, list[tuple[int, int, int]]]] = {}
    for number, entry in enumerate(receipt.entries):
        for name, line, compiled, eager in _lines_run(entry):
            ran.setdefault(name, {}).setdefault(line, []).append((number, compiled, eager))
    weights = {
        name: sum(_weight(marks[each], receipt.entries) for each in numbers) for name, numbers in of_file.items()
    }
    names = sorted(of_file.keys() | ran.keys(), key=lambda name: (-weights.get(name, 0), name))
    return tuple(
        _file(
            name,
            sources.get(name, Source(outside=True)),
            marks,
            of_file.get(name, ()),
            ran.get(name, {}),
            "" if same else receipt.created,
        )
        for name in names
    )


def _weight(each: PlacedMark, entries: Sequence[Entry]) -> int:
    contracts: dict[str, int] = {}
    for lane, _ in each.seen:
        entry = entries[lane]
        weight = 1 if entry.verdict == "held" else NOT_HELD_WEIGHT
        contracts[entry.contract] = max(contracts.get(entry.contract, 1), weight)
    return WEIGHTS[each.mark.kind] * sum(contracts.values())


def _file(
    name: str,
    source: Source,
    marks: Sequence[PlacedMark],
    numbers: Sequence[int],
    ran: Mapping[int, Sequence[tuple[int, int, int]]],
    run_at: str,
) -> FileView:
    changed = any(marks[each].moved for each in numbers)
    if source.lines is not None and not changed:
        changed = any(not 0 < line <= len(source.lines) for line in ran)
    return FileView(
        name=name,
        lines=source.lines,
        problem=source.problem,
        outside=source.outside,
        changed=changed,
        written_after=not changed and bool(run_at) and source.written > run_at,
        marks=tuple(numbers),
        ran={} if changed else {line: tuple(lanes) for line, lanes in sorted(ran.items())},
    )


# The answer


def _answer(rows: Sequence[Row], stopped: str) -> tuple[Outcome, str]:
    if not rows:
        return "no" if stopped else "not known", stopped or "No contract was measured."
    contracts: dict[str, list[Row]] = {}
    for row in rows:
        contracts.setdefault(row.contract, []).append(row)
    held = sum(map(is_held, contracts.values()))
    others = Counter(_worst(lanes) for lanes in contracts.values() if not is_held(lanes))
    unmeasured = sum(row.verdict == "unmeasured" for row in rows)
    outcome: Outcome = "yes"
    if stopped or set(others) - {"unmeasured", "reference"}:
        outcome = "no"
    elif others:
        outcome = "not known"
    sentences = [stopped and f"{stopped}.", f"{_held(held, len(contracts), others)}."]
    if unmeasured:
        sentences.append(f"{counted(unmeasured, 'lane')} could not be measured here.")
    return outcome, " ".join(filter(None, sentences))


def _worst(lanes: Sequence[Row]) -> Shown:
    verdicts = {row.verdict for row in lanes}
    return next((each for each in _WORST if each in verdicts), "reference")


def _held(held: int, contracts: int, others: Mapping[Shown, int]) -> str:
    found = [(verdict, count) for verdict in (*_WORST, "reference") if (count := others.get(verdict, 0))]
    whole = "The one contract" if contracts == 1 else f"All {contracts} contracts"
    if not found:
        return f"{whole} hold{'s' if contracts == 1 else ''}"
    if found[0][1] == contracts:
        return f"{whole} {_called(*found[0])}"
    told = ", ".join(f"{count} {_called(verdict, count)}" for verdict, count in found)
    if not held:
        return f"None of {contracts} contracts holds: {told}"
    return f"{held} of {contracts} contracts hold{'s' if held == 1 else ''}: {told}"


def _called(verdict: Shown, count: int) -> str:
    if verdict == "drifted":
        return "has drifted" if count == 1 else "have drifted"
    words = "not compiled in any lane" if verdict == "reference" else verdict
    return f"{'is' if count == 1 else 'are'} {words}"


def _tolerated(marks: Sequence[PlacedMark], lanes: Sequence[LaneView]) -> str:
    """The facts of lanes that hold, as one sentence; empty if there are none."""
    kinds = Counter(each.mark.kind for each in marks if any(lanes[number].verdict == "held" for number, _ in each.seen))
    told = [counted(kinds[kind], *NOUNS[kind]) for kind in KINDS if kinds[kind] and kind != "operators"]
    return f"The contracts that hold tolerate {_listed(told)}." if told else ""


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def does_not_hold(lane: LaneView) -> bool:
    """Whether a lane does not hold; an unmeasured lane does not count."""
    return lane.verdict in _WORST and lane.verdict != "unmeasured"


def _troubles(lanes: Sequence[LaneView]) -> Iterator[Trouble]:
    """The troubles, the worst first; lanes of a contract with the same text are joined."""
    by_contract: dict[str, list[LaneView]] = {}
    for lane in lanes:
        if does_not_hold(lane):
            by_contract.setdefault(lane.entry.contract, []).append(lane)
    found = (_trouble(contract, of_it) for contract, of_it in by_contract.items())
    yield from sorted(found, key=lambda each: _WORST.index(each.verdict))


def _trouble(contract: str, lanes: Sequence[LaneView]) -> Trouble:
    said: dict[str, list[str]] = {}
    for lane in lanes:
        said.setdefault("; ".join(_words(lane)), []).append(lane.entry.lane)
    return Trouble(
        contract=contract,
        verdict=min((each.verdict for each in lanes), key=_WORST.index),
        said=tuple((tuple(dict.fromkeys(names)), words) for words, names in said.items()),
    )


def _words(lane: LaneView) -> tuple[str, ...]:
    drift = (f"drifted: {what_drifted(lane.drift, _LABELS)}",) if lane.drift is not None else ()
    if lane.verdict == "drifted":
        return (lane.reason,)
    if lane.entry.violations:
        return (*(f"{violation_words(each)}{_of_which(each, lane)}" for each in lane.entry.violations), *drift)
    return (lane.reason, *drift) if lane.reason else drift


def _of_which(found: Violation, lane: LaneView) -> str:
    """The parts of the count of eager frames, if drift of some of them is shown next to it."""
    seen = lane.entry.measurement
    drifts = lane.drift.drifts if lane.drift is not None else ()
    if found.name != "max_eager_frames" or not any(drift.metric == "eager_frames" for drift in drifts):
        return ""
    if seen is None or not seen.skipped_frames:
        return ""
    return (
        f" ({len(seen.lost_frames or ())} that Dynamo gave up on, "
        f"{len(seen.skipped_frames)} in libraries that it skips)"
    )


def violation_words(found: Violation) -> str:
    """A violation in words: "graph breaks: 1, at most 0"."""
    limit = LIMITS.get(found.name)
    if limit is None or limit.bounds is None:
        return f"{found.limit}: {found.measured}"
    return f"{limit.counted}: {found.measured}, at {limit.bounds} {found.bound}"


def _unmeasured(rows: Iterable[Row]) -> Iterator[Unmeasured]:
    why: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for row in rows:
        if row.verdict == "unmeasured":
            lanes, contracts = why.setdefault(row.reason, ({}, {}))
            lanes[row.lane] = None
            contracts[row.contract] = None
    for reason, (lanes, contracts) in why.items():
        yield Unmeasured(reason=reason, lanes=tuple(lanes), contracts=len(contracts))
