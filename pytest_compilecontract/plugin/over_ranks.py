"""One verdict for a lane with several ranks: held if every rank holds and all agree. No pytest here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.metrics import combined
from pytest_compilecontract.facts.own_failure import OwnFailure
from pytest_compilecontract.facts.ranks import RankEnd, RankMeasured
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.verdict import NO_EXCEPTION, Verdict, Violation, lines_of
from pytest_compilecontract.judge.ranks import disagreement, to_blame

from .judged import Judged, Subject, failed, judged, unmeasured

_WORST: tuple[Verdict, ...] = ("broken", "violated", "unverified", "held", "reference")


@dataclass(frozen=True, kw_only=True, slots=True)
class OfRank:
    """What is judged for one rank of a lane."""

    end: RankEnd
    measurements: tuple[Measurement, ...] = ()


def over_ranks(
    subject: Subject, runs: Sequence[OfRank], *, seconds: float, torch_version: str
) -> tuple[Judged, RankEnd | None]:
    """The verdict, and the rank that caused the others to end, if one did not finish."""
    each = {
        run.end.rank: judged(subject, measurements=run.measurements, seconds=seconds, torch_version=torch_version)
        for run in runs
        if run.measurements or run.end.kind == "passed"
    }
    ends = [run.end for run in runs]
    blamed = to_blame(ends)
    if blamed is not None:
        found = _of_blamed(subject, blamed, ends, each)
    elif not each:
        found = Judged(entry=unmeasured(subject, ends[0].said))
    else:
        found = of_all(each, agree=subject.limits.ranks_agree is not False)
    kept = tuple(_measured(run, each.get(run.end.rank)) for run in runs)
    return replace(found, entry=replace(found.entry, seconds=seconds, ranks=kept)), blamed


def _measured(run: OfRank, found: Judged | None) -> RankMeasured:
    own = run.end.reason if run.end.kind != "passed" else ""
    reason = own or (found.entry.reason if found is not None else "")
    return RankMeasured(
        rank=run.end.rank, measurement=combined(run.measurements) if run.measurements else None, reason=reason
    )


def _of_blamed(subject: Subject, blamed: RankEnd, ends: Sequence[RankEnd], each: Mapping[int, Judged]) -> Judged:
    """The verdict if a rank did not finish: because the lane raised there, or for another reason."""
    found = each.get(blamed.rank)
    raised = found is not None and any(violation.name == NO_EXCEPTION for violation in found.entry.violations)
    if blamed.phase == "call" and blamed.kind == "failed" and raised and found is not None:
        told = _told_of_others(blamed, ends)
        violations = tuple(
            _on(violation, [blamed.rank], more=told if violation.name == NO_EXCEPTION else ())
            for violation in found.entry.violations
        )
        reason = f"rank {blamed.rank}: {found.entry.reason}"
        return replace(found, entry=replace(found.entry, violations=violations, reason=reason))
    own = OwnFailure(phase=blamed.phase, exception=blamed.exception, said=blamed.said or blamed.kind)
    measured = found.entry if found is not None else None
    return Judged(entry=failed(subject, f"rank {blamed.rank}: {own}", measured, own))


def _told_of_others(blamed: RankEnd, ends: Sequence[RankEnd]) -> tuple[tuple[str, ...], ...]:
    return tuple((f"then {end}",) for end in ends if end.rank != blamed.rank and end.kind != "passed")


def of_all(each: Mapping[int, Judged], *, agree: bool) -> Judged:
    """The verdict if all ranks finished: each is checked against the limits, and all against one another."""
    entries = {rank: found.entry for rank, found in each.items()}
    worst = min(entries, key=lambda rank: (_WORST.index(entries[rank].verdict), rank))
    kept = entries[worst]
    if kept.verdict == "reference":
        return each[worst]
    violations = _by_ranks(entries)
    seen = {rank: entry.measurement for rank, entry in entries.items() if entry.measurement is not None}
    if agree and (differ := disagreement(seen)) is not None:
        violations = (*violations, differ)
    doubts = tuple(dict.fromkeys(doubt for found in each.values() for doubt in found.doubts))
    said = [f"{violation.limit}: {violation.measured}" for violation in violations]
    if violations:
        verdict: Verdict = "broken" if kept.verdict == "broken" else "violated"
        reason = "; ".join([*said, *doubts])
        return Judged(entry=replace(kept, verdict=verdict, reason=reason, violations=violations), doubts=doubts)
    return Judged(entry=kept, doubts=doubts)


def _by_ranks(entries: Mapping[int, Entry]) -> tuple[Violation, ...]:
    """The violations, each once, with its ranks unless all have it."""
    of: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
    first: dict[tuple[str, str, tuple[str, ...]], Violation] = {}
    for rank, entry in entries.items():
        for violation in entry.violations:
            key = (violation.limit, str(violation.measured), violation.details)
            of.setdefault(key, []).append(rank)
            first.setdefault(key, violation)
    return tuple(
        violation if len(of[key]) == len(entries) else _on(violation, of[key]) for key, violation in first.items()
    )


def _on(violation: Violation, ranks: Sequence[int], more: Sequence[tuple[str, ...]] = ()) -> Violation:
    where = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    facts = (*violation.facts, *more)
    measured = f"{violation.measured} on {where}"
    return replace(violation, measured=measured, facts=facts, details=lines_of(facts))
