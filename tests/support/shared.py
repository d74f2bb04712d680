"""What several tests look at and none changes: made once, whichever of pytest-xdist's workers asks for it first."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], str]) -> tuple[Path, str]:
    """The folder of this name that `make` has filled, and what it returned."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / f"shared-{name}"
    folder.mkdir(exist_ok=True)
    said = folder / "said"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            # Where it fails, the next worker that asks fails by itself.
            content = folder / "content"
            content.mkdir(exist_ok=True)
            text = make(content)
            said.write_text(text, encoding="utf-8")
    return folder / "content", said.read_text(encoding="utf-8")
