"""What is printed once: facts that lanes of one contract have in common are written out for the first of them.

Only pytest's own list of failures is shortened, while it is printed: every other reader of a report, at whatever time,
finds the whole text.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest

from .workers import ENTRY

# Lines from which a text that was printed before is left out.
LEAST = 3
INDENT = "  "


class ToldOnce:
    """Shortens the failures of lanes, in the order in which pytest prints them, and restores them afterwards."""

    def __init__(self) -> None:
        # By the contract and the text, the lane that it is printed for.
        self._printed: dict[tuple[str, str], str] = {}
        self._whole: list[tuple[pytest.TestReport, list[str]]] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None]:
        for report in terminalreporter.stats.get("failed", ()):
            if (kept := getattr(report, ENTRY, None)) is None:
                continue
            contract, lane, texts = kept["entry"]["contract"], kept["entry"]["lane"], _texts(report)
            self._whole.append((report, texts))
            _set_texts(report, [self._once(contract, lane, text) for text in texts])
        try:
            return (yield)
        finally:
            self.pytest_terminal_summary_printed()

    @pytest.hookimpl(specname="pytest_terminal_summary", tryfirst=True)
    def pytest_terminal_summary_printed(self) -> None:
        """Pytest has printed its list, and what other plugins add to it comes now."""
        for report, texts in self._whole:
            _set_texts(report, texts)
        self._whole.clear()

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


def _texts(report: pytest.TestReport) -> list[str]:
    """The texts of a report that has no traceback."""
    if isinstance(report.longrepr, str):
        return [report.longrepr]
    return ["\n".join(entry.lines) for entry in _without_a_traceback(report)]


def _set_texts(report: pytest.TestReport, texts: list[str]) -> None:
    if isinstance(report.longrepr, str):
        report.longrepr = texts[0]
        return
    for entry, text in zip(_without_a_traceback(report), texts, strict=True):
        entry.lines = text.split("\n")


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
