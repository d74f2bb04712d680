"""`compilecontract bump` with a real torch on both sides: its own, told apart by a variable of the environment.

One small project in the cheapest lane.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_compilecontract.files.receipt import read_receipt

SUITE = """
import os

import torch
from pytest_compilecontract import compile_contract

NEW = os.environ["SIDE"] == "new"


def test_breaks(compile_lane):
    def step(x):
        y = x.sin()
        if NEW:
            print("new")
        return y.cos()

    compile_lane.run(step, (torch.ones(2),))


def test_dies(compile_lane):
    if NEW:
        os.abort()
    compile_lane.run(torch.sin, (torch.ones(2),))


@compile_contract(max_graph_breaks=0)
def test_over_its_limits_in_the_old_one(compile_lane):
    def step(x):
        if not NEW:
            print("old")
        return x.sin()

    compile_lane.run(step, (torch.ones(2),))


def test_plain():
    pass
"""
pytestmark = [pytest.mark.sessions, pytest.mark.skipif(os.name == "nt", reason="the interpreters are scripts")]


def interpreter(folder: Path, side: str) -> Path:
    """This very Python, with the side that it is on in its environment."""
    path = folder / f"python-{side}"
    path.write_text(f'#!/bin/sh\nSIDE={side} exec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return path


def test_an_upgrade_from_one_interpreter_to_another(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    options = [
        "--keep=kept",
        f"--from-python={interpreter(tmp_path, 'old')}",
        f"--python={interpreter(tmp_path, 'new')}",
    ]
    package = Path(__file__).parent.parent.parent

    ran = subprocess.run(
        [sys.executable, "-m", "pytest_compilecontract", "bump", *options, "--", "--contract-lanes=capture"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )

    old, new = (read_receipt(path) for path in sorted((tmp_path / "kept" / "receipts").glob("*/receipt.json")))
    assert [entry.verdict for entry in old.entries] == ["held", "held", "violated"], ran.stderr
    verdicts = {entry.contract: entry.verdict for entry in new.entries}
    assert verdicts == {
        "test_suite.py::test_breaks": "held",
        "test_suite.py::test_dies": "broken",
        "test_suite.py::test_over_its_limits_in_the_old_one": "held",
    }
    assert "drifted test_suite.py::test_breaks [capture]\n  graph breaks 0 -> 1 at test_suite.py:" in ran.stdout
    assert "broken test_suite.py::test_dies [capture]\n  the process died (SIGABRT) while this ran\n" in ran.stdout
    assert ran.stdout.splitlines()[-1].endswith("? no: 1 lane drifted, 1 lane broke")
    assert ran.returncode == 1
