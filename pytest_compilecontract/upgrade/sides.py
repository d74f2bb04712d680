"""The two sides of an upgrade: from what and to what, as given on the command line or found in the project."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.version import Version

from pytest_compilecontract.baselines.store import FOLDER, read_folder
from pytest_compilecontract.errors import ReceiptError, UsageError
from pytest_compilecontract.facts.versions import version_key

from .requirements import exact, pinned, specs_from


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the environments: the requested packages, and its interpreter if it exists already."""

    specs: Mapping[str, str]
    python: Path | None = None

    @property
    def name(self) -> str:
        """Its name, such as "torch 2.12.1"."""
        if not self.specs:
            return str(self.python)
        return ", ".join(f"{name} {exact(spec)}" if exact(spec) else spec for name, spec in self.specs.items())


def sides_from(chosen: argparse.Namespace, project: Path) -> tuple[Side, Side]:
    """The environments before and after, from the command line and the project.

    Raises:
        UsageError: one of them is not named, or both are the same.
    """
    new_specs = specs_from(chosen.specs, where="bump")
    if not new_specs and chosen.python is None:
        raise UsageError(
            "nothing to upgrade to: name it before all options, for example: compilecontract bump torch==2.12.1; or an "
            "interpreter that has it: --python PATH"
        )
    old = _side_before(specs_from(chosen.before, where="--from"), chosen.from_python, new_specs, project)
    # What is named on the old side alone stays as it is.
    specs = new_specs if chosen.python is not None else {**old.specs, **new_specs}
    new = Side(specs=specs, python=_interpreter(chosen.python, "--python"))
    if old.python is None and new.python is None and dict(old.specs) == dict(new.specs):
        raise UsageError(f"both sides are {old.name}: nothing is upgraded")
    return old, new


def _side_before(specs: Mapping[str, str], python: Path | None, new_specs: Mapping[str, str], project: Path) -> Side:
    if python is not None:
        return Side(specs=specs, python=_interpreter(python, "--from-python"))
    if specs:
        return Side(specs=specs)
    here = _version_here("torch")
    if here is not None:
        installed = {name: version for name in {"torch", *new_specs} if (version := _version_here(name))}
        specs = {name: f"{name}=={version}" for name, version in sorted(installed.items())}
        return Side(specs=specs, python=Path(sys.executable))
    names = ["torch", *(name for name in new_specs if name != "torch")]
    known = {name: f"{name}=={version}" for name in names if (version := pinned(project, name))}
    if "torch" not in known and (version := _newest_baseline(project)):
        known["torch"] = f"torch=={version}"
    if "torch" not in known:
        raise UsageError(
            "nothing to upgrade from: this Python has no torch, the project pins none, and there is no baseline; "
            "name it, for example: --from torch==2.11.0"
        )
    return Side(specs=known)


def _version_here(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _newest_baseline(project: Path) -> str | None:
    folder = project / FOLDER
    newest: tuple[Version, str] | None = None
    for inner in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            environments = read_folder(inner).environments.values() if inner.is_dir() else ()
        except ReceiptError:
            continue
        for each in environments:
            key = version_key(each.torch or "")
            if key is not None and (newest is None or key > newest[0]):
                newest = (key, str(key))
    return newest[1] if newest else None


def _interpreter(path: Path | None, option: str) -> Path | None:
    if path is None:
        return None
    if not path.is_file():
        raise UsageError(f"{option} {path}: no such file (expected an interpreter such as .venv/bin/python)")
    # Not resolved: the link in an environment is what makes it one.
    return path.absolute()
