"""What a pytest-xdist worker sends to its controller with pytest's reports, and how the controller handles it."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_compilecontract.facts.ladder import NAME as FRONTIER
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.limits import OBSERVED
from pytest_compilecontract.files.journal import ENDED
from pytest_compilecontract.files.receipt import entry_to_data, environment_to_data

from .collect import names_of
from .item import BODY, contract_name
from .judged import Subject, failed
from .process import Process
from .session import Sent, Session
from .started import tell_worker

# What a report carries: an entry with its environment; that its test lost the process the CUDA device, and on xdist's
# report of that, that the worker was to end; what a worker is about to run, and that it has.
ENTRY = "compile_contract"
LOST = "compile_contract_lost"
REPLACED = "compile_contract_replaced"
BEGUN = "compile_contract_begun"
OVER = "compile_contract_over"
# A lane of which only its test's name is known.
UNKNOWN_LANE = Lane(name="unknown", backend="")


def tell_begun(item: pytest.Item, subject: Subject, process: Process) -> None:
    """Tell the controller which lane starts: if this worker dies, it learns nothing else about it."""
    _, environment = process.where(subject.lane)
    begun = failed(subject, ENDED, None)
    _tell(item, BEGUN, Sent(entry=entry_to_data(begun), environment=environment_to_data(environment)))


def tell_over(item: pytest.Item) -> None:
    """Tell the controller that a lane has run: if this worker dies from here on, it is not of that."""
    _tell(item, OVER, True)


def tell_shown(item: pytest.Item, sent: object) -> None:
    """Tell the controller what a lane showed, before its reports do."""
    _tell(item, ENTRY, sent)


def _tell(item: pytest.Item, what: str, told: object) -> None:
    # pytest passes over a setup that passed: nobody but the controller's own hook takes notice of this one.
    report = pytest.TestReport(
        nodeid=item.nodeid, location=item.location, keywords={}, outcome="passed", longrepr=None, when="setup"
    )
    vars(report)[what] = told
    item.ihook.pytest_runtest_logreport(report=report)


class Receiving:
    """The part of the plugin that keeps the entries of reports, and what a dead worker was running."""

    def __init__(self, session: Session, worker: str) -> None:
        self._session = session
        self._worker = worker
        self._lost: set[str] = set()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        tell_worker(node.config, node.workerinput)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if nodeid in self._session.running:
            self._session.end(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if begun := getattr(report, BEGUN, None):
            if not self._worker:
                self._session.begun(begun)
            return
        if getattr(report, OVER, False):
            if not self._worker:
                self._session.end(report.nodeid)
            return
        if getattr(report, LOST, False):
            self._lost.add(report.nodeid)
        if getattr(report, REPLACED, False):
            return
        if (kept := getattr(report, ENTRY, None)) is not None:
            self._session.receive(kept)
        elif str(report.when) == "???":  # pytest-xdist's word for a test whose worker died
            self._lose(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        if crashitem in self._lost:
            # Its failure is reported: that the worker ended is what it was to do, and no second one.
            report.outcome = "passed"
            vars(report)[REPLACED] = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        return ("worker replaced", "", "WORKER REPLACED") if getattr(report, REPLACED, False) else None

    def _lose(self, report: pytest.TestReport) -> None:
        reason = next(iter(str(report.longrepr).splitlines()), "")
        if self._session.lose_running(report.nodeid, reason):
            return
        # It died before it could say what it was about to run.
        settings = self._session.settings
        name = report.nodeid.rpartition("::")[2]
        parameters = name.partition("[")[2].removesuffix("]")
        lanes = (*settings.lanes, Lane(name=FRONTIER))
        fitting = [each for each in lanes if parameters == each.name or parameters.startswith(f"{each.name}-")]
        if len(fitting) == 1:
            contract = contract_name(report.nodeid, name, fitting[0].name)
            self._session.lose(contract, fitting[0], report.nodeid, reason)
        elif fitting:
            names = names_of(tuple(fitting))
            self._session.lose(report.nodeid, UNKNOWN_LANE, report.nodeid, f"{reason} (in one of the lanes {names})")
        elif settings.observe:
            # Nobody knows whether it compiled anything.
            self._session.lose(report.nodeid, BODY, report.nodeid, reason, OBSERVED)
