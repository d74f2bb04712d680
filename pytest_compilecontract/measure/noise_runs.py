"""Noise runs: repeated eager runs, each rounded differently, to judge what the numerics rule rejects."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pytest_compilecontract import clock
from pytest_compilecontract.errors import UsageError

from . import numerics
from .passes import Job, Passes
from .probes.rounding import Choices, Flip, Rounding
from .probes.source import Paths
from .programs import Trail

# A few tell whether eager moves at all. The far ones move results by so much that any choice which is close at all
# falls otherwise: they tell nothing else. More are made where eager moves, and not far enough yet; and where choices
# are made, which may be too close to call and still fall alike in a few runs. These move results further, for it is
# oftener then that a choice falls otherwise; of how far everything moves in them a share is counted. What is left then
# is asked of as many again, for what choices move has a long tail: of the tensors of a run of eager itself, held
# against sixteen others, one of several hundred was beyond them all.
FEW = 6
FAR = FEW + 4
MANY = FAR + numerics.ENOUGH - FEW
LAST = MANY + numerics.ENOUGH
FAR_STEPS = 12
# What a run may take: at least this long, and so many times as long as eager. One that waits for its numbers to agree
# may have no end.
SECONDS = 60.0
TIMES = 50.0
TOLD = 3  # choices that are named
# How often a user who waits is told how far it is.
TELL_SECONDS = 10.0
# Elements of the runs that are kept for reruns of the same test, over all of it.
MOST_KEPT = 1 << 25

# Judges with these runs, and looks for a bias or not.
Judge = Callable[[Sequence[numerics.Run], bool], numerics.Judged]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Made:
    """The noise runs of one program, in order, the eager run that they belong to, and the choices made in all."""

    eager: numerics.Run
    choices: Choices
    runs: list[numerics.Run] = field(default_factory=list)


class Kept:
    """Noise runs of one test, for its next runs: planted faults, and other stages of torch, leave eager as it is.

    They are used for a program whose eager run and first noise run are the same as before to the bit. Its operators are
    then the same too: each draws its own numbers, and would have rounded otherwise. The tensors are on the CPU.
    """

    def __init__(self) -> None:
        self._made: list[_Made] = []
        self._elements = 0

    def has_room(self, run: numerics.Run) -> bool:
        """Whether a run may be kept, beside eager's."""
        return self._elements + 2 * numerics.elements_of(run) <= MOST_KEPT

    def of(self, eager: numerics.Run, first: numerics.Run, choices: Choices) -> _Made | None:
        """The runs of this program; None if they would be too many to keep."""
        for each in self._made:
            if numerics.same_run(each.eager, eager) and numerics.same_run(each.runs[0], first):
                return each
        if not self._takes(choices.elements + numerics.elements_of(eager) + numerics.elements_of(first)):
            return None
        self._made.append(_Made(eager=eager, choices=choices, runs=[first]))
        return self._made[-1]

    def add(self, made: _Made, run: numerics.Run) -> None:
        if self._takes(numerics.elements_of(run)):
            made.runs.append(run)

    def _takes(self, more: int) -> bool:
        if self._elements + more > MOST_KEPT:
            return False
        self._elements += more
        return True


_kept: Kept | None = None


@contextlib.contextmanager
def keeping(kept: Kept) -> Iterator[None]:
    """Inside, runs of a test use the noise runs in `kept`, and add those that they make."""
    global _kept
    before, _kept = _kept, kept
    try:
        yield
    finally:
        _kept = before


_tell: Callable[[str], None] | None = None


@contextlib.contextmanager
def telling(tell: Callable[[str], None]) -> Iterator[None]:
    """Inside, `tell` is called with a line of progress while noise runs take long."""
    global _tell
    before, _tell = _tell, tell
    try:
        yield
    finally:
        _tell = before


