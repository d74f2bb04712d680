"""A project's settings in pyproject.toml: `[tool.compilecontract]`, its lanes and default options."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.facts.lanes import Lane, lanes_from_table
from pytest_compilecontract.wording import meant

NAME = "pyproject.toml"
TABLE = "compilecontract"
MOST_REPEATS = 1000
LONGEST_SECONDS = 1e6  # what a timer takes everywhere


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """The table. A missing key is None or its default; command-line options win.

    `report`, `evidence`, `baselines`, `policy` and `waivers` are paths from the folder of pyproject.toml, `timeout` is
    in seconds.
    """

    lanes: Mapping[str, Lane] = field(default_factory=dict)
    report: Path | None = None
    evidence: Path | None = None
    baselines: Path | None = None
    policy: Path | None = None
    waivers: Path | None = None
    timeout: float | None = None
    repeat: int = 1
    allow_unmeasured: bool = False


@dataclass(frozen=True, slots=True)
class _Key:
    """The values of a key, in words and as a check, and how they are converted."""

    expected: str
    accepts: Callable[[object], bool]
    make: Callable[[Path, Any], object] = lambda _root, value: value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LONGEST_SECONDS


def _is_repeats(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_REPEATS


def _is_path(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


_PATH = _Key("a path", _is_path, lambda root, value: root / value)
_KEYS = {
    "report": _PATH,
    "evidence": _PATH,
    "baselines": _PATH,
    "policy": _PATH,
    "waivers": _PATH,
    "timeout": _Key("a number of seconds above 0", _is_number, lambda _, value: float(value)),
    "repeat": _Key(f"a whole number from 1 to {MOST_REPEATS}", _is_repeats),
    "allow-unmeasured": _Key("true or false", lambda value: isinstance(value, bool)),
}


def read_project(root: Path) -> Project:
    """The table of the pyproject.toml in a folder; empty without the table or the file.

    Raises:
        UsageError: the file cannot be read, or the table is not valid.
    """
    file = root / NAME
    if not file.is_file():
        return Project()
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{NAME}: {one_line(str(error))}") from error
    except RecursionError as error:
        raise UsageError(f"{NAME}: nested too deep") from error
    table = _table(document.get("tool", {}), TABLE, where=f"{NAME}: tool")
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key == "lanes":
            continue
        if key not in _KEYS:
            known = ", ".join(sorted(("lanes", *_KEYS)))
            said = f"unknown key {key!r}{meant(key, ('lanes', *_KEYS))} (known keys: {known})"
            raise UsageError(f"{NAME}: tool.{TABLE}: {said}")
        if not _KEYS[key].accepts(value):
            raise UsageError(f"{NAME}: tool.{TABLE}.{key}: expected {_KEYS[key].expected}, got {value!r}")
        found[key.replace("-", "_")] = _KEYS[key].make(root, value)
    lanes = lanes_from_table(_table(table, "lanes", where=f"{NAME}: tool.{TABLE}"), where=NAME)
    return Project(lanes=lanes, **found)


def _table(parent: object, key: str, *, where: str) -> dict[str, object]:
    table = parent.get(key, {}) if isinstance(parent, dict) else parent
    if not isinstance(table, dict):
        hint = " (to choose lanes: --contract-lanes)" if key == "lanes" else ""
        raise UsageError(f"{where}.{key}: expected a table, got {table!r}{hint}")
    return table
