"""Launching the ranks of one contract, each a pytest process: started, followed and ended together. A process that
starts a test again (`warm`) is launched as a single rank without a process group.

No port: the ranks meet in a file. Each reports in a log of its own, which is read while it is written. Elsewhere: the
verdict over their ends and measurements (`over_ranks`), and what a rank does (`rank`).
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_compilecontract import clock
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.ranks import Kind, RankEnd
from pytest_compilecontract.files.course import EVENTS_OPTION
from pytest_compilecontract.judge.ranks import is_of_a_neighbour
from pytest_compilecontract.processes import beside, death
from pytest_compilecontract.wording import first_line

from .another import Another
from .answer import Answer, Answers, Report, tail_of

OPTION = "--contract-rank"
LAUNCH = "launch.json"
STACKS = "stacks"
# What another lane kept, for the process of one that is compared with it: between two processes of one session.
ANOTHER = "another.pickle"
# Where nothing says how long a test may run: a rank that hangs takes no session with it.
LONGEST_SECONDS = 600.0
# Until every rank has come to the body of its test: Python, torch and conftest.py are imported first.
START_SECONDS = 180.0
# A rank that its own clock ends tells more than one that is ended; and the others' ends may be the cause of the first.
GRACE_SECONDS = 5.0
STACK_SECONDS = 1.0
POLL_SECONDS = 0.05
# Lines of a rank's output that are shown.
SHOWN = 20
# faulthandler's first line, of a process that a signal ends.
FATAL = "Fatal Python error"
_FRAME = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>[0-9]+) in (?P<function>.*)$')


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The rank of a process, and the folder of its launch."""

    rank: int
    folder: Path

    def __str__(self) -> str:
        return f"{self.rank}:{self.folder}"


def place_of(text: str) -> Place:
    """The place that a rank's option gives."""
    rank, _, folder = text.partition(":")
    return Place(rank=int(rank), folder=Path(folder))


def log_of(place: Place) -> Path:
    """The log of a rank."""
    return place.folder / f"rank{place.rank}.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRun:
    """The outcome of one rank: how it ended, all that it measured, its failure, and what it printed."""

    end: RankEnd
    measurements: tuple[Measurement, ...] = ()
    cut_short: str = ""
    notes: tuple[str, ...] = ()
    gpu: str = ""
    text: str = ""
    output: str = ""


def launched(item: pytest.Item, lane: Lane, seconds: float | None) -> tuple[RankRun, ...]:
    """Run a test once in each rank of a lane, its body no longer than the time limit; no process is left running."""
    assert lane.ranks is not None
    return _launched(item, lane, [_variables(rank, lane.ranks) for rank in range(lane.ranks)], seconds)


def launched_again(item: pytest.Item, lane: Lane, variables: Mapping[str, str], seconds: float | None) -> RankRun:
    """Run a test once more, in a process of its own, with the variables that it began with, and so its caches."""
    (found,) = _launched(item, lane, [_inherited(variables)], seconds, again=True)
    return found


def launched_in_xla(item: pytest.Item, lane: Lane, another: Another | None, seconds: float | None) -> RankRun:
    """Run a test once in a process of an XLA lane, which compares what it computes with the other lane's results."""
    from pytest_compilecontract.measure.probes.xla_packages import python_of, variables_of

    variables = {**_inherited(), **variables_of(lane)}
    (found,) = _launched(item, lane, [variables], seconds, python=python_of(lane), another=another)
    return found


def _launched(
    item: pytest.Item,
    lane: Lane,
    variables: Sequence[Mapping[str, str]],
    seconds: float | None,
    *,
    again: bool = False,
    python: str = sys.executable,
    another: Another | None = None,
) -> tuple[RankRun, ...]:
    from pytest_compilecontract.measure.probes.caches import processor_known

    limit = seconds or LONGEST_SECONDS
    with tempfile.TemporaryDirectory(prefix="compilecontract-ranks-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        told = {
            "test": item.nodeid,
            "file": str(item.path),
            "parent": os.getpid(),
            "seconds": START_SECONDS + limit + 2 * GRACE_SECONDS,
            "again": again,
            "processor": processor_known(),
        }
        (folder / LAUNCH).write_text(json.dumps(told), encoding="utf-8")
        if another is not None:
            (folder / ANOTHER).write_bytes(pickle.dumps(another))
        places = [Place(rank=rank, folder=folder) for rank in range(len(variables))]
        commands = [
            (_command(item, place, python), _output(place), mine) for place, mine in zip(places, variables, strict=True)
        ]
        started = clock.seconds()
        with beside(commands, cwd=Path(item.config.invocation_params.dir)) as children:
            following = [
                _Rank(place, child, started, Answers(log_of(place), test=item.nodeid, lane=lane.name))
                for place, child in zip(places, children, strict=True)
            ]
            _follow(following, started, limit)
        return tuple(each.run() for each in following)


