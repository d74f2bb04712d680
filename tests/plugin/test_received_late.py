"""What a session keeps that was cut off: what workers measured and no report brought, and what was running."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.receipts import an_entry

from pytest_compilecontract.facts.receipt import Entry, Environment
from pytest_compilecontract.files.journal import ENDED
from pytest_compilecontract.files.receipt import entry_to_data, environment_to_data, read_receipt
from pytest_compilecontract.plugin.session import Sent, Session
from pytest_compilecontract.plugin.settings import Options, settings_from

HERE = environment_to_data(Environment(torch="2.13.0+cpu"))
OWN = "the test failed in call: AssertionError: its own"


def a_session(folder: Path, worker: str = "") -> Session:
    options = Options(root=folder, invocation=folder, asked="aot", configured=[], report="out")
    session = Session(settings=settings_from(options))
    session.open_journal(worker)
    return session


def sent(entry: Entry) -> Sent:
    return Sent(entry=entry_to_data(entry), environment=dict(HERE))


def named(test: str, **facts: Any) -> Entry:
    return replace(an_entry(**facts), test=test, contract=test)


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "still in teardown"])
def test_a_failure_of_a_worker_that_no_report_brought_keeps_its_reason(tmp_path: Path, ended: bool) -> None:
    controller, worker = a_session(tmp_path), a_session(tmp_path, "gw0")
    for test in ("test_failed", "test_lost"):
        begun = named(test, verdict="broken", measurement=None, reason=ENDED)
        controller.begun(sent(begun))
        assert worker.journal is not None
        worker.journal.begin(test, begun)
    worker.receive(sent(named("test_failed", verdict="broken", measurement=None, reason=OWN)))
    if ended:
        worker.end("test_failed")

    for test in ("test_failed", "test_lost"):
        controller.cut(test, "the session was interrupted")
    controller.receive_late()
    controller.write_report()

    entries = read_receipt(tmp_path / "out" / "receipt.json").entries
    assert {each.test: (each.verdict, each.reason) for each in entries} == {
        "test_failed": ("broken", OWN),
        "test_lost": ("broken", "the session was interrupted"),
    }


def test_what_was_measured_and_is_still_in_teardown_is_not_held(tmp_path: Path) -> None:
    controller, worker = a_session(tmp_path), a_session(tmp_path, "gw0")
    for test in ("test_ended", "test_in_teardown", "test_not_brought"):
        begun = named(test, verdict="broken", measurement=None, reason=ENDED)
        controller.begun(sent(begun))
        assert worker.journal is not None
        worker.journal.begin(test, begun)
        worker.receive(sent(named(test)))
        if test != "test_not_brought":
            controller.receive(sent(named(test)))
    worker.end("test_ended")

    controller.receive_late()

    late = ("broken", f"held, but its teardown never finished: {ENDED}")
    assert {test: (each.verdict, each.reason) for test, each in controller.entries.items()} == {
        "test_ended": ("held", ""),
        "test_in_teardown": late,
        "test_not_brought": late,
    }
    assert all(each.measurement is not None for each in controller.entries.values())
