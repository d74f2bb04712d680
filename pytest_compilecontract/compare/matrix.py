"""The matrix: lanes of contracts down, environments across, each compared with the first environment. Data only."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.receipt import PJRT, Entry, Environment, Receipt
from pytest_compilecontract.facts.rerun import rerun_command
from pytest_compilecontract.facts.verdict import Verdict as OwnVerdict
from pytest_compilecontract.wording import counted

from .attribution import torch_of
from .comparison import compare
from .drift import Comparison, LaneComparison, Verdict
from .policy import DEFAULT_POLICY, Policy
from .side import Key, sides_of
from .tell import in_brief
from .waivers import Waiver, waived


@dataclass(frozen=True, slots=True)
class Known:
    """Whether a step succeeded, and if not, why: torch may be installed and not work.

    It is "not tried" if the step before it failed, and "not known" if nothing ran.
    """

    state: Literal["yes", "no", "not tried", "not known"]
    why: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.why}" if self.why else self.state


YES = Known("yes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One environment. `cut_off` is why the tests did not run to their end; empty if they did. `environments` are those
    of its run, by the keys that its entries use.
    """

    name: str
    installed: Known
    imported: Known
    cut_off: str = ""
    environments: Mapping[str, Environment] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One lane in one environment: its verdict against the first one, and the fact that matters most.

    In the first environment, which is not compared, it is the verdict by the contract's own limits. None is a lane
    that was not in the run.
    """

    verdict: Verdict | OwnVerdict | None
    fact: str = ""
    entry: Entry | None = None
    environment: Environment | None = None
    lane: LaneComparison | None = None

    @property
    def fine(self) -> bool:
        """Whether there is nothing to report."""
        return self.verdict in ("held", "reference") and not self.over_its_limits

    @property
    def over_its_limits(self) -> bool:
        """Whether it is unchanged or better, and exceeds the limits of the contract."""
        return self.verdict in ("held", "improved") and self.entry is not None and self.entry.verdict == "violated"

    @property
    def rerun(self) -> str:
        """The command that reruns this lane alone; empty if the lane was never measured."""
        if self.lane is not None:
            return str(self.lane.rerun or "")
        return str(rerun_command(self.entry)) if self.entry is not None else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixRow:
    """One lane of one contract in every environment."""

    contract: str
    lane: str
    cells: tuple[Cell, ...]

    @property
    def fine(self) -> bool:
        """Whether it held everywhere."""
        return all(cell.fine for cell in self.cells)


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """All rows, in order of contract and lane. `comparisons` are those of each column but the first with the first."""

    columns: tuple[Column, ...]
    rows: tuple[MatrixRow, ...]
    comparisons: tuple[Comparison, ...]


def matrix(
    receipts: Sequence[Receipt],
    policy: Policy = DEFAULT_POLICY,
    waivers: Sequence[Waiver] = (),
    today: datetime.date | None = None,
    runs: Sequence[str] = (),
) -> Matrix:
    """The matrix of these receipts, one column each, in this order; the others are compared with the first.

    `runs` are names of the receipts, used for columns that their torch alone does not distinguish.

    Raises:
        ReceiptError: a receipt has a lane of a contract twice.
    """
    assert receipts, "a matrix has at least one column"
    names = runs or [""] * len(receipts)
    of_torch, of_xla = zip(*(_without_xla(each) for each in receipts), strict=True)
    beside = [(part, name) for parts, name in zip(of_xla, names, strict=True) for part in parts]
    is_xla_alone = bool(beside) and not any(each.entries for each in of_torch)
    found = (
        Matrix(columns=(), rows=(), comparisons=()) if is_xla_alone else _matrix(of_torch, policy, waivers, today, runs)
    )
    for environment in dict.fromkeys(_kind(part) for part, _ in beside):
        same = [each for each in beside if _kind(each[0]) == environment]
        told = [name for _, name in same] if runs else []
        found = _beside(found, _matrix([part for part, _ in same], policy, waivers, today, told))
    return found


def _without_xla(receipt: Receipt) -> tuple[Receipt, tuple[Receipt, ...]]:
    """A receipt without what XLA compiled, and that by environment: no release of the suite's torch is its column."""
    xla = {name: each for name, each in receipt.environments.items() if PJRT in each.libraries}
    if not xla:
        return receipt, ()
    parts = [
        replace(
            receipt,
            environments={name: each},
            entries=tuple(entry for entry in receipt.entries if entry.environment == name),
            setup=None,
        )
        for name, each in xla.items()
    ]
    rest = replace(
        receipt,
        environments={name: each for name, each in receipt.environments.items() if name not in xla},
        entries=tuple(entry for entry in receipt.entries if entry.environment not in xla),
    )
    return rest, tuple(part for part in parts if part.entries)


def _kind(receipt: Receipt) -> str:
    """What made the programs of XLA in a receipt."""
    (environment,) = receipt.environments.values()
    return next(name for name in ("torchax", "torch_xla", PJRT) if name in environment.libraries)


