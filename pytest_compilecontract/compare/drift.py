"""Drift: how a later measurement differs from an earlier one, fact by fact. Data in, data out.

Facts are compared before counts: one graph break gone and another added are two facts, not "unchanged". What is not
known is never held: a metric that only one side measured makes its lane unverified.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_compilecontract.facts.measurement import Location
from pytest_compilecontract.facts.metrics import METRICS
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.rerun import Command
from pytest_compilecontract.facts.verdict import Verdict as OwnVerdict
from pytest_compilecontract.wording import repeated

from .attribution import Attribution
from .bands import Band, Direction

Verdict = Literal[
    "held", "improved", "waived", "drifted", "broken", "new", "missing", "unmeasured", "unverified", "unstable"
]
Value = int | float | str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One fact that was added or removed: where in the user's code, the line's text, torch's reason, and a hint.

    `times` is how often it was. `at` is the line that `where` names, if it names one, and `continuation` says that it
    is in a resume function. `name` is that of the limit that is exceeded, or of the kind of a numeric difference.
    `ranks` are those that alone have it.
    """

    where: str
    source: str = ""
    reason: str = ""
    hint: str = ""
    stack: tuple[str, ...] = ()
    times: int = 1
    at: Location | None = None
    continuation: bool = False
    name: str = ""
    ranks: tuple[int, ...] = ()

    @property
    def said(self) -> str:
        """The reason, on which ranks if not on all, and how often if more than once."""
        said = f"{self.reason}{repeated(self.times)}".lstrip()
        if not self.ranks:
            return said
        where = f"on rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"
        return f"{where}: {said}" if said else where


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """A metric of one contract in one lane that has changed.

    `before` and `after` are its values, `came` and `went` the facts added and removed. `gates` says whether the policy
    judges it; "changed" is neither better nor worse. `waived` is the issue of the waiver that tolerates it. `excuse` is
    the rule of `compare.excuses` by which it is neither better nor worse, although it looks so; empty if none applies.
    """

    contract: str
    lane: str
    metric: str
    direction: Direction
    before: Value
    after: Value
    gates: bool
    came: tuple[Fact, ...] = ()
    went: tuple[Fact, ...] = ()
    attribution: Attribution = field(default_factory=Attribution)
    waived: str = ""
    excuse: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneComparison:
    """One lane of one contract, before and after.

    `before` and `after` are the verdicts by its own limits, None if it was not in the run; `torch` is that of the
    newer side. `unknown` are the metrics that cannot be compared, each with the reason. `excused` are those of
    which a rule left facts out, each with the rule's name. `now` is the newer side's entry, None if it has none.
    `cold` is the time of the first call on both sides, if both measured it, and `stage` the stage of compiling
    whose seconds changed most.
    """

    contract: str
    lane: str
    verdict: Verdict
    before: OwnVerdict | None
    after: OwnVerdict | None
    torch: str | None = None
    reason: str = ""
    drifts: tuple[Drift, ...] = ()
    unknown: tuple[str, ...] = ()
    excused: tuple[str, ...] = ()
    attribution: Attribution = field(default_factory=Attribution)
    rerun: Command | None = None
    # Tolerated by waivers that name a workaround, each of them: no risk is open.
    worked_around: bool = False
    # Its own test failed before, so that there was nothing to compare with.
    failed_before: bool = False
    cold: tuple[Band, Band] | None = None
    stage: str = ""
    now: Entry | None = field(default=None, compare=False, repr=False)

    def rerun_by(self, start: Sequence[str]) -> LaneComparison:
        """The same lane, with a command that starts pytest by these words."""
        return replace(self, rerun=replace(self.rerun, start=tuple(start))) if self.rerun is not None else self

    @property
    def by_cause(self) -> tuple[Drift, ...]:
        """The drifts, the closest to the root cause first."""
        return tuple(sorted(self.drifts, key=lambda drift: METRICS[drift.metric].cause or math.inf))

    @property
    def over_its_limits(self) -> bool:
        """Whether it exceeds the limits of its contract now, whatever the comparison says: pytest fails it."""
        return self.after == "violated"

    @property
    def newly_broken(self) -> bool:
        """Whether the lane is broken now and was not before."""
        return self.verdict == "broken" and self.before != "broken"

    @property
    def compared(self) -> bool:
        """Whether both sides were measured and could be compared."""
        known = self.verdict in ("held", "improved", "waived", "drifted") or self.newly_broken
        return known and not self.failed_before


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Every lane of either side, in order of contract and lane. `before` and `after` name the torch of each side.

    `stopped` says, for each side whose tests did not run to their end, why: then an unknown number of lanes may be
    missing. `ran` are the folders of which the newer side ran every test, "" for all of them; empty if it is not known.
    `mixed` are the releases of torch of the newer side, if each ran some of its lanes.
    """

    before: str
    after: str
    lanes: tuple[LaneComparison, ...] = ()
    stopped: tuple[str, ...] = ()
    ran: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()

    @property
    def drifts(self) -> tuple[Drift, ...]:
        """Everything that changed, whether it gates or not."""
        return tuple(drift for lane in self.lanes for drift in lane.drifts)

    def of(self, *verdicts: Verdict) -> tuple[LaneComparison, ...]:
        """The lanes with one of these verdicts."""
        return tuple(lane for lane in self.lanes if lane.verdict in verdicts)
