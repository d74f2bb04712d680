"""The outcome of a contract: the verdict over one run, over repeats, over a ladder. No pytest here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_compilecontract.compare.comparison import unsteady
from pytest_compilecontract.facts.ladder import Frontier
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.metrics import BANDED, combined
from pytest_compilecontract.facts.own_failure import OwnFailure
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.verdict import Bound, Verdict, Violation, violated
from pytest_compilecontract.judge.agreement import OtherLane, lanes_differ
from pytest_compilecontract.judge.budget import judge_seconds
from pytest_compilecontract.judge.device import undecided
from pytest_compilecontract.judge.limits import judge
from pytest_compilecontract.judge.verdicts import doubts, verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The subject of a verdict: a contract in a lane, the test, and where it ran."""

    contract: str
    lane: Lane
    test: str
    limits: Limits
    environment: str
    worker: str
    gpu: str = ""
    # Which of the project's settings differ in the lane from those outside the test.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One judged lane of a contract: the entry for the receipt, and what to report if it failed."""

    entry: Entry
    doubts: tuple[str, ...] = ()
    unsteady: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return self.entry.verdict not in ("held", "unmeasured", "reference")


def judged(
    subject: Subject,
    *,
    measurements: tuple[Measurement, ...],
    seconds: float,
    torch_version: str,
    other: OtherLane | None = None,
) -> Judged:
    """Judge what one test measured in one lane; `other` is the lane that it must agree with, if it must."""
    measurement = combined(measurements) if measurements else None
    violations: tuple[Violation, ...] = ()
    doubted: tuple[str, ...] = ()
    outcome: Verdict = "reference"
    if measurement is None:
        outcome = "violated"
        something = Bound(name="something to measure", allows=None)
        violations = (violated(something, "the test measured nothing with compile_lane"),)
    elif not subject.lane.reference:
        violations = judge(subject.limits, measurement, torch_version=torch_version)
        if other is not None and (differ := lanes_differ(other, subject.lane.name, measurement)) is not None:
            violations = (*violations, differ)
        doubted = tuple(dict.fromkeys(each for part in measurements for each in doubts(subject.limits, part)))
        outcome = verdict(measurement, violations, doubted)
    said = [f"{each.limit}: {each.measured}" for each in violations]
    if measurement is not None and measurement.raised_in_both is not None:
        said.insert(0, str(measurement.raised_in_both))
    open_limits = undecided(subject.limits, measurement) if measurement is not None else ()
    entry = _entry(subject, outcome, "; ".join([*said, *doubted, *open_limits, *subject.notes]))
    entry = replace(entry, violations=violations, measurement=measurement, seconds=seconds)
    return Judged(entry=entry, doubts=doubted)


def over_repeats(runs: Sequence[Judged], ended: str = "") -> Judged:
    """The verdict of a lane that ran several times: held if every run held and all agree.

    The worst verdict wins: broken, unstable, then that of a single run. The first run that shows it is kept. `ended` is
    what cut the last repeat short, if the others ran to their end. Seconds are judged here alone.
    """
    return _in_seconds(_over_repeats(runs, ended), [run.entry for run in runs])


def _in_seconds(found: Judged, entries: Sequence[Entry]) -> Judged:
    """The verdict with that on the seconds of all repeats."""
    kept = found.entry
    if kept.verdict not in ("held", "violated", "unverified", "unstable"):
        return found
    repeats = [[entry.measurement, *(each.measurement for each in entry.ranks)] for entry in entries]
    violations, doubted = judge_seconds(kept.limits, kept.lane_settings, repeats)
    said = [*(f"{each.limit}: {each.measured}" for each in violations), *doubted]
    if not said:
        return found
    outcome: Verdict = "violated" if violations or kept.violations else "unverified"
    kept = replace(
        kept,
        verdict=kept.verdict if kept.verdict == "unstable" else outcome,
        reason="; ".join(filter(None, (*said, kept.reason))),
        violations=(*kept.violations, *violations),
    )
    return replace(found, entry=kept, doubts=(*found.doubts, *doubted))


def _over_repeats(runs: Sequence[Judged], ended: str) -> Judged:
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
    """The verdict of a contract that climbed a ladder: held if it reaches the required rung.

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
    bound = Bound(name="min_frontier", allows=least, given=limits.min_frontier is not None)
    # The walk stopped at the run that failed, if one did.
    facts = [fact for run in runs[-1:] for each in run.entry.violations for fact in each.facts]
    violation = violated(bound, walked.told(), facts)
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
    return _entry(subject, "unmeasured", reason)


def failed(subject: Subject, reason: str, measured: Entry | None, own: OwnFailure | None = None) -> Entry:
    """The entry of a lane whose test itself failed, or whose process died; what was measured until then is kept."""
    if measured is None:
        return replace(_entry(subject, "broken", reason), own_failure=own)
    if measured.measurement is not None and measured.measurement.raised_in_both is not None:
        reason = f"{reason} ({measured.measurement.raised_in_both})"
    return replace(measured, verdict="broken", reason=reason, own_failure=own)


def _entry(subject: Subject, verdict: Verdict, reason: str) -> Entry:
    return Entry(
        verdict=verdict,
        reason=reason,
        contract=subject.contract,
        lane=subject.lane.name,
        test=subject.test,
        limits=subject.limits.to_dict(),
        lane_settings=subject.lane.to_dict(),
        environment=subject.environment,
        worker=subject.worker,
        card=subject.gpu,
    )
