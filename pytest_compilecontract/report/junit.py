"""The matrix as JUnit XML: one test suite per environment, one test case per lane. Nothing here writes.

| verdict | in JUnit |
| --- | --- |
| held, improved, reference | a test case that passed |
| waived; new, missing or unmeasured where the policy allows it | skipped |
| drifted, broken, violated | a failure |
| all others, and lanes over their limits before and after: not known | an error |

Not known is an error, because most tools that read JUnit show a skipped test case as green. A lane's counts are a
property of the suite, named after the lane: the schema that Jenkins uses (junit-10) allows none in a test case.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

from pytest_compilecontract.compare.gate import why_open
from pytest_compilecontract.compare.matrix import Cell, Column, Matrix, MatrixRow
from pytest_compilecontract.compare.policy import DEFAULT_POLICY, Policy
from pytest_compilecontract.escaping import one_line, printed_xml

from .comparison import lane_lines
from .matrix import cell_text
from .terminal import counts_of

_GOOD = ("held", "improved", "reference")
_BAD = ("drifted", "broken", "violated")
_OF_ENVIRONMENT = ("torch", "triton", "cuda", "device", "python", "platform", "commit")
LONGEST = 1000
MOST_LINES = 60


def junit(found: Matrix, policy: Policy = DEFAULT_POLICY) -> str:
    """The document. Unlike the gate's answer, which is about the last environment, it covers all of them."""
    suites = []
    for at, column in enumerate(found.columns):
        # A lane that the first run did not have is no test case there.
        cells = [(row, row.cells[at]) for row in found.rows if row.cells[at].verdict is not None]
        suites.append(_suite(column, cells, policy))
    root = ElementTree.Element("testsuites", name="compile contracts")
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    root.extend(suites)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return printed_xml(f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n')


def _suite(column: Column, cells: list[tuple[MatrixRow, Cell]], policy: Policy) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=_text(column.name))
    cases = [_case(row, cell, policy) for row, cell in cells]
    suite.set("tests", str(len(cases)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("time", f"{sum(cell.entry.seconds for _, cell in cells if cell.entry and cell.entry.seconds > 0):.3f}")
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _properties(column, cells):
        ElementTree.SubElement(properties, "property", name=_text(name), value=_text(value))
    suite.extend(cases)
    return suite


def _properties(column: Column, cells: list[tuple[MatrixRow, Cell]]) -> Iterator[tuple[str, str]]:
    yield "installed", str(column.installed)
    yield "imported", str(column.imported)
    if column.cut_off:
        yield "cut off", column.cut_off
    for name in _OF_ENVIRONMENT:
        values = dict.fromkeys(str(value) for each in column.environments.values() if (value := getattr(each, name)))
        if values:
            yield name, ", ".join(values)
    for row, cell in cells:
        counts = counts_of(cell.entry.measurement) if cell.entry and cell.entry.measurement else {}
        if known := [f"{name}={count}" for name, count in counts.items() if count is not None]:
            yield f"{row.contract} [{row.lane}]", " ".join(known)


def _case(row: MatrixRow, cell: Cell, policy: Policy) -> ElementTree.Element:
    module, _, test = row.contract.partition("::")
    case = ElementTree.Element(
        "testcase",
        classname=_text(module.removesuffix(".py").replace("/", ".")),
        name=_text(f"{test or module}[{row.lane}]"),
    )
    if cell.entry is not None and cell.entry.seconds > 0:
        case.set("time", f"{cell.entry.seconds:.3f}")
    if tag := _tag(cell, policy):
        child = ElementTree.SubElement(case, tag, type=str(cell.verdict), message=_text(cell_text(cell)))
        child.text = "\n".join(_lines(cell))
    return case


def _tag(cell: Cell, policy: Policy) -> str:
    """The child element of the test case; empty for one that passed."""
    if cell.lane is None and cell.verdict in _GOOD:
        return ""
    if cell.verdict in _BAD:
        return "failure"
    if cell.lane is not None and not why_open(cell.lane, policy):
        if cell.verdict in _GOOD:
            return ""
        if cell.verdict == "waived" or cell.verdict in policy.allow:
            return "skipped"
    # Not known; so is a verdict that nothing above names.
    return "error"


def _lines(cell: Cell) -> Iterator[str]:
    if cell.lane is not None:
        lines = list(lane_lines(cell.lane))
        yield from map(_text, lines[:MOST_LINES])
        if len(lines) > MOST_LINES:
            yield f"... and {len(lines) - MOST_LINES} more lines"
        if cell.rerun:
            # To be copied, so whole.
            yield f"rerun: {one_line(cell.rerun, len(cell.rerun))}"
    elif cell.fact:
        yield _text(cell.fact)


def _text(text: str) -> str:
    # Controls are escaped: XML has no character for most of them, not even as a reference.
    return one_line(text, LONGEST)
