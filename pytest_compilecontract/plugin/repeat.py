"""Repeats: `--contract-repeat=N` runs a contract N times, each from a clean start, as one test with one verdict.

Elsewhere: the verdict over the repeats (`judged`), and how one of them is measured (`run`, `phases`).
"""

from __future__ import annotations

import pytest

from .item import Contract
from .run import Run, Turn


class Repeating:
    """The strategy that measures a lane `times` over."""

    def __init__(self, times: int) -> None:
        self._times = times

    def takes(self, contract: Contract) -> bool:
        """Whether the contract is measured in one lane: a ladder is climbed once."""
        return not contract.ladder

    def reports(self, turn: Turn) -> list[pytest.TestReport]:
        """The reports of the last repeat, judged over all; function-scoped fixtures are set up for each."""
        before: Run | None = None
        for number in range(1, self._times + 1):
            run = turn.run_once(turn.contract.lane, after=before, last=number == self._times)
            if number < self._times and not goes_on(run):
                # A repeat that was skipped hides nothing that an earlier one has shown.
                hidden = before is not None and before.failed and not run.failed
                return [*(before.reports if hidden and before is not None else run.reports)]
            before = run
        assert before is not None
        return [*before.reports]


def goes_on(run: Run) -> bool:
    """Whether another repeat could add anything."""
    torn_down = not any(report.failed for report in run.reports if report.when == "teardown")
    whole = run.state.whole and not run.state.failed_within
    return torn_down and whole and run.entry is not None and run.entry.verdict != "broken"
