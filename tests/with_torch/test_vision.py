"""torchvision of another build than torch's is no obstacle to the contract suite, and one of the same is left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.sessions

ROOT = Path(__file__).parent.parent.parent
THEIRS = """
import torch

@torch.library.register_fake("torchvision::nms")
def nms(): ...

@torch.library.register_fake("torchvision::qnms")
def qnms(): ...
"""
OWN = torch.__version__.partition("+")[2]


@pytest.mark.parametrize(
    ("build", "said"),
    [("cu99", "True imported"), (OWN, "RuntimeError: operator torchvision::nms does not exist")],
    ids=["another build", "the same build"],
)
def test_operators_that_cannot_be_loaded_are_named(build: str, said: str, tmp_path: Path) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(THEIRS)
    (package / "version.py").write_text(f"__version__ = '0.28.0+{build}'\nraise ImportError('is read, and not run')\n")
    named = "from contracts.vision import name_operators; print(name_operators(), end=' ')"
    code = f"{named}; import torchvision; print('imported')"

    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.stdout + ran.stderr).strip().endswith(said)
