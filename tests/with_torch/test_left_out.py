"""Options that need more runs of a lane, where a lane has processes of its own and is run once: they say so."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.answers import a_report, lines, that_answers
from support.receipts import HOLDING, WORSENED
from support.sessions import run_session

from pytest_compilecontract.facts.measurement import NO_DYNAMO
from pytest_compilecontract.files.codec import record
from pytest_compilecontract.measure.probes.xla_packages import PYTHON_OF_TORCH_XLA

pytestmark = pytest.mark.sessions

OF_XLA = """
import torch
from pytest_compilecontract import compile_contract

@compile_contract(lanes=["xla-lazy"])
def test_it(compile_lane):
    compile_lane.run(torch.sin, torch.ones(3))
"""
OF_RANKS = """
import torch
from pytest_compilecontract import compile_contract

@compile_contract(ranks=2, process_group="gloo", lanes=["aot"])
def test_it(compile_lane):
    def body(compile):
        compile(torch.sin)(torch.ones(3))
        return torch.ones(3) * (1 + OFF * (compile is not None and "compile" in compile.__name__))

    compile_lane.compare(body)
"""
HELD, WRONG = record(HOLDING), record(WORSENED["numerics"])
RANKS = "a lane with ranks is not run again"


class Ran(NamedTuple):
    code: int
    printed: str
    entry: dict[str, Any]


def a_session(folder: Path, contract: str, measured: object, *options: str) -> Ran:
    off = "OFF = 0\n" if measured is not WRONG else "OFF = 1\n"
    (folder / "test_it.py").write_text(off + contract, encoding="utf-8")
    python = that_answers(folder, lines(a_report(measurements=[measured])))
    lanes = ["--contract-lanes=xla-lazy"] if contract is OF_XLA else ["--contract-lanes=aot"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--compile-contracts", *lanes]
    variables = {**os.environ, PYTHON_OF_TORCH_XLA: str(python), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    ran = run_session([*command, "--contract-report=report", *options], cwd=folder, env=variables, timeout=240)
    receipt = json.loads((folder / "report" / "receipt.json").read_text(encoding="utf-8"))
    return Ran(ran.returncode, ran.stdout, receipt["entries"][0])


both = pytest.mark.parametrize(("contract", "why"), [(OF_XLA, NO_DYNAMO), (OF_RANKS, RANKS)], ids=["xla", "ranks"])


@both
def test_a_held_lane_in_which_nothing_is_planted_is_said(tmp_path: Path, contract: str, why: str) -> None:
    ran = a_session(tmp_path, contract, HELD, "--contract-plant")

    assert ran.entry["verdict"] == "held"
    assert "nothing planted in 1 lane:" in ran.printed
    assert f"]: {why}\n" in ran.printed
    assert f"Nothing planted: {why}." in (tmp_path / "report" / "planted.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("contract", "why"),
    [(OF_XLA, NO_DYNAMO), (OF_RANKS, "a lane with ranks is not started again")],
    ids=["xla", "ranks"],
)
def test_a_lane_that_is_not_started_again_is_said(tmp_path: Path, contract: str, why: str) -> None:
    ran = a_session(tmp_path, contract, HELD, "--contract-warm")

    assert ran.entry["verdict"] == "held"
    assert f"\nno warm start of 1 lane ({why})\n" in ran.printed


def test_nothing_is_said_of_a_start_that_nobody_asked_for(tmp_path: Path) -> None:
    ran = a_session(tmp_path, OF_XLA, {**HELD, "unmeasured": {"warm": NO_DYNAMO}})

    assert "warm start" not in ran.printed


@both
def test_a_wrong_lane_that_is_not_bisected_is_said(tmp_path: Path, contract: str, why: str) -> None:
    ran = a_session(tmp_path, contract, WRONG, "--contract-bisect")

    assert ran.entry["verdict"] == "violated"
    assert f"\nwhere it broke: unknown, {why}\n" in ran.printed
    assert ran.entry["reason"].endswith(f"; where it broke: unknown, {why}")


@both
def test_a_lane_that_leaves_no_evidence_is_said(tmp_path: Path, contract: str, why: str) -> None:
    ran = a_session(tmp_path, contract, WRONG, "--contract-evidence")

    assert f"\nno evidence: {why}\n" in ran.printed
    assert ran.entry.get("evidence") is None


def test_a_lane_that_holds_is_asked_for_none(tmp_path: Path) -> None:
    ran = a_session(tmp_path, OF_XLA, HELD, "--contract-evidence", "--contract-bisect")

    assert ran.entry["verdict"] == "held"
    assert "evidence:" not in ran.printed
    assert "where it broke" not in ran.printed


def test_repeats_are_processes_too(tmp_path: Path) -> None:
    ran = a_session(tmp_path, OF_XLA, HELD, "--contract-repeat=2")

    assert (ran.entry["verdict"], ran.entry["repeats"]) == ("held", 2)
