"""The matrix as text: for a terminal, and in Markdown for a pull request or a job's summary. Nothing here writes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_compilecontract.compare.bands import Band, band_of
from pytest_compilecontract.compare.cold import COLD, short, summed
from pytest_compilecontract.compare.matrix import Cell, Column, Matrix, MatrixRow, checked, facts_of
from pytest_compilecontract.escaping import markdown as _md
from pytest_compilecontract.escaping import markdown_paragraph, plain
from pytest_compilecontract.facts.metrics import METRICS
from pytest_compilecontract.wording import counted, cut

from .color import OVER_ITS_LIMITS, Paint, unpainted
from .table import Row, TableCell, table_lines

# GitHub takes 65,536 characters in a comment, and 1 MiB in a job's summary. What fits the first fits the second,
# however long its characters are in UTF-8.
MOST_CHARACTERS = 60_000
# A longer table is folded, so that a pull request stays readable.
UNFOLDED_ROWS = 20
MOST_ROWS = 60
# What an installer says may be pages long.
STOPPED_WIDTH = 1000
_MARGIN = "  "
_SETUP = ("installed", "imported")
COLD_ROW = "first calls, s"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """Lanes of one contract with the same text in every environment: their cells and their three lists."""

    name: str
    lanes: int
    cells: tuple[TableCell, ...]
    lists: tuple[tuple[str, str], ...]


def terminal_lines(
    found: Matrix,
    *,
    everything: bool = False,
    answer: str = "",
    outcome: str = "",
    width: int | None = None,
    paint: Paint = unpainted,
) -> list[str]:
    """The matrix; rows that held everywhere are folded into a count unless `everything` is set.

    `answer` is the gate's, as a line, and comes first; `outcome` is its value. `width` is the terminal's. `paint`
    colors the answer, and the verdicts in the cells.
    """
    shown = _shown([row for row in found.rows if everything or not row.fine], found.columns)
    kept = shown if everything else shown[:MOST_ROWS]
    rows: list[Row] = [
        (name, [TableCell(_short(str(getattr(column, name)))) for column in found.columns]) for name in _SETUP
    ]
    rows += [(COLD_ROW, [*map(TableCell, cold_cells(found))])] if any(cold_cells(found)) else []
    rows += [(row.name, row.cells) for row in kept]
    above = [*(paint(line, outcome) for line in _wrapped(answer, width, "")), ""] if answer else []
    lines = [*above, *table_lines([plain(column.name) for column in found.columns], rows, width, paint)]
    lines += [line for each in _below(found, shown, kept, everything) for line in _wrapped(each, width, "")]
    for row in kept:
        if row.lists:
            lines += ["", *_wrapped(row.name, width, _MARGIN)]
            for kind, said in row.lists:
                lines += _wrapped(f"{_MARGIN}{kind}: {said}", width, _MARGIN * 2)
    return lines


def _wrapped(text: str, width: int | None, indent: str) -> list[str]:
    """A line, wrapped to the terminal's width."""
    if width is None or len(text) <= width:
        return [text]
    start = text[: len(text) - len(text.lstrip())]
    return textwrap.wrap(text.lstrip(), width, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)


