"""What stands in the place of a file or folder that a session reads or writes: one clear line, before a test runs.

Opening a pipe waits for its other end, so each of these would also hang. No torch is needed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.sessions import UNUSED, runpytest_session

SUITE = """
    from pytest_compilecontract import compile_contract

    @compile_contract(lanes=["capture"])
    def test_block(compile_lane):
        pass
"""
OPTIONS = ("--compile-contracts", "--contract-report=out", "--contract-allow-unmeasured")
SECONDS = 60


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_ADDOPTS", UNUSED)
    pytester.makepyfile(test_block=SUITE, torch="raise ImportError('no torch today')")
    pytester.syspathinsert()
    return pytester


def a_pipe(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    # Its path is limited to some hundred bytes.
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        bound.bind(path.name)
    finally:
        os.chdir(here)
        bound.close()


def a_folder(path: Path) -> None:
    path.mkdir(parents=True)


def a_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine", encoding="utf-8")


def a_link_to_nothing(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("nothing")


@pytest.mark.parametrize(
    ("path", "make", "said"),
    [
        pytest.param("out", a_file, "not a folder (--contract-report takes one)", id="report: a file"),
        pytest.param("out", a_pipe, "not a folder (--contract-report takes one)", id="report: a pipe"),
        pytest.param("out", a_link_to_nothing, "not a folder (--contract-report takes one)", id="report: a link"),
        pytest.param("out/receipt.json", a_pipe, "cannot be written (not a regular file)", id="receipt: a pipe"),
        pytest.param("out/receipt.json", a_folder, "cannot be written (a folder)", id="receipt: a folder"),
        pytest.param("out/journal.jsonl", a_pipe, "cannot be written (not a regular file)", id="journal: a pipe"),
        pytest.param("out/journal.jsonl", a_socket, "cannot be written (not a regular file)", id="journal: a socket"),
        pytest.param("out/journal.jsonl", a_folder, "cannot be written (Is a directory)", id="journal: a folder"),
        pytest.param("contracts/waivers.toml", a_pipe, "cannot be read (not a regular file)", id="waivers: a pipe"),
        pytest.param(
            "contracts/waivers.toml",
            a_link_to_nothing,
            "cannot be read (No such file or directory)",
            id="waivers: a link",
        ),
        pytest.param(
            "contracts/baselines", a_file, "not a folder (--contract-baselines takes one)", id="baselines: a file"
        ),
        pytest.param(
            "contracts/baselines",
            a_link_to_nothing,
            "not a folder (--contract-baselines takes one)",
            id="baselines: a link",
        ),
    ],
)
def test_it_is_refused_before_a_test_runs(
    suite: pytest.Pytester, path: str, make: Callable[[Path], None], said: str
) -> None:
    make(suite.path / path)

    result = runpytest_session(suite, *OPTIONS, timeout=SECONDS)

    assert [line for line in result.errlines if line] == [f"ERROR: {suite.path / path}: {said}"]
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_journal_of_a_worker_that_is_a_pipe_holds_nobody_up(suite: pytest.Pytester) -> None:
    a_pipe(suite.path / "out" / "journal.gw0.jsonl")

    result = runpytest_session(suite, *OPTIONS, "-n1", timeout=SECONDS)

    assert result.ret == pytest.ExitCode.OK
    assert (suite.path / "out" / "receipt.json").is_file()


def test_no_journal_is_written_through_a_link(suite: pytest.Pytester) -> None:
    a_file(suite.path / "mine.txt")
    (suite.path / "out").mkdir()
    (suite.path / "out" / "journal.jsonl").symlink_to(suite.path / "mine.txt")

    result = runpytest_session(suite, *OPTIONS, timeout=SECONDS)

    assert (suite.path / "mine.txt").read_text(encoding="utf-8") == "mine"
    assert result.ret == pytest.ExitCode.OK


def test_a_full_disk_is_one_line(suite: pytest.Pytester) -> None:
    suite.makeconftest(
        """
        import resource

        def pytest_collection_finish(session):
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
        """
    )

    # Its output goes to pipes, which the limit leaves alone.
    words = [sys.executable, "-m", "pytest", "-s", *OPTIONS]
    result = subprocess.run(words, cwd=suite.path, capture_output=True, text=True, timeout=SECONDS, check=False)

    problem = f"ERROR: {suite.path}/out/receipt.json: cannot be written (File too large)"
    assert [line for line in result.stdout.splitlines() if "ERROR" in line] == [problem]
    assert "Traceback" not in result.stderr
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
