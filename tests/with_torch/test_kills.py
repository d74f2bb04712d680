"""Runs that are killed under pytest-xdist: what their workers measured and ran is recovered."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.sessions import forked_pythons, run_session

from pytest_compilecontract.cli.main import main
from pytest_compilecontract.files.receipt import read_receipt
from pytest_compilecontract.files.run_log import is_held

pytestmark = pytest.mark.torch

REPORT = "r"
OPTIONS = ("--compile-contracts", "--contract-lanes=capture", f"--contract-report={REPORT}")
PYTEST = (sys.executable, "-m", "pytest")


def written(folder: Path, contracts: str, conftest: str = "") -> Path:
    """A project of one file of contracts in this folder."""
    (folder / "pyproject.toml").touch()
    (folder / "test_it.py").write_text(contracts, encoding="utf-8")
    if conftest:
        (folder / "conftest.py").write_text(conftest, encoding="utf-8")
    return folder


def session(folder: Path, contracts: str, *options: str, conftest: str = "") -> subprocess.CompletedProcess[str]:
    """A session of the project of these contracts."""
    return run_session([*PYTEST, *OPTIONS, *options], cwd=written(folder, contracts, conftest))


def killed(folder: Path, contracts: str) -> int:
    """The exit code of a session with one worker, which one of these contracts kills: in a process of its own."""
    command = [*PYTEST, *OPTIONS, "-n1"]
    return subprocess.run(command, cwd=written(folder, contracts), capture_output=True, check=False).returncode


# In this order: a lane that is measured, one that takes its worker along, one that ends the whole run from inside it.
CONTRACTS = """
import os
import signal
import time

import torch


def test_held(compile_lane):
    compile_lane.run(torch.sin, (torch.ones(2),))


def test_takes_its_worker_along(compile_lane):
    os._exit(3)


def test_takes_all_along(compile_lane):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(0.5)
    os._exit(4)
"""


def test_the_lanes_of_workers_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xdist")

    with forked_pythons():
        ended = killed(tmp_path, CONTRACTS)
    left = sorted(path.name for path in (tmp_path / REPORT).iterdir())
    # The worker outlives its controller by a moment.
    time.sleep(1)
    code = main(["recover", str(tmp_path / REPORT)])

    assert ended == -9
    assert left == ["journal.gw0.jsonl", "journal.gw1.jsonl", "journal.jsonl"]
    assert code == 0
    said = capsys.readouterr().out
    assert "the process ended while this lane ran: test_it.py::test_takes_its_worker_along[capture]\n" in said
    assert "the process ended while this lane ran: test_it.py::test_takes_all_along[capture]\n" in said
    assert {entry.test: entry.verdict for entry in read_receipt(tmp_path / REPORT / "receipt.json").entries} == {
        "test_it.py::test_held[capture]": "held",
        "test_it.py::test_takes_its_worker_along[capture]": "broken",
        "test_it.py::test_takes_all_along[capture]": "broken",
    }
    assert os.listdir(tmp_path / REPORT) == ["receipt.json"]


def test_a_file_that_no_receipt_could_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "-test_it.py").write_text("def test_it(compile_lane): ...\n", encoding="utf-8")
    options = ["--compile-contracts", "-p", "no:cacheprovider", "-o", "python_files=*.py"]

    ran = run_session([*PYTEST, *options], cwd=tmp_path)

    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert ran.stderr.splitlines()[0] == (
        "ERROR: -test_it.py::test_it: expected a name that does not begin with '-', "
        "got '-test_it.py::test_it[capture]' (rename the file)"
    )


OUTLIVES = """
import os
import signal
import time

import torch


def test_outlives_its_controller(compile_lane):
    compile_lane.run(torch.sin, (torch.ones(2),))
    os.kill(os.getppid(), signal.SIGKILL)
    for _ in range(200):
        time.sleep(0.1)
"""


def test_a_lane_whose_worker_was_told_to_end_is_not_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once its controller is gone, execnet interrupts a worker: that is no end of the lane that it runs."""
    pytest.importorskip("xdist")

    killed(tmp_path, OUTLIVES)
    deadline = time.monotonic() + 60
    while is_held(tmp_path / REPORT / "journal.gw0.jsonl") and time.monotonic() < deadline:
        time.sleep(0.2)
    code = main(["recover", str(tmp_path / REPORT)])

    said = "the process ended while this lane ran: test_it.py::test_outlives_its_controller[capture]\n"
    assert (code, said in capsys.readouterr().out) == (0, True)


