"""The log of a run: one line of JSON for each event as it happens. `course` interprets the lines.

Each line is flushed to the operating system at once, and so survives the process. A last line without a newline is not
finished, and perhaps never will be: a follower reads it the next time. Any other line that cannot be read is left out
and reported.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO

from pytest_compilecontract.facts.receipt import Entry, Environment
from pytest_compilecontract.regular import refuse_special

from .codec import Data, plain
from .receipt import entry_to_data, environment_to_data

Event = dict[str, Data]
POLL_SECONDS = 0.05
# Taken now, for a test may have its own in place of the functions of `json` while its results are written.
_encoded = json.JSONEncoder(default=str).encode
_decoded = json.JSONDecoder().decode


class _Open(Protocol):
    def fileno(self) -> int: ...


class Log:
    """A log that is being written. Nothing here fails a test: a line that cannot be written is lost, and `problem`
    says why."""

    def __init__(self, path: Path, *, goes_on: bool = False) -> None:
        self.path = path
        self.problem = ""
        self._file: TextIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink() and not goes_on:
                # The file that it leads to is another's.
                path.unlink()
            refuse_special(path)
            self._file = path.open("a" if goes_on else "w", encoding="utf-8")
            _locked(self._file)
        except (OSError, ValueError) as error:
            self.problem = f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})"

    def begin(self, test: str, entry: Entry | None, environment: Environment | None = None) -> None:
        """Note that a test starts, the entry to use if it never ends, and where it runs if no line has said that."""
        where = {} if environment is None else {"environment": environment_to_data(environment)}
        self.write("start", test=plain(test), entry=None if entry is None else entry_to_data(entry), **where)

    def keep(self, sent: Mapping[str, object]) -> None:
        """Note an entry and its environment from a report, as data."""
        self.write("entry", entry=sent["entry"], environment=sent["environment"])

    def end(self, test: str) -> None:
        """Note that a test has ended."""
        self.write("finish", test=plain(test))

    def write(self, event: str, **facts: object) -> None:
        if self._file is None:
            return
        try:
            self._file.write(_encoded({"event": event, **facts}) + "\n")
            self._file.flush()
        except (OSError, ValueError) as error:
            self.problem = self.problem or f"{self.path}: cannot be written ({error})"

    def close(self) -> bool:
        """Stop writing; return whether it was being written."""
        was, self._file = self._file, None
        if was is not None:
            try:
                was.close()
            except OSError as error:  # a disk that is full: what could not be written before cannot be now
                self.problem = self.problem or f"{self.path}: cannot be written ({error.strerror or error})"
        return was is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """The contents of a log: each event by line number, why other lines were not used, and the number of bytes read."""

    events: tuple[tuple[int, Event], ...]
    torn: Mapping[int, str]
    read: int


def lines_of(data: bytes) -> Lines:
    """Read all complete lines."""
    whole = data[: data.rfind(b"\n") + 1]
    events: list[tuple[int, Event]] = []
    torn: dict[int, str] = {}
    for number, text in enumerate(whole.split(b"\n")[:-1], start=1):
        try:
            # As data have it that were written and read: without lone surrogates, which JSON can name and no file hold.
            event = plain(_decoded(text.decode()))
        except (ValueError, RecursionError):
            torn[number] = "not JSON"
            continue
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            events.append((number, event))
        else:
            torn[number] = "not an event"
    return Lines(events=tuple(events), torn=torn, read=len(whole))


@dataclass(kw_only=True, slots=True)
class Followed:
    """A log that another process writes, read incrementally. Damaged lines are ignored."""

    path: Path
    _read: int = 0

    def news(self) -> Iterator[Event]:
        """What is new since the last call; nothing if the file does not exist yet."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                lines = lines_of(file.read())
        except FileNotFoundError:
            return
        self._read += lines.read
        for _, event in lines.events:
            yield event


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock on the file exclusively; without locks, nothing is exclusive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_special(path)
    with path.open("a") as file:
        while not _locked(file):
            time.sleep(POLL_SECONDS)
        yield


def is_held(path: Path) -> bool:
    """Whether a live process is writing this log. A process that ends in any way releases it."""
    try:
        refuse_special(path)
        with path.open("rb") as file:
            return not _locked(file, shared=True)
    except (OSError, ValueError):
        return False


def _locked(file: _Open, *, shared: bool = False) -> bool:
    """Lock a file for as long as it is open; False only if another process has locked it."""
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
