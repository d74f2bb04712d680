"""Observing tests that are not contracts if they compile: what `--contract-observe` adds to the hooks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from pytest_compilecontract import clock
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.facts.limits import OBSERVED
from pytest_compilecontract.measure.installed import no_torch, torch_version

from .current import State
from .history import History
from .item import BODY, CONTRACT, Contract
from .judged import Judged, Subject, failed, judged, unmeasured
from .phases import unittest_outcome
from .process import Process
from .results import Results, failure_without_exception, own_failure, said_by
from .settings import Settings

if TYPE_CHECKING:
    from pytest_compilecontract.facts.measurement import Measurement
    from pytest_compilecontract.facts.receipt import Entry

# Where a worker of pytest-xdist leaves why it could observe nothing.
UNOBSERVED = "compile_contract_unobserved"


@dataclass(kw_only=True, slots=True)
class Watched:
    """A watched test. `open` while its body runs, `failed` if one of its subtests failed.

    `judged` is set if it is a contract; `drifted` says how it differs from its baseline.
    """

    started: float
    open: bool = True
    failed: bool = False
    judged: Judged | None = None
    drifted: str = ""


WATCHED = pytest.StashKey[Watched]()


class Observer:
    """Makes a contract without limits of each test whose body compiles or calls torch.compile, or did for its baseline.

    What a fixture compiles is not counted, and compiled again when the body runs it: the test in which a shared fixture
    is set up depends on the selection. A unittest's setUp is part of the body.
    """

    def __init__(self, settings: Settings, history: History, process: Process, results: Results) -> None:
        from pytest_compilecontract.measure.observed import Watch

        self._settings = settings
        self._history = history
        self._process = process
        self._results = results
        self._watch = Watch(settings.root, no_torch, process.where)
        self._aside = False

    # Inside pytest's own wrappers, as the hooks of marked contracts are.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        __tracebackhide__ = True
        if CONTRACT in item.stash:
            return (yield)
        item.stash[WATCHED] = watched = Watched(started=clock.seconds())
        try:
            with _quiet(), self._as_asked(), self._watch.body() as body:
                result = yield
        finally:
            watched.open = False
            if body.measurement is not None:
                self._judge(item, watched, body.measurement)
        if watched.failed or unittest_outcome(item) is not None:
            return result
        if watched.judged is None and self._is_held(item) and not self._why_not():
            self._judge(item, watched, self._watch.nothing())
        watched.drifted = self._results.drift(watched.judged)
        if watched.drifted:
            pytest.fail(watched.drifted, pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report: pytest.TestReport = yield
        watched = item.stash.get(WATCHED, None)
        if watched is not None and watched.open:
            # A subtest of a test that is still running.
            watched.failed |= report.outcome == "failed"
            if self._aside:
                # The verdict is another run's: pytest is not to count a failure in this one.
                report.outcome = "passed"
            return report
        if CONTRACT not in item.stash and (call.when == "call" or report.outcome != "passed"):
            entry = self._entry(item, watched, call, report)
            if entry is not None:
                self._results.attach(report, entry, unusable=call.excinfo is None and bool(self._why_not()))
        return report

    @contextlib.contextmanager
    def aside(self, item: pytest.Item) -> Iterator[Callable[[], Watched | None]]:
        """A run of a test beside the one that its reports are about; yields what it showed, once that is over."""
        before, again = item.stash.get(WATCHED, None), None
        if before is not None:
            del item.stash[WATCHED]  # for a run that ends before its body
        self._aside = True
        try:
            yield lambda: again
        finally:
            self._aside = False
            again = item.stash.get(WATCHED, None)
            if before is not None:
                item.stash[WATCHED] = before

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._watch.close()
        if (why := self._watch.why_not) and hasattr(session.config, "workeroutput"):
            session.config.workeroutput[UNOBSERVED] = why

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        if why := getattr(node, "workeroutput", {}).get(UNOBSERVED):
            self._watch.why_not = why

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._watch.why_not:
            terminalreporter.write_line(f"no test could be observed: {self._watch.why_not}", yellow=True)

    def _as_asked(self) -> contextlib.AbstractContextManager[None]:
        """The settings that this run overrides."""
        overrides = self._settings.overrides
        if not overrides or no_torch() is not None:
            return contextlib.nullcontext()
        from pytest_compilecontract.measure.isolation import given

        return given(overrides)

    # one test

    def _judge(self, item: pytest.Item, watched: Watched, measurement: Measurement) -> None:
        watched.judged = judged(
            self._subject(item),
            measurements=(measurement,),
            seconds=clock.seconds() - watched.started,
            torch_version=torch_version(),
        )

    def _entry(
        self, item: pytest.Item, watched: Watched | None, call: pytest.CallInfo[None], report: pytest.TestReport
    ) -> Entry | None:
        """The entry of a test that compiled, or has a baseline; None for all others."""
        measured = watched.judged.entry if watched is not None and watched.judged is not None else None
        drifted = watched is not None and bool(watched.drifted)
        raised = call.excinfo if not drifted else None
        subtests = watched is not None and watched.failed
        # What pytest makes of a test that went through and was expected not to; drift is not the test's own failure.
        expected = raised is None and report.failed and not drifted
        if raised is None and not subtests and not expected:
            if measured is None and self._is_held(item) and (why := self._why_not()):
                return unmeasured(self._subject(item), why)
            return measured
        if report.outcome == "skipped":
            # Skipped, or expected to fail: nobody is to hear of it, unless it was otherwise before.
            said = said_by(raised) if raised is not None else "expected to fail"
            return unmeasured(self._subject(item), said) if self._is_held(item) else None
        if measured is None and not self._is_held(item):
            return None
        own = own_failure(call) if raised is not None else failure_without_exception(report, subtests)
        return failed(self._subject(item), str(own), measured, own)

    def _subject(self, item: pytest.Item) -> Subject:
        contract = Contract(item=item, limits=OBSERVED, lane=BODY, bare=True)
        return State(contract=contract, lane=BODY).subject(self._process)

    def _is_held(self, item: pytest.Item) -> bool:
        """Whether the test has a baseline to compare with."""
        history = self._history
        if not history.knows(item.nodeid, BODY.name):
            return False
        # It did compile once, so torch is to be imported, and to say whether that baseline is for here.
        if no_torch() is not None:
            return True
        try:
            return history.baselines.find(item.nodeid, BODY.name, self._process.where()[1]) is not None
        except ReceiptError:
            return True  # who compares with it says what is wrong with it

    def _why_not(self) -> str:
        """Why a test that compiles in its baseline cannot be measured here."""
        return self._watch.why_not or no_torch() or ""


def _quiet() -> contextlib.AbstractContextManager[None]:
    if "torch" not in sys.modules:
        return contextlib.nullcontext()
    from pytest_compilecontract.measure.probes.trace import quiet

    return quiet()
