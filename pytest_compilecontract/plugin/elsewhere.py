"""Contracts that a run does not measure: those outside `testpaths`, and those whose modules Python does not find."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

import pytest

from pytest_compilecontract.report.terminal import Line
from pytest_compilecontract.wording import counted

from .started import session_command, started_as_module

# What a file that holds contracts has in it.
WORDS = (b"compile_lane", b"compile_contract")
MOST_FOLDERS = 5000
MOST_BYTES = 1024 * 1024
# Where a project keeps its modules.
SOURCES = (".", "src")


def given_paths(config: pytest.Config) -> tuple[str, ...]:
    """The paths on pytest's command line; none if it uses `testpaths`."""
    return tuple(config.args) if config.args_source is pytest.Config.ArgsSource.ARGS else ()


def elsewhere_lines(config: pytest.Config) -> list[Line]:
    """What to report about contracts that were not collected, with the command that runs them."""
    found = _left_out(config)
    if not found:
        return []
    told = ", ".join(f"{folder} ({counted(count, 'file')})" for folder, count in sorted(found.items()))
    command = session_command(config, sorted(found))
    return [(f"contracts outside testpaths, not collected: {told}; to run them: {command}", {"yellow": True})]


def not_found_lines(config: pytest.Config, modules: Iterable[str]) -> list[Line]:
    """What to do about modules of the project that Python does not find, since `pytest` adds no folder to the path."""
    return [(line, {"yellow": True}) for line in (_not_found(config, module) for module in modules) if line]


def _not_found(config: pytest.Config, module: str) -> str:
    here = config.invocation_params.dir
    names = [(source, name) for source in SOURCES for name in (f"{module}.py", module)]
    source, found = next(((source, name) for source, name in names if (here / source / name).exists()), ("", ""))
    if not found:
        return ""
    told = f"{found} is in {'this folder' if source == '.' else source}, where Python does not look for modules"
    setting = f'pythonpath = ["{source}"] in the settings of pytest'
    command = session_command(config, given_paths(config))
    if source != "." or command.as_module:
        return f"{told}: set {setting}"
    return f"{told}: run {started_as_module(config, command)}, or set {setting}"


def _left_out(config: pytest.Config) -> Counter[str]:
    """The number of files with contracts outside of testpaths, by top-level folder of the project."""
    found: Counter[str] = Counter()
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return found
    root = config.rootpath
    collected = {(config.invocation_params.dir / each).resolve() for each in config.args}
    not_walked, patterns = config.getini("norecursedirs"), config.getini("python_files")
    for seen, (name, inner, files) in enumerate(os.walk(root)):
        if seen > MOST_FOLDERS:
            break
        folder = Path(name)
        inner[:] = [each for each in inner if _is_walked(folder / each, not_walked, collected)]
        for each in files:
            file = folder / each
            if any(fnmatch(each, pattern) for pattern in patterns) and file not in collected and _holds(file):
                found[file.relative_to(root).parts[0]] += 1
    return found


def _is_walked(folder: Path, not_walked: list[str], collected: set[Path]) -> bool:
    if folder.name.startswith(".") or any(fnmatch(folder.name, pattern) for pattern in not_walked):
        return False
    return folder.resolve() not in collected and not (folder / "pyvenv.cfg").exists()


def _holds(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            text = opened.read(MOST_BYTES)
    except OSError:
        return False
    return any(word in text for word in WORDS)
