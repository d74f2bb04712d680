"""Journals: what a session has measured so far, so that a killed run loses nothing.

`journal.jsonl` is next to the receipt while the session runs, and removed once the receipt is written. One that is left
belongs to a run that did not end; `recovered` makes the receipt that this run did not write. Each worker of
pytest-xdist has its own, `journal.gw0.jsonl`, since only the worker knows what it is running, and what no report has
sent yet.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.facts.receipt import Environment, Receipt, cut_off

from .course import Course
from .receipt import from_json, to_json
from .run_log import Log, lines_of
from .whole import read_bytes, remove_file

NAME = "journal.jsonl"
WORKERS = "journal."
_OF_WORKER = re.compile(r"journal\.gw[0-9]+\.jsonl")
ENDED = "the process ended while this lane ran"
KILLED = "the process ended, and left a journal"


class Journal(Log):
    """A journal that is being written."""

    def __init__(self, path: Path, *, plugin: str, created: str) -> None:
        if path.name == NAME:
            for each in journals_of_workers(path.parent):
                # Of a run before this one, whose journal goes as well.
                with contextlib.suppress(OSError):
                    each.unlink()
        super().__init__(path)
        self.write("session", plugin=plugin, created=created)

    def leave(self) -> None:
        """Stop writing and remove the journal: the receipt has everything."""
        if self.close():
            remove(self.path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovered:
    """The receipt that a run did not write, the tests that were running when it was killed, and the lines left out."""

    receipt: Receipt
    running: tuple[str, ...]
    torn: tuple[str, ...]


def name_of(worker: str) -> str:
    """The name of a process's journal: that of the session, or of one of its workers."""
    return f"{WORKERS}{worker}.jsonl" if worker else NAME


def journals_of_workers(folder: Path) -> list[Path]:
    """The journals that workers have left in the folder."""
    try:
        found = sorted(each for each in folder.iterdir() if _OF_WORKER.fullmatch(each.name))
    except OSError:
        return []
    return [each for each in found if each.is_file() and not each.is_symlink()]


def remove(path: Path) -> None:
    """Remove a session's journal and those of its workers, once their contents are in the receipt.

    Raises:
        ReceiptError: one of them cannot be removed.
    """
    # The workers' say little without the session's own.
    for each in (path, *journals_of_workers(path.parent)):
        remove_file(each)


def recovered(path: Path) -> Recovered:
    """The run recorded in a journal and those of its workers.

    A line that cannot be read is left out, and named unless it is the last of its file.

    Raises:
        ReceiptError: the file cannot be read, or is not a journal.
    """
    course, where = Course(), one_line(str(path))
    torn = [*_read(course, path)]
    if not course.plugin or not course.created:
        raise ReceiptError(f"{where}: not a journal (its first line names no plugin and time)")
    torn += _read_workers(course, path.parent)
    running = course.lose(ENDED, broken=True)
    for begun in running.values():
        course.environments.setdefault(begun.environment, Environment())
    receipt = Receipt(
        plugin=course.plugin,
        created=course.created,
        environments=course.environments,
        entries=tuple(course.entries.values()),
        setup=cut_off(course.environments, KILLED),
        shard=course.shard,
    )
    # What cannot have been measured is refused here, not by whoever reads the receipt.
    from_json(to_json(receipt), name=str(path))
    return Recovered(receipt=receipt, running=tuple(running), torn=tuple(torn))


def measured_by_workers(folder: Path) -> Course:
    """Everything in the journals of a session's workers, sent by a report or not; unreadable lines are left out."""
    course = Course()
    _read_workers(course, folder)
    return course


def _read_workers(course: Course, folder: Path) -> list[str]:
    torn: list[str] = []
    for each in journals_of_workers(folder):
        try:
            torn += _read(course, each)
        except ReceiptError as error:
            torn.append(str(error))
    return torn


def _read(course: Course, path: Path) -> list[str]:
    """Take all lines of a file; return those that cannot be used, each with the reason.

    Raises:
        ReceiptError: the file cannot be read.
    """
    lines = lines_of(read_bytes(path))
    why: Mapping[int, str] = {number: f"line {number} is {said}" for number, said in lines.torn.items()}
    for number, event in lines.events:
        try:
            course.take(event)
        except ReceiptError as error:
            why = {**why, number: f"line {number}: {one_line(str(error))}"}
    return [f"{one_line(str(path))}: {why[number]}" for number in sorted(why)]
