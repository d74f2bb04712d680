"""A process that lost its CUDA device is replaced: whole sessions, with a device that is said to be lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.sessions import runpytest_session

pytestmark = pytest.mark.sessions

# The one thing that needs a GPU is to lose it: here an exception's text says that it is.
CONFTEST = """
import pytest_compilecontract.measure.probes.device as device

device.lost = lambda error: "CUDA error: an illegal memory access" if "wild" in str(error) else ""
"""
SUITE = """
import os

import pytest
import torch


def fine(x):
    return x.sin() + 1


def test_before(compile_lane):
    compile_lane.run(fine, (torch.ones(4),))


def test_wild(compile_lane):
    compile_lane.run(fine, (torch.ones(4),))
    raise RuntimeError("wild")


@pytest.mark.parametrize("size", [2, 3])
def test_after(compile_lane, size):
    compile_lane.run(fine, (torch.ones(size),))


def test_ordinary(record_property):
    record_property("process", os.getpid())
"""
WHOLE = {
    "test_before[capture]": "held",
    "test_wild[capture]": "broken",
    "test_after[capture-2]": "held",
    "test_after[capture-3]": "held",
}


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))))
    pytester.makeconftest(CONFTEST)
    return pytester


def run(session: pytest.Pytester, *options: str) -> pytest.RunResult:
    return runpytest_session(
        session, "--compile-contracts", "--contract-lanes=capture", "--contract-report=report", *options
    )


def verdicts(folder: Path) -> dict[str, str]:
    entries = json.loads((folder / "report" / "receipt.json").read_text())["entries"]
    return {each["test"].partition("::")[2]: each["verdict"] for each in entries}


def test_what_is_left_runs_in_a_child_and_reports_as_if_here(session: pytest.Pytester) -> None:
    session.makepyfile(SUITE)

    result = run(session)

    result.assert_outcomes(passed=4, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert verdicts(session.path) == WHOLE
    assert result.stdout.str().count("test_wild[capture]") > 0


def test_a_worker_of_xdist_is_replaced_and_its_test_fails_once(session: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    session.makepyfile(SUITE)

    result = run(session, "-n1")

    result.stdout.fnmatch_lines(["replacing crashed worker gw0", "*1 failed, 4 passed, 1 worker replaced in *"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert verdicts(session.path) == WHOLE


def test_a_child_that_loses_its_device_too_has_a_child_of_its_own(session: pytest.Pytester) -> None:
    session.makepyfile(
        SUITE.replace(
            "def test_ordinary",
            "def test_wild_again(compile_lane):\n    test_wild(compile_lane)\n\n\ndef test_ordinary",
        )
    )

    result = run(session)

    result.assert_outcomes(passed=4, failed=2)
    assert verdicts(session.path) == WHOLE | {"test_wild_again[capture]": "broken"}


def test_a_child_that_dies_fails_the_test_that_it_died_in_alone(session: pytest.Pytester) -> None:
    head = "def test_after(compile_lane, size):\n"
    session.makepyfile(SUITE.replace(head, f"{head}    if size == 2:\n        os._exit(3)\n"))

    result = run(session)

    result.assert_outcomes(passed=3, failed=2)
    assert verdicts(session.path) == WHOLE | {"test_after[capture-2]": "broken"}


def test_stopping_at_the_first_failure_runs_nothing_more(session: pytest.Pytester) -> None:
    session.makepyfile(SUITE)

    result = run(session, "-x")

    result.assert_outcomes(passed=1, failed=1)


def test_an_option_that_only_a_parent_gives_is_not_shown(session: pytest.Pytester) -> None:
    assert "--contract-rest" not in runpytest_session(session, "--help").stdout.str()
