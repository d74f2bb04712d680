"""A table for a terminal: as wide as that is, its cells wrapped; where there is no room for columns, a list."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Sequence
from typing import TextIO

from pytest_compilecontract.wording import cut, middle

# Where nobody says how wide a line may be.
NAME_WIDTH, CELL_WIDTH = 60, 42
_FEWEST_NAME, _FEWEST_CELL = 20, 14
_MOST_LINES = 3
_MARGIN = "  "

Paint = Callable[[str], str]


def room(stream: TextIO) -> int | None:
    """How wide a line may be there: as wide as a terminal is; elsewhere nothing says it."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def table_lines(table: Sequence[Sequence[str]], width: int | None, paint: Paint = str) -> list[str]:
    """The rows, the first of which is the head; `paint` colours a cell that is as long as it is to be.

    Without a width a cell is one line, cut where it is long.
    """
    if width is None:
        return _aligned(table, [NAME_WIDTH, *[CELL_WIDTH] * (len(table[0]) - 1)], 1, paint)
    columns = len(table[0]) - 1
    name = max(_FEWEST_NAME, min(max(len(row[0]) for row in table), width * 2 // 5))
    share = (width - name - len(_MARGIN) * columns) // max(columns, 1)
    if share < _FEWEST_CELL:
        return _listed(table, width, paint)
    # What a column leaves, the others have.
    needed = [max(len(row[at]) for row in table) for at in range(1, columns + 1)]
    rest, limits = width - name - len(_MARGIN) * columns, dict[int, int]()
    for left, at in zip(range(columns, 0, -1), sorted(range(columns), key=lambda at: needed[at]), strict=True):
        limits[at] = min(needed[at], rest // left)
        rest -= limits[at]
    return _aligned(table, [name + max(rest, 0), *(limits[at] for at in range(columns))], _MOST_LINES, paint)


def _aligned(table: Sequence[Sequence[str]], limits: Sequence[int], most: int, paint: Paint) -> list[str]:
    widths = [min(limit, max(len(row[at]) for row in table)) for at, limit in enumerate(limits)]
    lines = []
    for row in table:
        cells = [[middle(row[0], widths[0])], *(_fitted(*each, most) for each in zip(row[1:], widths[1:], strict=True))]
        for number in range(max(map(len, cells))):
            parts = [cell[number] if number < len(cell) else "" for cell in cells]
            texts = [f"{part:{width}}" for part, width in zip(parts, widths, strict=True)]
            shown = [texts[0], *(paint(text) if not number else text for text in texts[1:])]
            lines.append(_MARGIN.join([*shown[:-1], paint(texts[-1].rstrip()) if not number else texts[-1]]).rstrip())
    return lines


def _fitted(text: str, width: int, most: int) -> list[str]:
    """The text in so many lines, the last of them cut."""
    if most == 1 or len(text) <= width:
        return [cut(text, width)]
    lines = textwrap.wrap(text, max(width, 1)) or [""]
    return lines if len(lines) <= most else [*lines[: most - 1], cut(" ".join(lines[most - 1 :]), width)]


def _listed(table: Sequence[Sequence[str]], width: int, paint: Paint) -> list[str]:
    """Each row as its name, and a line for each column."""
    head, *rows = table
    label = min(max(len(name) for name in head[1:]), width // 3)
    lines = []
    for row in rows:
        lines.append(middle(row[0], width))
        for name, cell in zip(head[1:], row[1:], strict=True):
            first, *more = _fitted(cell, width - label - 2 * len(_MARGIN), _MOST_LINES)
            lines.append(f"{_MARGIN}{middle(name, label):{label}}{_MARGIN}{paint(first)}".rstrip())
            lines += [" " * (label + 2 * len(_MARGIN)) + each for each in more]
    return lines
