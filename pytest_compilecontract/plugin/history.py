"""History: what earlier runs recorded, what this run is compared with, and what it adds. No pytest here."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_compilecontract.baselines.kept import refusal
from pytest_compilecontract.baselines.store import Baselines, Found, Recorded
from pytest_compilecontract.compare.drift import Comparison, LaneComparison
from pytest_compilecontract.compare.waivers import Waiver, read_waivers, stale, waived_lane
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.receipt import Entry, Environment, environment_key
from pytest_compilecontract.regular import is_folder, stands_there
from pytest_compilecontract.report.baselines import what_drifted
from pytest_compilecontract.report.terminal import Row

from .settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A lane compared with a baseline: of its `own` environment, or of an older torch."""

    found: Found
    lane: LaneComparison
    own: bool

    @property
    def record(self) -> str:
        """The mode of recording that would make this run the baseline."""
        return "changed" if self.own else "new"

    @property
    def failed(self) -> bool:
        """Whether the lane fails: drift does; a lane that is not known is reported and does not fail."""
        return self.lane.verdict == "drifted" or self.lane.newly_broken


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """The lanes of a session with a baseline, those without one, and the number of recorded lanes."""

    held: tuple[Held, ...] = ()
    new: tuple[Entry, ...] = ()
    known: int = 0


@dataclass(kw_only=True, slots=True)
class History:
    """The project's baselines and waivers, as a session uses them.

    Raises:
        UsageError: the waivers cannot be read, or the baselines path is not a folder.
    """

    settings: Settings
    baselines: Baselines = field(init=False)
    waivers: tuple[Waiver, ...] = field(init=False)
    today: datetime.date = field(default_factory=datetime.date.today)
    _known: frozenset[tuple[str, str]] | None = None

    def __post_init__(self) -> None:
        file = self.settings.waivers
        self.waivers = read_waivers(file) if stands_there(file) else ()
        folder = self.settings.baselines
        if stands_there(folder) and not is_folder(folder):
            raise UsageError(f"{folder}: not a folder (--contract-baselines takes one)")
        self.baselines = Baselines(self.settings.baselines, self.settings.root)

    def hold(self, entry: Entry, environment: Environment, defaults: Mapping[str, str]) -> Held | None:
        """The lane compared with its baseline; None without one, or for the reference. `defaults` are torch's own.

        Raises:
            ReceiptError: a baseline cannot be read.
        """
        if entry.verdict == "reference":
            return None
        found = self.baselines.find(entry.contract, entry.lane, environment)
        if found is None:
            return None
        compared = self.baselines.compared(entry, environment, found, defaults)
        lane = waived_lane(compared, self.waivers, self.today)
        return Held(found=found, lane=lane, own=found.key == environment_key(environment))

    def knows(self, contract: str, lane: str) -> bool:
        """Whether a baseline of any environment has this lane: a cheap check that does not need torch."""
        return (contract, lane) in self._names()

    def _names(self) -> frozenset[tuple[str, str]]:
        if self._known is None:
            self._known = self.baselines.names()
        return self._known

    def stale(self, summary: Summary) -> tuple[str, ...]:
        """The waivers to delete, as far as this run, perhaps of only some tests, can tell."""
        lanes = tuple(each.lane for each in summary.held)
        return stale(Comparison(before="", after="", lanes=lanes), self.waivers, self.today, whole=False)

    def is_recorded(self, entry: Entry, held: Held) -> bool:
        """Whether this run records the lane again, so that what changed in it is not a failure."""
        wanted = {"all", "changed" if held.own else "new"}
        return self.settings.record in wanted and (not refusal(entry) or bool(self.settings.accepted))

    def record(
        self,
        entries: Iterable[Entry],
        environments: Mapping[str, Environment],
        defaults: Mapping[str, Mapping[str, str]],
    ) -> Recorded | None:
        """Record what was requested; None if nothing was.

        Raises:
            ReceiptError: a baseline cannot be read or written.
        """
        if self.settings.record is None:
            return None
        return self.baselines.record(entries, environments, self.settings.record, self.settings.accepted, defaults)

    def summary(
        self,
        entries: Iterable[Entry],
        environments: Mapping[str, Environment],
        defaults: Mapping[str, Mapping[str, str]],
    ) -> Summary:
        """All lanes of a session compared with their baselines.

        Raises:
            ReceiptError: a baseline cannot be read.
        """
        held: list[Held] = []
        new: list[Entry] = []
        for entry in entries:
            environment = environments[entry.environment]
            found = self.hold(entry, environment, defaults.get(environment.defaults or "", {}))
            if found is not None:
                held.append(found)
            elif entry.verdict not in ("reference", "unmeasured"):
                new.append(entry)
        keys = sorted({each.found.key for each in held})
        return Summary(held=tuple(held), new=tuple(new), known=sum(map(self.baselines.size, keys)))

    def drifted(self, summary: Summary | None) -> dict[tuple[str, str], LaneComparison]:
        """The lanes that drifted, by contract and lane, without those that this run records again."""
        return {
            (each.lane.contract, each.lane.lane): each.lane
            for each in (summary.held if summary is not None else ())
            if each.lane.verdict == "drifted" and self.settings.record not in ("all", each.record)
        }

    def marked(self, rows: Sequence[Row], summary: Summary | None) -> list[Row]:
        """The rows of a session, with those that hold but differ from their baseline as drifted."""
        drifted = self.drifted(summary)
        return [
            replace(row, verdict="drifted", reason=what_drifted(drifted[row.contract, row.lane]))
            if row.verdict == "held" and (row.contract, row.lane) in drifted
            else row
            for row in rows
        ]
