"""A suite's run in another interpreter: start and follow pytest, and keep what it measured, however it ends."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_compilecontract import __version__
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.facts.receipt import Environment, Receipt, Setup, timestamp
from pytest_compilecontract.files.course import EVENTS, EVENTS_OPTION, Course
from pytest_compilecontract.files.receipt import read_receipt, write_receipt
from pytest_compilecontract.files.run_log import Followed
from pytest_compilecontract.processes import death, watched
from pytest_compilecontract.wording import counted

from .environments import variables_of
from .progress import Progress, duration

RECEIPT = "receipt.json"
LOG = "pytest.log"
# A compiler that takes its process along takes one lane along, and the run goes on behind it; but not for ever.
MOST_DEATHS = 5
REASON = 300
# pytest's exit codes.
PASSED, FAILED, INTERRUPTED, INTERNAL_ERROR, USAGE_ERROR, NOTHING_COLLECTED = range(6)
_REASON = re.compile(
    r"(?:E   |ERROR: (?!usage:)|INTERNALERROR> |\S+(?: -m \S+)?: error: |(?=Fatal Python error))(?P<said>.*\S.*)"
)


@dataclass(kw_only=True, slots=True)
class Suite:
    """A project's tests in one interpreter with this torch."""

    torch: str
    python: Path
    project: Path
    folder: Path
    arguments: Sequence[str]
    seconds: float | None
    progress: Progress
    course: Course = field(default_factory=Course)
    # Why pytest did not take the arguments; empty where it did.
    usage_error: str = ""
    _events: Followed = field(init=False)
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._events = Followed(path=self.folder / EVENTS)

    @property
    def name(self) -> str:
        """Its name, such as "torch 2.12.1"."""
        return f"torch {self.torch}"

    @property
    def took(self) -> float:
        """Seconds since this object was created."""
        return time.monotonic() - self._started

    def run(self) -> Receipt:
        """Run the tests and write the receipt to `folder`, with the reason if they did not run to their end.

        Raises:
            ReceiptError: the receipt cannot be written.
        """
        for name in (RECEIPT, EVENTS, LOG):
            (self.folder / name).unlink(missing_ok=True)
        deaths = 0
        while True:
            code, stopped = self._once()
            if code is None or self.course.ended or not self.course.running or deaths == MOST_DEATHS:
                break
            deaths += 1
            tests = ", ".join(self.course.running)
            self.course.lose(f"the process {stopped} while this ran", broken=True)
            self.progress.stage(f"{self.name}: the process {stopped} in {tests}; continuing after it")
        if code is None:
            self.course.lose(stopped, broken=False)
        elif not self.course.ended and not self._refused(code):
            self.course.lose(f"the process {stopped} while this ran", broken=True)
            stopped = f"the process {stopped}{' once more' if deaths else ''}: {self._said()}".rstrip(": ")
        else:
            stopped = self._why_stopped(code, deaths)
        receipt = self._receipt(stopped)
        write_receipt(self.folder / RECEIPT, receipt)
        return receipt

    def _once(self) -> tuple[int | None, str]:
        """Run pytest once: its exit code, and how it ended if it was killed."""
        self.course.ended = False
        command = [
            str(self.python),
            *("-m", "pytest", "-p", "pytest_compilecontract.plugin.events", f"{EVENTS_OPTION}={self.folder / EVENTS}"),
            *("--compile-contracts", f"--contract-report={self.folder}"),
            # A run that stops at the first failure, or at a module that cannot be imported, leaves the rest unknown.
            *("--continue-on-collection-errors", "--maxfail=0"),
            # The tests that failed last are to stay those of the user's own runs.
            *("-o", f"cache_dir={self.folder / 'cache'}"),
            *self.arguments,
        ]
        left = None if self.seconds is None else max(1.0, self.seconds - self.took)
        code = watched(
            command,
            log=self.folder / LOG,
            cwd=self.project,
            variables=variables_of(self.python),
            meanwhile=self._meanwhile,
            seconds=left,
        )
        self._follow()
        self.progress.clear()
        if code is None:
            return None, f"cut off after {duration(self.seconds or 0)}"
        return code, death(code)

    def _meanwhile(self) -> None:
        self._follow()
        course = self.course
        took = duration(self.took)
        if course.count is None:
            self.progress.now(f"{self.name}: collecting, {took}")
            return
        done = f"{course.done} of {counted(course.count, 'test')}"
        self.progress.now(f"{self.name}: {done}, {took}", ", ".join(course.running))

    def _follow(self) -> None:
        known = self.course.count
        for event in self._events.news():
            # What tests print or write may end in this file too: a line that is not an event of ours tells nothing.
            with contextlib.suppress(ReceiptError):
                self.course.take(event)
        if known is None and self.course.count is not None:
            self.progress.stage(f"{self.name}: running {counted(self.course.count, 'test')}")

    def _refused(self, code: int) -> bool:
        """Whether pytest refused its arguments, which it may do before it could tell its end."""
        return code == USAGE_ERROR and self.course.count is None

    def _why_stopped(self, code: int, deaths: int) -> str:
        if code == USAGE_ERROR:
            self.usage_error = f"pytest ended with a usage error: {self._said()}"
            return self.usage_error
        if code == INTERNAL_ERROR:
            return f"pytest had an internal error: {self._said()}"
        if code == INTERRUPTED:
            return f"pytest was interrupted: {self._said()}"
        if self.course.problems:
            more = f" (and {len(self.course.problems) - 1} more)" if len(self.course.problems) > 1 else ""
            return one_line(self.course.problems[0], REASON) + more
        if code == NOTHING_COLLECTED and not deaths:
            return "no tests were collected"
        return ""

    def _said(self) -> str:
        """The last line of pytest's output that looks like a reason."""
        lines = (self.folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        found = [match for line in lines if (match := _REASON.match(line))]
        return one_line(found[-1]["said"].strip(), REASON) if found else ""

    def _receipt(self, stopped: str) -> Receipt:
        self.course.settle(Environment(torch=self.torch))
        entries, environments = dict(self.course.entries), dict(self.course.environments)
        file, command = self.folder / RECEIPT, ""
        if file.is_file():
            try:
                own = read_receipt(file)
            except ReceiptError:
                pass  # of a process that died while it wrote; the events have what there was
            else:
                # pytest-xdist's controller knows of workers that died, of which no event tells.
                entries |= {entry.test: entry for entry in own.entries}
                environments |= own.environments
                command = own.command
        used = {entry.environment for entry in entries.values()}
        return Receipt(
            plugin=__version__,
            created=timestamp(),
            environments={name: each for name, each in environments.items() if name in used},
            entries=tuple(entries.values()),
            # Without entries, nothing else says which torch this was.
            setup=Setup(asked=self.name, not_finished=stopped) if stopped or not entries else None,
            command=command,
        )


def not_started(setup: Setup) -> Receipt:
    """The receipt of a suite that was not run."""
    return Receipt(plugin=__version__, created=timestamp(), setup=setup)