class NoiseRuns:
    """Judges one lane with as many eager runs as needed. `barred` is why none may be made."""

    def __init__(self, passes: Passes, job: Job, eager: Trail, paths: Paths, *, tf32: bool, barred: str = "") -> None:
        self._passes = passes
        self._job = job
        self._eager = eager
        self._tf32 = tf32
        self._choices = Choices(paths)
        self._runs: list[numerics.Run] = []
        self._failed = barred
        self._kept: _Made | None = None
        self._began = self._told_at = clock.seconds()

    @property
    def made(self) -> int:
        return len(self._runs)

    def judged(self, judge: Judge) -> numerics.Judged:
        """Judge without noise runs, and with them if noise may explain a difference."""
        found = judge((), True)
        for until in (FEW, FAR, MANY, LAST):
            if self._are_enough(found):
                break
            # What was explained since is judged no more, and need not be kept.
            self._runs = [numerics.only(each, found.values, steps=each.steps) for each in self._runs]
            self._run(until, found.values)
            # A bias is none before noise was asked.
            found = judge(self._runs, not self._failed)
        note = "; ".join(each for each in (found.numerics.note, *self._told(found)) if each)
        return replace(found, numerics=replace(found.numerics, note=note))

    def _are_enough(self, found: numerics.Judged) -> bool:
        """Whether more runs would change nothing.

        A choice that compiled makes otherwise moves whole tensors, and may fall alike in all of a few runs. In a
        program that makes choices, being far off tells nothing before many runs, and nothing at all once one flipped.
        """
        if not found.values:
            return True
        if self._choices.any:
            return found.hopeless and self.made >= MANY and not self._choices.flipped
        return found.hopeless or not found.open

    def _run(self, until: int, places: frozenset[str]) -> None:
        """Make runs until there are `until`, and keep only these places of each."""
        while (number := len(self._runs)) < until and not self._failed:
            if self._kept is not None and number < len(self._kept.runs):
                run = self._kept.runs[number]
            elif (trail := self._rounded(number, places)) is not None:
                run = trail.run()
                self._keep(run)
            else:
                return
            self._runs.append(numerics.only(run, places, steps=_steps(number)))
            self._tell()

    def _rounded(self, number: int, places: frozenset[str]) -> Trail | None:
        """One more run, with what it has at these places; None if there can be none, and `_failed` says why."""
        self._choices.start()
        seconds = max(SECONDS, TIMES * self._passes.eager_seconds)
        rounding = Rounding(number, self._choices, tf32=self._tf32, steps=_steps(number), seconds=seconds)
        try:
            trail = self._passes.rounded(self._job, self._eager, rounding, None if self._keeps() else places)
        except UsageError as error:
            # The program is well without the mode; under it, it is not what it was (torch.cond in training).
            self._failed = str(error)
            return None
        if trail.error is not None and (self._eager.error is None or trail.error_at != self._eager.error_at):
            self._failed = f"{type(trail.error).__name__}: {trail.error}".splitlines()[0]
            return None
        return trail

    def _keeps(self) -> bool:
        """Whether the next run is to be kept whole, for the next run of this test."""
        if _kept is None:
            return False
        if not self._runs:
            return _kept.has_room(self._eager.run())
        return self._kept is not None and len(self._kept.runs) == len(self._runs)

    def _keep(self, run: numerics.Run) -> None:
        """Keep a run for the next run of this test, if there is to be one."""
        if _kept is None or not self._keeps():
            return
        if self._kept is not None:
            _kept.add(self._kept, run)
        elif (made := _kept.of(self._eager.run(), run, self._choices)) is not None:
            # Runs that were kept are not compared again: which choices flipped in them is known there.
            self._kept, self._choices = made, made.choices

    def _tell(self) -> None:
        """Report progress to a user who waits, every few seconds."""
        now = clock.seconds()
        if _tell is not None and now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            _tell(f"the numbers differ: noise run {self.made} of at most {LAST}, {now - self._began:.0f} s")

    def _told(self, found: numerics.Judged) -> list[str]:
        told = []
        if self._failed:
            told.append(f"how far eager moves when it is rounded differently is unknown: {self._failed}")
        if not found.explained:
            return told
        more = f" and {len(found.explained) - TOLD} more" if len(found.explained) > TOLD else ""
        told.append(
            f"within eager's own noise ({len(self._runs)} runs rounded differently): "
            f"{', '.join(found.explained[:TOLD])}{more}"
        )
        flips = dict.fromkeys(map(_flip, self._choices.told()))
        if flips:
            told.append(f"in which a discrete choice flips: {', '.join(list(flips)[:TOLD])}")
        return told


def _steps(made: int) -> int:
    """The most units in the last place by which the run after so many moves results."""
    if FEW <= made < FAR:
        return FAR_STEPS
    return 1 if made < FEW or MANY <= made < MANY + FEW else numerics.FURTHER


def _flip(flip: Flip) -> str:
    return flip.operator if flip.location is None else f"{flip.operator} at {flip.location.file}:{flip.location.line}"
