"""One rank of a contract: a process started by `launch` that runs and measures the one test, and reports it.

Everything is reported before anything is torn down: ending a process group may end the process. A rank judges nothing.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import signal
import sys
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from pytest_compilecontract.errors import chain, message_of
from pytest_compilecontract.files.run_log import Log
from pytest_compilecontract.judge.ranks import is_of_a_neighbour
from pytest_compilecontract.measure.probes.caches import know_processor
from pytest_compilecontract.processes import ends_with

from .another import Another
from .answer import Report, answer
from .current import State
from .launch import ANOTHER, LAUNCH, STACKS, Place, log_of
from .phases import measured_in
from .results import own_failure
from .run import Runs

if TYPE_CHECKING:
    from pytest_compilecontract.measure.group import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """The launch as a rank sees it: the test and its file, the parent process, and the time limit.

    `again`: it is no rank but the one process that starts the test again, with the compile caches of its parent.
    `processor` is what the parent knows of it.
    """

    test: str
    file: str
    parent: int
    seconds: float
    again: bool = False
    processor: dict[str, bool] = field(default_factory=dict)

    @staticmethod
    def read(folder: Path) -> Launch:
        return Launch(**json.loads((folder / LAUNCH).read_text(encoding="utf-8")))


class Rank:
    """The part of the plugin that is active in a rank."""

    def __init__(self, place: Place, runs: Runs, config: pytest.Config) -> None:
        self._place = place
        self._launch = Launch.read(place.folder)
        self._runs = runs
        know_processor(self._launch.processor)
        self._log = Log(log_of(place))
        self._store: Store | None = None
        self._ranks = 1
        self._ended = self._well = False
        ends_with(self._launch.parent, seconds=self._launch.seconds, folder=place.folder)
        self._stacks: IO[str] = (place.folder / f"{STACKS}{place.rank}").open("w", encoding="utf-8")
        if hasattr(faulthandler, "register"):
            faulthandler.register(signal.SIGUSR1, file=self._stacks, all_threads=False)
        # Of all tests of the session this one's file is collected.
        config.args = [self._launch.file]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        items[:] = [each for each in items if each.nodeid == self._launch.test]
        # What a mark expects of the test, it expects of all ranks.
        config.option.runxfail = True

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        """End the process after its one test, as soon as the other ranks are done with theirs."""
        if self._well and self._store is not None:
            from pytest_compilecontract.measure.group import leave_together

            answer(self._log, "waits")
            leave_together(self._store, self._ranks, self._launch.seconds)
        answer(self._log, "left")
        self._log.close()
        sys.stdout.flush()
        sys.stderr.flush()
        # Python's own way out would take the process group down, which may abort, or wait for ever.
        os._exit(0)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        __tracebackhide__ = True
        current = self._runs.of(item)
        usable = current is not None and current.state.unusable is None and not current.state.refused
        if current is not None and usable and current.state.lane.is_launched and not self._launch.again:
            from pytest_compilecontract.measure.group import join

            answer(self._log, "joins")
            self._ranks = current.state.lane.ranks or 1
            self._store = join(current.state.lane, self._place.rank, self._place.folder / "store", self._launch.seconds)
        return (yield)

    def another(self) -> Another | None:
        """What another lane kept, if this one is compared with it."""
        file = self._place.folder / ANOTHER
        return pickle.loads(file.read_bytes()) if file.exists() else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        answer(self._log, "begins")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report: pytest.TestReport = yield
        current = self._runs.of(item)
        if current is None or current.state.running:
            return report
        if call.when == "teardown":
            if report.failed and self._well:
                self._well = False
                answer(self._log, "torn", _report(current.state, call, report))
        elif not self._ended and (call.when == "call" or not report.passed):
            self._ended = True
            self._tell(current.state, call, report)
        return report

    def _tell(self, state: State, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
        told = replace(
            _report(state, call, report),
            measurements=measured_in(state),
            overdue=state.overdue,
            cut_short=state.cut_short,
            notes=state.notes,
            gpu=state.gpu,
        )
        self._well = told.well
        answer(self._log, "measured", told)


def _report(state: State, call: pytest.CallInfo[None], report: pytest.TestReport) -> Report:
    """How a phase of the test ended, for the parent to report."""
    assert report.when is not None
    test = state.contract.item.nodeid
    told = Report(test=test, lane=state.lane.name, outcome=report.outcome, phase=report.when)
    if report.failed:
        return _failed(told, call, report)
    if report.skipped and call.excinfo is not None:
        return replace(told, said=state.turned_away or str(call.excinfo.value))
    return replace(told, outcome="failed", said="a subtest failed") if state.failed_within else told


def _failed(told: Report, call: pytest.CallInfo[None], report: pytest.TestReport) -> Report:
    if call.excinfo is None:
        return replace(told, said=str(report.longrepr or "the test failed"), text=report.longreprtext)
    own = own_failure(call)
    connection = any(is_of_a_neighbour(type(each).__name__, message_of(each)) for each in chain(call.excinfo.value))
    return replace(told, exception=own.exception, said=own.said, text=report.longreprtext, connection=connection)
