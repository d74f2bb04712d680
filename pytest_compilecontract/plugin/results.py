"""Results: the reports of a contract's test, and the entry that they carry from worker to controller."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

import pytest

from pytest_compilecontract.baselines.kept import refusal
from pytest_compilecontract.errors import ReceiptError, message_of
from pytest_compilecontract.facts.ladder import Step, completed
from pytest_compilecontract.facts.own_failure import SUBTEST, OwnFailure
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.rerun import Command
from pytest_compilecontract.files.receipt import entry_to_data, environment_to_data
from pytest_compilecontract.report.baselines import drift_text
from pytest_compilecontract.report.terminal import failure_text
from pytest_compilecontract.wording import first_line

from .current import State
from .history import History
from .judged import Judged, failed, unmeasured
from .process import Process, torch_defaults
from .run import Runs
from .settings import Settings
from .started import as_started, set_options
from .workers import ENTRY, LOST

SKIPS = (pytest.skip.Exception, pytest.xfail.Exception)


class Results:
    """The part of the plugin that sends what was measured, with pytest's own reports."""

    def __init__(
        self, settings: Settings, history: History, runs: Runs, as_started: Callable[[Command], Command]
    ) -> None:
        self._as_started = as_started
        self._settings = settings
        self._runs = runs
        self._process: Process = runs.process
        self.history = history
        self._told_defaults = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report: pytest.TestReport = yield
        current = self._runs.of(item)
        if current is None or (call.when != "call" and report.outcome == "passed"):
            return report
        if call.excinfo is not None and report.failed:
            current.fail(call.excinfo.value)
        if current.state.running:
            # A subtest of a test that is still running.
            if report.failed:
                current.fail_within()
            if not current.state.noted:
                # The verdict is another run's: pytest is not to count a failure in this one.
                report.outcome = "passed"
            return report
        if (entry := self._entry(current.state, call, report)) is not None:
            self.attach(report, entry, current.state)
            if current.state.held_back and current.state.noted:
                self._runs.keep(item, report)
        if current.state.lost:
            vars(report)[LOST] = True
        return report

    def attach(
        self, report: pytest.TestReport, entry: Entry, state: State | None = None, *, unusable: bool = False
    ) -> None:
        """Send an entry with a report: pytest and pytest-xdist carry its own attributes from worker to controller.

        `unusable`: it should have been measured here, and cannot be.
        """
        _, environment = self._process.where(self._settings.known.get(entry.lane))
        kept: dict[str, object] = {"entry": entry_to_data(entry), "environment": environment_to_data(environment)}
        if state is not None and state.notes and entry.verdict != "unmeasured":
            kept["notes"] = list(state.notes)
        if entry.verdict == "unmeasured" and (unusable or (state is not None and state.unusable is not None)):
            kept["unusable"] = entry.reason
        # A table of some size, so once for each process.
        vars(report)[ENTRY] = kept if self._told_defaults else {**kept, "defaults": torch_defaults()}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if getattr(report, ENTRY, None) is not None:
            self._told_defaults = True

    def drift(self, found: Judged | None) -> str:
        """The failure text if the lane drifted from its baseline; empty if it did not."""
        if found is None or found.entry.verdict == "broken":
            return ""
        try:
            where = self._process.where(self._settings.known.get(found.entry.lane))[1]
            held = self.history.hold(found.entry, where, torch_defaults())
        except ReceiptError as error:
            return f"the baseline of this lane: {error}"
        if held is None or not held.failed or self.history.is_recorded(found.entry, held):
            return ""
        assert held.lane.rerun is not None
        lane = replace(held.lane, rerun=self._as_started(held.lane.rerun))
        return drift_text(lane, held.found, held.record, refusal(found.entry))

    def _entry(self, state: State, call: pytest.CallInfo[None], report: pytest.TestReport) -> Entry | None:
        contract = state.contract
        if contract.inherited and state.judged is None:
            return None
        if call.when == "teardown" and call.excinfo is not None and isinstance(call.excinfo.value, SKIPS):
            return None  # what the test has shown stays
        if contract.ladder:
            return self._entry_of_rung(state, call, report)
        if not contract.bare and contract.lane.name not in {each.name for each in self._settings.lanes}:
            # Left out by who chose the lanes: as little a part of the run as a test that was not selected.
            return None
        entry = state.judged.entry if state.judged is not None else None
        if state.failed:
            return entry
        subject = state.subject(self._process)
        if call.excinfo is None:
            # What pytest or a plugin makes of a test that went through: XPASS(strict), a subtest that failed.
            if not (report.failed or state.failed_within):
                return entry
            own = failure_without_exception(report, state.failed_within)
            return failed(subject, str(own), entry, own)
        if isinstance(call.excinfo.value, SKIPS):
            expected = isinstance(call.excinfo.value, pytest.xfail.Exception) and not str(call.excinfo.value)
            said = "expected to fail" if expected else said_by(call.excinfo)
            return unmeasured(subject, state.turned_away or said)
        own = own_failure(call)
        in_repeat = f" (in repeat {state.number})" if self._settings.repeat > 1 else ""
        return failed(subject, f"{own}{in_repeat}", entry, own)

    def _entry_of_rung(self, state: State, call: pytest.CallInfo[None], report: pytest.TestReport) -> Entry | None:
        """The entry of a ladder that its own test ended; a rung that ran to its end has no entry of its own."""
        if call.excinfo is None:
            by_lane = state.judged is not None and state.judged.failed
            if state.rung is None or not state.failed_within or by_lane:
                return None
            own = failure_without_exception(report, subtest=True)
        elif isinstance(call.excinfo.value, pytest.skip.Exception):
            return None
        else:
            own = own_failure(call)
        steps, measured = state.steps, None
        if state.rung is not None:
            steps = (*steps, Step(name=state.rung.name, verdict="failed", reason=str(own)))
        elif state.judged is not None:
            # The walk is over, and what it shared with other tests failed after it.
            measured = state.judged.entry
        # In the lane that the whole ladder comes to, whichever of its rungs ran last.
        climber = replace(state.subject(self._process), lane=state.contract.lane)
        return replace(failed(climber, str(own), measured, own), frontier=completed(steps, state.contract.ladder))


