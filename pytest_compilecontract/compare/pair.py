"""A pair: one lane before and after: in which metrics it differs, and what cannot be told."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_compilecontract.facts.measurement import Measurement, StepKernels
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.rerun import rerun_command

from .attribution import Attribution
from .drift import Direction, Drift, Fact, Value
from .identity import break_keys, comparable, reasons_key
from .policy import BANDED, METRICS, Metric, Policy
from .tell import READERS, Facts, read_errors, read_limits, without

_CAPTURED: tuple[str, ...] = ("graphs", "graphs_executed", "backward_graphs")
_COUNTED: tuple[str, ...] = ("graphs", "backward_graphs", "graphs_executed")


def _is_tuned(lane_settings: Mapping[str, object]) -> bool:
    """Whether Inductor is to time templates against libraries: which wins may be another in each run."""
    # What an option says wins over a setting.
    tables = (lane_settings.get("inductor"), lane_settings.get("options"))
    asked = {name: value for table in tables if isinstance(table, Mapping) for name, value in table.items()}
    mode = str(lane_settings.get("mode", ""))
    return mode.startswith("max-autotune") or any(asked.get(each) for each in ("max_autotune", "max_autotune_gemm"))


class Pair:
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

    def _only_moved(self, before: Facts, after: Facts) -> bool:
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

    def _had_nothing_to_recompile(self, before: Facts, after: Facts) -> bool:
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
        yield from self._facts("errors", read_errors(old), read_errors(new))
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
        yield from self._facts("limits", read_limits(old, but_steady=idle), read_limits(new, but_steady=idle))
        yield from self._capture(was, now)
        yield from self._fullgraph(was, now)
        for metric, read in READERS.items():
            yield from self._facts(metric, read(was), read(now))
        for metric in BANDED:
            yield from self._banded(METRICS[metric])
        for metric in _COUNTED:
            before, after = getattr(was, metric), getattr(now, metric)
            if None not in (before, after) and before != after:
                yield self._drift(metric, "changed", before, after)

    def _facts(self, metric: str, before: Facts | None, after: Facts | None) -> Iterator[Drift]:
        if not self._known(metric, before, after):
            return
        assert before is not None
        assert after is not None
        came, went = without(after.of, before.of), without(before.of, after.of)
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
        for read in (READERS["graph_breaks"], READERS["eager_frames"]):
            before, after = read(was), read(now)
            if before is None or after is None:
                return False
            if without(after.of, before.of) if direction == "worse" else without(before.of, after.of):
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
            return Fact(where=f"{short_number(self.value)} measured once")
        band = (
            short_number(self.low)
            if self.low == self.high
            else f"{short_number(self.low)} to {short_number(self.high)}"
        )
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


def short_number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.3g}"


def _why(entry: Entry, metric: str) -> str:
    if entry.measurement is None:
        return ""
    name = FIELD_OF.get(metric, metric)
    reason = entry.measurement.unmeasured.get(name, "")
    return f": {reason}" if reason else ""


def _is_fullgraph(seen: Measurement) -> bool | None:
    if seen.graphs is None or seen.graph_breaks is None or seen.lost_frames is None:
        return None
    return seen.graphs > 0 and not seen.graph_breaks and not seen.lost_frames


def _yes(value: bool) -> str:
    return "yes" if value else "no"


# Under which name a measurement says why it has no such metric.
FIELD_OF = {
    "state_dict": "state_change",
    "errors": "backend_failures",
    "eager_ops": "operators_run",
    "kernels_a_step": "kernels",
    "peak_bytes": "memory",
    "device_seconds": "speed",
}
