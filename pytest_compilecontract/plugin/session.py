"""The session: what was measured of each contract in each lane, and the receipt of it. Knows no pytest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_compilecontract import __version__
from pytest_compilecontract.compare.comparison import unsteady
from pytest_compilecontract.compare.policy import BANDED
from pytest_compilecontract.errors import ReceiptError, UsageError
from pytest_compilecontract.facts.ladder import Frontier
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.limits import OBSERVED_LIMITS, Limits
from pytest_compilecontract.facts.measurement import Measurement, combined
from pytest_compilecontract.facts.receipt import Entry, Environment, Receipt, cut_off, defaults_key, timestamp
from pytest_compilecontract.facts.verdict import Verdict, Violation
from pytest_compilecontract.files.journal import ENDED, NAME, Journal, is_held, name_of
from pytest_compilecontract.files.receipt import entry_from_data, environment_from_data, write_receipt
from pytest_compilecontract.judge.device import undecided
from pytest_compilecontract.judge.limits import judge
from pytest_compilecontract.judge.verdicts import doubts, verdict
from pytest_compilecontract.report.terminal import Row, row_of

from .settings import Settings

# The environment of a test whose process died before it could say.
UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """Who is judged: a contract in a lane, run by a test, somewhere."""

    contract: str
    lane: Lane
    test: str
    limits: Limits
    environment: str
    worker: str
    card: str = ""
    # What of the project's own is otherwise in the lane than around the test.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One lane of a contract, judged: the entry for the receipt, and what is to be said if it failed."""

    entry: Entry
    doubts: tuple[str, ...] = ()
    unsteady: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return self.entry.verdict not in ("held", "unmeasured", "reference")


