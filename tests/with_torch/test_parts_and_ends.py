"""Parts of a test with reports of their own, and its ends: none is lost or made up where a lane runs several times."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from support.sessions import run_session

from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.files.journal import NAME as JOURNAL
from pytest_compilecontract.files.journal import recovered
from pytest_compilecontract.files.receipt import read_receipt

pytestmark = pytest.mark.sessions

CONTRACTS = """
import os
import signal
import sys
import unittest

import pytest
import torch

from pytest_compilecontract import compile_contract

X = torch.linspace(-1, 1, 8)
RUNS = []


def wrong(x):
    return x + 1 if torch.compiler.is_compiling() else x + 2


@pytest.fixture
def breaks_down():
    yield
    raise RuntimeError("no end today")


@pytest.fixture
def dies():
    yield
    os.kill(os.getpid(), signal.SIGKILL)


@compile_contract(frontier=["capture", "aot"])
def test_climbs(compile_lane, subtests):
    compile_lane.run(torch.sin, (X,))
    RUNS.append(None)
    with subtests.test("its own"):
        assert len(RUNS) == 1


def test_repeats(compile_lane, subtests):
    compile_lane.run(torch.sin, (X,))
    RUNS.append(None)
    with subtests.test("its own"):
        assert len(RUNS) != 2


def test_sows(compile_lane, subtests):
    sin = compile_lane.compile(torch.sin)
    with compile_lane.observe(), subtests.test("same"):
        assert torch.equal(sin(X), X.sin())


@pytest.mark.compile_contract
class TestUnit(unittest.TestCase):
    def test_sows(self):
        sin = torch.compile(torch.sin, backend="eager")
        with self.subTest("same"):
            self.assertTrue(torch.equal(sin(X), X.sin()))


def test_bisects(compile_lane, breaks_down):
    compile_lane.run(wrong, (X,))


def test_bisects_and_dies(compile_lane):
    RUNS.append(None)
    if len(RUNS) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    compile_lane.run(wrong, (X,))


def test_dies_at_its_end(compile_lane, dies):
    compile_lane.run(torch.sin, (X,))


def leaves(x):
    sys.exit(3)


def leaves_compiled(x):
    if torch.compiler.is_compiling():
        sys.exit(3)
    return x + 1


@pytest.mark.parametrize("target", [leaves, leaves_compiled])
def test_leaves(compile_lane, target):
    compile_lane.run(target, (X,))


@pytest.mark.parametrize("then", ["skips", "raises"])
def test_runs_again(compile_lane, then):
    RUNS.append(None)
    if len(RUNS) == 2 and then == "skips":
        pytest.skip("this time")
    if len(RUNS) == 2:
        raise ValueError("this time")
    compile_lane.run(wrong, (X,))
"""
# As the plugins do that rerun what failed.
RERUNS = """
from _pytest.runner import runtestprotocol


def pytest_runtest_protocol(item, nextitem):
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    if any(each.failed for each in runtestprotocol(item, nextitem=nextitem, log=False)):
        item._initrequest()
        runtestprotocol(item, nextitem=nextitem)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