def _beside(one: Matrix, other: Matrix) -> Matrix:
    """Two matrices in one, without a lane in common."""
    none = Cell(verdict=None)
    rows = [replace(row, cells=(*row.cells, *[none] * len(other.columns))) for row in one.rows]
    rows += [replace(row, cells=(*[none] * len(one.columns), *row.cells)) for row in other.rows]
    return Matrix(
        columns=(*one.columns, *other.columns),
        rows=tuple(sorted(rows, key=lambda row: (row.contract, row.lane))),
        # The last is that of the newest torch, by which an upgrade is judged.
        comparisons=(*other.comparisons, *one.comparisons),
    )


def _matrix(
    receipts: Sequence[Receipt],
    policy: Policy,
    waivers: Sequence[Waiver],
    today: datetime.date | None,
    runs: Sequence[str],
) -> Matrix:
    first, *others = receipts
    day = today or datetime.date.today()
    comparisons = tuple(waived(compare(first, each, policy), waivers, day) for each in others)
    columns = [_first_cells(first), *(_cells(*pair) for pair in zip(others, comparisons, strict=True))]
    keys = sorted({key for cells in columns for key in cells})
    rows = tuple(
        MatrixRow(
            contract=contract,
            lane=lane,
            cells=tuple(cells.get((contract, lane), Cell(verdict=None)) for cells in columns),
        )
        for contract, lane in keys
    )
    return Matrix(columns=_told_apart([*map(_column, receipts)], runs), rows=rows, comparisons=comparisons)


def _told_apart(columns: Sequence[Column], runs: Sequence[str]) -> tuple[Column, ...]:
    if not runs:
        return tuple(columns)
    names = Counter(each.name for each in columns)
    return tuple(
        replace(each, name=f"{each.name} ({run})") if names[each.name] > 1 else each
        for each, run in zip(columns, runs, strict=True)
    )


def facts_of(lane: LaneComparison) -> tuple[str, ...]:
    """The facts of a lane that changed, the closest to the root cause first; empty if the policy judges none."""
    wanted = "better" if lane.verdict == "improved" else "worse"
    drifts = [drift for drift in lane.by_cause if drift.gates and drift.direction == wanted]
    # A break or an eager frame has said so.
    told = [drift for drift in drifts if drift.metric != "fullgraph"] or drifts
    return tuple(map(in_brief, told))


def fact_of(lane: LaneComparison) -> str:
    """The most important fact of a lane that changed, and how many more there are; or why nothing is judged."""
    first, *others = facts_of(lane) or (lane.reason,)
    return f"{first} (and {len(others)} more)" if others else first


def checked(measurement: Measurement) -> str:
    """What a lane that held was checked for, and over how many calls."""
    counts = [
        _count(measurement.graph_breaks, "break"),
        _count(measurement.recompiles, "recompile"),
        _count(measurement.lost_frames, "eager frame"),
    ]
    known = ", ".join(count for count in counts if count) or "what was measured"
    calls = len(measurement.calls or ())
    return f"held {known} over the {counted(calls, 'call')} checked" if calls else f"held {known}"


def _count(facts: Sequence[object] | None, noun: str) -> str:
    return "" if facts is None else counted(len(facts), noun)


def _column(receipt: Receipt) -> Column:
    setup = receipt.setup
    if setup is not None and setup.not_installed:
        return Column(name=setup.asked, installed=Known("no", setup.not_installed), imported=Known("not tried"))
    if setup is not None and setup.not_imported:
        return Column(name=setup.asked, installed=YES, imported=Known("no", setup.not_imported))
    imported = YES
    if not any(each.torch for each in receipt.environments.values()):
        reasons = [entry.reason for entry in receipt.entries if entry.verdict == "unmeasured" and entry.reason]
        imported = Known("no", reasons[0] if reasons else "") if receipt.entries else Known("not known")
    if setup is not None and not receipt.entries:
        # Who started the run imported torch first, and it did.
        imported = YES
    return Column(
        name=torch_of(receipt),
        installed=YES,
        imported=imported,
        environments=receipt.environments,
        cut_off=setup.not_finished if setup is not None else "",
    )


def _first_cells(receipt: Receipt) -> dict[Key, Cell]:
    return {
        key: Cell(verdict=side.entry.verdict, fact=side.entry.reason, entry=side.entry, environment=side.environment)
        for key, side in sides_of(receipt).items()
        if side.entry.verdict != "reference"
    }


def _cells(receipt: Receipt, comparison: Comparison) -> dict[Key, Cell]:
    sides = sides_of(receipt)
    cells = {}
    for lane in comparison.lanes:
        side = sides.get((lane.contract, lane.lane))
        cells[lane.contract, lane.lane] = Cell(
            verdict=lane.verdict,
            fact=fact_of(lane),
            entry=side.entry if side is not None else None,
            environment=side.environment if side is not None else None,
            lane=lane,
        )
    return cells
