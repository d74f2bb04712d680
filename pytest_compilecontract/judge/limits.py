"""Limits checked against a measurement: each one that it exceeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_compilecontract.facts.collectives import by_kind, told_by_kind
from pytest_compilecontract.facts.limits import LIMITS, OBSERVED, Limits
from pytest_compilecontract.facts.measurement import Call, Hunted, Measurement
from pytest_compilecontract.facts.metrics import count_of
from pytest_compilecontract.facts.verdict import NO_EXCEPTION, STEADY, Bound, Facts, Violation, lines_of, violated
from pytest_compilecontract.wording import counted

from .bounds import bound_of, eager_calls_allowed, limits_in, means_nothing, numerics_given, why_unmeasured
from .budget import judge_budget
from .device import judge_device
from .structure import judge_structure
from .tell import (
    told_breaks,
    told_eager,
    told_limit_hits,
    told_nothing,
    told_operators,
    told_raised,
    told_recompiles,
    told_state,
)


def judge(limits: Limits, measurement: Measurement, *, torch_version: str) -> tuple[Violation, ...]:
    """Every limit that the measurement exceeds, given or by default."""
    if limits == OBSERVED:
        return ()  # not even one that cannot be measured on this torch
    limits = limits_in(limits, measurement)
    found = tuple(_violations(limits, measurement, f"cannot be measured on torch {torch_version}"))
    if found and measurement.raised_in_both is not None:
        first, *others = found
        found = (_told(first, (str(measurement.raised_in_both),), *first.facts), *others)
    if found and measurement.hunted is not None and measurement.hunted.counterexample:
        first, *others = found
        found = (_told(first, *first.facts, _counterexample(measurement.hunted)), *others)
    return found


def _told(violation: Violation, *facts: tuple[str, ...]) -> Violation:
    return replace(violation, facts=facts, details=lines_of(facts))


def _counterexample(hunted: Hunted) -> tuple[str, ...]:
    return ("the shortest sequence that fails:", *hunted.counterexample)


def _violations(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if seen.raised is not None:
        measured = f"raised {seen.raised.type}" if not seen.raised.out_of_memory else "out of memory"
        yield violated(Bound(name=NO_EXCEPTION, allows=None, given=False), measured, told_raised(seen.raised))
    yield from _judge_fullgraph(limits, seen, unmeasurable)
    breaks = told_breaks(seen.graph_breaks or ())
    recompiles = told_recompiles(seen.compiled_again or ())
    eager = told_eager(seen.eager_frames or ())
    lost = told_eager(seen.frames_run_eager or ())
    for limit, facts in (
        ("max_graph_breaks", breaks),
        ("max_recompiles", recompiles),
        ("max_graphs", breaks + recompiles),
        ("max_eager_frames", lost),
        ("max_eager_ops", told_operators(seen.operators_run)),
        ("min_ops_captured", eager + breaks or told_nothing(seen)),
        ("max_recomputed_graphs", ()),
    ):
        bound = bound_of(limits, limit)
        count = seen.eager_ops if limit == "max_eager_ops" else count_of(LIMITS[limit].metric, seen)
        if bound is None:
            continue
        if count is None:
            if getattr(limits, limit) is not None:
                yield violated(bound, f"{unmeasurable}: {why_unmeasured(seen, LIMITS[limit].metric)}")
        elif count < bound.allows if LIMITS[limit].bounds == "least" else count > bound.allows:
            yield violated(bound, count, facts)
    yield from _judge_limit_hits(limits, seen, unmeasurable)
    if late := _eager_calls(limits, seen):
        measured = f"{len(late)} of {counted(len(seen.calls or ()), 'call')} ran none"
        yield violated(Bound(name=STEADY, allows=None, given=False), measured, late)
    yield from _judge_numerics(limits, seen, unmeasurable)
    yield from _judge_state(limits, seen, unmeasurable)
    yield from _judge_targets(limits, seen, unmeasurable)
    yield from _judge_outputs(limits, seen, unmeasurable)
    yield from _judge_collectives(limits, seen, unmeasurable)
    yield from judge_structure(limits, seen, unmeasurable)
    yield from judge_budget(limits, seen, unmeasurable)
    yield from judge_device(limits, seen, unmeasurable)


def _judge_targets(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if limits.capture_targets is None:
        return
    bound = Bound(name="capture_targets", allows=list(limits.capture_targets))
    found = seen.capture_targets
    if found is None:
        yield violated(bound, f"{unmeasurable}: {why_unmeasured(seen, 'capture_targets')}")
    elif found.missing:
        measured = f"{len(found.compiled)} compiled, {len(found.missing)} missing"
        told = (*(f"compiled: {name}" for name in found.compiled), *(f"missing: {name}" for name in found.missing))
        yield violated(bound, measured, [(each,) for each in told])


def _judge_collectives(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    most, same, found = limits.max_collectives, limits.same_collectives, seen.collectives
    bounds = [Bound(name="max_collectives", allows=most)] if most is not None else []
    if same:
        bounds.append(Bound(name="same_collectives", allows=True))
    for bound in bounds:
        if found is None or (bound.name == "same_collectives" and found.eager is None):
            yield violated(bound, f"{unmeasurable}: {why_unmeasured(seen, 'collectives')}")
            continue
        facts = [(f"compiled: {told_by_kind(found.compiled)}", f"eager: {told_by_kind(found.eager or ())}")]
        if bound.name == "max_collectives" and most is not None and found.total > most:
            yield violated(bound, found.total, facts)
        if bound.name == "same_collectives" and by_kind(found.compiled) != by_kind(found.eager or ()):
            yield violated(bound, "not the same as in eager", facts)


def _judge_outputs(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if not limits.keeps_outputs:
        return
    bound = Bound(name="keeps_outputs", allows=True)
    if seen.overwritten is None:
        if not means_nothing(seen, "overwritten"):
            yield violated(bound, f"{unmeasurable}: {why_unmeasured(seen, 'overwritten')}")
    elif seen.overwritten:
        measured = f"{counted(len(seen.overwritten), 'output')} changed by a later call"
        yield violated(bound, measured, [(each,) for each in seen.overwritten])


def _judge_fullgraph(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if not limits.fullgraph:
        return
    bound = Bound(name="fullgraph", allows=True)
    counts = {metric: count_of(metric, seen) for metric in ("graph_breaks", "eager_frames", "graphs")}
    if counts["graph_breaks"] or counts["eager_frames"] or counts["graphs"] == 0:
        measured = ", ".join(
            counted(count, noun)
            for count, noun in zip(counts.values(), ("graph break", "eager frame", "graph"), strict=True)
            if count is not None
        )
        facts = told_breaks(seen.graph_breaks or ()) + told_eager(seen.frames_run_eager or ())
        yield violated(bound, measured, facts)
    elif None in counts.values():
        unknown = [each for each, count in counts.items() if count is None and not means_nothing(seen, each)]
        whys = dict.fromkeys(why_unmeasured(seen, metric) for metric in unknown)
        if not whys:
            return
        yield violated(bound, f"{unmeasurable}: {'; '.join(whys)}")


def _judge_limit_hits(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if limits.allow_recompile_limit:
        return
    bound = Bound(name="allow_recompile_limit", allows=False, given=limits.allow_recompile_limit is not None)
    if seen.limit_hits is None:
        if limits.allow_recompile_limit is False:
            yield violated(bound, f"{unmeasurable}: {why_unmeasured(seen, 'limit_hits')}")
    elif seen.limit_hits:
        measured = f"reached by {counted(len({hit.frame for hit in seen.limit_hits}), 'frame')}"
        yield violated(bound, measured, told_limit_hits(seen.limit_hits))


def _judge_numerics(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if limits.numerics is None:
        return
    found = seen.numerics
    bound = _bound_of_numerics(limits)
    if found is None:
        if numerics_given(limits) and seen.raised is None:
            yield violated(bound, f"{unmeasurable}: {why_unmeasured(seen, 'numerics')}")
    elif found.differences:
        measured = counted(len(found.differences), "difference")
        # Where all bits are the same, and something else differs, no rule was asked.
        asked = found.method == limits.numerics or found.method != "bitwise"
        if asked and (found.method != limits.numerics or found.note):
            measured += f", judged by {found.method}"
        measured += f" ({found.note})" if found.note else ""
        yield violated(bound, measured, [(f"{each.at}: {each.kind}: {each.detail}",) for each in found.differences])


def _judge_state(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if not limits.check_state_dict:
        return
    bound = Bound(name="check_state_dict", allows=True)
    if seen.state_change is None:
        if seen.raised is None:
            why = why_unmeasured(seen, "state_change")
            yield violated(bound, f"{unmeasurable}: {why}")
    elif seen.state_change:
        yield violated(bound, "changed by compiling", told_state(seen.state_change))


def _eager_calls(limits: Limits, seen: Measurement) -> Facts:
    """The calls of compiled callables that ran no compiled graph. Calls are counted from 0.

    A callable without tensor operations is left out: Dynamo tried to compile it, and none of its calls ran a graph.
    Graphs that only ran outside the calls, such as in a trial, do not count. Graphs that ran nowhere, such as those
    captured by torch's `aot_compile`, are not judged here.
    """
    calls = seen.calls or ()
    if not calls or any(call.graphs_executed is None for call in calls):
        return ()
    needed = bound_of(limits, "min_ops_captured")
    captured = (seen.graphs or 0) if needed is not None and needed.allows and seen.graphs_executed else 0
    outside = captured > 0 and not any(call.graphs_executed for call in calls)
    if eager_calls_allowed(limits) and not outside:
        return ()
    # Of a call that compiled something, these say what became of it.
    told = seen.frames_run_eager or seen.limit_hits
    found: list[tuple[str]] = []
    for numbers in _callees(calls):
        idle = [each for each in numbers if not calls[each].graphs_executed and not calls[each].raised]
        ran = next((each for each in numbers if calls[each].graphs_executed), None)
        if ran is not None:
            first = "" if ran else " (the first)"
            why = f"call {ran}{first} ran {counted(calls[ran].graphs_executed or 0, 'compiled graph')}"
            idle = [each for each in idle if not told or calls[each].attempted is False]
        elif outside:
            why = f"{counted(captured, 'graph')} ran outside the calls"
        elif captured and not seen.eager_frames and all(calls[each].attempted is False for each in idle):
            why = "and Dynamo did not try to compile it"
        else:
            continue
        found += [(f"call {each}: ran no compiled graph, {why}",) for each in idle]
    return tuple(found)


def _callees(calls: Sequence[Call]) -> list[range]:
    """The numbers of the calls of each compiled callable: its first call is cold."""
    starts = [number for number, call in enumerate(calls) if call.phase == "cold" or not number]
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(calls)], strict=True)]


def _bound_of_numerics(limits: Limits) -> Bound[str | None]:
    tolerances = {"rtol": limits.rtol, "atol": limits.atol}
    also = {name: value for name, value in tolerances.items() if value is not None}
    return Bound(name="numerics", allows=limits.numerics, also=also, given=numerics_given(limits))
