"""The table for a terminal: what is colored in it is what its cells say, whatever else their text reads like."""

from __future__ import annotations

import pytest

from pytest_compilecontract.report.color import painted
from pytest_compilecontract.report.table import TableCell, table_lines

RED, END = "\x1b[31m", "\x1b[0m"


@pytest.mark.parametrize("width", [None, 40, 20])
def test_a_cell_is_colored_by_its_verdict_and_no_other_text_is(width: int | None) -> None:
    rows = [("held", [TableCell("new here"), TableCell("drifted: a", "drifted")])]

    text = "\n".join(table_lines(["broken", "held"], rows, width, painted))

    assert f"{RED}drifted{END}: a" in text
    assert text.count("\x1b") == 2


def test_columns_stay_aligned_where_cells_are_colored() -> None:
    rows = [("a", [TableCell("held", "held"), TableCell("x")]), ("b", [TableCell("-"), TableCell("y")])]

    bare, colored = table_lines(["one", "two"], rows, None), table_lines(["one", "two"], rows, None, painted)

    assert bare == ["   one   two", "a  held  x", "b  -     y"]
    assert [line.replace("\x1b[32m", "").replace(END, "") for line in colored] == bare
