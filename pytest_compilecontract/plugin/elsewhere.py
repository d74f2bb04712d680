"""Contracts outside `testpaths`, which a run without a path does not measure."""

from __future__ import annotations

import os
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest

from pytest_compilecontract.escaping import as_tests, typed
from pytest_compilecontract.report.terminal import Line
from pytest_compilecontract.wording import counted

from .started import session_words

# What a file that holds contracts has in it.
WORDS = (b"compile_lane", b"compile_contract")
MOST_FOLDERS = 5000
MOST_BYTES = 1024 * 1024


def given_paths(config: pytest.Config) -> tuple[str, ...]:
    """The paths on pytest's command line; none if it uses its settings."""
    return tuple(config.args) if config.args_source is pytest.Config.ArgsSource.ARGS else ()


def elsewhere_lines(config: pytest.Config) -> list[Line]:
    """What to report about contracts that were not collected, with the command that runs them."""
    found = _left_out(config)
    if not found:
        return []
    told = ", ".join(f"{folder} ({counted(count, 'file')})" for folder, count in sorted(found.items()))
    command = typed([*session_words(config), *as_tests(*sorted(found))])
    return [(f"contracts outside testpaths, not collected: {told}; to run them: {command}", {"yellow": True})]


def _left_out(config: pytest.Config) -> Counter[str]:
    """How many files with contracts lie outside of testpaths, by their folder at the top of the project."""
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