"""


def ran(folder: Path, test: str, *options: str) -> tuple[int, str, dict[str, Entry]]:
    """The exit code and output of a session of one test, and its entries; of a session that was killed as recovered."""
    (folder / "test_it.py").write_text(CONTRACTS, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--compile-contracts", "--contract-report=r", "-p", "no:cacheprovider"]
    done = run_session([*command, *options, "-k", test], cwd=folder, env={**os.environ, "COLUMNS": "200"}, timeout=300)
    report = folder / "r"
    journal = report / JOURNAL
    receipt = recovered(journal).receipt if journal.exists() else read_receipt(report / "receipt.json")
    return done.returncode, done.stdout, {each.test.rpartition("::")[2]: each for each in receipt.entries}


def test_a_subtest_that_fails_on_a_rung_ends_the_climb(tmp_path: Path) -> None:
    code, _, entries = ran(tmp_path, "test_climbs")

    entry = entries["test_climbs[frontier]"]
    assert (code, entry.verdict, entry.reason) == (1, "broken", "the test failed in call: a subtest failed")
    assert entry.frontier is not None
    assert [(each.name, each.verdict) for each in entry.frontier.steps] == [("capture", "held"), ("aot", "failed")]


def test_a_subtest_that_fails_in_a_repeat_ends_the_repeats(tmp_path: Path) -> None:
    code, _, entries = ran(tmp_path, "test_repeats", "--contract-lanes=capture", "--contract-repeat=3")

    entry = entries["test_repeats[capture]"]
    assert (code, entry.verdict, entry.reason) == (1, "broken", "the test failed in call: a subtest failed")


def test_a_subtest_that_notices_a_planted_fault_is_no_failure(tmp_path: Path) -> None:
    code, said, entries = ran(tmp_path, "test_sows", "--contract-lanes=capture", "--contract-plant=zeros,raises")

    assert (code, said.splitlines()[-1].strip("= ").partition(",")[0]) == (0, "2 passed")
    assert {name: [each.outcome for each in entry.planted] for name, entry in entries.items()} == {
        "test_sows[capture]": ["noticed", "noticed"],
        "test_sows": ["noticed", "noticed"],
    }


def test_where_it_broke_is_kept_with_a_teardown_that_fails(tmp_path: Path) -> None:
    code, _, entries = ran(tmp_path, "test_bisects and not dies", "--contract-lanes=capture", "--contract-bisect")

    assert (code, entries["test_bisects[capture]"].reason) == (
        1,
        "numerics='fp64' (default): 1 difference; "
        "where it broke: Dynamo's capture (backend 'eager') is the first to fail",
    )


@pytest.mark.parametrize("workers", [(), ("-n1",)], ids=["one process", "a worker"])
def test_a_stage_that_takes_the_process_along_is_not_what_the_lane_showed(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    options = ("--contract-lanes=capture", "--contract-bisect", *workers)
    _, _, entries = ran(tmp_path, "test_bisects_and_dies", *options)

    entry = entries["test_bisects_and_dies[capture]"]
    assert (entry.verdict, entry.reason) == ("violated", "numerics='fp64' (default): 1 difference")


@pytest.mark.parametrize("options", [(), ("--contract-repeat=2",)], ids=["once", "repeated"])
@pytest.mark.parametrize(
    ("workers", "ended"),
    [
        ((), "the process ended while this lane ran"),
        (("-n1",), "worker 'gw0' crashed while running 'test_it.py::test_dies_at_its_end[capture]'"),
    ],
    ids=["one process", "a worker"],
)
def test_what_was_measured_before_a_teardown_that_never_ends_is_kept(
    tmp_path: Path, workers: tuple[str, ...], ended: str, options: tuple[str, ...]
) -> None:
    _, _, entries = ran(tmp_path, "test_dies_at_its_end", "--contract-lanes=capture", *workers, *options)

    entry = entries["test_dies_at_its_end[capture]"]
    assert (entry.verdict, entry.reason) == ("broken", f"held, but its teardown never finished: {ended}")
    assert entry.measurement is not None
    assert entry.measurement.graphs == 1


@pytest.mark.parametrize(
    ("then", "verdict", "reason"),
    [("skips", "unmeasured", "this time"), ("raises", "broken", "the test failed in call: ValueError: this time")],
)
def test_a_rerun_has_nothing_of_the_run_before_it(tmp_path: Path, then: str, verdict: str, reason: str) -> None:
    (tmp_path / "conftest.py").write_text(RERUNS, encoding="utf-8")
    _, _, entries = ran(
        tmp_path, f"test_runs_again and {then}", "--contract-lanes=capture", "--contract-allow-unmeasured"
    )

    entry = entries[f"test_runs_again[capture-{then}]"]
    assert (entry.verdict, entry.reason, entry.measurement) == (verdict, reason, None)


def test_what_is_no_exception_is_told_without_the_lines_that_ran_the_target(tmp_path: Path) -> None:
    code, said, entries = ran(tmp_path, "test_leaves", "--contract-lanes=capture")

    assert (code, {each.reason for each in entries.values()}) == (1, {"the test failed in call: SystemExit: 3"})
    assert not [line for line in said.splitlines() if re.search(r"pytest_compilecontract/\S+:[0-9]+", line)]
