"""The matrix as one JSON document, for other programs, and its JSON Schema. Nothing here writes.

It contains what was compared; everything that was measured is in the receipts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pytest_compilecontract.compare.attribution import Attribution
from pytest_compilecontract.compare.bands import Direction
from pytest_compilecontract.compare.drift import Drift, Value, Verdict
from pytest_compilecontract.compare.drift import Fact as FoundFact
from pytest_compilecontract.compare.gate import Outcome
from pytest_compilecontract.compare.matrix import Cell, Matrix, MatrixRow
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.facts.receipt import FORMAT, Environment
from pytest_compilecontract.facts.verdict import Verdict as OwnVerdict
from pytest_compilecontract.files.codec import plain, schema_of, value_from_data

from .matrix import lists_of
from .terminal import counts_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One fact that was added or removed: where in the user's code, the line's text, torch's reason, and a hint."""

    where: str
    source: str = ""
    reason: str = ""
    hint: str = ""
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixChange:
    """A metric that changed, with the facts that were added (`came`) and removed (`went`).

    `gates` says whether the policy judges it, `waived` is the issue of the waiver that tolerates it.
    """

    metric: str
    direction: Direction
    before: Value
    after: Value
    gates: bool
    waived: str = ""
    came: tuple[Fact, ...] = ()
    went: tuple[Fact, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixCell:
    """One lane in one environment, compared with the first environment.

    In the first environment, `verdict` is that by the contract's own limits; in every environment, `own` is. null means
    that the lane was not in the run. `fact` is the most important fact. `environment` is a key of the column's
    `environments`. In `counts`, null is "not measured". `unknown` are the metrics that cannot be compared.
    """

    verdict: Verdict | OwnVerdict | None
    own: OwnVerdict | None = None
    fact: str = ""
    reason: str = ""
    over_its_limits: bool = False
    environment: str | None = None
    counts: dict[str, int | None] = field(default_factory=dict)
    changes: tuple[MatrixChange, ...] = ()
    unknown: tuple[str, ...] = ()
    attribution: Attribution = field(default_factory=Attribution)
    rerun: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixLane:
    """One lane of one contract in every environment, with its three lists if it did not hold everywhere."""

    contract: str
    lane: str
    held_everywhere: bool
    cells: tuple[MatrixCell, ...]
    validated: tuple[str, ...] = ()
    workaround: tuple[str, ...] = ()
    open_risk: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One environment. `installed` and `imported` are "yes", or "no" and why: torch may be installed and not work.

    `imported` is "not tried" if nothing was installed, and "not known" if nothing ran. `cut_off` is why the tests did
    not run to their end; empty if they did. `environments` are those of its run, by the keys that its entries use.
    """

    name: str
    installed: str
    imported: str
    cut_off: str = ""
    environments: Mapping[str, Environment] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixDocument:
    """Lanes of contracts down, environments across. `answer`: may we upgrade from the first to the last?"""

    format: int = FORMAT
    plugin: str
    answer: Outcome
    columns: tuple[Column, ...]
    rows: tuple[MatrixLane, ...]


def to_json(found: Matrix, *, outcome: Outcome, plugin: str) -> bytes:
    """The document as JSON: indented, keys in order, including fields with their default."""
    import msgspec

    document = MatrixDocument(
        plugin=plugin,
        answer=outcome,
        columns=tuple(
            Column(
                name=each.name,
                installed=str(each.installed),
                imported=str(each.imported),
                cut_off=each.cut_off,
                environments=each.environments,
            )
            for each in found.columns
        ),
        rows=tuple(_lane(row, found) for row in found.rows),
    )
    return msgspec.json.format(msgspec.json.encode(plain(document), order="sorted"), indent=2) + b"\n"


def document_from_data(data: object, *, name: str) -> MatrixDocument:
    """The document in `data`; `name` is its name in messages.

    Raises:
        ReceiptError: `data` does not fit the schema, or contradicts itself.
    """
    document = value_from_data(data, MatrixDocument, name=name)
    for at, contradiction in _contradictions(document):
        raise ReceiptError(contradiction, at=f"{name}: {at}")
    return document


def schema() -> dict[str, object]:
    """The JSON Schema (2020-12) of the document."""
    return schema_of(
        MatrixDocument,
        name="matrix",
        description="What `compilecontract matrix` says of several runs of the same contracts.",
    )


def schema_json() -> bytes:
    """The text of schemas/matrix.schema.json."""
    return json.dumps(schema(), indent=2, sort_keys=True).encode() + b"\n"


def _contradictions(document: MatrixDocument) -> Iterator[tuple[str, str]]:
    for index, row in enumerate(document.rows):
        if len(row.cells) != len(document.columns):
            counted = f"{len(row.cells)} cells for {len(document.columns)} columns"
            yield f"rows[{index}].cells", counted
            continue
        for at, (cell, column) in enumerate(zip(row.cells, document.columns, strict=True)):
            if cell.environment is not None and cell.environment not in column.environments:
                place = f"rows[{index}].cells[{at}].environment"
                yield place, f"{cell.environment!r} is not in environments of the column"


def _lane(row: MatrixRow, found: Matrix) -> MatrixLane:
    lists = lists_of(row, found.columns)
    return MatrixLane(
        contract=row.contract,
        lane=row.lane,
        held_everywhere=row.fine,
        cells=tuple(map(_cell, row.cells)),
        validated=tuple(lists.get("validated", ())),
        workaround=tuple(lists.get("workaround", ())),
        open_risk=tuple(lists.get("open risk", ())),
    )


def _cell(cell: Cell) -> MatrixCell:
    entry, lane = cell.entry, cell.lane
    return MatrixCell(
        verdict=cell.verdict,
        own=entry.verdict if entry else None,
        fact=cell.fact,
        reason=lane.reason if lane else cell.fact,
        over_its_limits=cell.over_its_limits,
        environment=entry.environment if entry else None,
        counts=dict(counts_of(entry.measurement)) if entry and entry.measurement else {},
        changes=tuple(map(_change, lane.drifts)) if lane else (),
        unknown=lane.unknown if lane else (),
        attribution=lane.attribution if lane and lane.drifts else Attribution(),
        rerun=cell.rerun,
    )


def _change(drift: Drift) -> MatrixChange:
    return MatrixChange(
        metric=drift.metric,
        direction=drift.direction,
        before=drift.before,
        after=drift.after,
        gates=drift.gates,
        waived=drift.waived,
        came=tuple(map(_fact, drift.came)),
        went=tuple(map(_fact, drift.went)),
    )


def _fact(found: FoundFact) -> Fact:
    return Fact(where=found.where, source=found.source, reason=found.said, hint=found.hint, stack=found.stack)
