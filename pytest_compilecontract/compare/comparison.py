"""Comparing: every contract and lane of two receipts, paired by name, with a verdict for each lane.

Facts are compared before counts: one graph break gone and another added are two facts, not "unchanged". What is not
known is never held: a metric that only one side measured makes its lane unverified.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pytest_compilecontract.facts.metrics import BANDED, GATEABLE, METRICS
from pytest_compilecontract.facts.receipt import PJRT, Entry, Receipt
from pytest_compilecontract.facts.rerun import rerun_command, whole_folders
from pytest_compilecontract.facts.versions import minor_release

from .attribution import Attribution, attribution_of, between_environments, device_of, torch_of, with_lane
from .cold import cold_of, stage_of
from .drift import Comparison, Drift, LaneComparison, Value, Verdict
from .failed_before import since_failure
from .pair import Pair
from .policy import DEFAULT_POLICY, Policy
from .renamed import perhaps_renamed, renamed
from .side import Key, Side, sides_of

# Metrics that are told of a test that may have been renamed.
MOST_TOLD = 4
# What is the same in every repeat, or the lane is unstable.
_EXACT = Policy(gate=frozenset(name for name in GATEABLE if name not in BANDED), band={})


def compare(before: Receipt, after: Receipt, policy: Policy = DEFAULT_POLICY) -> Comparison:
    """Every contract and lane of the two receipts, paired by name.

    Raises:
        ReceiptError: a receipt has a lane of a contract twice, such as one of several environments.
    """
    old, new = sides_of(before), sides_of(after)
    stopped_before, stopped_after = (each.setup.failure if each.setup is not None else "" for each in (before, after))
    # Many lanes share two environments, whose tables are long.
    known: dict[tuple[str, str], Attribution] = {}
    lanes: list[LaneComparison] = []
    names = renamed(old, new, _is_unchanged)
    perhaps = perhaps_renamed(old, new, names)
    for key in sorted({*old, *new}):
        was, now = old.get(key), new.get(key)
        if all(side is None or side.entry.verdict == "reference" for side in (was, now)):
            continue
        if was is not None and now is not None:
            where = (was.entry.environment, now.entry.environment)
            if where not in known:
                known[where] = between_environments(was, now)
            lanes.append(_compared(was, now, with_lane(known[where], was.entry, now.entry), policy))
        elif now is not None:
            said = _as_before(names.get(key[0])) or _perhaps_before(perhaps.get(key[0]), now, old, policy)
            lanes.append(_new(now, stopped_before or said))
        elif was is not None:
            said = _as_after(names.get(key[0])) or _perhaps_after(perhaps.get(key[0]), was, new, policy)
            lanes.append(_missing(was, stopped_after or said))
    stopped = tuple(filter(None, (stopped_before, stopped_after)))
    ran = () if stopped or after.shard else whole_folders(after.command)
    return Comparison(
        before=torch_of(before),
        after=torch_of(after),
        lanes=tuple(lanes),
        stopped=stopped,
        ran=ran,
        mixed=_mixed(new.values()),
    )


def compare_sides(before: Side, after: Side, policy: Policy = DEFAULT_POLICY) -> LaneComparison:
    """Compare one lane before and after, from a receipt or a baseline."""
    return _compared(before, after, attribution_of(before, after), policy)


def unsteady(repeats: Sequence[Entry]) -> tuple[str, ...]:
    """How the repeats of one lane differ, one line each; banded metrics may differ."""
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


def _mixed(sides: Iterable[Side]) -> tuple[str, ...]:
    """The releases of torch that ran these lanes, if they are not of one minor release."""
    own = [side.environment for side in sides if PJRT not in side.environment.libraries]
    torches = sorted({environment.torch for environment in own if environment.torch})
    return tuple(torches) if len(set(map(minor_release, torches))) > 1 else ()


# A lane


def _is_unchanged(was: Side, now: Side) -> bool:
    found = compare_sides(was, now)
    return found.verdict == "held" and found.before == found.after and not (found.drifts or found.unknown)


def _as_before(names: tuple[str, str] | None) -> str:
    return f"it measured the same as {names[0]}, which is missing: renamed?" if names is not None else ""


def _as_after(names: tuple[str, str] | None) -> str:
    return f"not in the newer run; {names[1]}, which is new, measured the same: renamed?" if names is not None else ""


def _perhaps_before(names: tuple[str, str] | None, now: Side, old: Mapping[Key, Side], policy: Policy) -> str:
    if names is None:
        return ""
    differs = _differing(old[names[0], now.entry.lane], now, policy)
    return f"perhaps {_beside(*names)}, which is missing, renamed: {differs}"


def _perhaps_after(names: tuple[str, str] | None, was: Side, new: Mapping[Key, Side], policy: Policy) -> str:
    if names is None:
        return ""
    differs = _differing(was, new[names[1], was.entry.lane], policy)
    return f"not in the newer run; perhaps renamed to {_beside(*names[::-1])}: {differs}"


def _beside(name: str, other: str) -> str:
    """A contract as it is called beside another: without its file if it is the same."""
    (file, _, test), others = name.partition("::"), other.partition("::")[0]
    return test if file == others and test else name


def _differing(was: Side, now: Side, policy: Policy) -> str:
    """What differs in a lane of two contracts that may be one, in a line; the root cause first."""
    found = compare_sides(was, now, policy)
    drifts = sorted(found.by_cause, key=lambda drift: not drift.gates)
    told = [f"{METRICS[drift.metric].label} {_short(drift.before)} -> {_short(drift.after)}" for drift in drifts]
    verdicts = f"{found.before} -> {found.after}" if found.before != found.after else ""
    return ", ".join([*told[:MOST_TOLD], *filter(None, [verdicts])]) or found.reason or "no difference in this lane"


def _short(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _new(now: Side, stopped: str) -> LaneComparison:
    return LaneComparison(
        contract=now.entry.contract,
        lane=now.entry.lane,
        verdict="new",
        before=None,
        after=now.entry.verdict,
        torch=now.environment.torch,
        reason=stopped or "nothing to compare with",
        rerun=rerun_command(now.entry, now.start),
        now=now.entry,
    )


def _missing(was: Side, stopped: str) -> LaneComparison:
    return LaneComparison(
        contract=was.entry.contract,
        lane=was.entry.lane,
        verdict="missing",
        before=was.entry.verdict,
        after=None,
        reason=stopped or "not in the newer run",
        rerun=rerun_command(was.entry, was.start),
    )


def _compared(was: Side, now: Side, attribution: Attribution, policy: Policy) -> LaneComparison:
    old, new = was.entry, now.entry
    verdict, reason = _incomparable(was, now, policy)
    drifts: tuple[Drift, ...] = ()
    unknown: tuple[str, ...] = ()
    excused: tuple[str, ...] = ()
    since: tuple[Verdict, str] | None = None
    if verdict is None:
        pair = Pair(old, new, policy, attribution, two_devices=len(_devices(was, now)) > 1)
        drifts, unknown, excused = tuple(pair.drifts()), tuple(pair.unknown), tuple(pair.excused)
        since = since_failure(old, new, policy, one_device=len(_devices(was, now)) == 1)
        verdict, reason = since or _verdict(old, new, pair, drifts)
    return LaneComparison(
        contract=new.contract,
        lane=new.lane,
        verdict=verdict,
        before=old.verdict,
        after=new.verdict,
        torch=now.environment.torch,
        reason=reason,
        drifts=drifts,
        unknown=unknown,
        excused=excused,
        attribution=attribution,
        rerun=rerun_command(new, now.start),
        cold=cold_of(old, new),
        failed_before=since is not None,
        stage=stage_of(old, new),
        now=new,
    )


def _incomparable(was: Side, now: Side, policy: Policy) -> tuple[Verdict | None, str]:
    old, new = was.entry, now.entry
    if new.verdict == "unmeasured":
        return "unmeasured", new.reason
    for side, when in ((now, ""), (was, " before")):
        if overrides := side.environment.overrides:
            said = ", ".join(f"{name}={value}" for name, value in sorted(overrides.items()))
            return "unverified", f"run with non-default torch settings{when}: --contract-set {said}"
    if old.verdict == "unmeasured" and new.verdict != "unstable":
        return "new", f"not measured before: {old.reason}" if old.reason else "not measured before"
    for entry, when in ((new, ""), (old, " before")):
        cut_short = entry.measurement.cut_short if entry.measurement is not None else ""
        if cut_short and "broken" not in (old.verdict, new.verdict):
            return "unverified", f"the test ended early{when}, so its counts are incomplete: {cut_short}"
    if "broken" in (old.verdict, new.verdict):
        # One that took its process with it could not say where it ran.
        return None, ""
    for entry, when in ((new, ""), (old, "unstable before: ")):
        if entry.verdict == "unstable":
            return "unstable", f"{when}{entry.reason}"
    devices = _devices(was, now)
    if len(devices) == 1 or policy.across_devices:
        return None, ""
    said = f"different device types: {' -> '.join(devices)}"
    return "unverified", f"{said} (`compilecontract compare --across-devices` compares what does not depend on them)"


def _devices(was: Side, now: Side) -> tuple[str, ...]:
    """The types of device that the two sides ran on: one, or both."""
    return tuple(dict.fromkeys(device_of(side.environment, side.entry.lane_settings) for side in (was, now)))


def _not_known(entry: Entry) -> str:
    """Why the verdict of a broken lane is unknown: its test was ended, or failed by itself, before there was one."""
    if entry.verdict != "broken":
        return ""
    seen = entry.measurement
    if seen is not None and seen.raised is not None and not seen.raised.out_of_memory:
        return ""
    return entry.reason or "broken, no reason was given"


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
        return "unmeasured", "nothing was captured before or after"
    return "held", ""
