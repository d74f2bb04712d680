"""Comparing: every contract and lane of two receipts, paired by name, and what becomes of each lane.

Identity comes before number: one graph break gone and another come is two facts, not "unchanged". What is not known is
never held: a metric that only one side measured makes its lane unverified.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.facts.receipt import Entry, Receipt
from pytest_compilecontract.facts.rerun import rerun_command

from .attribution import Attribution, Environments, device_of, torch_of
from .drift import Comparison, Drift, LaneComparison, Verdict
from .pair import Pair
from .policy import BANDED, DEFAULT_POLICY, GATEABLE, METRICS, Policy

# What is the same in every repeat, or the lane is unstable.
_EXACT = Policy(gate=frozenset(name for name in GATEABLE if name not in BANDED), band={})


def compare(before: Receipt, after: Receipt, policy: Policy = DEFAULT_POLICY) -> Comparison:
    """Every contract and lane of the two receipts, paired by name.

    Raises:
        ReceiptError: a receipt has a lane of a contract twice, as one of several environments has.
    """
    old, new = _by_lane(before), _by_lane(after)
    environments = Environments(before, after)
    lanes = [
        _compare_lane(key, old.get(key), new.get(key), environments, policy)
        for key in sorted({*old, *new})
        if any(entry is not None and entry.verdict != "reference" for entry in (old.get(key), new.get(key)))
    ]
    stopped = tuple(filter(None, (environments.stopped_before, environments.stopped_after)))
    return Comparison(before=torch_of(before), after=torch_of(after), lanes=tuple(lanes), stopped=stopped)


def unsteady(repeats: Sequence[Entry]) -> tuple[str, ...]:
    """In what the repeats of one lane are not the same, a line each; what only has a band may differ."""
    found: dict[str, str] = {}
    for number, other in enumerate(repeats[1:], start=2):
        pair = Pair(repeats[0], other, _EXACT, Attribution())
        for drift in pair.drifts():
            facts = drift.came or drift.went
            where = f" ({facts[0].where})" if facts else ""
            said = f"{drift.before} in repeat 1, {drift.after} in repeat {number}{where}"
            found.setdefault(drift.metric, f"{METRICS[drift.metric].label}: {said}")
        for said in pair.unknown:
            found.setdefault(said, f"{said} (repeat {number})")
    return tuple(found.values())


def _by_lane(receipt: Receipt) -> dict[tuple[str, str], Entry]:
    lanes: dict[tuple[str, str], Entry] = {}
    for entry in receipt.entries:
        key = (entry.contract, entry.lane)
        if key in lanes:
            where = f"environments {lanes[key].environment!r} and {entry.environment!r}"
            raise ReceiptError(f"{entry.contract}, lane {entry.lane}: twice ({where}), compare one at a time")
        lanes[key] = entry
    return lanes


# A lane


def _compare_lane(
    key: tuple[str, str], old: Entry | None, new: Entry | None, environments: Environments, policy: Policy
) -> LaneComparison:
    contract, lane = key
    shown = new or old
    assert shown is not None
    if old is None or new is None:
        return LaneComparison(
            contract=contract,
            lane=lane,
            verdict="new" if old is None else "missing",
            before=old.verdict if old else None,
            after=new.verdict if new else None,
            torch=environments.after[new.environment].torch if new else None,
            reason=(environments.stopped_before or "nothing to compare with")
            if old is None
            else (environments.stopped_after or "not in the newer run"),
            rerun=rerun_command(shown),
        )
    attribution = environments.attribution(old, new)
    verdict, reason = _incomparable(old, new, environments)
    drifts: tuple[Drift, ...] = ()
    unknown: tuple[str, ...] = ()
    if verdict is None:
        pair = Pair(old, new, policy, attribution)
        drifts, unknown = tuple(pair.drifts()), tuple(pair.unknown)
        verdict, reason = _verdict(old, new, pair, drifts)
    return LaneComparison(
        contract=contract,
        lane=lane,
        verdict=verdict,
        before=old.verdict,
        after=new.verdict,
        torch=environments.after[new.environment].torch,
        reason=reason,
        drifts=drifts,
        unknown=unknown,
        attribution=attribution,
        rerun=rerun_command(new),
    )


def _incomparable(old: Entry, new: Entry, environments: Environments) -> tuple[Verdict | None, str]:
    if new.verdict == "unmeasured":
        return "unmeasured", new.reason
    for entry, known, when in ((new, environments.after, ""), (old, environments.before, " before")):
        if overrides := known[entry.environment].overrides:
            said = ", ".join(f"{name}={value}" for name, value in sorted(overrides.items()))
            return "unverified", f"not run as users have it{when}: --contract-set {said}"
    if old.verdict == "unmeasured" and new.verdict != "unstable":
        return "new", f"not measured before: {old.reason}" if old.reason else "not measured before"
    for entry, when in ((new, ""), (old, " before")):
        cut_short = entry.measurement.cut_short if entry.measurement is not None else ""
        if cut_short and "broken" not in (old.verdict, new.verdict):
            return "unverified", f"the test ended before its end{when}, so its counts are not the whole: {cut_short}"
    if "broken" in (old.verdict, new.verdict):
        # One that took its process with it could not say where it ran.
        return None, ""
    for entry, when in ((new, ""), (old, "unstable before: ")):
        if entry.verdict == "unstable":
            return "unstable", f"{when}{entry.reason}"
    was = device_of(environments.before[old.environment], old.lane_settings)
    now = device_of(environments.after[new.environment], new.lane_settings)
    if was != now:
        return "unverified", f"another kind of device, so nothing to compare: {was} -> {now}"
    return None, ""


def _not_known(entry: Entry) -> str:
    """Why nobody knows how a broken lane would have ended: its test was ended, or failed by itself, before it."""
    if entry.verdict != "broken":
        return ""
    seen = entry.measurement
    if seen is not None and seen.raised is not None and not seen.raised.out_of_memory:
        return ""
    return entry.reason or "broken, and no reason was given"


def _verdict(old: Entry, new: Entry, pair: Pair, drifts: Sequence[Drift]) -> tuple[Verdict, str]:
    if new.verdict == "broken":
        return "broken", new.reason if old.verdict != "broken" else f"broken before too: {new.reason}"
    if new.verdict == "unstable":
        return "unstable", new.reason
    if why := _not_known(old):
        return "unverified", f"not known before: {why}"
    judged = [drift for drift in drifts if drift.gates]
    if any(drift.direction == "worse" for drift in judged):
        return "drifted", ""
    if old.verdict == "broken" and new.verdict not in ("held", "reference"):
        return "unverified", f"broken before and {new.verdict} now, so nothing to compare"
    for entry, when in ((new, ""), (old, " before")):
        if entry.verdict == "unverified":
            return "unverified", f"unverified{when}: {entry.reason}"
    if pair.unknown:
        return "unverified", "; ".join(pair.unknown)
    if judged:
        return "improved", ""
    if not pair.compared:
        return "unmeasured", "nothing that the policy judges was measured on both sides"
    if pair.captured_nothing:
        return "unmeasured", "nothing was captured, before or after"
    return "held", ""