@dataclass(kw_only=True, slots=True)
class Session:
    """What one pytest run has measured so far."""

    settings: Settings
    # Each worker runs every test, so that a test has an entry of each.
    each: bool = False
    entries: dict[str, Entry] = field(default_factory=dict)
    environments: dict[str, Environment] = field(default_factory=dict)
    defaults: dict[str, dict[str, str]] = field(default_factory=dict)
    journal: Journal | None = None
    # Why the session did not come to its end; empty where it did.
    cut_off: str = ""
    # By test, why what was to be measured cannot be measured here; and what lanes had otherwise than their project.
    unusable: dict[str, str] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def open_journal(self, worker: str = "") -> None:
        """Note from now on, where the session was asked for a receipt, what it would lose if it were killed.

        Raises:
            UsageError: another session that goes on writes to the same folder.
        """
        if self.settings.report is None:
            return
        if not worker and is_held(self.settings.report / NAME):
            raise UsageError(
                f"{self.settings.report}: another session is writing there, and its receipt would be lost "
                "(--contract-report takes a folder for each session)"
            )
        self.journal = Journal(self.settings.report / name_of(worker), plugin=__version__, created=timestamp())

    def begin(self, subject: Subject) -> None:
        """Note that a lane runs from now on."""
        if self.journal is not None:
            self.journal.begin(failed(subject, ENDED, None))

    def begun(self, sent: Mapping[str, Any]) -> None:
        """Note that a lane runs from now on in a worker, which has said so."""
        if self.journal is not None:
            self.journal.begin(entry_from_data(sent["entry"]))

    def end(self, test: str) -> None:
        """Note that a test is over, whether anything was measured or not."""
        if self.journal is not None:
            self.journal.end(test)

    def receive(self, sent: Mapping[str, Any]) -> None:
        """Keep what a report brought; a test that ran again replaces what it showed before."""
        if self.journal is not None:
            self.journal.keep(sent)
        entry = entry_from_data(sent["entry"])
        name = f"{entry.test} of {entry.worker}" if self.each else entry.test
        self.entries[name] = entry
        self.environments[entry.environment] = environment_from_data(sent["environment"])
        self.notes.update(dict.fromkeys(sent.get("notes", ())))
        self.unusable.pop(name, None)
        if why := sent.get("unusable"):
            self.unusable[name] = str(why)
        if defaults := sent.get("defaults"):
            self.defaults[defaults_key(defaults)] = dict(defaults)

    def lose(self, contract: str, lane: Lane, test: str, reason: str, limits: Limits | None = None) -> None:
        """Keep that a lane took its process with it, and all that was known of it."""
        self.environments.setdefault(UNKNOWN, Environment())
        subject = Subject(
            contract=contract, lane=lane, test=test, limits=limits or Limits(), environment=UNKNOWN, worker=""
        )
        self.entries[test] = failed(subject, reason, None)

    def lose_begun(self, sent: Mapping[str, Any], reason: str) -> None:
        """Keep that the lane which a worker had begun took the worker with it."""
        entry = entry_from_data(sent["entry"])
        self.environments.setdefault(entry.environment, environment_from_data(sent["environment"]))
        self.entries[entry.test] = replace(entry, reason=reason)

    def nothing_measured(self) -> str:
        """Which lanes were to be measured and cannot be, and why, where no lane was; empty where one was."""
        if not self.unusable or any(each.verdict not in ("unmeasured", "reference") for each in self.entries.values()):
            return ""
        lanes: dict[str, dict[str, None]] = {}
        for test, why in self.unusable.items():
            lanes.setdefault(why, {})[self.entries[test].lane] = None
        told = "; ".join(f"{', '.join(names)} ({why})" for why, names in lanes.items())
        return f"no lane could be measured, so no contract is held: {told}"

    def torch_versions(self) -> str:
        """The torch that was measured; several where workers differ."""
        known = {each.torch or "unknown" for key, each in self.environments.items() if key != UNKNOWN}
        return ", ".join(sorted(known))

    def rows(self) -> list[Row]:
        """The entries as the terminal shows them."""
        return [replace(row_of(each), observed=each.limits == OBSERVED_LIMITS) for each in self.entries.values()]

    def receipt(self) -> Receipt:
        """All of it, as one document."""
        return Receipt(
            plugin=__version__,
            created=timestamp(),
            environments=dict(self.environments),
            defaults=dict(self.defaults),
            entries=tuple(self.entries.values()),
            setup=cut_off(self.environments, self.cut_off) if self.cut_off else None,
        )

    def write_report(self) -> None:
        """Write `receipt.json`, where the session was asked for one; nothing measured replaces no earlier receipt.

        Raises:
            ReceiptError: the folder or file cannot be written.
        """
        if self.settings.report is None:
            return
        path = self.settings.report / "receipt.json"
        try:
            if self.entries or not path.is_file():
                write_receipt(path, self.receipt())
        except ReceiptError:
            if self.journal is not None:
                self.journal.close(done=False)
            raise
        if self.journal is not None:
            self.journal.close(done=True)


def judged(subject: Subject, *, measurements: tuple[Measurement, ...], seconds: float, torch_version: str) -> Judged:
    """Judge what one test measured in one lane."""
    measurement = combined(measurements) if measurements else None
    violations: tuple[Violation, ...] = ()
    doubted: tuple[str, ...] = ()
    outcome: Verdict = "reference"
    if measurement is None:
        outcome = "violated"
        violations = (Violation(limit="something to measure", measured="the test used nothing of compile_lane"),)
    elif not subject.lane.reference:
        violations = judge(subject.limits, measurement, torch_version=torch_version)
        doubted = tuple(dict.fromkeys(each for part in measurements for each in doubts(subject.limits, part)))
        outcome = verdict(measurement, violations, doubted)
    said = [f"{each.limit}: {each.measured}" for each in violations]
    if measurement is not None and measurement.raised_in_both is not None:
        said.insert(0, str(measurement.raised_in_both))
    open_limits = undecided(subject.limits, measurement) if measurement is not None else ()
    entry = _entry(
        subject,
        verdict=outcome,
        reason="; ".join([*said, *doubted, *open_limits, *subject.notes]),
        violations=violations,
        measurement=measurement,
        seconds=seconds,
    )
    return Judged(entry=entry, doubts=doubted)


