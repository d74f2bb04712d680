"""The log of a run for the process that started it: every test as it starts and ends, and what was measured.

`compilecontract bump` loads this plugin with `-p`, so that it can show what is running, and so that no measurement is
lost if a compiler crashes the whole process. A run that finds an existing file continues after its last test.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.files.course import EVENTS_OPTION, UNKNOWN
from pytest_compilecontract.files.journal import ENDED
from pytest_compilecontract.files.run_log import Log, lines_of

from .item import CONTRACT


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("compile contracts", "torch.compile contracts")
    group.addoption(EVENTS_OPTION, metavar="FILE", default=None, help="write what happens to FILE")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption(EVENTS_OPTION)
    # Of pytest-xdist's processes the controller hears of everything.
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Events(Path(file)), "compilecontract-events")


class Events:
    """Writes events to one file. Tests that an earlier run with this file has started are not run again."""

    def __init__(self, file: Path) -> None:
        earlier = lines_of(file.read_bytes()).events if file.is_file() else ()
        self._begun = {str(each.get("test")) for _, each in earlier if each["event"] == "start"}
        self._subjects: dict[str, Entry] = {}
        self._log = Log(file, goes_on=True)
        self._counted = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if done := [item for item in items if item.nodeid in self._begun]:
            items[:] = [item for item in items if item.nodeid not in self._begun]
            config.hook.pytest_deselected(items=done)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if (contract := item.stash.get(CONTRACT, None)) is not None:
                self._subjects[item.nodeid] = Entry(
                    contract=contract.name,
                    lane=contract.lane.name,
                    test=item.nodeid,
                    verdict="broken",
                    reason=ENDED,
                    environment=UNKNOWN,
                    limits=contract.limits.to_dict(),
                    lane_settings=contract.lane.to_dict(),
                )
        self._log.write("collected", count=len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if not self._counted:
            self._log.write("collected", count=len(ids))
        self._counted = True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            lines = [line for line in str(report.longrepr).splitlines() if line.strip()]
            said = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
            self._log.write("problem", where=report.nodeid, reason=(said or lines or [""])[-1])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._log.begin(nodeid, self._subjects.get(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (kept := getattr(report, "compile_contract", None)) is not None:
            self._log.keep(kept)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._log.end(nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._log.write("end", code=int(exitstatus))

    def pytest_unconfigure(self) -> None:
        self._log.close()
