"""The environments that baselines are kept for: a folder each, and which of them a run is compared with."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.files.whole import folders_in

_KEY = re.compile(r"torch(?P<major>\d+)\.(?P<minor>\d+)-(?P<device>.+)")


def environments_in(folder: Path) -> tuple[str, ...]:
    """The environments that a folder of baselines has a folder for, by name.

    Raises:
        ReceiptError: the folder cannot be read.
    """
    return tuple(path.name for path in folders_in(folder) if _parsed(path.name))


def older(key: str, names: Iterable[str]) -> tuple[str, ...]:
    """Those of an older torch on the same device type, the newest first."""
    own = _parsed(key)
    others = [(each[0], name) for name in names if own and (each := _parsed(name)) and each[1] == own[1]]
    return tuple(name for release, name in sorted(others, reverse=True) if own and release < own[0])


def by_age(names: Iterable[str]) -> tuple[str, ...]:
    """The environments, the oldest torch first."""
    return tuple(sorted(names, key=lambda name: _parsed(name) or ((0, 0), name)))


def device_in(key: str) -> str:
    """The device of an environment, as its name has it: "cpu", or CUDA with its compute capability, as "cuda-sm90"."""
    found = _parsed(key)
    return found[1] if found else ""


def refuse_several(folder: Path) -> None:
    """Refuse baselines of several environments, where nothing says which of them is meant.

    Raises:
        ReceiptError: they are, or the folder cannot be read.
    """
    if len(names := environments_in(folder)) > 1:
        raise ReceiptError(f"{several(names)}, name one of them, such as {folder / names[-1]}", at=str(folder))


def several(names: Iterable[str]) -> str:
    """What a folder of several environments is called in a message."""
    return f"baselines of several environments ({', '.join(names)})"


def _parsed(key: str) -> tuple[tuple[int, int], str] | None:
    found = _KEY.fullmatch(key)
    return ((int(found["major"]), int(found["minor"])), found["device"]) if found else None
