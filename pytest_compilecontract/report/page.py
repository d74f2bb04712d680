"""The matrix as one self-contained HTML page. Nothing here writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_compilecontract.compare.attribution import Attribution
from pytest_compilecontract.compare.drift import Drift, Fact, LaneComparison, Value
from pytest_compilecontract.compare.gate import Answer
from pytest_compilecontract.compare.matrix import Cell, Matrix, MatrixRow
from pytest_compilecontract.compare.tell import READERS, facts_of
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.metrics import COUNTS, METRICS, SECONDS, TRENDED
from pytest_compilecontract.facts.receipt import Entry

from .comparison import drift_headline, excuse_note, stale_lines, verdict_line
from .environments import environment_rows
from .facts import by_stage
from .graphs import graph_diffs
from .html import MOST_LINES, Numbers, Texts, rendered, visible
from .matrix import cell_text, cold_cells, lists_of, stopped_lines

# By contract and lane, the code of each graph by the name of its file.
Graphs = Mapping[tuple[str, str], Mapping[str, str]]
_LISTS = ("validated", "workaround", "open risk")
# What an environment of any kind counts and compares: with its facts, and as a number alone.
_COUNTED = [name for name, each in COUNTS.items() if each.label and not each.on_device]
_WITH_FACTS = [name for name in _COUNTED if name in READERS]
_NUMBERS = [name for name in _COUNTED if name not in READERS]


# Lanes in the table that needs no JavaScript.
MOST_ROWS = 200
# A drift is of those in skipped frames alone; what is shown are all that ran eager.
_LABELS = {"eager_ops": "eager operators"}


def page(found: Matrix, answer: Answer | None, *, plugin: str, created: str, graphs: Sequence[Graphs] = ()) -> str:
    """The page. `answer` is the gate's, from the first environment to the last; None if there is only one.

    `graphs` are, for each environment, the graphs in the evidence of its lanes.
    """
    return rendered(
        "matrix",
        _Data(found, graphs).whole(),
        names=[visible(column.name) for column in found.columns],
        question=_question(found, answer),
        outcome=answer.outcome if answer else "not known",
        stopped=[visible(line) for line in stopped_lines(found.columns)],
        stale=[visible(line) for line in stale_lines(answer)] if answer else [],
        lanes=len(found.rows),
        plainly=_plainly(found),
        contracts=len({row.contract for row in found.rows}),
        environments=environment_rows([list(column.environments.values()) for column in found.columns]),
        plugin=plugin,
        created=created,
    )


def _plainly(found: Matrix) -> list[tuple[str, list[str]]]:
    """The lanes and their cells as text, for a browser without JavaScript: those that did not hold everywhere first."""
    rows = sorted(found.rows, key=lambda row: row.fine)
    return [
        (visible(f"{row.contract} [{row.lane}]"), [visible(cell_text(cell)) for cell in row.cells])
        for row in rows[:MOST_ROWS]
    ]


def _question(found: Matrix, answer: Answer | None) -> str:
    if answer is None:
        return "Only one environment: nothing to compare it with."
    line = visible(verdict_line(found.comparisons[-1], answer))
    return line[:1].upper() + line[1:]


class _Data:
    """The page's data: tables with each text, fact, measurement and change once, and rows that refer to them."""

    def __init__(self, found: Matrix, graphs: Sequence[Graphs]) -> None:
        self._found = found
        self._graphs = graphs
        self._texts, self._facts, self._keys = Texts(), Numbers(), Numbers()
        self._metrics, self._lines, self._measured = Numbers(), Numbers(), Numbers()
        self._changes, self._attributions, self._trends = Numbers(), Numbers(), Numbers()

    def whole(self) -> dict[str, object]:
        rows = [self._row(row) for row in self._found.rows]
        columns = [
            {
                "name": self._text(column.name),
                "installed": self._text(str(column.installed)),
                "imported": self._text(str(column.imported)),
                "verdicts": Counter(str(row.cells[at].verdict) for row in self._found.rows if row.cells[at].verdict),
            }
            for at, column in enumerate(self._found.columns)
        ]
        return {
            "columns": columns,
            "rows": rows,
            "facts": self._facts.values,
            "metrics": self._metrics.values,
            "seconds": [(name, METRICS[name].label) for name in SECONDS],
            "lines": self._lines.values,
            "measured": self._measured.values,
            "changes": self._changes.values,
            "trends": self._trends.values,
            "trended": [[name, _LABELS.get(name, METRICS[name].label), *METRICS[name].noun] for name in TRENDED],
            "cold": [self._text(text) for text in cold_cells(self._found)],
            "attributions": self._attributions.values,
            "texts": self._texts.values,
        }

    def _text(self, text: str) -> int:
        return self._texts.of(text)

    def _row(self, row: MatrixRow) -> list[object]:
        lists = lists_of(row, self._found.columns)
        told = [[self._text(line) for line in lists.get(kind, ())] for kind in _LISTS] if lists else 0
        return [
            self._text(row.contract),
            self._text(row.lane),
            [self._cell(row, at) for at in range(len(row.cells))],
            told,
        ]

    def _diffs(self, row: MatrixRow, at: int) -> list[object] | int:
        """How the graphs differ from those of the first environment; 0 unless both left evidence."""
        key = (row.contract, row.lane)
        if not at or len(self._graphs) <= at:
            return 0
        before, after = self._graphs[0].get(key), self._graphs[at].get(key)
        if not before or not after:
            return 0
        return [[self._text(name), list(map(self._text, lines))] for name, lines in graph_diffs(before, after)]

    def _cell(self, row: MatrixRow, at: int) -> list[object] | int:
        cell: Cell = row.cells[at]
        if cell.verdict is None:
            return 0
        entry, lane = cell.entry, cell.lane
        reason = lane.reason if lane else cell.fact
        return [
            "over its limits" if cell.over_its_limits else str(cell.verdict),
            self._text(entry.reason if cell.over_its_limits and entry else cell.fact),
            self._text(reason),
            self._text(entry.verdict if entry else ""),
            self._measured.of(tuple(self._shown(entry))) if entry else -1,
            [_rounded(getattr(entry.measurement, name)) for name in SECONDS] if entry and entry.measurement else 0,
            self._changes.of(self._changed(lane)) if lane and (lane.drifts or lane.unknown or lane.excused) else -1,
            self._attributions.of(self._attribution(lane.attribution)) if lane else -1,
            self._texts.of(cell.rerun),
            self._trends.of(_trend(entry)) if entry and entry.measurement else -1,
            self._diffs(row, at),
        ]

    def _changed(self, lane: LaneComparison) -> tuple[object, ...]:
        lists = (lane.unknown, lane.excused)
        return (tuple(map(self._drift, lane.by_cause)), *(tuple(map(self._text, each)) for each in lists))

    def _drift(self, drift: Drift) -> tuple[object, ...]:
        return (
            drift.metric,
            self._text(drift_headline(drift)),
            drift.direction,
            int(drift.gates),
            self._text(drift.waived),
            tuple(map(self._fact, drift.came)),
            tuple(map(self._fact, drift.went)),
            self._text(excuse_note(drift)),
        )

    def _fact(self, fact: Fact) -> int:
        texts = (fact.where, fact.source, fact.said, fact.hint)
        return self._facts.of((*map(self._text, texts), tuple(map(self._text, fact.stack))))

    def _attribution(self, attribution: Attribution) -> tuple[object, ...]:
        return tuple(
            (kind, tuple(self._text(change) for change in getattr(attribution, kind)[:MOST_LINES]))
            for kind in attribution.suspects()
        )

    def _shown(self, entry: Entry) -> Iterator[int]:
        """The measurement of an entry, one line per metric: its name, label, value, and facts with their keys."""
        facts = {metric: tuple(self._keyed(found)) for metric, found in facts_of(entry).items()}
        limits = ", ".join(f"{name}={value!r}" for name, value in entry.limits.items())
        yield self._line("limits", "limits of the contract", limits or "only the defaults")
        yield self._line("limits", "limits exceeded", len(facts["limits"]), facts["limits"])
        yield self._line("errors", "errors", *_counted("errors", entry, facts))
        seen = entry.measurement
        if seen is None:
            return
        for metric in _WITH_FACTS:
            yield self._line(metric, METRICS[metric].label, *_counted(metric, entry, facts))
        yield self._line(
            "eager_ops", "operators that ran in eager", _known(seen, "eager_ops"), facts.get("eager_ops", ())
        )
        yield self._line("numerics", "numeric differences", *_counted("numerics", entry, facts))
        yield self._line("state_dict", "state dict changes", *_counted("state_dict", entry, facts))
        for metric in _NUMBERS:
            yield self._line(metric, METRICS[metric].label, _known(seen, metric))
        if told := by_stage(seen):
            yield self._line("stage_seconds", "compiling", told)
        for name in ("first_compiles", "continuations", "break_events", "backend_calls"):
            yield self._line(name, name.replace("_", " "), _known(seen, name))
        if seen.numerics is not None:
            checked = f"{seen.numerics.method}, {seen.numerics.compared} compared"
            yield self._line("method", "compared with eager by", checked)
        if seen.calls is not None:
            phases = Counter(call.phase for call in seen.calls)
            told = ", ".join(f"{count} {phase}" for phase, count in phases.items())
            yield self._line("calls", "calls", told or "none")
        yield self._line("backend", "backend", seen.backend or "-")
        for said in seen.disagreements:
            yield self._line("disagreements", "two independent counts disagree", said)

    def _line(self, metric: str, label: str, value: Value, facts: tuple[object, ...] = ()) -> int:
        return self._lines.of((self._metrics.of((metric, label)), self._text(str(value)), facts))

    def _keyed(self, found: Iterable[tuple[object, Fact]]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Each fact once, with all of its keys."""
        keys: dict[int, list[int]] = {}
        for key, fact in found:
            keys.setdefault(self._fact(fact), []).append(self._keys.of(key))
        yield from ((fact, tuple(known)) for fact, known in keys.items())


def _trend(entry: Entry) -> tuple[object, ...]:
    """The values of `TRENDED`, None where one was not measured, and the spread of the seconds if there is one."""
    seen = entry.measurement
    assert seen is not None
    counts = [COUNTS[name].count if name in COUNTS else None for name in TRENDED]
    values = [
        count(seen) if count is not None else getattr(seen, name) for name, count in zip(TRENDED, counts, strict=True)
    ]
    spread = entry.spread.get("cold_seconds") if entry.repeats > 1 else None
    return (*map(_number, values), *(map(_number, spread) if spread is not None else ()))


def _number(value: object) -> float | None:
    """A number for JSON; None for NaN and infinity."""
    if not isinstance(value, int | float) or not abs(value) < float("inf"):
        return None
    return value if isinstance(value, int) else float(f"{value:.3g}")


def _counted(metric: str, entry: Entry, facts: Mapping[str, tuple[object, ...]]) -> tuple[Value, tuple[object, ...]]:
    if metric not in facts:
        return _unknown(entry.measurement, METRICS[metric].at), ()
    # Of facts that are the same, one is shown.
    read = READERS[metric](entry.measurement) if metric in READERS and entry.measurement is not None else None
    return read.count if read is not None else len(facts[metric]), facts[metric]


def _known(seen: Measurement, name: str) -> Value:
    value = getattr(seen, name)
    return _unknown(seen, name) if value is None else value


def _unknown(seen: Measurement | None, name: str) -> str:
    reason = seen.unmeasured.get(name, "") if seen else ""
    return f"not measured: {reason}" if reason else "not measured"


def _rounded(value: float | None) -> float | str | None:
    if value is None:
        return None
    short = float(f"{value:.3g}")
    return short if abs(short) < float("inf") else str(value)
