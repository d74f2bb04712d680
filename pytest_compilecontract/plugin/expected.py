"""Tests that a mark expects to fail, when a strategy runs them: how pytest would report them."""

from __future__ import annotations

import pytest
from _pytest.skipping import Xfail, evaluate_xfail_marks


def expected(item: pytest.Item) -> Xfail | None:
    """The mark by which the test is expected to fail."""
    return evaluate_xfail_marks(item) if not item.config.option.runxfail else None


def expect(mark: Xfail, reports: list[pytest.TestReport]) -> None:
    """How pytest reports an expected failure that happened or did not. Another exception is not expected."""
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
    else:
        vars(called)["wasxfail"] = mark.reason
