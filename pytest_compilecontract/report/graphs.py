"""Graphs of two sides as a diff. Pure: code in, lines out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

MOST_GRAPHS = 12
MOST_LINES = 300
_LONGEST = 400
# Where torch says what a line is of: the folder is that of an environment, and no part of the graph.
_FOLDER = re.compile(r"(# File: )\S*/(?=[^/\s]+:\d+)")


def graph_diffs(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The graphs that differ, each with its name and diff. A graph that only one side has is one line."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            found.append((name, (f"{'+' if name in after else '-'} the whole graph",)))
            continue
        old, new = (_lines(side[name]) for side in (before, after))
        lines = [line.rstrip("\n") for line in difflib.unified_diff(old, new, lineterm="", n=3)][2:]
        if lines:
            more = [f"  ... and {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
            found.append((name, (*lines[:MOST_LINES], *more)))
    left = len(found) - MOST_GRAPHS
    return tuple(found[:MOST_GRAPHS] + ([(f"{left} more graphs differ", ())] if left > 0 else []))


def _lines(text: str) -> list[str]:
    return [_FOLDER.sub(r"\1", line)[:_LONGEST].rstrip() for line in text.splitlines()]
