"""Where code is, without machine paths: relative to the project, or to the folder of installed packages."""

from __future__ import annotations

import ast
import functools
import importlib
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import pytest_compilecontract
from pytest_compilecontract.facts.measurement import Location

# The folder of this package: not the user's code, also where it is a checkout and not installed.
OWN = str(Path(pytest_compilecontract.__file__).parent) + os.sep


class Paths:
    """Turn absolute file names into the names that receipts keep."""

    def __init__(self, root: Path) -> None:
        schemes = ("purelib", "platlib", "stdlib")
        installed = [sysconfig.get_path(scheme) for scheme in schemes]
        # The project first: its environment may lie inside it.
        self._roots = [*installed, str(root)]
        # Which may be in a folder of PYTHONPATH, or a checkout of its own.
        self._torch = str(importlib.import_module("torch").__path__[0]) + os.sep

    def name(self, file: str) -> str:
        """The shortest name relative to a known folder; the last two parts for any other file."""
        if file.startswith(self._torch):
            return Path("torch", file[len(self._torch) :]).as_posix()
        for folder in self._roots:
            if file.startswith(folder + os.sep):
                return Path(file[len(folder) + 1 :]).as_posix()
        if not os.path.isabs(file):
            return file
        found = re.search(r"[/\\](?:site|dist)-packages[/\\](.+)$", file)
        return Path(found.group(1)).as_posix() if found else "/".join(Path(file).parts[-2:])

    def is_users(self, file: str) -> bool:
        """Whether a file is the project's: not an installed package's, the standard library's, or a made-up name."""
        installed = any(
            file.startswith(each) for each in (self._torch, *(folder + os.sep for folder in self._roots[:-1]))
        )
        return not installed and os.path.isabs(file)

    def runs_users(self, frame: FrameType) -> bool:
        """Whether a frame runs code of the project. Code that Inductor wrote has a file too, in a torch module."""
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        return self.is_users(file) and not file.startswith(OWN) and not module.startswith("torch.")

    def innermost(self, frame: FrameType | None) -> Location | None:
        """The innermost line of the project, from a frame outwards."""
        while frame is not None and not self.runs_users(frame):
            frame = frame.f_back
        return self.location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) if frame else None

    def is_pythons(self, file: str) -> bool:
        """Whether a file is of the standard library; packages are installed in a folder below it."""
        *packages, library, _ = self._roots
        return file.startswith(library + os.sep) and not any(file.startswith(each + os.sep) for each in packages)

    def is_out_of_reach(self, file: str) -> bool:
        """Whether a file is in torch or in Python's standard library, which users do not change.

        How far Dynamo traces into these before it stops differs from release to release.
        """
        return file.startswith(self._torch) or self.is_pythons(file)

    def text(self, text: str) -> str:
        """torch's text without parts that differ from process to process: folders, addresses, object ids."""
        for folder in self._roots:
            text = text.replace(folder + os.sep, "")
        text = re.sub(r"\b0x[0-9a-f]{6,}\b", "0x...", text)
        return re.sub(r"(?<![\d.])\d{12,}(?![\d.])", "...", text)

    def location(self, file: str, line: int, function: str, source: str = "") -> Location:
        text = source or linecache.getline(file, line)
        scope = "" if self.is_out_of_reach(file) else scope_of(file, line)
        return Location(file=self.name(file), line=line, function=function, source=text.strip(), scope=scope)


def file_of(shortened: str, line: int, source: str, likely: Sequence[str] = ()) -> str | None:
    """The file that torch means by the end of a file name, identified by the text of the line; None if not found.

    Torch cuts off what a name has in common with its own folder, and one letter more (`shorten_filename` in
    torch/utils/_traceback.py).
    """
    torch = str(importlib.import_module("torch").__path__[0])
    loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    for file in (*likely, os.path.join(torch, shortened), *loaded):
        if file and file.endswith(shortened) and linecache.getline(file, line).strip() == source:
            return str(file)
    return None


def scope_of(file: str, line: int) -> str:
    """The classes around a line, the outermost first, as in `__qualname__`; empty if there is none."""
    return ".".join(name for first, last, name in _classes_in(file) if first <= line <= last)


@functools.lru_cache(maxsize=256)
def _classes_in(file: str) -> tuple[tuple[int, int, str], ...]:
    """The classes of a file with their first and last lines, in order; none if it cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    found = [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]
    return tuple(sorted((each.lineno, each.end_lineno or 0, each.name) for each in found))
