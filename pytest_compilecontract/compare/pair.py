"""A pair: one lane before and after, the metrics in which it differs, and those that cannot be compared."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.metrics import BANDED, KNOWN, METRICS, OF_DEVICE, PLAIN, Metric
from pytest_compilecontract.facts.receipt import Entry

from . import excuses
from .attribution import Attribution
from .bands import Band, Direction, band_of, direction_between
from .by_rank import moves
from .drift import Drift, Fact, Value
from .excuses import MENDED, Change, excuse_for, times_kernels
from .policy import Policy
from .tell import READERS, Facts, limit_of_device, read_errors, read_limits

_TIMED = Fact(where="lane", reason="it chooses kernels by timing them, so their number may differ between runs")


class Pair:
    """Two entries of the same lane: what differs, and what cannot be compared.

    On `two_devices` of different types, what depends on the device is left out.
    """

    def __init__(
        self, old: Entry, new: Entry, policy: Policy, attribution: Attribution, *, two_devices: bool = False
    ) -> None:
        self._old, self._new = old, new
        self._policy, self._attribution = policy, attribution
        self._left_out = OF_DEVICE if two_devices else frozenset()
        self.unknown: list[str] = []
        self.excused: list[str] = []
        self.compared = 0

    @property
    def captured_nothing(self) -> bool:
        limits = self._new.limits
        allowed = limits.get("max_graphs") == 0 or limits.get("min_ops_captured") == 0
        sides = [entry.measurement.graphs if entry.measurement else None for entry in (self._old, self._new)]
        return sides == [0, 0] and not allowed

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
        idle = excuses.runs_no_compiled_graph(old, new)
        if idle and excuses.steady_limit_is_left_out(old, new):
            self._leave_out("limits", excuses.NO_GRAPH)
        self._limits_of_device()
        exceeded = (read_limits(each, but_steady=idle, of_device=not self._left_out) for each in (old, new))
        yield from self._facts("limits", *exceeded)
        yield from self._capture(was, now)
        yield from self._fullgraph(was, now)
        for metric, read in READERS.items():
            yield from self._facts(metric, read(was), read(now))
        for metric in BANDED:
            yield from self._banded(METRICS[metric])
        for metric in PLAIN:
            before, after = getattr(was, metric), getattr(now, metric)
            if None not in (before, after) and before != after:
                yield self._drift(self._change(metric, "changed"), before, after)

    def _facts(self, metric: str, before: Facts | None, after: Facts | None) -> Iterator[Drift]:
        if self._is_left_out(metric, before, after) or not self._known(metric, before, after):
            return
        assert before is not None
        assert after is not None
        found = moves(before, after, self._old, self._new, READERS.get(metric))
        if not found.came and not found.went:
            return
        change = self._change(metric, "worse" if found.came else "better", found.came, found.went)
        if metric == "recompiles" and found.came and found.went and excuses.reported_differently(change):
            self._leave_out(metric, excuses.NAMED_OTHERWISE)
            return
        yield self._drift(change, found.before, found.after)

    def _frontier(self) -> Iterator[Drift]:
        was, now = self._old.frontier, self._new.frontier
        if was is None and now is None:
            return
        if was is None or now is None or [step.name for step in was.steps] != [step.name for step in now.steps]:
            self.unknown.append("frontier: the ladder has changed")
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
            self.unknown.append("frontier: the run that stopped lower has no failed rung")
            return
        fact = Fact(
            where=f"rung {lower.failed.name}",
            source="; ".join(each.strip() for each in lower.failed.details[:2]),
            reason=lower.failed.reason or "does not hold",
        )
        worse = lower is now
        came, went = ((fact,), ()) if worse else ((), (fact,))
        yield self._drift(
            self._change("frontier", "worse" if worse else "better", came, went), was.reached, now.reached
        )

    def _capture(self, was: Measurement, now: Measurement) -> Iterator[Drift]:
        lost: dict[str, list[Fact]] = {"came": [], "went": []}
        for name in PLAIN:
            before, after = getattr(was, name), getattr(now, name)
            if self._known("capture", before, after, told=name) and (before == 0) != (after == 0):
                where = name.replace("_", " ")
                lost["came" if after == 0 else "went"].append(Fact(where=where, reason=f"{before} -> {after}"))
        came, went = tuple(lost["came"]), tuple(lost["went"])
        if came or went:
            yield self._drift(self._change("capture", "worse" if came else "better", came, went), len(went), len(came))

    def _fullgraph(self, was: Measurement, now: Measurement) -> Iterator[Drift]:
        before, after = _is_fullgraph(was), _is_fullgraph(now)
        # Its parts say what is unknown of it.
        if before is not None and after is not None and before != after:
            yield self._drift(self._change("fullgraph", "better" if after else "worse"), _yes(before), _yes(after))

    def _banded(self, metric: Metric) -> Iterator[Drift]:
        """Metrics whose bands are further apart than the policy allows."""
        was, now = band_of(self._old, metric), band_of(self._new, metric)
        width = self._policy.band.get(metric.name)
        if self._is_left_out(metric.name, was, now):
            return
        if not self._has_bands(metric, was, now, width) or not self._known(metric.name, was, now):
            return
        assert was is not None
        assert now is not None
        direction = direction_between(was, now, width or 0.0, metric.better)
        if direction is None:
            return
        told = was.repeats > 1 or now.repeats > 1
        came: tuple[Fact, ...] = (Fact(where=str(now)),) if told else ()
        went: tuple[Fact, ...] = (Fact(where=str(was)),) if told else ()
        came += _facts_beside(metric.name, self._old, self._new)
        yield self._drift(self._change(metric.name, direction, came, went), was.value, now.value)

    def _has_bands(self, metric: Metric, was: Band | None, now: Band | None, width: float | None) -> bool:
        """Whether the metric can be compared: a value of a single run has no band, and none is guessed."""
        if metric.band is not None and width is not None:
            return True
        single = [side for side, band in (("before", was), ("now", now)) if band is not None and band.repeats < 2]
        if single and metric.name in self._policy.gate:
            self.unknown.append(
                f"{metric.name}: no band {' and '.join(single)}, it was measured once (--contract-repeat)"
            )
        return not single

    def _known(self, metric: str, before: object, after: object, told: str = "") -> bool:
        """Whether both sides have it. If only one has, and the policy judges it, the lane is not known."""
        gates = metric in self._policy.gate
        if before is not None and after is not None:
            # A limit that is not exceeded may be one that nothing was measured for.
            self.compared += gates and metric != "limits"
            return True
        if gates and (before is None) != (after is None):
            side = self._new if after is None else self._old
            if METRICS[metric].young and not _why(side, told or metric):
                return False
            what = "no longer measured" if after is None else "not measured before"
            self.unknown.append(f"{told or metric}: {what}{_why(side, told or metric)}")
        return False

    def _is_left_out(self, metric: str, before: object, after: object) -> bool:
        """Whether it depends on the device, and the devices are two."""
        if metric not in self._left_out:
            return False
        if metric in self._policy.gate and (before is not None or after is not None):
            self._leave_out(metric, excuses.TWO_DEVICES)
        return True

    def _limits_of_device(self) -> None:
        """Say which exceeded limits are on what depends on the device, if the devices are two."""
        if not self._left_out or "limits" not in self._policy.gate:
            return
        exceeded = sorted({each.name for entry in (self._old, self._new) for each in entry.violations})
        for name in filter(limit_of_device, exceeded):
            self.excused.append(f"{METRICS['limits'].label}: {name} ({excuses.TWO_DEVICES})")

    def _leave_out(self, metric: str, why: str) -> None:
        self.excused.append(f"{METRICS[metric].label} ({why})")

    def _change(
        self, metric: str, direction: Direction, came: tuple[Fact, ...] = (), went: tuple[Fact, ...] = ()
    ) -> Change:
        return Change(
            old=self._old,
            new=self._new,
            other_torch=bool(self._attribution.torch),
            metric=metric,
            direction=direction,
            came=came,
            went=went,
        )

    def _drift(self, change: Change, before: Value, after: Value) -> Drift:
        excuse = excuse_for(change)
        direction = excuse.becomes(change) if excuse is not None else change.direction
        gates = change.metric in self._policy.gate and direction != "changed"
        if gates and direction == "worse" and MENDED.applies(change):
            excuse, gates = MENDED, False
        return Drift(
            contract=self._new.contract,
            lane=self._new.lane,
            metric=change.metric,
            direction=direction,
            before=before,
            after=after,
            gates=gates,
            came=change.came,
            went=change.went,
            attribution=self._attribution,
            excuse=excuse.name if excuse is not None else "",
        )


def _facts_beside(metric: str, old: Entry, new: Entry) -> tuple[Fact, ...]:
    """The facts behind a count, if known: the operations or kernels of which there are more or fewer."""
    was, now = old.measurement or Measurement(), new.measurement or Measurement()
    if metric == "ops_captured":
        return _other_operations(was, now)
    if metric == "kernels_a_step":
        timed = any(times_kernels(each.lane_settings) for each in (old, new))
        return (*_other_kernels(was, now), *((_TIMED,) if timed else ()))
    return ()


def _other_operations(was: Measurement, now: Measurement) -> tuple[Fact, ...]:
    """The operations of which more or fewer were captured, in one fact."""
    if was.operations is None or now.operations is None:
        return ()
    return _counted_otherwise("operations", Counter(was.operations), Counter(now.operations))


def _other_kernels(was: Measurement, now: Measurement) -> tuple[Fact, ...]:
    """The kernels of which a step runs more or fewer, and the number of kernels in eager if that changed, too."""
    then, since = was.kernels, now.kernels
    if then is None or since is None:
        return ()
    found = _counted_otherwise("kernels", *(_unnumbered(each.compiled.names) for each in (then, since)))
    if then.eager.total != since.eager.total:
        found += (Fact(where="eager", reason=f"kernels of a step {then.eager.total} -> {since.eager.total}"),)
    return found


def _counted_otherwise(what: str, before: Counter[str], after: Counter[str]) -> tuple[Fact, ...]:
    names = sorted({*before, *after})
    changed = [f"{name} {before[name]} -> {after[name]}" for name in names if before[name] != after[name]]
    return (Fact(where=what, reason=", ".join(changed)),) if changed else ()


def _unnumbered(names: Mapping[str, int]) -> Counter[str]:
    """Kernels by name, without the number that Inductor appends."""
    found: Counter[str] = Counter()
    for name, count in names.items():
        found[re.sub(r"(?<=^triton_)(.*)_\d+$", r"\1", name)] += count
    return found


def _why(entry: Entry, metric: str) -> str:
    if entry.measurement is None:
        return ""
    name = KNOWN[metric].at if metric in KNOWN else metric
    reason = entry.measurement.unmeasured.get(name, "")
    return f": {reason}" if reason else ""


def _is_fullgraph(seen: Measurement) -> bool | None:
    if seen.graphs is None or seen.graph_breaks is None or seen.lost_frames is None:
        return None
    return seen.graphs > 0 and not seen.graph_breaks and not seen.lost_frames


def _yes(value: bool) -> str:
    return "yes" if value else "no"
