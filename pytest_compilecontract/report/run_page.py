"""The page of a run: what ran compiled, what broke and why, on the user's own lines. Nothing here writes.

`run_view` decides what is shown; this module makes a self-contained page of it (see `html`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from urllib.parse import quote

from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.facts.evidence import KINDS, Evidence, kind_of
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.metrics import COUNTS
from pytest_compilecontract.facts.receipt import Entry, Environment, Receipt
from pytest_compilecontract.facts.rerun import rerun_command
from pytest_compilecontract.facts.verdict import Violation
from pytest_compilecontract.wording import counted

from .baselines import what_drifted
from .environments import environment_rows
from .facts import stages_told
from .html import LONGEST, Numbers, Texts, rendered, visible
from .run_causes import Cause, causes_of
from .run_marks import NOUNS, TAGS
from .run_view import NOT_HELD_WEIGHT, WEIGHTS, FileView, LaneView, PlacedMark, RunView, Trouble, lane_notes
from .terminal import counts_of

# Of what does not hold, where no script runs.
MOST_TROUBLES = 30
# The lanes that are built in; what another is, its settings say.
_LANES = {
    "eager": "nothing is compiled: the reference for the other lanes",
    "capture": "Dynamo captures graphs, and eager runs them",
    "aot": "AOTAutograd traces the captured graphs, backward too, and eager runs them",
    "inductor": "Inductor compiles the graphs, as torch.compile does by default",
    "dynamic": "Inductor, with sizes dynamic from the first call",
    "cudagraphs": "Inductor, with CUDA graphs",
    "autotune": "Inductor, with autotuned kernels",
}
# Calls of a lane that are told one by one.
MOST_CALLS = 200


def run_page(
    view: RunView,
    receipt: Receipt,
    *,
    root: str,
    plugin: str,
    created: str,
    start: Sequence[str],
    beside: str = ".",
) -> str:
    """The page. `root` is the name of the project's folder, `created` a time as in a receipt.

    `beside` is the path from the page's folder to the receipt's, with slashes; `start` are the words that start pytest
    where the page is read.
    """
    environments = list(receipt.environments.values())
    return rendered(
        "run",
        _Data(view, beside, receipt, start).whole(),
        outcome=view.outcome,
        question=visible(view.sentence),
        torches=", ".join(dict.fromkeys(visible(each.torch or "unknown") for each in environments)) or "unknown",
        facts=[(name, visible(text)) for name, text in _facts(receipt)],
        troubles=list(map(_trouble, view.troubles[:MOST_TROUBLES])),
        more_troubles=max(0, len(view.troubles) - MOST_TROUBLES),
        unmeasured=[visible(_unmeasured(each.lanes, each.contracts, each.reason)) for each in view.unmeasured],
        tolerated=view.tolerated,
        source_note=visible(view.source_note),
        lanes=len(view.lanes),
        contracts=len({each.entry.contract for each in view.lanes}),
        environments=environment_rows([[each] for each in environments]),
        environment_names=[visible(name) for name in receipt.environments],
        root=visible(root),
        plugin=plugin,
        created=_told_time(created),
    )


def _facts(receipt: Receipt) -> Iterator[tuple[str, str]]:
    """The text below the answer: where, when and what was measured."""
    environments = list(receipt.environments.values())
    yield "torch", _distinct(each.torch for each in environments)
    yield "device", _distinct(each.device for each in environments)
    yield "measured", _told_time(receipt.created)
    yield "commit", _distinct(map(_commit, environments))
    yield "command", receipt.command or "not in the receipt"


def _told_time(stamp: str) -> str:
    """A receipt's time in readable form."""
    return stamp.replace("T", " ").replace("Z", " UTC")


def _distinct(found: Iterable[str | None]) -> str:
    return ", ".join(dict.fromkeys(each for each in found if each)) or "not known"


def _commit(found: Environment) -> str | None:
    if found.commit is None:
        return None
    return f"{found.commit[:12]} with uncommitted changes" if found.dirty else found.commit[:12]


