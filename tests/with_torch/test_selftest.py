"""`compilecontract selftest`: every fault has its place in the contracts that it makes, and is noticed there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.sessions import run_session

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parent.parent.parent


def selftest(folder: Path, *options: str, path: str = "") -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(each for each in (path, str(ROOT), os.environ.get("PYTHONPATH", "")) if each)
    command = [sys.executable, "-m", "pytest_compilecontract", "selftest", *options]
    return run_session(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths})


def test_every_fault_is_noticed_whatever_lies_around(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("raise RuntimeError('this is the user\\'s')\n")
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--no-such-option'\n")

    ran = selftest(tmp_path, "--lanes=capture")

    last = ran.stdout.splitlines()[-1]
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert last.startswith("all planted faults were noticed (")
    assert last.endswith(f"), on torch {torch.__version__}")
    assert "not planted anywhere" not in ran.stdout
    assert sorted(each.name for each in tmp_path.iterdir()) == ["conftest.py", "pyproject.toml"]


def test_without_torch_it_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not here')\n")

    ran = selftest(tmp_path, path=str(tmp_path))

    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "selftest: torch cannot be imported here, so nothing can be compiled\n"


def test_an_unknown_lane_is_a_usage_error(tmp_path: Path) -> None:
    ran = selftest(tmp_path, "--lanes=fast")

    assert ran.returncode == 2
    assert ran.stderr.startswith("compilecontract: selftest: unknown lane 'fast' (known lanes: ")
