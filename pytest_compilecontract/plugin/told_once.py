"""What is printed once: facts that lanes of one contract have in common are written out for the first of them.

Only the terminal is spared: what writes a report of each test by itself, such as JUnit XML, has read the text by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .workers import ENTRY

# Lines from which a text that was printed before is left out.
LEAST = 3
INDENT = "  "


class ToldOnce:
    """Shortens the failures of lanes, in the process that prints them: not in a `worker` of pytest-xdist."""

    def __init__(self, worker: str) -> None:
        self._prints = not worker
        # By the contract and the text, the lane that it was printed for.
        self._printed: dict[tuple[str, str], str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        kept = getattr(report, ENTRY, None)
        if not self._prints or not report.failed or kept is None:
            return
        contract, lane = kept["entry"]["contract"], kept["entry"]["lane"]
        if isinstance(report.longrepr, str):
            report.longrepr = self._once(contract, lane, report.longrepr)
        for entry in _without_a_traceback(report):
            entry.lines = self._once(contract, lane, "\n".join(entry.lines)).split("\n")

    def _once(self, contract: str, lane: str, text: str) -> str:
        lines: list[str] = []
        for block in _blocks(text.split("\n")):
            first = self._printed.setdefault((contract, "\n".join(block)), lane)
            again = first != lane and len(block) >= LEAST and block[0].startswith(INDENT)
            lines += [f"{INDENT}as in lane {first}, above"] if again else block
        return "\n".join(lines)


def _without_a_traceback(report: pytest.TestReport) -> list[Any]:
    """What pytest prints for `pytest.fail(..., pytrace=False)`: text alone. Empty if it prints anything else."""
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", [])
    return entries if all(getattr(each, "style", "") == "value" for each in entries) else []


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """The lines, of which each that is not indented is a block by itself."""
    block: list[str] = []
    for line in lines:
        if line.startswith(INDENT):
            block.append(line)
            continue
        if block:
            yield block
        block = []
        yield [line]
    if block:
        yield block