def _command(item: pytest.Item, place: Place, python: str) -> list[str]:
    from pytest_compilecontract.measure.probes.xla_packages import has_xdist

    config, folder = item.config, place.folder
    # What the test prints goes to the rank's file at once, so that a death loses none of it.
    options = [f"{OPTION}={place}", f"--basetemp={folder / f'tmp{place.rank}'}", "--capture=no", "-q", "--no-header"]
    if config.pluginmanager.hasplugin("cacheprovider"):
        options += ["-o", f"cache_dir={folder / f'cache{place.rank}'}"]
    if has_xdist(python) if python != sys.executable else config.pluginmanager.hasplugin("xdist"):
        options += ["-n0", "--dist=no"]
    if config.getoption(EVENTS_OPTION, None):
        options += [f"{EVENTS_OPTION}={folder / f'events{place.rank}'}"]
    return [python, "-m", "pytest", *map(str, config.invocation_params.args), *options]


def _output(place: Place) -> Path:
    return place.folder / f"output{place.rank}"


def _inherited(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of a process, without those that say which part of a job it is."""
    return {name: value for name, value in variables.items() if not name.startswith(("PYTEST_XDIST", "TORCHELASTIC"))}


def _variables(rank: int, ranks: int) -> Mapping[str, str]:
    """The environment of a rank: the variables that torchrun sets, and its share of the cores."""
    mine = _inherited()
    share = max(1, (os.cpu_count() or 1) // ranks)
    mine.setdefault("OMP_NUM_THREADS", str(share))
    return mine | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }


@dataclass(kw_only=False, slots=True)
class _Rank:
    """A rank while it runs: what it has reported so far, and how its process ended."""

    place: Place
    child: subprocess.Popen[bytes]
    started: float
    answers: Answers
    begun: float | None = None
    told: Report | None = None
    told_at: float = 0.0
    torn: Report | None = None
    fault: str = ""
    waits: bool = False
    left: bool = False
    code: int | None = None
    ended_at: float = 0.0
    overdue: bool = False

    def look(self) -> None:
        """Read what is new."""
        if self.code is None and (code := self.child.poll()) is not None:
            self.code, self.ended_at = code, clock.seconds()
        if self.fault:
            return
        # After the process was asked: what it told before its end is there by now.
        try:
            for answer in self.answers.news():
                self._take(answer)
        except ReceiptError as error:
            self.fault = str(error)
        if (self.code == 0 or self.left) and not self.fault and self.answers.is_unfinished:
            self.fault = "its last line has no end"

    def _take(self, answer: Answer) -> None:
        match answer.event:
            case "begins":
                self.begun = clock.seconds()
            case "measured":
                # By the rank's own word: of what happened between two looks, nobody here knows the order.
                self.told, self.told_at = answer.report, answer.at_seconds
            case "waits":
                self.waits = True
            case "torn":
                self.torn = answer.report
            case "left":
                self.left = True

    @property
    def is_over(self) -> bool:
        return self.left or self.code is not None

    @property
    def is_skipped(self) -> bool:
        return self.told is not None and self.told.outcome == "skipped"

    @property
    def is_bad(self) -> bool:
        """Whether it has ended in a way that may leave the others waiting."""
        if self.fault:
            return True
        if self.told is None:
            return self.is_over
        if self.torn is not None or (self.code not in (None, 0) and not self.left):
            return True
        return not self.told.well

    def run(self) -> RankRun:
        """Its outcome, once all ranks have ended."""
        # Of what cannot be read to its end, nothing is used.
        told = self.told if not self.fault else None
        torn = self.torn if not self.fault else None
        if told is None:
            return RankRun(end=self._end(), output=self._printed())
        return RankRun(
            end=self._end(),
            measurements=told.measurements,
            cut_short=told.cut_short,
            notes=told.notes,
            gpu=told.gpu,
            text=(torn or told).text,
            output=self._printed(),
        )

    def _end(self) -> RankEnd:
        if self.fault:
            return self._ended("lost", f"its report cannot be read: {self.fault}")
        if self.told is None:
            return self._without_report()
        if self.torn is not None:
            return self._failed(self.torn)
        if self.told.outcome == "failed":
            return self._failed(self.told)
        raised = next((each.raised for each in self.told.measurements if each.raised), None)
        if self.told.outcome == "passed" and raised is not None:
            connection = is_of_a_neighbour(raised.type, raised.message)
            return self._ended("failed", raised.message, exception=raised.type, connection=connection)
        done = "skipped its test" if self.is_skipped else "measured"
        # The last that a process does is to say that it leaves: one that ends without has not torn its test down.
        if self.code is not None and not self.left:
            return self._ended("lost", f"{death(self.code)} after it {done}")
        if self.overdue:
            return self._ended("hung", f"{done}, but did not end in time")
        return self._ended(self.told.outcome, self.told.said, phase=self.told.phase)

    def _failed(self, told: Report) -> RankEnd:
        kind: Kind = "hung" if told.overdue else "failed"
        said = first_line(told.said)
        return self._ended(kind, said, exception=told.exception, phase=told.phase, connection=told.connection)

    def _without_report(self) -> RankEnd:
        if self.left and self.code in (None, 0):
            return self._ended("lost", "left without a report")
        if self.code is None:
            where = self._where()
            kind: Kind = "stopped" if not self.overdue else "waited" if where.in_torch else "hung"
            said = "stopped, because another rank failed" if not self.overdue else "did not end in time"
            return self._ended(kind, f"{said}{where}")
        # torch ends a process whose neighbour is gone, in some threads.
        connection = self.code < 0 and is_of_a_neighbour("", self._printed())
        return self._ended("lost", f"{death(self.code)} without a report", connection=connection)

    def _ended(
        self, kind: Kind, said: str, *, exception: str = "", phase: str = "call", connection: bool = False
    ) -> RankEnd:
        at = self.told_at if self.told is not None else self.ended_at or clock.seconds()
        return RankEnd(
            rank=self.place.rank,
            kind=kind,
            seconds=round(at - self.started, 3),
            said=said,
            exception=exception,
            phase=phase,
            connection=connection,
        )

    def _where(self) -> Where:
        return where(tail_of(self._stacks()))

    def _stacks(self) -> Path:
        return self.place.folder / f"{STACKS}{self.place.rank}"

    def _printed(self) -> str:
        lines = tail_of(_output(self.place)).splitlines()
        died = next((at for at, line in enumerate(lines) if line.startswith(FATAL)), None)
        return "\n".join(lines[-SHOWN:] if died is None else lines[died : died + SHOWN])


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Where a rank is: its innermost line outside torch and Python, and whether torch is running from there."""

    line: str = ""
    in_torch: bool = False

    def __str__(self) -> str:
        if not self.line:
            return ""
        return f", waiting in torch, called at {self.line}" if self.in_torch else f", at {self.line}"


def where(stack: str) -> Where:
    """The place in a stack written by faulthandler, the innermost call first."""
    frames = [found for line in stack.splitlines() if (found := _FRAME.match(line)) is not None]
    packages = f"{os.sep}site-packages{os.sep}"
    library = os.path.dirname(os.__file__)
    own = next((each for each in frames if packages not in each["file"] and not each["file"].startswith(library)), None)
    in_torch = bool(frames) and f"{packages}torch{os.sep}" in frames[0]["file"]
    return Where(line=f"{own['file']}:{own['line']} in {own['function']}" if own is not None else "", in_torch=in_torch)


def _follow(ranks: Sequence[_Rank], started: float, limit: float) -> None:
    """Wait until all ranks have ended or timed out; those left are asked where they are."""
    bad_since: float | None = None
    while True:
        for each in ranks:
            each.look()
        if all(each.is_over for each in ranks):
            break
        now = clock.seconds()
        # Nobody waits for one that skipped its test if all did.
        if bad_since is None and any(each.is_bad for each in ranks) and not all(each.is_skipped for each in ranks):
            bad_since = now
        begun = [each.begun for each in ranks if each.begun is not None]
        due = started + START_SECONDS if len(begun) < len(ranks) else max(begun) + limit + GRACE_SECONDS
        if now > due or (bad_since is not None and now > bad_since + GRACE_SECONDS):
            _ask_where(ranks, overdue=now > due)
            break
        time.sleep(POLL_SECONDS)
    for each in ranks:
        each.look()


def _ask_where(ranks: Sequence[_Rank], *, overdue: bool) -> None:
    left = [each for each in ranks if not each.is_over]
    # Who waits, waits for another; if all do, for nobody.
    late = [each for each in left if not each.waits] or (left if overdue else [])
    for each in late:
        each.overdue = overdue
        if hasattr(signal, "SIGUSR1"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each.child.pid, signal.SIGUSR1)
    if late:
        time.sleep(STACK_SECONDS)


@contextlib.contextmanager
def turn_of(item: pytest.Item, ranks: int) -> Iterator[None]:
    """Wait for cores: pytest-xdist workers run no more ranks at once than there are cores."""
    base = item.config.getoption("basetemp", None)
    if "PYTEST_XDIST_TESTRUNUID" not in os.environ or not base:
        yield
        return
    # xdist gives each worker a folder beside those of the others.
    folder = Path(base).parent
    folder.mkdir(parents=True, exist_ok=True)
    slots = [folder / f"ranks{slot}.lock" for slot in range(max(1, (os.cpu_count() or 1) // ranks))]
    with contextlib.ExitStack() as stack:
        while not any(_took(slot, stack) for slot in slots):
            time.sleep(POLL_SECONDS)
        yield


def _took(slot: Path, stack: contextlib.ExitStack) -> bool:
    """Whether this process has the slot from now on; a process that ends releases it."""
    try:
        import fcntl
    except ImportError:  # Windows: its ranks share the cores as they come
        return True
    file = slot.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        return not isinstance(error, BlockingIOError)  # a file system without locks
    stack.callback(file.close)
    return True