def add_to_reason(reports: Sequence[pytest.TestReport], said: Sequence[str]) -> None:
    """Add to the reason why a lane failed, in its first failed report and in each entry, the last of which is kept."""
    if not said:
        return
    if (failed := next((report for report in reports if report.failed), None)) is not None:
        failed.longrepr = "\n".join([str(failed.longrepr), *said])
    for report in reports:
        if (kept := vars(report).get(ENTRY)) is not None:
            reason = "; ".join(filter(None, (kept["entry"].get("reason", ""), said[0])))
            add_to_entry(report, reason=reason)


def add_to_entry(report: pytest.TestReport, **facts: object) -> None:
    """Change facts of the entry that a report carries, as data, if it carries one."""
    if (kept := vars(report).get(ENTRY)) is not None:
        vars(report)[ENTRY] = {**kept, "entry": {**kept["entry"], **facts}}


def failure_of(state: State) -> str:
    """Why a contract is not held, and the command that reruns this lane."""
    assert state.judged is not None
    entry, contract = state.judged.entry, state.contract
    own = contract.bare or bool(contract.ladder)
    # Where no option chose lanes, addopts included, a session without one has this lane too.
    asked = contract.item.config.getoption("--contract-lanes") is not None
    lane = (f"--contract-lanes={state.lane.name}",) if asked and not own else ()
    repeats = max(entry.repeats, state.number)
    repeat = (f"--contract-repeat={repeats}",) if repeats > 1 else ()
    options = ("--compile-contracts", *lane, *repeat, *set_options(contract.item.config))
    return failure_text(
        entry.contract,
        entry.lane,
        entry.violations,
        state.judged.doubts,
        str(as_started(contract.item.config, Command(options=options, tests=(entry.test,)))),
        unsteady=state.judged.unsteady,
    )


def failure_without_exception(report: pytest.TestReport, subtest: bool) -> OwnFailure:
    """How a test that raised nothing failed."""
    if subtest:
        return OwnFailure(phase="call", said=SUBTEST)
    return OwnFailure(phase=str(report.when), said=first_line(str(report.longrepr or "")) or "pytest gave no message")


def own_failure(call: pytest.CallInfo[None]) -> OwnFailure:
    """How a test failed that raised."""
    assert call.excinfo is not None
    return OwnFailure(phase=call.when, exception=call.excinfo.typename, said=said_by(call.excinfo))


def said_by(raised: pytest.ExceptionInfo[BaseException]) -> str:
    """The first line of an exception's message, or its type's name."""
    return next(iter(message_of(raised.value).splitlines()), "") or raised.typename
