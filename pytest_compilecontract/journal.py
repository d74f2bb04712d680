"""Journals: what a session has measured so far, a line each, so that a run that is killed has lost nothing.

`journal.jsonl` lies beside the receipt while the session goes on, and is taken away once the receipt is written. One
that is there afterwards is of a run that did not end; `recovered` makes the receipt of it that the run did not write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

from .errors import ReceiptError
from .receipt import (
    Entry,
    Environment,
    Receipt,
    cut_off,
    entry_from_data,
    entry_to_data,
    environment_from_data,
    from_json,
    read_bytes,
    to_json,
)

NAME = "journal.jsonl"
ENDED = "the process ended while this lane ran"
KILLED = "the process ended, and left a journal"


def is_held(path: Path) -> bool:
    """Whether a process that lives is writing this journal. A process that ends, however it does, lets go of it."""
    try:
        with path.open("rb") as file:
            return not _locked(file, shared=True)
    except OSError:
        return False


def _locked(file: IO[Any], *, shared: bool = False) -> bool:
    """Lock a file for as long as it is open; no is said only where another process has it."""
    try:
        import fcntl
    except ImportError:  # Windows, which has no such lock: there two sessions of one folder are not told apart
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


class Journal:
    """A journal that is being written. Nothing here fails a test: a line that cannot be written is lost."""

    def __init__(self, path: Path, *, plugin: str, created: str) -> None:
        self.path = path
        self.problem = ""
        self._file: TextIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8")
            _locked(self._file)
        except OSError as error:
            self.problem = f"{path}: cannot be written ({error.strerror or error})"
        self._write({"plugin": plugin, "created": created})

    def begin(self, entry: Entry) -> None:
        """Note that a lane runs from now on: the entry that it has if nothing more is heard of it."""
        self._write({"begun": entry_to_data(entry)})

    def end(self, test: str) -> None:
        """Note that nothing more will be heard of a test."""
        self._write({"ended": test})

    def keep(self, sent: Mapping[str, Any]) -> None:
        """Note what a report brought: an entry and its environment, as data."""
        self._write({"entry": sent["entry"], "environment": sent["environment"]})

    def close(self, *, done: bool) -> None:
        """Stop writing; once the receipt is written, the journal goes."""
        if self._file is None:
            return
        self._file.close()
        self._file = None
        if done:
            self.path.unlink(missing_ok=True)

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        try:
            # Handed to the system at once, which keeps it whatever happens to this process.
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except (OSError, ValueError) as error:
            self.problem = self.problem or f"{self.path}: cannot be written ({error})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovered:
    """The receipt that a run did not write, the tests that were running when it ended, and the lines left out."""

    receipt: Receipt
    running: tuple[str, ...]
    torn: tuple[str, ...]


def recovered(path: Path) -> Recovered:
    """What a journal holds of its run. A line that is not whole is left out, and named unless it is the last.

    Raises:
        ReceiptError: the file cannot be read, or is no journal.
    """
    lines = read_bytes(path).decode("utf-8", errors="replace").splitlines()
    head = _line(lines[0] if lines else "", path, 1)
    if not isinstance(head.get("plugin"), str) or not isinstance(head.get("created"), str):
        raise ReceiptError(f"{path}: no journal (its first line names no plugin and time)")
    environments: dict[str, Environment] = {}
    entries: dict[str, Entry] = {}
    running: dict[str, Entry] = {}
    torn: list[str] = []
    for number, text in enumerate(lines[1:], start=2):
        try:
            line = _line(text, path, number)
        except ReceiptError as error:
            # In the last the run ended; of another, what it said is lost, and the others are not.
            torn += [str(error)] if number < len(lines) else []
            continue
        if "begun" in line:
            begun = entry_from_data(line["begun"])
            running[begun.test] = begun
            continue
        if "ended" in line:
            running.pop(str(line["ended"]), None)
            continue
        entry = entry_from_data(line.get("entry"))
        environments[entry.environment] = environment_from_data(line.get("environment"))
        entries[entry.test] = entry
        running.pop(entry.test, None)
    for begun in running.values():
        environments.setdefault(begun.environment, Environment())
    receipt = Receipt(
        plugin=head["plugin"],
        created=head["created"],
        environments=environments,
        entries=tuple({**entries, **running}.values()),
        setup=cut_off(environments, KILLED),
    )
    # What cannot have been measured is refused here, not by whoever reads the receipt.
    from_json(to_json(receipt), name=str(path))
    return Recovered(receipt=receipt, running=tuple(running), torn=tuple(torn))


def _line(text: str, path: Path, number: int) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReceiptError(f"{path}: line {number} is no JSON") from error
    if not isinstance(line, dict):
        raise ReceiptError(f"{path}: line {number} is no object")
    return line
