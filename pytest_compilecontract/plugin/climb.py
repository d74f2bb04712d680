"""Walks: a contract with a frontier runs once a rung, from a clean start each time, as one test with one verdict.

Kept out: what a ladder is (`frontier`), what a walk comes to (`session`), and how one rung is measured (`hooks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol
from _pytest.skipping import Xfail, evaluate_xfail_marks

from pytest_compilecontract.facts.ladder import Step, lacking, rung

from .repeat import forget, tear_down_the_rest

if TYPE_CHECKING:
    from .hooks import Contract, Hooks


class Walking:
    """The part of the plugin that climbs ladders."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def takes(self, item: pytest.Item, contract: Contract) -> bool:
        """Whether the contract has a ladder, and nothing says that it is not to be run."""
        if contract.limits.frontier is None:
            return False
        expected = _expected(item)
        return expected is None or expected.run

    def reports(self, item: pytest.Item, contract: Contract, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """The reports of a walk."""
        assert contract.limits.frontier is not None
        return self._expected(item, contract, contract.limits.frontier, nextitem, _expected(item))

    def _expected(
        self,
        item: pytest.Item,
        contract: Contract,
        names: tuple[str, ...],
        nextitem: pytest.Item | None,
        expected: Xfail | None,
    ) -> list[pytest.TestReport]:
        """The reports of a walk; a mark that expects a failure is about the whole of it, and about no rung."""
        option = item.config.option
        before, option.runxfail = option.runxfail, True
        try:
            reports = self._walked(item, contract, names, nextitem)
        finally:
            option.runxfail = before
        if expected is not None:
            _expect(expected, reports)
        return reports

    def _walked(
        self, item: pytest.Item, contract: Contract, names: tuple[str, ...], nextitem: pytest.Item | None
    ) -> list[pytest.TestReport]:
        """The reports of the highest rung that ran, which is judged over the walk."""
        known, sections, properties = (
            self._hooks.session.settings.known,
            len(item._report_sections),
            len(item.user_properties),
        )
        kept: list[pytest.TestReport] = []
        climbed: list[str] = []
        left_out = False
        contract.steps, contract.runs, contract.cannot_climb = [], [], False
        for name in names:
            forget(item, sections, properties)
            if needed := lacking((*climbed, name), known):
                reason = f"it needs {needed!r} below it, which was not measured"
                contract.steps.append(Step(name=name, verdict="unmeasured", reason=reason))
                continue
            contract.rung = rung((*climbed, name), known)
            contract.lane = contract.rung.lane
            with self._hooks.surrounded(contract):
                reports = runtestprotocol(item, log=False, nextitem=item.parent)  # type: ignore[arg-type]
            skipped = next((report for report in reports if report.skipped), None)
            if skipped is not None and not any(report.failed for report in reports):
                contract.steps.append(Step(name=name, verdict="unmeasured", reason=self._hooks.why_skipped(skipped)))
                contract.cannot_climb |= contract.unusable is not None
                left_out |= contract.unusable is None
                kept = kept or reports
                continue
            kept = reports
            run = contract.judged
            if run is None or any(report.failed for report in reports):
                # Its own failure, which says what it was; or pytest was told to set up or show, and not to run.
                return [*kept, *tear_down_the_rest(item, nextitem)]
            if contract.rung.trains and not (contract.compile_lane and contract.compile_lane.trained):
                reason = "nothing was trained: from here on compile_lane.run trains"
                contract.steps.append(Step(name=name, verdict="unmeasured", reason=reason))
                continue
            contract.runs.append(run)
            if run.failed:
                failing = run.entry.violations
                details = tuple(line for each in failing for line in each.details)
                contract.steps.append(Step(name=name, verdict="failed", reason=run.entry.reason, details=details))
                break
            contract.steps.append(Step(name=name, verdict="held"))
            climbed.append(name)
        if left_out and not contract.runs:
            # By a mark, by --contract-lanes or by the test itself: nothing was to be measured.
            contract.cannot_climb = False
        self._hooks.finish_walk(contract, kept)
        return [*kept, *tear_down_the_rest(item, nextitem)]


def _expected(item: pytest.Item) -> Xfail | None:
    """The mark by which the test is expected to fail."""
    return evaluate_xfail_marks(item) if not item.config.option.runxfail else None


def _expect(expected: Xfail, reports: list[pytest.TestReport]) -> None:
    """What pytest makes of a failure that was expected, or did not come. One by another exception is none of them."""
    failed = next((each for each in reports if each.failed), None)
    if failed is not None:
        if expected.raises is None:
            failed.outcome = "skipped"
            vars(failed)["wasxfail"] = expected.reason
        return
    called = next((each for each in reports if each.when == "call" and each.passed), None)
    if called is None:
        return
    if expected.strict:
        called.outcome, called.longrepr = "failed", f"[XPASS(strict)] {expected.reason}"
    else:
        vars(called)["wasxfail"] = expected.reason
