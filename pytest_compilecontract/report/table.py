"""A table for a terminal, as wide as the terminal, with wrapped cells; a list if there is no room for columns."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from pytest_compilecontract.wording import cut, middle

from .color import Paint, unpainted

# Where nobody says how wide a line may be.
NAME_WIDTH, CELL_WIDTH = 60, 60
_FEWEST_NAME, _FEWEST_CELL = 20, 14
_MOST_LINES = 3
_MARGIN = "  "


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell's text. `says` is the verdict that it begins with; empty if it begins with none."""

    text: str
    says: str = ""


Row = tuple[str, Sequence[TableCell]]


def room(stream: TextIO) -> int | None:
    """The width of a terminal; None if the stream is not one."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def table_lines(head: Sequence[str], rows: Sequence[Row], width: int | None, paint: Paint = unpainted) -> list[str]:
    """The rows, each a name with its cells, below a header; `paint` colors the verdict that a cell begins with.

    Without a width, each cell is one line, cut if it is long.
    """
    table: list[Row] = [("", [TableCell(name) for name in head]), *rows]
    columns = len(head)
    if width is None:
        return _aligned(table, [NAME_WIDTH, *[CELL_WIDTH] * columns], 1, paint)
    name = max(_FEWEST_NAME, min(max(len(row) for row, _ in table), width * 2 // 5))
    share = (width - name - len(_MARGIN) * columns) // max(columns, 1)
    if share < _FEWEST_CELL:
        return _listed(head, rows, width, paint)
    # What a column leaves, the others have.
    needed = [max(len(cells[at].text) for _, cells in table) for at in range(columns)]
    rest, limits = width - name - len(_MARGIN) * columns, dict[int, int]()
    for left, at in zip(range(columns, 0, -1), sorted(range(columns), key=lambda at: needed[at]), strict=True):
        limits[at] = min(needed[at], rest // left)
        rest -= limits[at]
    return _aligned(table, [name + max(rest, 0), *(limits[at] for at in range(columns))], _MOST_LINES, paint)


def _aligned(table: Sequence[Row], limits: Sequence[int], most: int, paint: Paint) -> list[str]:
    names, *columns = limits
    first = min(names, max(len(name) for name, _ in table))
    widths = [min(limit, max(len(cells[at].text) for _, cells in table)) for at, limit in enumerate(columns)]
    lines = []
    for name, cells in table:
        parts = [_fitted(cell.text, width, most) for cell, width in zip(cells, widths, strict=True)]
        for number in range(max(1, *map(len, parts))):
            shown = [f"{middle(name, first) if not number else '':{first}}"]
            for cell, part, width in zip(cells, parts, widths, strict=True):
                text = part[number] if number < len(part) else ""
                blank = " " * (width - len(text))
                shown.append((text if number else _painted(text, cell.says, paint)) + blank)
            lines.append(_MARGIN.join(shown).rstrip())
    return lines


def _painted(text: str, says: str, paint: Paint) -> str:
    """The beginning of a cell, with the verdict in its color."""
    return paint(text[: len(says)], says) + text[len(says) :] if says else text


def _fitted(text: str, width: int, most: int) -> list[str]:
    """The text in at most this many lines, the last of them cut."""
    if most == 1 or len(text) <= width:
        return [cut(text, width)]
    lines = textwrap.wrap(text, max(width, 1)) or [""]
    return lines if len(lines) <= most else [*lines[: most - 1], cut(" ".join(lines[most - 1 :]), width)]


def _listed(head: Sequence[str], rows: Sequence[Row], width: int, paint: Paint) -> list[str]:
    """Each row as its name, and a line for each column."""
    label = min(max(map(len, head)), width // 3)
    lines = []
    for row, cells in rows:
        lines.append(middle(row, width))
        for name, cell in zip(head, cells, strict=True):
            first, *more = _fitted(cell.text, width - label - 2 * len(_MARGIN), _MOST_LINES)
            shown = _painted(first, cell.says, paint)
            lines.append(f"{_MARGIN}{middle(name, label):{label}}{_MARGIN}{shown}".rstrip())
            lines += [" " * (label + 2 * len(_MARGIN)) + each for each in more]
    return lines
