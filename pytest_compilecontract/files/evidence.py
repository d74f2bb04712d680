"""Evidence as files: a folder of bounded size for each lane. Nothing outside of it is written, and no other file is
removed."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.evidence import GRAPHS, KINDS, TRACE, Evidence, kind_of
from pytest_compilecontract.facts.receipt import Receipt

FACTS = "evidence.json"
README = "README.md"
LARGEST_TEXT = 512 * 1024
LARGEST_TRACE = 32 * 1024**2
MOST_FILES = 200
# Of one folder of evidence, whatever session they are of.
MOST_LANES = 100
# As pytest's own cache has one: what is written here is no part of the project.
_MARK = ".gitignore"
_SCRATCH = "scratch"
_MARKED = "# Made by pytest-compilecontract: evidence of lanes that are not held.\n*\n"


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder that contains other files.

    Raises:
        UsageError: it is not a folder, or contains files that are not evidence.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"--contract-evidence: {folder}: not a folder (before a path, write --contract-evidence=DIR)")
    if any(folder.iterdir()) and not _is_marked(folder):
        raise UsageError(
            f"--contract-evidence: {folder}: contains files that are not evidence (before a path, write "
            "--contract-evidence=DIR)"
        )


def clear(folder: Path) -> None:
    """Remove what an earlier run left for a lane."""
    if folder.is_dir() and not folder.is_symlink() and (folder / FACTS).is_file() and _is_marked(folder.parent):
        shutil.rmtree(folder, ignore_errors=True)


def read_graphs(base: Path, left: Evidence) -> dict[str, str]:
    """The graphs that a lane left, as code by file name; `base` is the folder of the receipt that names them.

    Files that are missing or are not evidence are left out: a receipt may come from anywhere.
    """
    folder = base / left.folder
    if not (folder / FACTS).is_file():
        return {}
    found: dict[str, str] = {}
    for name in left.files[:MOST_FILES]:
        if kind_of(name) not in GRAPHS or Path(name).name != name or not name.endswith(".py"):
            continue
        file = folder / name
        with contextlib.suppress(OSError):
            if file.is_file() and not file.is_symlink():
                with file.open("rb") as data:
                    found[name] = data.read(LARGEST_TEXT).decode(errors="replace")
    return found


def graphs_of(base: Path, receipt: Receipt) -> dict[tuple[str, str], dict[str, str]]:
    """The graphs that the lanes of a receipt left, by contract and lane; `base` is the folder of the receipt."""
    return {
        (each.contract, each.lane): read_graphs(base, each.evidence)
        for each in receipt.entries
        if each.evidence is not None
    }


class Folder:
    """The folder of one lane, while it is filled. It is created with its first file. Never raises: `problems` says what
    went wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: list[str] = []
        self.problems: dict[str, None] = {}
        self._left_out = 0
        self._trace: IO[str] | None = None
        self._room = LARGEST_TRACE

    def open(self) -> bool:
        """Create the folder unless there are too many; whether it exists."""
        try:
            marked = self.path.parent / _MARK
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not marked.is_file():
                marked.write_text(_MARKED, encoding="utf-8")
            if sum(each.is_dir() for each in self.path.parent.iterdir()) >= MOST_LANES:
                full = f"{self.path.parent} already has evidence of {MOST_LANES} lanes, the most that is kept"
                self.problems[full] = None
                return False
            self.path.mkdir()
            (self.path / FACTS).write_text("{}\n", encoding="utf-8")
        except OSError as error:
            self._failed(error)
            return False
        return True

    def trace(self, text: str) -> None:
        """Add a record to the trace; a record that would exceed the bound is left out as a whole."""
        with contextlib.suppress(UnicodeError):
            size = len(text.encode(errors="backslashreplace")) + 1
            if size > self._room:
                self._room = 0
                self.problems[f"the end of the trace: it is larger than {LARGEST_TRACE // 1024**2} MiB"] = None
                return
            self._room -= size
        try:
            if self._trace is None:
                self._trace = (self.path / TRACE).open("w", encoding="utf-8", errors="backslashreplace")
                self.files.append(TRACE)
            self._trace.write(f"{text}\n")
        except OSError as error:
            self._failed(error)

    def add(self, kind: str, at: str, suffix: str, text: str) -> None:
        """Add a file, named after its kind and its compile."""
        if len(self.files) >= MOST_FILES:
            self._left_out += 1
            return
        start = f"{kind}-{at}" if at else kind
        name = next(
            name
            for number in range(1, MOST_FILES + 2)
            if (name := f"{start}{f'-{number}' if number > 1 else ''}.{suffix}") not in self.files
        )
        data = text.encode(errors="backslashreplace")
        if len(data) > LARGEST_TEXT:
            self.problems[f"the end of {name}: it is larger than {LARGEST_TEXT // 1024} KiB"] = None
            data = data[:LARGEST_TEXT] + b"\n# ... cut here\n"
        try:
            (self.path / name).write_bytes(data)
            self.files.append(name)
        except OSError as error:
            self._failed(error)

    def scratch(self) -> Path:
        """A temporary folder in it, removed before it is closed."""
        made = self.path / _SCRATCH
        made.mkdir(exist_ok=True)
        return made

    def add_inputs(self, inputs: Mapping[str, bytes]) -> None:
        """Add the files that a program reads, where torch looks for them."""
        try:
            for name, data in inputs.items():
                (self.path / "storages").mkdir(exist_ok=True)
                (self.path / "storages" / name).write_bytes(data)
        except OSError as error:
            self._failed(error)

    def close(self, facts: dict[str, object], left_out: Sequence[str], told: Sequence[str]) -> None:
        """Write the list of files, and why others are missing."""
        try:
            if self._trace is not None:
                self._trace.close()
            shutil.rmtree(self.path / _SCRATCH, ignore_errors=True)
            found = [*left_out, *self.all_problems()]
            whole = {**facts, "files": self.files, "left_out": found}
            (self.path / FACTS).write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
            kept = [f"- `{name}`: {KINDS.get(kind_of(name), 'of torch')}" for name in self.files]
            missing = ["", "Left out:", "", *(f"- {each}" for each in found)] if found else []
            text = "\n".join([*told, "", *kept, *missing, ""])
            (self.path / README).write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            self._failed(error)

    def all_problems(self) -> list[str]:
        more = [f"{self._left_out} more files: at most {MOST_FILES} are kept per lane"] if self._left_out else []
        return [*self.problems, *more]

    def _failed(self, error: OSError) -> None:
        self.problems[f"{self.path}: cannot be written ({error.strerror or error})"] = None


def _is_marked(folder: Path) -> bool:
    try:
        return (folder / _MARK).read_text(encoding="utf-8") == _MARKED
    except (OSError, UnicodeDecodeError):
        return False