def markdown(found: Matrix, answer: str = "") -> str:
    """The matrix in GitHub's Markdown, short enough for a comment: long parts are folded, or cut.

    `answer` is the gate's, as a line, and comes first.
    """
    shown = _shown([row for row in found.rows if not row.fine], found.columns)
    above = [f"**{_md(answer)}**", ""] if answer else []
    head = [
        *above,
        "| lane | " + " | ".join(_md(column.name) for column in found.columns) + " |",
        "| --- |" + " --- |" * len(found.columns),
        *(
            f"| {name} | " + " | ".join(_md(_short(str(getattr(column, name)))) for column in found.columns) + " |"
            for name in _SETUP
        ),
        *([f"| {COLD_ROW} | " + " | ".join(map(_md, cold_cells(found))) + " |"] if any(cold_cells(found)) else []),
    ]
    rows = [f"| {_md(row.name)} | " + " | ".join(_md(each.text) for each in row.cells) + " |" for row in shown]
    kept = _within(rows, MOST_CHARACTERS // 2 - sum(len(line) + 1 for line in head))
    if len(kept) > UNFOLDED_ROWS:
        lanes = counted(sum(row.lanes for row in shown[: len(kept)]), "lane")
        parts = [*head, *_details(f"{lanes} that did not hold everywhere", [*head[len(above) : len(above) + 2], *kept])]
    else:
        parts = [*head, *kept]
    if said := _below(found, shown, shown[: len(kept)], False):
        # A blank line between, or Markdown makes one paragraph of them.
        parts += [line for each in said for line in ("", markdown_paragraph(each))]
    if len(kept) < len(rows):
        parts += [
            "",
            f"The table was cut at {len(kept)} of {len(rows)} rows to fit a comment; the receipts have all rows.",
        ]
    details = [
        "\n".join([f"- **{_md(row.name)}**", *(f"  - {kind}: {_md(said)}" for kind, said in row.lists)])
        for row in shown[: len(kept)]
        if row.lists
    ]
    listed = _within(details, MOST_CHARACTERS - sum(len(part) + 1 for part in parts) - 1000)
    if listed:
        left = [f"- and {len(details) - len(listed)} more, in the receipts"] if len(listed) < len(details) else []
        parts += _details("What was checked and what is open", [*listed, *left])
    return "\n".join(parts) + "\n"


def cold_cells(found: Matrix) -> list[str]:
    """First-call seconds in each environment, over the lanes that the first one also measured; no verdict."""
    first = sum(bands.value for row in found.rows if (bands := _cold(row.cells[0])) is not None)
    measured = any(_cold(row.cells[0]) for row in found.rows)
    cells = [f"{short(first)} in all" if measured else ""]
    for comparison in found.comparisons:
        pairs = [lane.cold for lane in comparison.lanes if lane.cold is not None]
        cells.append(summed(pairs) if pairs else "")
    return cells


def _cold(cell: Cell) -> Band | None:
    return band_of(cell.entry, COLD) if cell.entry is not None else None


def _details(summary: str, lines: Sequence[str]) -> list[str]:
    return ["", f"<details><summary>{summary}</summary>", "", *lines, "", "</details>"]


def _shown(rows: Sequence[MatrixRow], columns: Sequence[Column]) -> list[_Shown]:
    """Rows with the same text, grouped: within one contract, or across contracts unmeasured for the same reason."""
    groups: dict[tuple[str, tuple[TableCell, ...], tuple[tuple[str, str], ...]], list[MatrixRow]] = {}
    for row in rows:
        anyone = all(cell.verdict in ("unmeasured", None) for cell in row.cells)
        key = ("" if anyone else row.contract, tuple(map(_table_cell, row.cells)), tuple(_lists(row, columns)))
        groups.setdefault(key, []).append(row)
    return [
        _Shown(name=_name(group), lanes=len(group), cells=cells, lists=lists)
        for (_, cells, lists), group in groups.items()
    ]


def _name(rows: Sequence[MatrixRow]) -> str:
    """The name of grouped rows: their contract, or the number of contracts."""
    contracts = dict.fromkeys(row.contract for row in rows)
    lanes = ", ".join(dict.fromkeys(plain(row.lane) for row in rows))
    return f"{plain(rows[0].contract) if len(contracts) == 1 else counted(len(contracts), 'contract')} [{lanes}]"


def _within(lines: Sequence[str], room: int) -> list[str]:
    kept: list[str] = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return kept


def _below(found: Matrix, shown: Sequence[_Shown], kept: Sequence[_Shown], everything: bool) -> list[str]:
    """The text below the table."""
    return [*_folded(found, shown, kept, everything), *_excused(found), *stopped_lines(found.columns)]


def _excused(found: Matrix) -> Iterator[str]:
    """Excused changes that do not gate, with the rule: cells show only what affects a verdict."""
    lanes: dict[str, set[tuple[str, str]]] = {}
    for lane in (lane for comparison in found.comparisons for lane in comparison.lanes):
        drifts = [drift for drift in lane.drifts if drift.excuse and not drift.gates]
        for said in (*(f"{METRICS[drift.metric].label} ({drift.excuse})" for drift in drifts), *lane.excused):
            lanes.setdefault(said, set()).add((lane.contract, lane.lane))
    yield from (f"not gated in {counted(len(those), 'lane')}: {said}" for said, those in sorted(lanes.items()))


def _folded(found: Matrix, shown: Sequence[_Shown], kept: Sequence[_Shown], everything: bool) -> list[str]:
    if not found.rows:
        return ["no lane was measured"]
    lines = []
    if cut := sum(row.lanes for row in shown[len(kept) :]):
        lines.append(f"... and {counted(cut, 'lane')} more that did not hold everywhere")
    fine = sum(row.fine for row in found.rows)
    if fine and not everything:
        lines.append(f"{fine} of {counted(len(found.rows), 'lane')} held everywhere, and {_are(fine)} folded")
    return lines


def stopped_lines(columns: Sequence[Column]) -> list[str]:
    """What does not fit into the first rows: the full reason why an environment measured nothing, or not everything."""
    lines = []
    for column in columns:
        for what, why in (
            ("could not be installed", column.installed.why),
            ("could not be imported", column.imported.why),
            ("the tests did not run to their end", column.cut_off),
        ):
            if why:
                lines.append(cut(f"{plain(column.name)}: {what}: {plain(why)}", STOPPED_WIDTH))
    return lines


def _lists(row: MatrixRow, columns: Sequence[Column]) -> Iterator[tuple[str, str]]:
    lists = lists_of(row, columns)
    yield from ((kind, "; ".join(lines)) for kind, lines in lists.items())


def lists_of(row: MatrixRow, columns: Sequence[Column]) -> dict[str, list[str]]:
    """The lane's three lists: where it is validated, where it needs a workaround, where a risk is open.

    Empty lists are left out; a lane with neither workaround nor risk has none.
    """
    lists = dict(_by_list(row, columns))
    return {} if set(lists) <= {"validated"} else lists


def _by_list(row: MatrixRow, columns: Sequence[Column]) -> Iterator[tuple[str, list[str]]]:
    validated, workaround, open_ = [], [], []
    for cell, column in zip(row.cells, columns, strict=True):
        where = _where(cell, column)
        if cell.verdict in ("held", "improved") and cell.entry is not None and cell.entry.verdict == "held":
            if cell.entry.measurement is not None:
                validated.append(f"this lane {checked(cell.entry.measurement)} on {where}")
        elif cell.verdict == "waived" and cell.lane is not None and cell.lane.worked_around:
            workaround.append(f"{where}: {plain(cell.lane.reason)}")
        elif cell.verdict == "waived" and cell.lane is not None:
            open_.append(f"{where}: {plain(cell.lane.reason)}")
        elif cell.over_its_limits or not (cell.fine or cell.verdict in (None, "improved")):
            # Any verdict that is not known to be a good one.
            open_.append(f"{where}: {_whole(cell)}")
    for kind, lines in (("validated", validated), ("workaround", workaround), ("open risk", open_)):
        if lines:
            yield kind, lines


def _where(cell: Cell, column: Column) -> str:
    if cell.environment is None:
        return plain(column.name)
    torches = {each.torch for each in column.environments.values()}
    # Of workers with other releases, only one ran the lane.
    name = f"torch {cell.environment.torch}" if len(torches) > 1 and cell.environment.torch else column.name
    return ", ".join(plain(each) for each in (name, cell.environment.device or "") if each)


def _table_cell(cell: Cell) -> TableCell:
    return TableCell(cell_text(cell), OVER_ITS_LIMITS if cell.over_its_limits else cell.verdict or "")


def _whole(cell: Cell) -> str:
    """The verdict of a cell, and every fact that it is for."""
    facts = facts_of(cell.lane) if cell.lane is not None else ()
    return f"{cell.verdict}: {', '.join(map(_short, facts))}" if len(facts) > 1 else cell_text(cell)


def cell_text(cell: Cell) -> str:
    """The text of a cell: the verdict, and the most important fact."""
    if cell.verdict is None:
        return "-"
    if cell.over_its_limits:
        return f"{OVER_ITS_LIMITS}, as before: {_short(cell.entry.reason if cell.entry else '')}"
    return f"{cell.verdict}: {_short(cell.fact)}" if cell.fact else cell.verdict


def _short(text: str) -> str:
    line = plain(next((line for line in text.splitlines() if line.strip()), "")).strip()
    return line if len(line) <= 160 else line[:157].rstrip() + "..."


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
