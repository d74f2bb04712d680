"""The user's shell: what starts this interpreter there, in place of the words `python`, `pytest`, `compilecontract`.

A command that is kept, in a receipt or a baseline, has those words: it is read on other machines, too. Where one is
printed it has what runs, and where they would run another interpreter that is a path.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

PYTHON = "python"
PROGRAM = "compilecontract"
# The module that is the same as a program's script.
_MODULES = {"pytest": "pytest", PROGRAM: "pytest_compilecontract"}
# Set by uv, tox and nox, which put an environment on the path of what they run, and on nothing else's.
_RUNNERS = ("UV_RUN_RECURSION_DEPTH", "TOX_ENV_NAME", "NOX_CURRENT_SESSION")


def in_shell(words: Sequence[str], here: Path, root: Path | None = None) -> tuple[str, ...]:
    """The words of a command, with what starts this interpreter in the folder `here`.

    A program below `here`, or below `root`, is told by a relative path.
    """
    first, *rest = words
    if not sys.executable or first not in (PYTHON, *_MODULES):
        return tuple(words)
    program = Path(sys.executable) if first == PYTHON else _script(first)
    if program is None:
        return in_shell((PYTHON, "-m", _MODULES[first], *rest), here, root)
    return (first if _is_found(first, program) else _told(program, here, root), *rest)


def _script(name: str) -> Path | None:
    """The script of this name that runs on this interpreter: this process's own, or the one beside the interpreter."""
    for path in (Path(os.path.abspath(sys.argv[0])), Path(sys.executable).with_name(name)):
        if path.stem == name and path.is_file():
            return path
    return None


def _is_found(name: str, program: Path) -> bool:
    """Whether the shell finds this very program; a link to it from elsewhere has other packages."""
    if any(each in os.environ for each in _RUNNERS) or (found := shutil.which(name)) is None:
        return False
    try:
        return os.path.samefile(Path(found).parent, program.parent) and os.path.samefile(found, program)
    except OSError:
        return False


def _told(program: Path, here: Path, root: Path | None) -> str:
    if any(program.is_relative_to(folder) for folder in (here, root) if folder is not None):
        near = os.path.relpath(program, here)
        return near if os.sep in near else os.path.join(os.curdir, near)
    return str(program)
