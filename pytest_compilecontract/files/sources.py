"""Source files named in a receipt: read from one folder, never outside of it, or left out with a reason."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pytest_compilecontract.escaping import leads_out

LARGEST_BYTES = 1024 * 1024
# Of all files together: a page that holds them is opened by a browser.
MOST_BYTES = 24 * 1024 * 1024
SUFFIXES = (".py", ".pyi", ".pyx")
# As Python's own tokenizer ends a line: a form feed is a character like others.
_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file's lines, or None and the problem with it.

    `written` is when the file was last written, in UTC like a receipt's `created`. `outside`: the file is not below the
    folder, such as one of an installed package.
    """

    lines: tuple[str, ...] | None = None
    problem: str = ""
    written: str = ""
    outside: bool = False


def read_sources(root: Path, names: Iterable[str]) -> dict[str, Source]:
    """Each file by its name, which is relative to `root`."""
    left = MOST_BYTES
    found: dict[str, Source] = {}
    for name in names:
        source, size = _read(root, name, left)
        left -= size
        found[name] = source
    return found


def _read(root: Path, name: str, room: int) -> tuple[Source, int]:
    """The file, and how many bytes it has."""
    if leads_out(name):
        return Source(problem="not in the project's folder, so it is not read", outside=True), 0
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root.resolve()):
            return Source(problem="a link out of the project's folder, so it is not read"), 0
        if not path.exists():
            return Source(problem="no such file in the project's folder", outside=True), 0
        if not path.is_file() or path.suffix not in SUFFIXES:
            return Source(problem="not a Python file, so it is not read"), 0
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
        changed = path.stat().st_mtime
    except (OSError, ValueError, RuntimeError) as error:
        cause = (isinstance(error, OSError) and error.strerror) or str(error)
        return Source(problem=f"cannot be read ({cause})"), 0
    if len(data) > LARGEST_BYTES:
        return Source(problem=f"larger than {LARGEST_BYTES // 1024} KiB, so it is left out"), 0
    if len(data) > room:
        return Source(problem=f"left out: the files before it already have {MOST_BYTES // 1024**2} MiB"), 0
    written = datetime.fromtimestamp(changed, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Source(lines=_lines(data), written=written), len(data)


def _lines(data: bytes) -> tuple[str, ...]:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError:
        encoding = "utf-8"
    lines = _END.split(data.decode(encoding, errors="replace"))
    return tuple(lines[:-1] if lines and not lines[-1] else lines)
