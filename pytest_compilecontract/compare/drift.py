"""Drift: how what was measured after differs from what was measured before, fact by fact. Data in, data out.

Identity comes before number: one graph break gone and another come is two facts, not "unchanged". What is not known is
never held: a metric that only one side measured makes its lane unverified.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeVar

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import as_tests, typed
from pytest_compilecontract.facts.limits import OBSERVED_LIMITS
from pytest_compilecontract.facts.measurement import (
    CompileFailure,
    Difference,
    EagerFrame,
    EagerOps,
    GraphBreak,
    LimitHit,
    Location,
    Measurement,
    Recompile,
    StepKernels,
)
from pytest_compilecontract.facts.receipt import Entry, Environment, Receipt
from pytest_compilecontract.facts.verdict import Verdict as OwnVerdict
from pytest_compilecontract.wording import repeated

from .identity import (
    WRAPPER,
    Key,
    break_keys,
    comparable,
    difference_key,
    eager_key,
    eager_ops_key,
    failure_key,
    limit_hit_key,
    reasons_key,
    recompile_key,
    until,
)
from .policy import BANDED, DEFAULT_POLICY, GATEABLE, METRICS, Metric, Policy

T = TypeVar("T")
Verdict = Literal[
    "held", "improved", "waived", "drifted", "broken", "new", "missing", "unmeasured", "unverified", "unstable"
]
Direction = Literal["worse", "better", "changed"]
Value = int | float | str

# Which fields of an environment are whose; a release of torch brings its own triton and is built for one CUDA.
_FIELDS_OF: dict[str, tuple[str, ...]] = {
    "torch": ("torch", "triton", "cuda"),
    "library": ("cudnn", "nccl", "python", "pytest", "plugin"),
    "hardware": ("device", "capability", "device_count", "processor", "driver", "platform"),
}
# The lane of a test that compiles by itself has no backend of its own, and no option chooses it.
_BODY = ""
# What `errors` says already.
_NO_EXCEPTION = "no exception"
_STEADY = "compiled code runs in steady calls (default)"
_CAPTURED: tuple[str, ...] = ("graphs", "graphs_executed", "backward_graphs")
_COUNTED: tuple[str, ...] = ("graphs", "backward_graphs", "graphs_executed")
# What is the same in every repeat, or the lane is unstable.
_EXACT = Policy(gate=frozenset(name for name in GATEABLE if name not in BANDED), band={})


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One fact that came or went: where in the user's code, the line's text, torch's reason, and what would help."""

    where: str
    source: str = ""
    reason: str = ""
    hint: str = ""
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Attribution:
    """What differs between the two environments, each as "torch 2.11.0 -> 2.15.0".

    What is empty was held fixed. `settings` are those of Dynamo, Inductor and the environment variables that torch
    reads; `project` is the commit, the lane's definition and the contract's limits. `defaults` are the settings of
    torch that both have and whose defaults differ: they are torch's, so no suspect of their own.
    """

    torch: tuple[str, ...] = ()
    library: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    project: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()

    def suspects(self) -> tuple[str, ...]:
        """The kinds of thing that differ: the drift is due to one of them."""
        return tuple(each.name for each in fields(self) if each.name != "defaults" and getattr(self, each.name))


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """A metric of one contract in one lane that is not what it was.

    `before` and `after` are its values, `came` and `went` the facts behind them. `gates` says whether the policy judges
    it; "changed" is neither better nor worse. `waived` is the issue of the waiver that tolerates it.
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
    rerun: str = ""
    waived: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneComparison:
    """One lane of one contract, before and after.

    `before` and `after` are the verdicts of its own limits, None where it is not there; `torch` is that of the newer
    side. `unknown` are the metrics that cannot be compared, each with why.
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
    attribution: Attribution = field(default_factory=Attribution)
    rerun: str = ""

    @property
    def newly_broken(self) -> bool:
        """Broken now, and not so before."""
        return self.verdict == "broken" and self.before != "broken"

    @property
    def compared(self) -> bool:
        """Whether both sides were measured and could be held against each other."""
        return self.verdict in ("held", "improved", "waived", "drifted") or self.newly_broken


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Every lane of either side, in order of contract and lane. `before` and `after` name the torch of each side.

    `stopped` says of each side whose tests did not run to their end why that is: then lanes may be missing of which
    nobody knows.
    """

    before: str
    after: str
    lanes: tuple[LaneComparison, ...] = ()
    stopped: tuple[str, ...] = ()

    @property
    def drifts(self) -> tuple[Drift, ...]:
        """All that is not as it was, whether it gates or not."""
        return tuple(drift for lane in self.lanes for drift in lane.drifts)

    def of(self, *verdicts: Verdict) -> tuple[LaneComparison, ...]:
        """The lanes with one of these verdicts."""
        return tuple(lane for lane in self.lanes if lane.verdict in verdicts)


def compare(before: Receipt, after: Receipt, policy: Policy = DEFAULT_POLICY) -> Comparison:
    """Every contract and lane of the two receipts, paired by name.

    Raises:
        ReceiptError: a receipt has a lane of a contract twice, as one of several environments has.
    """
    old, new = _by_lane(before), _by_lane(after)
    environments = _Environments(before, after)
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
        pair = _Pair(repeats[0], other, _EXACT, Attribution())
        for drift in pair.drifts():
            facts = drift.came or drift.went
            where = f" ({facts[0].where})" if facts else ""
            said = f"{drift.before} in repeat 1, {drift.after} in repeat {number}{where}"
            found.setdefault(drift.metric, f"{METRICS[drift.metric].label}: {said}")
        for said in pair.unknown:
            found.setdefault(said, f"{said} (repeat {number})")
    return tuple(found.values())


def torch_of(receipt: Receipt) -> str:
    """The torch that a receipt was measured with, as text; several where its environments differ."""
    names = sorted({f"torch {each.torch}" if each.torch else "no torch" for each in receipt.environments.values()})
    return ", ".join(names) or (receipt.setup.asked if receipt.setup is not None else "no torch")


def device_of(env: Environment, lane_settings: Mapping[str, object]) -> str:
    """The kind of device that a lane ran on: "cpu", or CUDA with its compute capability."""
    named = lane_settings.get("device")
    if not env.capability or (isinstance(named, str) and named.startswith("cpu")):
        return "cpu"
    return f"cuda sm{env.capability.replace('.', '')}"


def rerun_command(entry: Entry) -> str:
    """The command that runs this one lane of the contract."""
    return typed(["pytest", *options_of(entry), *as_tests(entry.test)])


def options_of(entry: Entry) -> tuple[str, ...]:
    """The options that have this one lane of the contract measured as it was, beside its test."""
    # A ladder has its lanes in the marker, and no option chooses them.
    own = entry.lane_settings.get("backend") == _BODY or entry.frontier is not None
    lane = () if own else (f"--contract-lanes={entry.lane}",)
    observe = ("--contract-observe",) if entry.limits == OBSERVED_LIMITS else ()
    repeat = (f"--contract-repeat={entry.repeats}",) if entry.repeats > 1 else ()
    return ("--compile-contracts", *observe, *lane, *repeat)


class _Environments:
    """The environments of both sides, and what differs between any two of them."""

    def __init__(self, before: Receipt, after: Receipt) -> None:
        self.before, self.after = before.environments, after.environments
        # Why a lane may be in one of the two alone, where that is known.
        self.stopped_before = before.setup.failure if before.setup is not None else ""
        self.stopped_after = after.setup.failure if after.setup is not None else ""
        self._defaults = before.defaults, after.defaults
        self._known: dict[tuple[str, str], Attribution] = {}

    def attribution(self, old: Entry, new: Entry) -> Attribution:
        pair = (old.environment, new.environment)
        if pair not in self._known:
            was, now = self.before[pair[0]], self.after[pair[1]]
            tables = [each.get(env.defaults or "", {}) for each, env in zip(self._defaults, (was, now), strict=True)]
            told = tuple(_change(*each) for each in changed_defaults(*tables))
            self._known[pair] = replace(_attribution(was, now), defaults=told)
        found = self._known[pair]
        if old.lane_settings == new.lane_settings and old.limits == new.limits:
            return found
        changed = (
            *(f"lane: {each}" for each in _differing(old.lane_settings, new.lane_settings)),
            *(f"limit: {each}" for each in _differing(old.limits, new.limits)),
        )
        return replace(found, project=(*found.project, *changed))


def changed_defaults(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """The settings that both torches have and whose defaults differ, each with the two."""
    both = sorted(before.keys() & after.keys())
    return tuple((name, before[name], after[name]) for name in both if before[name] != after[name])


def _attribution(before: Environment, after: Environment) -> Attribution:
    def differing(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(
            _change(name.replace("_", " "), getattr(before, name), getattr(after, name))
            for name in names
            if getattr(before, name) != getattr(after, name)
        )

    project = differing(("commit",))
    if not project and (before.dirty or after.dirty):
        project = ("uncommitted changes",)
    elif before.commit is None and after.commit is None:
        project = ("commit not known",)
    return Attribution(
        torch=differing(_FIELDS_OF["torch"]),
        library=(*differing(_FIELDS_OF["library"]), *_differing(before.libraries, after.libraries)),
        hardware=differing(_FIELDS_OF["hardware"]),
        settings=(
            *_differing(before.settings or {}, after.settings or {}, unset="torch's default"),
            *_differing(before.variables, after.variables, unset="not set"),
            *_differing(before.overrides, after.overrides, unset="torch's default"),
        ),
        project=project,
    )


def _differing(before: Mapping[str, object], after: Mapping[str, object], unset: str = "none") -> tuple[str, ...]:
    names = sorted({*before, *after})
    return tuple(
        _change(name, before.get(name, unset), after.get(name, unset))
        for name in names
        if (name in before) != (name in after) or before.get(name) != after.get(name)
    )


def _change(name: str, before: object, after: object) -> str:
    shown = ["none" if value is None else str(value) for value in (before, after)]
    return f"{name} {shown[0]} -> {shown[1]}"


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
    key: tuple[str, str], old: Entry | None, new: Entry | None, environments: _Environments, policy: Policy
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
        pair = _Pair(old, new, policy, attribution)
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


def _is_tuned(lane_settings: Mapping[str, object]) -> bool:
    """Whether Inductor is to time templates against libraries: which wins may be another in each run."""
    # What an option says wins over a setting.
    tables = (lane_settings.get("inductor"), lane_settings.get("options"))
    asked = {name: value for table in tables if isinstance(table, Mapping) for name, value in table.items()}
    mode = str(lane_settings.get("mode", ""))
    return mode.startswith("max-autotune") or any(asked.get(each) for each in ("max_autotune", "max_autotune_gemm"))


def _incomparable(old: Entry, new: Entry, environments: _Environments) -> tuple[Verdict | None, str]:
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


def _verdict(old: Entry, new: Entry, pair: _Pair, drifts: Sequence[Drift]) -> tuple[Verdict, str]:
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


class _Pair:
    """Two entries of the same lane: what differs, and what cannot be told."""

    def __init__(self, old: Entry, new: Entry, policy: Policy, attribution: Attribution) -> None:
        self._old, self._new = old, new
        self._policy, self._attribution = policy, attribution
        self.unknown: list[str] = []
        self.compared = 0

    @property
    def mended(self) -> bool:
        """Wrong numbers are right now, and the contract holds: what the wrong program counted is no measure."""
        was, now = self._old.measurement, self._new.measurement
        if was is None or now is None or was.numerics is None or now.numerics is None:
            return False
        return bool(was.numerics.differences) and self._new.verdict == "held"

    def _only_moved(self, before: _Facts, after: _Facts) -> bool:
        """Where a break is gone, what recompiled after it recompiles with the frame that it was in."""
        was, now = self._old.measurement, self._new.measurement
        if was is None or now is None or was.graph_breaks is None or now.graph_breaks is None:
            return False
        breaks = ([key for each in found for key in break_keys(each)] for found in (was.graph_breaks, now.graph_breaks))
        old, new = map(Counter, comparable(*breaks))
        if new - old or not old - new:
            return False
        # A recompile's key begins with its frame: file and function.
        old, new = map(Counter, comparable(*([key[:2] for key, _ in facts.of] for facts in (before, after))))
        return not new - old

    def _told_otherwise(self) -> bool:
        """Whether torch named the same guards for all recompiles, and only which of them is said to tell most differs.

        Older receipts have the oldest entry's, also where a newer one had that size free.
        """
        sides = [each.measurement.recompiles if each.measurement else None for each in (self._old, self._new)]
        if None in sides:
            return False
        was, now = comparable(*([reasons_key(each) for each in side or ()] for side in sides))
        return Counter(was) == Counter(now)

    def _had_nothing_to_recompile(self, before: _Facts, after: _Facts) -> bool:
        """Whether one side captured nothing, and so recompiled nothing, where the other captured something."""
        if None in self._graphs or (self._graphs[0] == 0) == (self._graphs[1] == 0):
            return False
        # Frames with no graph in them, for a break that comes first, may be compiled again.
        return not (before if self._graphs[0] == 0 else after).of

    @property
    def captured_nothing(self) -> bool:
        limits = self._new.limits
        allowed = limits.get("max_graphs") == 0 or limits.get("min_ops_captured") == 0
        return self._graphs == [0, 0] and not allowed

    @property
    def _graphs(self) -> list[int | None]:
        return [entry.measurement.graphs if entry.measurement else None for entry in (self._old, self._new)]

    def drifts(self) -> Iterator[Drift]:
        old, new = self._old, self._new
        yield from self._facts("errors", _errors(old), _errors(new))
        if "broken" in (old.verdict, new.verdict):
            # What a run counted until it broke off is not to be held against what a whole one counted.
            return
        yield from self._frontier()
        if old.frontier is not None and new.frontier is not None and old.frontier.climbed != new.frontier.climbed:
            # What two different lanes counted is not to be held against one another.
            return
        was, now = old.measurement or Measurement(), new.measurement or Measurement()
        # What runs no compiled graph at all runs none in its steady calls either: one side cannot be held to that.
        idle = 0 in (was.graphs_executed, now.graphs_executed)
        yield from self._facts("limits", _limits(old, but_steady=idle), _limits(new, but_steady=idle))
        yield from self._capture(was, now)
        yield from self._fullgraph(was, now)
        for metric, read in _FACTS.items():
            yield from self._facts(metric, read(was), read(now))
        for metric in BANDED:
            yield from self._banded(METRICS[metric])
        for metric in _COUNTED:
            before, after = getattr(was, metric), getattr(now, metric)
            if None not in (before, after) and before != after:
                yield self._drift(metric, "changed", before, after)

    def _facts(self, metric: str, before: _Facts | None, after: _Facts | None) -> Iterator[Drift]:
        if not self._known(metric, before, after):
            return
        assert before is not None
        assert after is not None
        came, went = _without(after.of, before.of), _without(before.of, after.of)
        if metric == "recompiles" and came and went and self._told_otherwise():
            return
        if came or went:
            direction: Direction = "worse" if came else "better"
            if metric == "recompiles" and self._only_moved(before, after):
                direction = "better" if len(went) > len(came) else "changed"
            if metric == "recompiles" and self._had_nothing_to_recompile(before, after):
                direction = "changed"
            yield self._drift(metric, direction, before.count, after.count, came=came, went=went)

    def _frontier(self) -> Iterator[Drift]:
        was, now = self._old.frontier, self._new.frontier
        if was is None and now is None:
            return
        if was is None or now is None or [step.name for step in was.steps] != [step.name for step in now.steps]:
            self.unknown.append("frontier: the ladder is another than before")
            return
        if not self._known("frontier", was, now):
            return
        # The first rung that one side left out and the other climbed at: from there on the two climb different lanes.
        pairs = [{each.verdict: each for each in pair} for pair in zip(was.steps, now.steps, strict=True)]
        left_out = next(
            (pair["unmeasured"] for pair in pairs if "unmeasured" in pair and {"held", "failed"} & {*pair}), None
        )
        if left_out is not None:
            self.unknown.append(f"frontier: {left_out.name} was not measured on both sides: {left_out.reason}")
            return
        if was.height == now.height:
            return
        lower = now if now.height < was.height else was
        if lower.failed is None:
            self.unknown.append("frontier: no rung failed where the walk stopped")
            return
        fact = Fact(
            where=f"rung {lower.failed.name}",
            source="; ".join(each.strip() for each in lower.failed.details[:2]),
            reason=lower.failed.reason or "does not hold",
        )
        worse = lower is now
        yield self._drift(
            "frontier",
            "worse" if worse else "better",
            was.reached,
            now.reached,
            came=(fact,) if worse else (),
            went=() if worse else (fact,),
        )

    def _capture(self, was: Measurement, now: Measurement) -> Iterator[Drift]:
        lost: dict[str, list[Fact]] = {"came": [], "went": []}
        for name in _CAPTURED:
            before, after = getattr(was, name), getattr(now, name)
            if self._known("capture", before, after, told=name) and (before == 0) != (after == 0):
                where = name.replace("_", " ")
                lost["came" if after == 0 else "went"].append(Fact(where=where, reason=f"{before} -> {after}"))
        came, went = tuple(lost["came"]), tuple(lost["went"])
        if came or went:
            yield self._drift("capture", "worse" if came else "better", len(went), len(came), came=came, went=went)

    def _fullgraph(self, was: Measurement, now: Measurement) -> Iterator[Drift]:
        before, after = _is_fullgraph(was), _is_fullgraph(now)
        # Its parts say what is unknown of it.
        if before is not None and after is not None and before != after:
            yield self._drift("fullgraph", "better" if after else "worse", _yes(before), _yes(after))

    def _banded(self, metric: Metric) -> Iterator[Drift]:
        """What lies beyond both sides' bands, and as much further as the policy asks for."""
        was, now = _band(self._old, metric), _band(self._new, metric)
        width = self._policy.band.get(metric.name)
        if not self._has_bands(metric, was, now, width) or not self._known(metric.name, was, now):
            return
        assert was is not None
        assert now is not None
        near = (was.high, now.low) if now.low > was.high else (was.low, now.high)
        apart = now.low > was.high or now.high < was.low
        if not apart or not abs(near[1] - near[0]) > (width or 0.0) * (max if metric.better == "higher" else min)(near):
            return
        direction: Direction = "better" if (near[1] > near[0]) == (metric.better == "higher") else "worse"
        told = was.repeats > 1 or now.repeats > 1
        came: tuple[Fact, ...] = (now.fact(),) if told else ()
        went: tuple[Fact, ...] = (was.fact(),) if told else ()
        if metric.name == "ops_captured":
            came += self._other_operations()
            if self._traced_otherwise(direction) or self._compiled_otherwise_often(direction):
                direction = "changed"
        if metric.name == "kernels_a_step":
            came += self._other_kernels()
            if tuned := any(_is_tuned(each.lane_settings) for each in (self._old, self._new)):
                came += (Fact(where="lane", reason="it chooses kernels by timing them, so their number is no promise"),)
            if tuned or self._as_eager(direction):
                direction = "changed"
        yield self._drift(metric.name, direction, was.value, now.value, came=came, went=went)

    def _has_bands(self, metric: Metric, was: _Band | None, now: _Band | None, width: float | None) -> bool:
        """Whether the metric may be compared: a number of one run has no band, and none is guessed."""
        if metric.counted and width is not None:
            return True
        single = [side for side, band in (("before", was), ("now", now)) if band is not None and band.repeats < 2]
        if single and metric.name in self._policy.gate:
            self.unknown.append(
                f"{metric.name}: no band {' and '.join(single)}, it was measured once (--contract-repeat)"
            )
        return not single

    def _other_operations(self) -> tuple[Fact, ...]:
        """The operations of which more or fewer were captured, in one fact."""
        was, now = self._old.measurement, self._new.measurement
        if was is None or now is None or was.operations is None or now.operations is None:
            return ()
        return _counted_otherwise("operations", Counter(was.operations), Counter(now.operations))

    def _other_kernels(self) -> tuple[Fact, ...]:
        """The kernels of which a step runs more or fewer, and how many eager runs if that is another number too."""
        was, now = self._kernels()
        if was is None or now is None:
            return ()
        found = _counted_otherwise("kernels", *(_unnumbered(each.compiled.names) for each in (was, now)))
        if was.eager.total != now.eager.total:
            found += (Fact(where="eager", reason=f"kernels of a step {was.eager.total} -> {now.eager.total}"),)
        return found

    def _as_eager(self, direction: Direction) -> bool:
        """Whether the kernels that came or went did so in eager too: another library is nothing of compiling's.

        By name, and never Triton's, which eager has none of. On the same torch the code that runs is another.
        """
        was, now = self._kernels()
        if was is None or now is None or not self._attribution.torch or not was.eager.total or not now.eager.total:
            return False
        left = now.compiled.total - was.compiled.total
        for name in {*was.compiled.names, *now.compiled.names}:
            ours = now.compiled.names.get(name, 0) - was.compiled.names.get(name, 0)
            eagers = now.eager.names.get(name, 0) - was.eager.names.get(name, 0)
            if ours * eagers > 0 and not name.startswith("triton_"):
                left -= min(ours, eagers) if ours > 0 else max(ours, eagers)
        return left <= 0 if direction == "worse" else left >= 0

    def _kernels(self) -> tuple[StepKernels | None, StepKernels | None]:
        was, now = (each.measurement for each in (self._old, self._new))
        return was.kernels if was else None, now.kernels if now else None

    def _traced_otherwise(self, direction: Direction) -> bool:
        """Whether another torch writes the same capture in other operations: `add_(x, alpha=a)` for `mul` and `add_`.

        Nothing can have been lost where no break or eager frame came (won: went), no fewer graphs ran (won: no more),
        and graphs are fewer by the recompiles that are fewer. On the same torch the code that is captured is another.
        """
        was, now = self._old.measurement, self._new.measurement
        if was is None or now is None or was.operations is None or now.operations is None:
            return False
        if not self._attribution.torch or None in (was.recompiles, now.recompiles, was.graphs, now.graphs):
            return False
        for read in (_FACTS["graph_breaks"], _FACTS["eager_frames"]):
            before, after = read(was), read(now)
            if before is None or after is None:
                return False
            if _without(after.of, before.of) if direction == "worse" else _without(before.of, after.of):
                return False
        fewer = len(was.recompiles or ()) - len(now.recompiles or ())
        ran = (was.graphs_executed, now.graphs_executed)
        if ran[0] is None or ran[1] is None or (ran[1] < ran[0] if direction == "worse" else ran[1] > ran[0]):
            return False
        return (was.graphs or 0) - (now.graphs or 0) == fewer

    def _compiled_otherwise_often(self, direction: Direction) -> bool:
        """Whether more operations were captured because the same code was compiled again more often, or fewer because
        it was less often, each graph as large.
        """
        was, now = self._old.measurement, self._new.measurement
        if was is None or now is None or was.recompiles is None or now.recompiles is None:
            return False
        more = len(now.recompiles) - len(was.recompiles)
        if direction == "better":
            return more > 0
        if more >= 0 or not was.graphs or not now.graphs:
            return False
        return (now.ops_captured or 0) / now.graphs >= (was.ops_captured or 0) / was.graphs

    def _known(self, metric: str, before: object, after: object, told: str = "") -> bool:
        """Whether both sides have it. Where only one has, nobody knows, if the policy asks."""
        gates = metric in self._policy.gate
        if before is not None and after is not None:
            # A limit that is not exceeded may be one that nothing was measured for.
            self.compared += gates and metric != "limits"
            return True
        if gates and (before is None) != (after is None):
            side = self._new if after is None else self._old
            if METRICS[metric].young and not _why(side, told or metric):
                return False
            when = "any more" if after is None else "before"
            self.unknown.append(f"{told or metric}: not measured {when}{_why(side, told or metric)}")
        return False

    def _drift(
        self,
        metric: str,
        direction: Direction,
        before: Value,
        after: Value,
        came: tuple[Fact, ...] = (),
        went: tuple[Fact, ...] = (),
    ) -> Drift:
        return Drift(
            contract=self._new.contract,
            lane=self._new.lane,
            metric=metric,
            direction=direction,
            before=before,
            after=after,
            gates=metric in self._policy.gate and direction != "changed" and not (direction == "worse" and self.mended),
            came=came,
            went=went,
            attribution=self._attribution,
            rerun=rerun_command(self._new),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Band:
    """Where a banded metric lay over the repeats of one side; a single value where there were none."""

    value: float
    low: float
    high: float
    repeats: int

    def fact(self) -> Fact:
        if self.repeats < 2:
            return Fact(where=f"{_short(self.value)} measured once")
        band = _short(self.low) if self.low == self.high else f"{_short(self.low)} to {_short(self.high)}"
        return Fact(where=f"{band} over {self.repeats} repeats")


def _band(entry: Entry, metric: Metric) -> _Band | None:
    value = getattr(entry.measurement, metric.name) if entry.measurement is not None else None
    if entry.repeats > 1 and metric.name in entry.spread:
        low, high = entry.spread[metric.name]
        return _Band(value=(low + high) / 2 if value is None else value, low=low, high=high, repeats=entry.repeats)
    return None if value is None else _Band(value=value, low=value, high=value, repeats=1)


def _counted_otherwise(what: str, before: Counter[str], after: Counter[str]) -> tuple[Fact, ...]:
    names = sorted({*before, *after})
    changed = [f"{name} {before[name]} -> {after[name]}" for name in names if before[name] != after[name]]
    return (Fact(where=what, reason=", ".join(changed)),) if changed else ()


def _unnumbered(names: Mapping[str, int]) -> Counter[str]:
    """Kernels by name, without the number that Inductor gives each by its place."""
    found: Counter[str] = Counter()
    for name, count in names.items():
        found[re.sub(r"(?<=^triton_)(.*)_\d+$", r"\1", name)] += count
    return found


def _short(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.3g}"


def _why(entry: Entry, metric: str) -> str:
    if entry.measurement is None:
        return ""
    name = _FIELD_OF.get(metric, metric)
    reason = entry.measurement.unmeasured.get(name, "")
    return f": {reason}" if reason else ""


def _is_fullgraph(seen: Measurement) -> bool | None:
    if seen.graphs is None or seen.graph_breaks is None or seen.lost_frames is None:
        return None
    return seen.graphs > 0 and not seen.graph_breaks and not seen.lost_frames


def _yes(value: bool) -> str:
    return "yes" if value else "no"


# Facts


def facts_of(entry: Entry) -> dict[str, tuple[tuple[Key, Fact], ...]]:
    """Every fact of an entry by its metric, each with what it is known by; a metric that was not measured is not there.

    A fact of two keys, as a graph break met under two inlined stacks, is there twice.
    """
    seen = entry.measurement or Measurement()
    found = {
        "errors": _errors(entry),
        "limits": _limits(entry, but_steady=False),
        **{metric: read(seen) for metric, read in _FACTS.items()},
    }
    return {
        metric: tuple((key, tell()) for key, tell in facts.of) for metric, facts in found.items() if facts is not None
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Facts:
    """The facts of a metric with their identities, and the number that is shown for them."""

    of: tuple[tuple[Key, Callable[[], Fact]], ...]
    count: int


def _without(facts: Sequence[tuple[Key, Callable[[], Fact]]], others: Sequence[tuple[Key, object]]) -> tuple[Fact, ...]:
    """The facts that have no like among the others; of several that are alike, as many as are more."""
    keys, other_keys = comparable([key for key, _ in facts], [key for key, _ in others])
    left = Counter(other_keys)
    alone: Counter[Fact] = Counter()
    for key, (_, fact) in zip(keys, facts, strict=True):
        if left[key] > 0:
            left[key] -= 1
        else:
            alone[fact()] += 1
    return tuple(replace(fact, reason=f"{fact.reason}{repeated(times)}".lstrip()) for fact, times in alone.items())


def _facts(found: Sequence[T] | None, key: Callable[[T], Key], tell: Callable[[T], Fact]) -> _Facts | None:
    if found is None:
        return None
    return _Facts(of=tuple((key(each), _telling(tell, each)) for each in found), count=len(found))


def _telling(tell: Callable[[T], Fact], found: T) -> Callable[[], Fact]:
    # Most facts are the same on both sides, and are never told.
    return lambda: tell(found)


def _breaks(seen: Measurement) -> _Facts | None:
    if seen.graph_breaks is None:
        return None
    of: list[tuple[Key, Callable[[], Fact]]] = []
    wrappers: set[Key] = set()
    for each in seen.graph_breaks:
        for key in break_keys(each):
            # How many breaks lie in a wrapper of Python's is torch's affair as well.
            if key[0] != WRAPPER or key not in wrappers:
                of.append((key, _telling(_break_fact, each)))
            wrappers.add(key)
    return _Facts(of=tuple(of), count=len(seen.graph_breaks))


def _break_fact(found: GraphBreak) -> Fact:
    longest = max(found.stacks, key=len, default=())
    wording = found.reason.strip() or found.kind
    return Fact(
        where=str(found.location),
        source=found.location.source.strip(),
        reason=f"{wording} ({found.registry_id})" if found.registry_id else wording,
        hint=next(iter(found.hints), ""),
        stack=tuple(map(str, until(found.location, longest)[:-1])),
    )


def _recompiles(seen: Measurement) -> _Facts | None:
    return _facts(seen.recompiles, recompile_key, _recompile_fact)


def _recompile_fact(found: Recompile) -> Fact:
    where = _place(found.location or found.frame, found.continuation)
    source = found.location.source.strip() if found.location else ""
    reason = found.guard or f"{found.kind} recompile, torch names no guard"
    return Fact(where=where, source=source, reason=reason, hint=found.meaning)


def _eager_frames(seen: Measurement) -> _Facts | None:
    return _facts(seen.lost_frames, eager_key, _eager_fact)


def _eager_fact(found: EagerFrame) -> Fact:
    place = found.location or found.frame
    where = _place(place, found.continuation)
    reason = f"ran eager, {found.cause}: {found.reason}" if found.reason else f"ran eager, {found.cause}"
    return Fact(where=where, source=place.source.strip(), reason=reason)


def _eager_ops(seen: Measurement) -> _Facts | None:
    if seen.operators_run is None:
        return None
    skipped = seen.operators_run.skipped
    found = _facts(skipped, eager_ops_key, _eager_ops_fact)
    return found and replace(found, count=sum(sum(each.operators.values()) for each in skipped))


def _eager_ops_fact(found: EagerOps) -> Fact:
    place = found.location or found.frame
    assert place is not None
    return Fact(where=str(place), source=place.source.strip(), reason=found.sentence)


def _limit_hits(seen: Measurement) -> _Facts | None:
    return _facts(seen.limit_hits, limit_hit_key, _limit_hit_fact)


def _limit_hit_fact(found: LimitHit) -> Fact:
    reason = f"{found.limit}: {found.guard}" if found.guard else found.limit
    return Fact(where=str(found.frame), source=found.frame.source.strip(), reason=reason)


def _numerics(seen: Measurement) -> _Facts | None:
    return _facts(seen.numerics.differences if seen.numerics else None, difference_key, _difference_fact)


def _difference_fact(found: Difference) -> Fact:
    return Fact(where=found.at, reason=f"{found.kind}: {found.detail}")


def _state_dict(seen: Measurement) -> _Facts | None:
    if seen.state_change is None:
        return None
    changes = [
        *(("key added", key) for key in seen.state_change.keys_added),
        *(("key removed", key) for key in seen.state_change.keys_removed),
        *((("type changed", seen.state_change.type_changed),) if seen.state_change.type_changed else ()),
    ]
    return _facts(changes, tuple, lambda change: Fact(where=change[1], reason=change[0]))


def _cuda_graphs(seen: Measurement) -> _Facts | None:
    if seen.cuda_graphs is None:
        return None
    return _facts(
        seen.cuda_graphs.failures(whole=True),
        # Not how often: a run of more steps says so more often.
        lambda each: (each[0].partition(":")[0].partition(" in ")[0], str(each[1] and each[1].source)),
        lambda each: _at(each[1], each[0]),
    )


def _host_syncs(seen: Measurement) -> _Facts | None:
    if seen.host_syncs is None:
        return None
    each_time = [sync for sync in seen.host_syncs for _ in range(sync.count)]
    return _facts(
        each_time,
        lambda each: (each.location and (each.location.file, each.location.function, each.location.source),),
        lambda each: _at(each.location, "the CPU waits for the device"),
    )


def _errors(entry: Entry) -> _Facts | None:
    seen = entry.measurement
    found: list[tuple[Key, Callable[[], Fact]]] = []
    if seen is not None and seen.raised is not None:
        raised = seen.raised
        fact = _at(raised.location, f"{raised.type}: {raised.message}")
        found.append((("raised", _last_name(raised.type)), _telling(lambda told: told, fact)))
    elif entry.verdict == "broken":
        # The test failed by itself: "the test failed in call: AssertionError: ..."
        key = ("failed", *entry.reason.split(": ")[:2])
        found.append((key, _telling(lambda reason: Fact(where=reason), entry.reason)))
    for kind, failures in (
        ("backend", seen.backend_failures if seen else None),
        ("suppressed", seen.errors_suppressed if seen else None),
    ):
        for failure in failures or ():
            found.append(((kind, *failure_key(failure)), _telling(_failure_fact, failure)))
    if (
        not found
        and entry.verdict != "broken"
        and (seen is None or None in (seen.backend_failures, seen.errors_suppressed))
    ):
        return None
    return _Facts(of=tuple(found), count=len(found))


def _failure_fact(found: CompileFailure) -> Fact:
    return Fact(
        where=str(found.frame), source=found.frame.source.strip(), reason=f"{_last_name(found.type)}: {found.message}"
    )


def _at(place: Location | None, reason: str) -> Fact:
    if place is None:
        return Fact(where=reason)
    return Fact(where=str(place), source=place.source.strip(), reason=reason)


def _place(place: Location, continuation: bool) -> str:
    return f"{place} after its graph break" if continuation else str(place)


def _last_name(dotted: str) -> str:
    return dotted.rpartition(".")[2]


def _limits(entry: Entry, *, but_steady: bool) -> _Facts:
    exceeded = [
        each
        for each in entry.violations
        if not each.limit.startswith(_NO_EXCEPTION) and not (but_steady and each.limit == _STEADY)
    ]
    found = _facts(
        exceeded,
        # "max_recompiles=0" and "max_recompiles=1" are the same promise.
        lambda each: (each.limit.partition("=")[0].partition(" (default)")[0],),
        lambda each: Fact(where=each.limit, reason=f"measured {each.measured}"),
    )
    assert found is not None
    return found


_FACTS: dict[str, Callable[[Measurement], _Facts | None]] = {
    "graph_breaks": _breaks,
    "recompiles": _recompiles,
    "eager_frames": _eager_frames,
    "eager_ops": _eager_ops,
    "limit_hits": _limit_hits,
    "numerics": _numerics,
    "state_dict": _state_dict,
    "cuda_graphs": _cuda_graphs,
    "host_syncs": _host_syncs,
}
# Under which name a measurement says why it has no such metric.
_FIELD_OF = {
    "state_dict": "state_change",
    "errors": "backend_failures",
    "eager_ops": "operators_run",
    "kernels_a_step": "kernels",
    "peak_bytes": "memory",
    "device_seconds": "speed",
}
