"""Tests with an xfail mark, when a strategy runs them: how pytest would report them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from _pytest.skipping import Xfail, evaluate_xfail_marks

from pytest_compilecontract.files.receipt import entry_from_data, entry_to_data

from .results import failure_without_exception
from .workers import ENTRY


def expected(item: pytest.Item) -> Xfail | None:
    """The test's xfail mark that applies."""
    return evaluate_xfail_marks(item) if not item.config.option.runxfail else None


def expect(mark: Xfail, reports: list[pytest.TestReport]) -> None:
    """Report an expected failure, or its absence, as pytest does. An exception of another type is not expected."""
    failed = next((each for each in reports if each.failed), None)
    if failed is not None:
        if mark.raises is None:
            failed.outcome = "skipped"
            vars(failed)["wasxfail"] = mark.reason
        return
    called = next((each for each in reports if each.when == "call" and each.passed), None)
    if called is None:
        return
    if mark.strict:
        called.outcome, called.longrepr = "failed", f"[XPASS(strict)] {mark.reason}"
        _break(called)
    else:
        vars(called)["wasxfail"] = mark.reason


def _break(report: pytest.TestReport) -> None:
    """Have the entry of a report be of a test that itself failed."""
    if (kept := vars(report).get(ENTRY)) is not None:
        own = failure_without_exception(report, subtest=False)
        entry = replace(entry_from_data(kept["entry"]), verdict="broken", reason=str(own), own_failure=own)
        vars(report)[ENTRY] = {**kept, "entry": entry_to_data(entry)}
