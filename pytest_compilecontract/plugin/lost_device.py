"""Replacing a process that lost its CUDA device: a new one runs the rest of the session and reports for it.

After an illegal memory access or a device-side assert, CUDA refuses every call of the process. A pytest-xdist worker
then ends, and xdist starts another. Without xdist, the remaining tests run in a child; a child that loses its device
starts a child of its own.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_compilecontract.files.course import EVENTS_OPTION
from pytest_compilecontract.files.run_log import Log, lines_of

EXIT = 70  # EX_SOFTWARE
REPORTS = "reports.jsonl"
ITEMS = "items.json"
# pytest-xdist's word, in place of setup, call or teardown, for a test whose process died.
LOST_TEST = "???"


def leave_worker() -> None:
    """End a pytest-xdist worker in the middle of its test, so that xdist starts another for the remaining tests.

    At once: during a normal exit, torch would free its device memory, and abort.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT)


class Parent:
    """Runs the remaining tests in a child once the device is lost, and returns the child's reports, test by test."""

    def __init__(self) -> None:
        self._reports: dict[str, list[dict[str, object]]] | None = None
        self._said = ""

    def reports(self, item: pytest.Item) -> list[pytest.TestReport]:
        """The child's reports of a test, and a failure if the child ended before the test did."""
        if self._reports is None:
            self._run(item)
        assert self._reports is not None
        kept = self._reports.get(item.nodeid, [])
        read = functools.partial(item.config.hook.pytest_report_from_serializable, config=item.config)
        found: list[pytest.TestReport] = [read(data=each) for each in kept]
        if not any(each["when"] in ("teardown", LOST_TEST) for each in kept):
            found.append(self._crashed(item))
            if self._reports:
                self._reports = None  # the test took its process with it: another one for those after it
        return found

    def _run(self, first: pytest.Item) -> None:
        items = first.session.items
        left = [item.nodeid for item in items[items.index(first) :]]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / ITEMS).write_text(json.dumps(left), encoding="utf-8")
            config, params = first.config, first.config.invocation_params
            options = [f"--contract-rest={folder}"]
            # What a run keeps for the next one, and where it puts its files, is this process's own.
            if config.pluginmanager.hasplugin("cacheprovider"):
                options += ["-o", f"cache_dir={folder / 'cache'}"]
            if given := config.getoption("basetemp"):
                options += [f"--basetemp={given}-replaced"]
            if config.getoption(EVENTS_OPTION, None):
                options += [f"{EVENTS_OPTION}={folder / 'events'}"]
            with (folder / "output").open("w+b") as output:
                ran = subprocess.run(
                    [sys.executable, "-m", "pytest", *map(str, params.args), *options],
                    cwd=params.dir,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    check=False,
                )
                output.seek(0)
                said = output.read().decode(errors="replace").strip().splitlines()
            self._reports = read_reports(folder / REPORTS)
        self._said = f"exit code {ran.returncode}" + (f": {said[-1].strip()}" if said else "")

    def _crashed(self, item: pytest.Item) -> pytest.TestReport:
        began = "while running" if self._reports else "before"
        return pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords={},
            outcome="failed",
            longrepr=f"the process that took over after the CUDA device was lost ended {began} it ({self._said})",
            when=LOST_TEST,  # type: ignore[arg-type]
        )


class Child:
    """Runs the remaining tests of a process that lost its device, and writes each report."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = Log(folder / REPORTS)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        wanted = json.loads((self._folder / ITEMS).read_text(encoding="utf-8"))
        items[:] = ordered(items, wanted)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = report._to_json()
        data["$report_type"] = "TestReport"
        self._log.write("report", report=data)


def ordered(items: Sequence[pytest.Item], wanted: Sequence[str]) -> list[pytest.Item]:
    """The requested items, in the requested order."""
    by_name = {item.nodeid: item for item in items}
    return [by_name[name] for name in wanted if name in by_name]


def read_reports(file: Path) -> dict[str, list[dict[str, object]]]:
    """The reports that a child wrote, by test; an unfinished line is left out."""
    found: dict[str, list[dict[str, object]]] = {}
    if not file.is_file():
        return found
    for _, event in lines_of(file.read_bytes()).events:
        data = event.get("report")
        name = data.get("nodeid") if isinstance(data, dict) else None
        if event["event"] == "report" and isinstance(data, dict) and isinstance(name, str):
            found.setdefault(name, []).append({**data})
    return found
