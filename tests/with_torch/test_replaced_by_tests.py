"""What a test puts in place of `time` and `json` is its own affair: it is measured and reported as any other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.sessions import run_session

from pytest_compilecontract.files.receipt import read_receipt

pytestmark = pytest.mark.sessions

SUITE = """
import itertools
import json
import time

import pytest
import torch

from pytest_compilecontract import compile_contract


def nothing(*given, **named):
    raise RuntimeError("not in this test")


@compile_contract(max_recompiles=0)
@pytest.mark.parametrize("clock", [lambda: 0, itertools.count(0, -1).__next__, nothing], ids=["frozen", "back", "none"])
def test_clock(compile_lane, monkeypatch, clock):
    for name in ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic"):
        if clock is not nothing or not name.startswith("time"):  # torch asks for the time of day, and this raises
            monkeypatch.setattr(time, name, clock)
    compile_lane.run(torch.sin, (torch.ones(2),), (torch.ones(2),))


@compile_contract(max_recompiles=0)
def test_json(compile_lane, monkeypatch):
    compile_lane.run(torch.sin, (torch.ones(2),), (torch.ones(2),))
    monkeypatch.setattr(json, "dumps", nothing)
    monkeypatch.setattr(json, "loads", nothing)
"""


def test_a_test_may_replace_clock_and_json(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "test_it.py").write_text(SUITE, encoding="utf-8")
    options = ["--compile-contracts", "--contract-lanes=capture", "--contract-report=out", "-p", "no:cacheprovider"]

    ran = run_session([sys.executable, "-m", "pytest", *options], cwd=tmp_path)

    assert "INTERNALERROR" not in ran.stdout
    entries = read_receipt(tmp_path / "out" / "receipt.json").entries
    assert {each.test.partition("::")[2]: each.verdict for each in entries} == {
        "test_clock[capture-frozen]": "held",
        "test_clock[capture-back]": "held",
        "test_clock[capture-none]": "held",
        "test_json[capture]": "held",
    }
    assert all(0 < each.seconds < 600 for each in entries)
    assert ran.returncode == pytest.ExitCode.OK
