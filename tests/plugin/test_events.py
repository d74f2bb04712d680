"""Events: what a run tells as it happens, by whole pytest sessions that compile nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.sessions import runpytest_session

from pytest_compilecontract.facts.receipt import Entry, Environment
from pytest_compilecontract.files.course import Course
from pytest_compilecontract.files.receipt import entry_to_data
from pytest_compilecontract.files.run_log import lines_of

LOST = Entry(contract="t", lane="aot", test="t[aot]", verdict="broken", environment="unknown")
START = {"event": "start", "test": "t[aot]", "entry": entry_to_data(LOST)}
SUITE = """
import os
import pytest
from pytest_compilecontract import compile_contract

def test_first():
    pass

@pytest.mark.parametrize("number", [1, 2])
def test_second(number):
    if number == 2 and os.environ.get("DIES"):
        os.kill(os.getpid(), 9)

@compile_contract(max_recompiles=3)
def test_contract(compile_lane):
    pass
"""


def told(pytester: pytest.Pytester) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(pytester.path / "told").read_text().splitlines()]


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return runpytest_session(
        pytester,
        *("-p", "pytest_compilecontract.plugin.events", "--contract-events=told", "--compile-contracts"),
        *("--contract-lanes=capture", "-k", "not test_contract"),
        *options,
    )


def test_each_test_is_told_when_it_starts_and_when_it_ends(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_suite=SUITE)

    run(pytester)

    first, second = "test_suite.py::test_first", "test_suite.py::test_second"
    assert [(event["event"], event.get("test")) for event in told(pytester)] == [
        ("collected", None),
        ("start", first),
        ("finish", first),
        ("start", f"{second}[1]"),
        ("finish", f"{second}[1]"),
        ("start", f"{second}[2]"),
        ("finish", f"{second}[2]"),
        ("end", None),
    ]
    assert told(pytester)[0]["count"] == 3


def test_a_run_goes_on_after_the_test_that_took_the_process_along(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_suite=SUITE.replace("[1, 2]", "[2, 3]"))
    monkeypatch.setenv("DIES", "1")
    run(pytester)
    assert told(pytester)[-1] == {"event": "start", "test": "test_suite.py::test_second[2]", "entry": None}

    run(pytester).assert_outcomes(passed=1, deselected=3)

    assert [event.get("test") for event in told(pytester)[-3:]] == ["test_suite.py::test_second[3]"] * 2 + [None]


def test_under_xdist_the_controller_tells_it_all_once(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(test_suite=SUITE)

    run(pytester, "-n2")

    events = [event["event"] for event in told(pytester)]
    assert (events.count("start"), events.count("finish"), events.count("collected"), events[-1]) == (3, 3, 1, "end")


def test_a_module_that_cannot_be_imported_is_told_with_its_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_suite=SUITE, test_bad="import nowhere")

    run(pytester)

    assert told(pytester)[0] == {
        "event": "problem",
        "where": "test_bad.py",
        "reason": "ModuleNotFoundError: No module named 'nowhere'",
    }


def test_without_the_option_nothing_is_written(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_suite=SUITE)

    result = pytester.runpytest_subprocess("-p", "pytest_compilecontract.plugin.events", "-k", "not test_contract")

    result.assert_outcomes(passed=3, deselected=1)
    assert not (pytester.path / "told").exists()


@pytest.mark.parametrize("line", [b"", b"{", b'{"event": "start"', b"[]", b"3", b"\xff{}", b"{}", b'{"event": 3}'])
def test_half_a_line_says_nothing(line: bytes) -> None:
    end = b'{"event": "end", "code": 0}\n'

    found = lines_of(line + b"\n" + end + line)

    assert [event for _, event in found.events] == [{"event": "end", "code": 0}]
    assert (found.torn.keys(), found.read) == ({1}, len(line) + 1 + len(end))


def test_what_was_lost_is_where_the_others_were() -> None:
    course = Course()
    course.take(START)
    course.lose("gone", broken=True)
    course.environments["here"] = Environment(torch="2.11.0")

    course.settle(Environment(torch="2.12.1"))

    entry = course.entries["t[aot]"]
    assert (entry.verdict, entry.reason, entry.environment) == ("broken", "gone", "here")


def test_what_was_lost_alone_has_the_torch_that_was_there() -> None:
    course = Course()
    course.take(START)
    course.lose("cut off", broken=False)

    course.settle(Environment(torch="2.12.1"))

    entry = course.entries["t[aot]"]
    assert (entry.verdict, course.environments[entry.environment].torch) == ("unmeasured", "2.12.1")