def over_repeats(runs: Sequence[Judged], ended: str = "") -> Judged:
    """The one verdict of a lane that ran several times: held if every run was, and all showed the same.

    The worst counts: broken, unstable, then as a single run is judged. What is kept is the first run that shows it.
    `ended` is what cut the last repeat short, where the others went through.
    """
    if len(runs) == 1 and not ended:
        return runs[0]
    entries = [run.entry for run in runs]
    broken = next((number for number, each in enumerate(entries) if each.verdict == "broken"), None)
    worst = next((run for run in runs if run.entry.violations), runs[0])
    differing = () if runs[0].entry.verdict == "reference" else (*unsteady(entries), *((ended,) if ended else ()))
    doubted = tuple(dict.fromkeys(each for run in runs for each in run.doubts))
    kept = replace(worst.entry, repeats=len(runs), seconds=entries[-1].seconds, spread=_spread(entries))
    if broken is not None:
        reason = f"{entries[broken].reason} (in repeat {broken + 1})"
        return replace(runs[broken], entry=replace(entries[broken], reason=reason, repeats=len(runs)))
    if differing:
        reason = "; ".join(part for part in (*differing, kept.reason) if part)
        return Judged(entry=replace(kept, verdict="unstable", reason=reason), doubts=doubted, unsteady=differing)
    if kept.verdict == "held" and doubted:
        kept = replace(kept, verdict="unverified", reason="; ".join(doubted))
    return Judged(entry=kept, doubts=doubted)


def over_walk(subject: Subject, runs: Sequence[Judged], walked: Frontier) -> Judged:
    """The one verdict of a contract that climbed a ladder: held if it reaches the rung that it has to.

    Kept are the measurement and counts of the highest rung that held.
    """
    limits = subject.limits
    assert limits.frontier is not None
    least = limits.min_frontier or limits.frontier[0]
    needed = walked.steps[limits.frontier.index(least)]
    held = [run for run in runs if not run.failed]
    shown = (held or list(runs))[-1]
    entry = replace(
        shown.entry,
        lane=subject.lane.name,
        test=subject.test,
        lane_settings=subject.lane.to_dict(),
        verdict="held",
        reason="",
        violations=(),
        seconds=sum(run.entry.seconds for run in runs),
        frontier=walked,
    )
    if needed.verdict == "unmeasured":
        return Judged(entry=replace(entry, verdict="unmeasured", reason=f"{least}: {needed.reason}"))
    if walked.height > limits.frontier.index(least):
        return Judged(entry=entry)
    stopped = walked.failed
    violation = Violation(
        limit=f"min_frontier={least!r}{'' if limits.min_frontier else ' (default)'}",
        measured=walked.told(),
        details=stopped.details if stopped is not None else (),
    )
    reason = f"{violation.limit}: {violation.measured}"
    return Judged(entry=replace(entry, verdict="violated", reason=reason, violations=(violation,)))


def _spread(entries: Sequence[Entry]) -> dict[str, tuple[float, float]]:
    """The band of each banded metric that every repeat measured."""
    bands: dict[str, tuple[float, float]] = {}
    for name in BANDED if len(entries) > 1 else ():
        values = [getattr(each.measurement, name) for each in entries if each.measurement is not None]
        if values and len(values) == len(entries) and None not in values:
            bands[name] = (float(min(values)), float(max(values)))
    return bands


def unmeasured(subject: Subject, reason: str) -> Entry:
    """The entry of a lane that cannot run here, or whose test was skipped."""
    return _entry(subject, verdict="unmeasured", reason=reason)


def failed(subject: Subject, reason: str, measured: Entry | None) -> Entry:
    """The entry of a lane whose test failed by itself; what was measured till then is kept."""
    if measured is None:
        return _entry(subject, verdict="broken", reason=reason)
    if measured.measurement is not None and measured.measurement.raised_in_both is not None:
        reason = f"{reason} ({measured.measurement.raised_in_both})"
    return replace(measured, verdict="broken", reason=reason)


def _entry(subject: Subject, **facts: Any) -> Entry:
    return Entry(
        contract=subject.contract,
        lane=subject.lane.name,
        test=subject.test,
        limits=subject.limits.to_dict(),
        lane_settings=subject.lane.to_dict(),
        environment=subject.environment,
        worker=subject.worker,
        card=subject.card,
        **facts,
    )
