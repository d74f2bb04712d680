"""Journals: what a session has measured so far, a line each, so that a run that is killed has lost nothing.

`journal.jsonl` lies beside the receipt while the session goes on, and is taken away once the receipt is written. One
that is there afterwards is of a run that did not end; `recovered` makes the receipt of it that the run did not write.
Each worker of pytest-xdist has one of its own, `journal.gw0.jsonl`, for it alone knows what it runs, and what of it no
report has brought yet.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TextIO

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.facts.receipt import Entry, Environment, Receipt, cut_off

from .codec import value_to_data
from .receipt import entry_from_data, entry_to_data, environment_from_data, from_json, to_json
from .sense import entry_faults
from .whole import read_bytes, remove_file

NAME = "journal.jsonl"
WORKERS = "journal."
_OF_WORKER = re.compile(r"journal\.gw[0-9]+\.jsonl")
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
        if path.name == NAME:
            for each in journals_of_workers(path.parent):
                # Of a run before this one, whose journal goes as well.
                with contextlib.suppress(OSError):
                    each.unlink()
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
        self._write({"ended": value_to_data(test)})

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
            remove(self.path)

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


def name_of(worker: str) -> str:
    """The file that a process writes: the session's own, or that of one of its workers."""
    return f"{WORKERS}{worker}.jsonl" if worker else NAME


def journals_of_workers(folder: Path) -> list[Path]:
    """The journals that workers have left in the folder."""
    try:
        found = sorted(each for each in folder.iterdir() if _OF_WORKER.fullmatch(each.name))
    except OSError:
        return []
    return [each for each in found if each.is_file() and not each.is_symlink()]


def remove(path: Path) -> None:
    """Take away a session's journal and those of its workers, once what they hold is in the receipt.

    Raises:
        ReceiptError: one of them cannot be removed.
    """
    # The workers' say little without the session's own.
    for each in (path, *journals_of_workers(path.parent)):
        remove_file(each)


def recovered(path: Path) -> Recovered:
    """What a journal holds of its run, with those of its workers.

    A line that cannot be read is left out, and named unless it is the last of its file.

    Raises:
        ReceiptError: the file cannot be read, or is no journal.
    """
    read = _Read()
    head = read.journal(path)
    if not isinstance(head.get("plugin"), str) or not isinstance(head.get("created"), str):
        raise ReceiptError(f"{one_line(str(path))}: no journal (its first line names no plugin and time)")
    for each in journals_of_workers(path.parent):
        try:
            read.journal(each)
        except ReceiptError as error:
            # A worker that was ended before it had written a line ran nothing.
            read.torn += [str(error)] if each.stat().st_size else []
    running = {test: begun for test, begun in read.running.items() if test not in read.entries}
    for begun in running.values():
        read.environments.setdefault(begun.environment, Environment())
    receipt = Receipt(
        plugin=head["plugin"],
        created=head["created"],
        environments=read.environments,
        entries=tuple({**read.entries, **running}.values()),
        setup=cut_off(read.environments, KILLED),
    )
    # What cannot have been measured is refused here, not by whoever reads the receipt.
    from_json(to_json(receipt), name=str(path))
    return Recovered(receipt=receipt, running=tuple(running), torn=tuple(read.torn))


@dataclass(kw_only=True, slots=True)
class _Read:
    """What the lines of journals have told so far."""

    environments: dict[str, Environment] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    running: dict[str, Entry] = field(default_factory=dict)
    torn: list[str] = field(default_factory=list)

    def journal(self, path: Path) -> dict[str, Any]:
        """Take all lines of a file; its first is given back.

        Raises:
            ReceiptError: the file cannot be read, or its first line is no object.
        """
        lines = read_bytes(path).split(b"\n")
        whole = len(lines) if lines[-1] else len(lines) - 1
        head = _line(lines[0], path, 1)
        for number, text in enumerate(lines[1:whole], start=2):
            try:
                self._take(_line(text, path, number), path, number)
            except ReceiptError as error:
                # In the last the run ended; of another, what it said is lost, and the others are not.
                self.torn += [str(error)] if number < whole else []
        return head

    def _take(self, line: dict[str, Any], path: Path, number: int) -> None:
        try:
            if "begun" in line:
                begun = _entry(line["begun"])
                self.running[begun.test] = begun
            elif "ended" in line:
                self.running.pop(str(line["ended"]), None)
            else:
                entry = _entry(line.get("entry"))
                self.environments[entry.environment] = environment_from_data(line.get("environment"))
                self.entries[entry.test] = entry
                self.running.pop(entry.test, None)
        except ReceiptError as error:
            raise ReceiptError(f"{one_line(str(path))}: line {number}: {one_line(str(error))}") from error


def _entry(data: object) -> Entry:
    entry = entry_from_data(data)
    for at, fault in entry_faults(entry):
        raise ReceiptError(fault, at=at)
    return entry


def _line(text: bytes, path: Path, number: int) -> dict[str, Any]:
    where = f"{one_line(str(path))}: line {number}"
    try:
        # As data have it that were written and read: without lone surrogates, which JSON can name and no file hold.
        line = value_to_data(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ReceiptError(f"{where} is no JSON") from error
    if not isinstance(line, dict):
        raise ReceiptError(f"{where} is no object")
    return line
