"""Workers that pytest-xdist starts over a socket: each lane has the environment of its worker, and its own column."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_compilecontract.files.receipt import read_receipt

pytest.importorskip("xdist")
pytestmark = [pytest.mark.sessions, pytest.mark.skipif(os.name == "nt", reason="execnet's server is not for Windows")]
SUITE = """
import os

import torch

from pytest_compilecontract import compile_contract

FAR = os.environ.get("TORCH_PLACE") == "far"


@compile_contract(max_graph_breaks=0)
def test_step(compile_lane):
    def step(x):
        y = x.sin()
        if FAR:
            print("far")
        return y.cos()

    compile_lane.run(step, (torch.ones(2),))
"""
ROOT = Path(__file__).parents[2]


def variables(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TORCH_PLACE"))}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


@pytest.fixture
def far(tmp_path: Path) -> Iterator[str]:
    """A server for workers, in a folder of its own and with a variable that the near ones do not have."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    folder = tmp_path / "far"
    folder.mkdir()
    words = [sys.executable, "-m", "execnet.script.socketserver", address]
    with subprocess.Popen(
        words, cwd=folder, env=variables(TORCH_PLACE="far"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as server:
        try:
            assert server.stdout is not None
            assert b"Entering Accept loop" in server.stdout.readline()
            yield address
        finally:
            server.kill()


def test_each_lane_has_the_environment_of_its_worker(far: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "test_suite.py").write_text(SUITE)
    # By which a copy of the project has the same root, and its tests the same names.
    (project / "pytest.ini").write_text("[pytest]\n")
    options = ["--compile-contracts", "--contract-lanes=capture", "--contract-report=report", "--dist=each"]
    workers = ["--tx", f"socket={far}", "--tx", "popen", f"--rsyncdir={project}", str(project)]

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *workers],
        cwd=project,
        env=variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    table = subprocess.run(
        [sys.executable, "-m", "pytest_compilecontract", "matrix", "report"],
        cwd=project,
        env=variables(),
        capture_output=True,
        text=True,
        check=False,
    )

    receipt = read_receipt(project / "report" / "receipt.json")
    places = {
        entry.worker: receipt.environments[entry.environment].variables.get("TORCH_PLACE") for entry in receipt.entries
    }
    breaks = {entry.worker: len(entry.measurement.graph_breaks or ()) for entry in receipt.entries if entry.measurement}
    assert places == {"gw0": "far", "gw1": None}, ran.stdout
    assert breaks == {"gw0": 1, "gw1": 0}
    # The far worker runs in a copy of the project, and the session does not.
    assert f"pytest --compile-contracts {options[1]} -- 'test_suite.py::test_step[capture]'" in ran.stdout
    assert "(report, gw0)" in table.stdout
    assert re.search("(drifted|improved): breaks", table.stdout)
