"""Noise runs: repeated eager runs, each rounded differently, to judge what the numerics rule rejects."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pytest_compilecontract.errors import UsageError

from . import numerics
from .passes import Job, Passes
from .probes.rounding import Choices, Flip, Rounding
from .probes.source import Paths
from .programs import Trail

# A few tell whether eager moves at all. More are made where it does, and not far enough yet; and where choices are
# made, which may be too close to call and still fall alike in a few runs. These move results further, for it is oftener
# then that a choice falls otherwise; of how far everything moves in them a share is counted. The far ones move them by
# so much that any choice which is close at all falls otherwise: they tell nothing else. What is left then is asked of
# as many again, for what choices move has a long tail: of the tensors of a run of eager itself, held against sixteen
# others, one of several hundred was beyond them all.
FEW = 6
MANY = numerics.ENOUGH
FAR = MANY + 4
LAST = FAR + MANY
FAR_STEPS = 12
# What a run may take: at least this long, and so many times as long as eager. One that waits for its numbers to agree
# may have no end.
SECONDS = 60.0
TIMES = 50.0
TOLD = 3  # choices that are named
# Elements of the runs that are kept for reruns of the same test, over all of it.
MOST_KEPT = 1 << 25

# Judges with these runs, and looks for a bias or not.
Judge = Callable[[Sequence[numerics.Run], bool], numerics.Judged]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Made:
    """The noise runs of one program, in order, and the eager run that they belong to."""

    eager: numerics.Run
    runs: list[numerics.Run] = field(default_factory=list)


class Kept:
    """Noise runs of one test in one lane, for its next run: planted faults leave eager as it is.

    They are used for a program whose eager run and first noise run are the same as before to the bit. Its operators are
    then the same too: each draws its own numbers, and would have rounded otherwise. The tensors are on the CPU.
    """

    def __init__(self) -> None:
        self._made: list[_Made] = []
        self._elements = 0

    def of(self, eager: numerics.Run, first: numerics.Run) -> _Made | None:
        """The runs of this program; None if they would be too many to keep."""
        for each in self._made:
            if numerics.same_run(each.eager, eager) and numerics.same_run(each.runs[0], first):
                return each
        if not self._has_room(eager, first):
            return None
        self._made.append(_Made(eager=eager, runs=[first]))
        return self._made[-1]

    def add(self, made: _Made, run: numerics.Run) -> None:
        if self._has_room(run):
            made.runs.append(run)

    def _has_room(self, *runs: numerics.Run) -> bool:
        more = sum(map(numerics.elements_of, runs))
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

    @property
    def made(self) -> int:
        return len(self._runs)

    def judged(self, judge: Judge) -> numerics.Judged:
        """Judge without noise runs, and with them if noise may explain a difference."""
        found = judge((), True)
        for until in (FEW, MANY, FAR, LAST):
            if not found.values or not (found.open or self._choices.any):
                break
            # What was explained since is judged no more, and need not be kept.
            self._runs = [numerics.only(each, found.values, steps=each.steps) for each in self._runs]
            self._run(until, found.values)
            # A bias is none before noise was asked.
            found = judge(self._runs, not self._failed)
        note = "; ".join(each for each in (found.numerics.note, *self._told(found)) if each)
        return replace(found, numerics=replace(found.numerics, note=note))

    def _run(self, until: int, places: frozenset[str]) -> None:
        """Make runs until there are `until`, and keep only these places of each."""
        while (made := len(self._runs)) < until and not self._failed:
            steps = _steps(made)
            if self._kept is not None and made < len(self._kept.runs):
                run = self._kept.runs[made]
            elif (trail := self._rounded(made, steps, places)) is not None:
                run = trail.run()
                self._keep(run)
            else:
                return
            self._runs.append(numerics.only(run, places, steps=steps))

    def _rounded(self, number: int, steps: int, places: frozenset[str]) -> Trail | None:
        """One more run, with what it has at these places; None if there can be none, and `_failed` says why."""
        self._choices.start()
        seconds = max(SECONDS, TIMES * self._passes.eager_seconds)
        rounding = Rounding(number, self._choices, tf32=self._tf32, steps=steps, seconds=seconds)
        try:
            trail = self._passes.rounded(self._job, self._eager, rounding, None if _kept is not None else places)
        except UsageError as error:
            # The program is well without the mode; under it, it is not what it was (torch.cond in training).
            self._failed = str(error)
            return None
        if trail.error is not None and (self._eager.error is None or trail.error_at != self._eager.error_at):
            self._failed = f"{type(trail.error).__name__}: {trail.error}".splitlines()[0]
            return None
        return trail

    def _keep(self, run: numerics.Run) -> None:
        """Keep a run for the next run of this test, if there is to be one."""
        if _kept is None:
            return
        if not self._runs:
            self._kept = _kept.of(self._eager.run(), run)
        elif self._kept is not None and len(self._kept.runs) == len(self._runs):
            _kept.add(self._kept, run)

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
    """The most units in the last place by which the next run moves results."""
    if MANY <= made < FAR:
        return FAR_STEPS
    return 1 if made < FEW or FAR <= made < FAR + FEW else numerics.FURTHER


def _flip(flip: Flip) -> str:
    return flip.operator if flip.location is None else f"{flip.operator} at {flip.location.file}:{flip.location.line}"
