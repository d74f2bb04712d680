"""What the process of a rank or of an XLA lane answers, a line for each event: written by `rank`, read by `launch`.

Another version may write it, and the test can damage what its process does. So it is read strictly: the first line that
is not exactly what this version writes ends the reading, and no verdict is made of what was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from pytest_compilecontract import clock
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.receipt import FORMAT
from pytest_compilecontract.files.codec import built, document_from_json, record
from pytest_compilecontract.files.run_log import Log
from pytest_compilecontract.files.sense import lane_faults
from pytest_compilecontract.files.whole import LARGEST_BYTES
from pytest_compilecontract.regular import refuse_special

# In this order, as far as a process comes; `torn`: the teardown failed.
Event: TypeAlias = Literal["joins", "begins", "measured", "torn", "waits", "left"]
_WITH_REPORT = ("measured", "torn")
# Of what a process printed, the end is read.
TAIL_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The outcome of the test in a process, or of its teardown: how it failed, and all that it measured."""

    test: str
    lane: str
    outcome: Literal["passed", "skipped", "failed"]
    phase: Literal["setup", "call", "teardown"]
    exception: str = ""
    said: str = ""
    text: str = ""
    connection: bool = False
    overdue: bool = False
    cut_short: str = ""
    notes: tuple[str, ...] = ()
    gpu: str = ""
    measurements: tuple[Measurement, ...] = ()

    @property
    def well(self) -> bool:
        """Whether the test passed, and nothing was raised that it expects of a lane."""
        return self.outcome == "passed" and not any(each.raised for each in self.measurements)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One event, by the clock that all processes of a machine have."""

    format: int
    event: Event
    at_seconds: float
    report: Report | None = None


def answer(log: Log, event: Event, report: Report | None = None) -> None:
    """Write an event, with its report if it has one."""
    told = Answer(format=FORMAT, event=event, at_seconds=clock.seconds(), report=report)
    log.write(**record(told))  # type: ignore[arg-type]


class Answers:
    """The answers of one process, read while it writes them."""

    def __init__(self, path: Path, *, test: str, lane: str) -> None:
        self._path = path
        self._test = test
        self._lane = lane
        self._started = clock.seconds()
        self._events: list[Event] = []
        self._size = 0
        self._read = 0

    @property
    def is_unfinished(self) -> bool:
        """Whether the last line has no end yet."""
        return self._size > self._read

    def news(self) -> Iterator[Answer]:
        """What is new since the last call; nothing if the file does not exist yet.

        Raises:
            ReceiptError: it is not what a process of this test and lane answers.
        """
        data = self._new_bytes()
        for line in data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]:
            self._read += len(line) + 1
            name = f"line {len(self._events) + 1}"
            found = _answer_from(line, name=name)
            if why := self._fault(found):
                raise ReceiptError(f"{name}: {why}")
            self._events.append(found.event)
            yield found

    def _new_bytes(self) -> bytes:
        try:
            if self._path.is_symlink():
                raise ReceiptError("it is a symbolic link")
            refuse_special(self._path)
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size > LARGEST_BYTES:
                    raise ReceiptError(f"it is larger than {LARGEST_BYTES // 1024**2} MiB")
                if size < self._size:
                    raise ReceiptError(f"it became shorter: {size} bytes after {self._size}")
                if size == self._size:
                    return b""
                self._size = size
                file.seek(self._read)
                return file.read(size - self._read)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise ReceiptError(error.strerror or str(error)) from error
        except ValueError as error:
            raise ReceiptError(str(error)) from error

    def _fault(self, found: Answer) -> str:
        """Why an answer cannot be one of this process, or cannot come now; empty if it can."""
        if not self._started <= found.at_seconds <= clock.seconds():
            return f"{found.event!r} is not of the time in which the process ran"
        if found.event in self._events:
            return f"{found.event!r} for the second time"
        if "left" in self._events or (found.event == "torn" and "measured" not in self._events):
            return f"{found.event!r} after {self._events[-1] if self._events else 'nothing'!r}"
        if found.report is None:
            return f"{found.event!r} without a report" if found.event in _WITH_REPORT else ""
        if found.event not in _WITH_REPORT or (found.event == "torn") != (found.report.phase == "teardown"):
            return f"{found.event!r} with a report on {found.report.phase}"
        for ours, theirs in ((self._test, found.report.test), (self._lane, found.report.lane)):
            if ours != theirs:
                return f"it is of {one_line(theirs, 80)!r}, expected {one_line(ours, 80)!r}"
        return ""


def _answer_from(line: bytes, *, name: str) -> Answer:
    document = document_from_json(line, name=name)
    try:
        if document["format"] != FORMAT:
            raise ReceiptError(f"expected {FORMAT}, got {document['format']}", at="format")
        found = built(document, Answer)
        if missing := _missing(record(found), document, ""):
            # A field that has a default: what was written by another version has another meaning.
            raise ReceiptError("missing", at=missing)
        for number, each in enumerate(found.report.measurements if found.report is not None else ()):
            for at, fault in lane_faults(each, 1, {}):
                raise ReceiptError(fault, at=f"report.measurements[{number}].{at.removeprefix('measurement.')}")
    except ReceiptError as error:
        raise ReceiptError(f"{name}: {one_line(str(error))}") from None
    return found


def _missing(whole: object, part: object, at: str) -> str:
    """The first key of `whole` that `part` does not have, at any depth; empty if it has all."""
    if isinstance(whole, dict) and isinstance(part, dict):
        for key, value in whole.items():
            below = f"{at}.{key}" if at else str(key)
            if key not in part:
                return below
            if found := _missing(value, part[key], below):
                return found
    if isinstance(whole, list) and isinstance(part, list):
        each = (_missing(*both, f"{at}[{index}]") for index, both in enumerate(zip(whole, part, strict=True)))
        return next(filter(None, each), "")
    return ""


def tail_of(path: Path) -> str:
    """The end of a file that a process wrote; empty if it cannot be read, or is no regular file any more."""
    try:
        refuse_special(path)
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            return file.read(TAIL_BYTES).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return ""