INTERRUPTED = """
import time

import pytest
import torch


@pytest.mark.parametrize("size", [1, 2, 3])
def test_measured(compile_lane, size):
    compile_lane.run(torch.sin, (torch.ones(size),))


def test_running(compile_lane):
    compile_lane.run(torch.sin, (torch.ones(2),))
    for _ in range(600):
        time.sleep(0.1)
"""
# The first report that arrives is the last: the user has pressed Ctrl+C, once all has been measured. pytest-xdist then
# waits for the worker that runs a lane still.
PRESSES_CTRL_C = """
import time
from pathlib import Path

from xdist.workermanage import NodeManager

NodeManager.EXIT_TIMEOUT = 0.5


def pytest_runtest_logreport(report):
    if report.when != "call" or not hasattr(report, "node"):
        return
    while sum(path.read_text().count('"event": "entry"') for path in Path("r").glob("journal.gw*.jsonl")) < 3:
        time.sleep(0.1)
    while sum("test_running" in path.read_text() for path in Path("r").glob("journal.gw*.jsonl")) < 1:
        time.sleep(0.1)
    raise KeyboardInterrupt
"""


def test_what_workers_measured_is_kept_where_no_report_brings_it_any_more(tmp_path: Path) -> None:
    pytest.importorskip("xdist")

    ran = session(tmp_path, INTERRUPTED, "-n2", conftest=PRESSES_CTRL_C)

    assert ran.returncode == pytest.ExitCode.INTERRUPTED
    receipt = read_receipt(tmp_path / REPORT / "receipt.json")
    assert {entry.test: (entry.verdict, entry.reason) for entry in receipt.entries} == {
        **{f"test_it.py::test_measured[capture-{size}]": ("held", "") for size in (1, 2, 3)},
        "test_it.py::test_running[capture]": ("broken", "the process ended while this lane ran"),
    }
    assert receipt.setup is not None
    assert sorted(os.listdir(tmp_path / REPORT)) == ["index.html", "receipt.json"]


TWICE = """
import torch


def test_measured(compile_lane):
    compile_lane.run(torch.sin, (torch.ones(2),))


def test_running(compile_lane):
    raise KeyboardInterrupt


def test_never_ran(compile_lane):
    compile_lane.run(torch.sin, (torch.ones(2),))
"""
# The second Ctrl+C, while pytest tells of the first; and a third one, before the receipt is written.
PRESSES_AGAIN = """
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_keyboard_interrupt():
    raise KeyboardInterrupt
"""
AND_AGAIN = """

@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish():
    raise KeyboardInterrupt
"""
ENTRIES = {
    "test_it.py::test_measured[capture]": ("held", ""),
    "test_it.py::test_running[capture]": ("broken", "the process ended while this lane ran"),
}


@pytest.mark.parametrize(
    ("conftest", "left"),
    [
        pytest.param(PRESSES_AGAIN, ["index.html", "receipt.json"], id="twice"),
        pytest.param(PRESSES_AGAIN + AND_AGAIN, ["journal.jsonl"], id="three times"),
    ],
)
def test_what_was_running_is_kept_however_often_it_is_interrupted(
    tmp_path: Path, conftest: str, left: list[str]
) -> None:
    session(tmp_path, TWICE, conftest=conftest)

    assert sorted(os.listdir(tmp_path / REPORT)) == left
    if "receipt.json" not in left:
        assert main(["recover", str(tmp_path / REPORT)]) == 0
    receipt = read_receipt(tmp_path / REPORT / "receipt.json")
    assert {entry.test: (entry.verdict, entry.reason) for entry in receipt.entries} == ENTRIES
    assert receipt.setup is not None


EXITS = """
import pytest
import torch
from pytest_compilecontract import compile_contract


@compile_contract
def test_exits(compile_lane):
    compile_lane.run(torch.nn.Linear(2, 2), torch.ones(1, 2))
    pytest.exit("out of disk", returncode=7)
"""


def test_a_lane_in_which_pytest_exit_is_called_says_so(tmp_path: Path) -> None:
    ran = session(tmp_path, EXITS)

    assert ran.returncode == 7
    (entry,) = read_receipt(tmp_path / REPORT / "receipt.json").entries
    assert entry.verdict == "broken"
    assert entry.reason == "pytest.exit was called while this lane ran: out of disk"


UNUSUAL = """
import torch
from pytest_compilecontract import compile_contract


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@compile_contract
def test_without_a_text(compile_lane):
    compile_lane.run(torch.nn.Linear(2, 2), torch.ones(1, 2))
    raise Mute


@compile_contract
def test_in_a_circle(compile_lane):
    kept, other = ValueError("kept"), TypeError("other")
    kept.__cause__, other.__cause__ = other, kept
    compile_lane.run(torch.nn.Linear(2, 2), torch.ones(1, 2))
    raise kept


@compile_contract
def test_after_them(compile_lane):
    compile_lane.run(torch.nn.Linear(2, 2), torch.ones(1, 2))
"""


def test_an_exception_of_an_unusual_kind_ends_its_own_test_alone(tmp_path: Path) -> None:
    ran = session(tmp_path, UNUSUAL)

    assert ran.returncode == 1
    entries = read_receipt(tmp_path / REPORT / "receipt.json").entries
    assert {entry.test.partition("::")[2]: (entry.verdict, entry.reason) for entry in entries} == {
        "test_without_a_text[capture]": ("broken", "the test failed in call: Mute: its __str__ raises RuntimeError"),
        "test_in_a_circle[capture]": ("broken", "the test failed in call: ValueError: kept"),
        "test_after_them[capture]": ("held", ""),
    }
