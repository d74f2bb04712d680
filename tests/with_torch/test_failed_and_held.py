"""A test that fails by itself in one session and holds in the next, compared as bump compares two releases."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.sessions import run_session

from pytest_compilecontract.cli.main import main

pytestmark = pytest.mark.torch

CONTRACTS = """
import os

import torch
from torch import nn

from pytest_compilecontract import compile_contract

OLD = os.environ["SIDE"] == "old"
X = torch.ones(2, 4)


class Branches(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


def failing_before(compile_lane, model, *calls):
    assert not OLD, "wrong on the older side"
    compile_lane.run(model, *calls)


@compile_contract()
def test_ordinary(compile_lane):
    compile_lane.run(nn.Linear(4, 4), (X,))


@compile_contract(max_recompiles=0)
def test_mended(compile_lane):
    failing_before(compile_lane, nn.Linear(4, 4), (X,), (X,))


@compile_contract(max_graph_breaks=1)
def test_breaks_now(compile_lane):
    failing_before(compile_lane, Branches(), (X,))


@compile_contract()
def test_skips_now(compile_lane):
    compile_lane.run(nn.Linear(4, 4), *[(X,)] * (3 if OLD else 1))
    assert not OLD, "wrong on the older side"
"""


def side(folder: Path, name: str, chosen: str) -> str:
    """Run the chosen tests as one side; the folder of the receipt."""
    report = folder / f"{name} {chosen}"
    options = [f"--contract-report={report}", "--contract-lanes=aot", "-q", f"-k={chosen}"]
    ran = run_session(
        [sys.executable, "-m", "pytest", "--compile-contracts", *options, "."],
        cwd=folder,
        env={**os.environ, "SIDE": name},
    )
    assert (report / "receipt.json").exists(), ran.stdout + ran.stderr
    return str(report)


@pytest.mark.parametrize(
    ("chosen", "code", "said"),
    [
        pytest.param("ordinary or mended", 0, "", id="it holds"),
        pytest.param("mended", 3, "no lane was measured on both sides", id="it alone"),
        pytest.param("ordinary or skips", 3, "it had made 3 calls by then, and 1 now", id="it does less now"),
        pytest.param("ordinary or breaks", 3, "graph breaks 1 now, which may be new", id="it breaks now"),
    ],
)
def test_the_gate_takes_it_for_good_news_if_nothing_can_hide_behind_it(
    chosen: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_it.py").write_text(CONTRACTS)

    answered = main(["gate", "-v", side(tmp_path, "old", chosen), side(tmp_path, "new", chosen)])

    told = capsys.readouterr().out
    assert answered == code, told
    assert said in told
