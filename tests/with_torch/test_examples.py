"""Every example does what it shows, in lanes that need no compiler."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from support.sessions import run_session

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("test_*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_is_held(example: Path, tmp_path: Path) -> None:
    command = ["-m", "pytest", "-p", "no:cacheprovider", "--compile-contracts", "--contract-lanes=capture,aot"]

    ran = run_session(
        [sys.executable, *command, f"--rootdir={tmp_path}", "-c", os.devnull, str(example)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    held = re.search(r"(\d+) of (\d+) held", ran.stdout)
    assert held is not None, ran.stdout
    assert held[1] == held[2] != "0"
    assert ran.returncode == 0


def test_each_example_is_in_the_list() -> None:
    listed = re.findall(r"^\| \[(test_\w+\.py)\]", (ROOT / "examples" / "README.md").read_text(encoding="utf-8"), re.M)

    assert sorted(listed) == [each.name for each in EXAMPLES]