def _unmeasured(lanes: Sequence[str], contracts: int, reason: str) -> str:
    return f"{', '.join(lanes)} ({counted(contracts, 'contract')}): {reason or 'no reason was given'}"


def _trouble(each: Trouble) -> tuple[str, str, str]:
    words = "; ".join(f"{words} in {', '.join(lanes)}" for lanes, words in each.said)
    return each.verdict, visible(each.contract), visible(words)


def link_to(path: str) -> str:
    """A link to a file or folder that a receipt names, always relative to the page's folder."""
    return f"./{quote(path)}"


class _Data:
    """The page's data: each text once, and everything else by number."""

    def __init__(self, view: RunView, beside: str, receipt: Receipt, start: Sequence[str]) -> None:
        self._start = start
        self._environments = receipt.environments
        self._view = view
        self._beside = beside
        self._texts, self._modules, self._calls, self._lanes_of = Texts(), Numbers(), Numbers(), Numbers()
        self._limits = Numbers()

    def whole(self) -> dict[str, object]:
        view = self._view
        return {
            "lanes": [self._lane(each) for each in view.lanes],
            "marks": [self._mark(each) for each in view.marks],
            "files": [self._file(each) for each in view.files],
            "causes": [self._cause(each) for each in causes_of(view.lanes, view.marks)],
            "troubles": [self._trouble(each) for each in view.troubles],
            "kinds": [[kind, tag, WEIGHTS[kind], *NOUNS[kind]] for kind, tag in TAGS.items()],
            "notHeld": NOT_HELD_WEIGHT,
            "modules": self._modules.values,
            "calls": self._calls.values,
            "laneWords": [[self._text(name), self._text(words)] for name, words in self._lane_words()],
            "laneSets": self._lanes_of.values,
            "limitSets": self._limits.values,
            "texts": self._texts.values,
        }

    def _text(self, text: str) -> int:
        return self._texts.of(text)

    def _lane(self, lane: LaneView) -> list[object]:
        entry, seen = lane.entry, lane.entry.measurement
        limits = ", ".join(f"{name}={value!r}" for name, value in entry.limits.items())
        modules = tuple((self._text(row.path), row.depth, row.compiled, row.eager) for row in lane.modules)
        ran = seen.operators_run if seen is not None else None
        doubts = seen.disagreements + seen.doubts if seen is not None else ()
        drift = [f"differs from its baseline: {what_drifted(lane.drift)}"] if lane.drift is not None else []
        return [
            self._text(entry.contract),
            self._text(entry.lane),
            lane.verdict,
            self._text(lane.reason),
            self._text(limits or "only the defaults"),
            list(map(self._violation, entry.violations)),
            list(self._counts(seen)) if seen is not None else [],
            self._calls_of(seen) if seen is not None else -1,
            self._modules.of(modules) if modules else -1,
            [ran.compiled, ran.eager] if ran is not None else 0,
            self._text("" if entry.verdict in ("unmeasured", "reference") else str(rerun_command(entry, self._start))),
            list(map(self._text, doubts)),
            list(map(self._text, (*drift, *self._where(entry), *lane_notes(entry)))),
            list(self._unmeasured(seen)) if seen is not None else [],
            self._evidence(entry.evidence) if entry.evidence is not None else 0,
        ]

    def _where(self, entry: Entry) -> Iterator[str]:
        """Where the lane ran, if not all lanes ran there."""
        if len(self._environments) > 1 and entry.environment in self._environments:
            found = self._environments[entry.environment]
            told = (f"torch {found.torch}" if found.torch else "no torch", found.device or "", entry.worker)
            yield f"ran in environment {entry.environment}: {', '.join(filter(None, told))}"

    def _lane_words(self) -> Iterator[tuple[str, str]]:
        """A description of each lane."""
        settings = {each.entry.lane: each.entry.lane_settings for each in self._view.lanes}
        for name, values in sorted(settings.items()):
            own = ", ".join(f"{key}={value!r}" for key, value in values.items())
            if words := _LANES.get(name, own):
                yield name, words

    def _evidence(self, left: Evidence) -> list[object]:
        """The evidence of a lane: folder, outcome of its run, files with descriptions, and what is missing."""
        folder = link_to(f"{self._beside}/{left.folder}")
        told = [[self._text(name), self._text(KINDS.get(kind_of(name), "")), quote(name)] for name in left.files]
        return [folder, self._text(left.shown), told, list(map(self._text, left.left_out))]

    def _unmeasured(self, seen: Measurement) -> Iterator[list[int]]:
        """What could not be measured, once per reason: the metrics, then the reason."""
        metrics: dict[str, list[str]] = {}
        for name, reason in seen.unmeasured.items():
            metrics.setdefault(reason, []).append(name.replace("_", " "))
        for reason, names in metrics.items():
            yield [self._text(", ".join(names)), self._text(reason)]

    def _violation(self, found: Violation) -> list[object]:
        return [self._text(found.limit), self._text(str(found.measured)), list(map(self._text, found.details))]

    def _counts(self, seen: Measurement) -> Iterator[list[int]]:
        """The counts of a summary: singular, plural and number."""
        for name, count in counts_of(seen).items():
            if count or (count == 0 and COUNTS[name].shown == "always"):
                yield [*map(self._text, COUNTS[name].noun), count]

    def _calls_of(self, seen: Measurement) -> int:
        """The calls that are shown, how many are not, and how long compiling took, by number; -1 without calls."""
        calls = seen.calls or ()
        told = tuple(
            (each.phase, _rounded(each.seconds), -1 if each.graphs_executed is None else each.graphs_executed)
            for each in calls[:MOST_CALLS]
        )
        return self._calls.of((told, len(calls) - len(told), self._text(stages_told(seen)))) if told else -1

    def _mark(self, each: PlacedMark) -> list[object]:
        mark, place = each.mark, each.place
        said = [*mark.said, *each.more]
        if place is not None and mark.at is not None and place != mark.at:
            said.insert(0, ("where", str(mark.at)))
        broke = [self._text(mark.broke.file), mark.broke.line] if mark.broke is not None else 0
        return [
            mark.kind,
            self._text(mark.title),
            [[label, self._text(text)] for label, text in said],
            self._text(place.file if place is not None else ""),
            place.line if place is not None else 0,
            self._text(place.function if place is not None else ""),
            self._text(place.source.strip() if place is not None else ""),
            int(each.moved),
            [list(pair) for pair in each.seen],
            broke,
        ]

    def _file(self, each: FileView) -> list[object]:
        lines = None if each.lines is None else [_source_line(line) for line in each.lines]
        return [
            self._text(each.name),
            lines,
            self._text(each.problem),
            [int(each.outside), int(each.changed), int(each.written_after)],
            list(each.marks),
            [[line, *self._ran(lanes)] for line, lanes in each.ran.items()],
        ]

    def _cause(self, each: Cause) -> list[object]:
        """The title of a cause, its marks, those that follow, and its lanes, each with the numbers of its limits."""
        lanes = [[lane, self._limits.of(tuple(map(self._text, limits)))] for lane, limits in each.lanes]
        return [self._text(each.title), list(each.marks), list(each.follows), lanes]

    def _trouble(self, each: Trouble) -> list[object]:
        said = [[self._text(", ".join(lanes)), self._text(words)] for lanes, words in each.said]
        return [self._text(each.contract), each.verdict, said]

    def _ran(self, lanes: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
        """Compiled and eager operators, and the number of the set of lanes with these counts."""

        def both(each: tuple[int, int, int]) -> tuple[int, int]:
            return each[1], each[2]

        for (compiled, eager), alike in groupby(sorted(lanes, key=both), key=both):
            yield compiled, eager, self._lanes_of.of(tuple(number for number, _, _ in alike))


def _rounded(seconds: float) -> float:
    short = float(f"{seconds:.3g}")
    return short if abs(short) < float("inf") else 0.0


def _source_line(line: str) -> str:
    """The line with tabs as spaces and unprintable characters escaped."""
    shown = line.expandtabs(4)
    return shown if shown.isprintable() and len(shown) <= LONGEST else one_line(shown, LONGEST)
