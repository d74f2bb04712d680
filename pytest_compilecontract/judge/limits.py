"""Limits held against a measurement: each one that it does not keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_compilecontract.facts.limits import LIMITS, OBSERVED, Limits
from pytest_compilecontract.facts.measurement import Hunted, Measurement
from pytest_compilecontract.facts.metrics import count_of
from pytest_compilecontract.facts.verdict import NO_EXCEPTION, STEADY, Violation, by_default
from pytest_compilecontract.wording import counted

from .bounds import bound_of, eager_calls_allowed, means_nothing, numerics_given, why_unmeasured
from .device import judge_device
from .tell import (
    break_lines,
    eager_lines,
    limit_hit_lines,
    nothing_lines,
    operator_lines,
    raised_lines,
    recompile_lines,
    state_lines,
)


def judge(limits: Limits, measurement: Measurement, *, torch_version: str) -> tuple[Violation, ...]:
    """Every limit that the measurement does not keep, given or by default."""
    if limits == OBSERVED:
        return ()  # not even one that cannot be measured on this torch
    found = tuple(_violations(limits, measurement, f"cannot be measured on torch {torch_version}"))
    if found and measurement.raised_in_both is not None:
        first, *others = found
        found = (replace(first, details=(str(measurement.raised_in_both), *first.details)), *others)
    if found and measurement.hunted is not None and measurement.hunted.counterexample:
        first, *others = found
        found = (replace(first, details=(*first.details, *_counterexample(measurement.hunted))), *others)
    return found


def _counterexample(hunted: Hunted) -> tuple[str, ...]:
    return (
        "the shortest that was found to fail:",
        *map("  {}".format, hunted.counterexample),
    )


def _violations(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if seen.raised is not None:
        measured = f"raised {seen.raised.type}" if not seen.raised.out_of_memory else "out of memory"
        yield Violation(limit=by_default(NO_EXCEPTION), measured=measured, details=raised_lines(seen.raised))
    yield from _judge_fullgraph(limits, seen, unmeasurable)
    breaks = break_lines(seen.graph_breaks or ())
    recompiles = recompile_lines(seen.compiled_again or ())
    eager = eager_lines(seen.eager_frames or ())
    lost = eager_lines(seen.frames_run_eager or ())
    for limit, details in (
        ("max_graph_breaks", breaks),
        ("max_recompiles", recompiles),
        ("max_graphs", breaks + recompiles),
        ("max_eager_frames", lost),
        ("max_eager_ops", operator_lines(seen.operators_run)),
        ("min_ops_captured", eager + breaks or nothing_lines(seen)),
    ):
        bound, label = bound_of(limits, limit)
        count = seen.eager_ops if limit == "max_eager_ops" else count_of(LIMITS[limit].metric, seen)
        if bound is None:
            continue
        if count is None:
            if getattr(limits, limit) is not None:
                yield Violation(limit=label, measured=f"{unmeasurable}: {why_unmeasured(seen, LIMITS[limit].metric)}")
        elif count < bound if limit.startswith("min_") else count > bound:
            yield Violation(limit=label, measured=count, details=details)
    yield from _judge_limit_hits(limits, seen, unmeasurable)
    if late := _eager_calls(limits, seen):
        steady = sum(call.phase == "steady" for call in seen.calls or ())
        yield Violation(
            limit=by_default(STEADY),
            measured=f"{len(late)} of {counted(steady, 'steady call')} ran none",
            details=late,
        )
    yield from _judge_numerics(limits, seen, unmeasurable)
    yield from _judge_state(limits, seen, unmeasurable)
    yield from _judge_targets(limits, seen, unmeasurable)
    yield from _judge_outputs(limits, seen, unmeasurable)
    yield from judge_device(limits, seen, unmeasurable)


def _judge_targets(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if limits.capture_targets is None:
        return
    label = f"capture_targets={list(limits.capture_targets)}"
    found = seen.capture_targets
    if found is None:
        yield Violation(limit=label, measured=f"{unmeasurable}: {why_unmeasured(seen, 'capture_targets')}")
    elif found.missing:
        measured = f"{len(found.compiled)} compiled, {len(found.missing)} missing"
        details = (*(f"compiled: {name}" for name in found.compiled), *(f"missing: {name}" for name in found.missing))
        yield Violation(limit=label, measured=measured, details=details)


def _judge_outputs(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if not limits.keeps_outputs:
        return
    if seen.overwritten is None:
        if not means_nothing(seen, "overwritten"):
            yield Violation(
                limit="keeps_outputs=True", measured=f"{unmeasurable}: {why_unmeasured(seen, 'overwritten')}"
            )
    elif seen.overwritten:
        measured = f"{counted(len(seen.overwritten), 'output')} changed by a later call"
        yield Violation(limit="keeps_outputs=True", measured=measured, details=seen.overwritten)


def _judge_fullgraph(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if not limits.fullgraph:
        return
    counts = {metric: count_of(metric, seen) for metric in ("graph_breaks", "eager_frames", "graphs")}
    if counts["graph_breaks"] or counts["eager_frames"] or counts["graphs"] == 0:
        measured = ", ".join(
            counted(count, noun)
            for count, noun in zip(counts.values(), ("graph break", "eager frame", "graph"), strict=True)
            if count is not None
        )
        details = break_lines(seen.graph_breaks or ()) + eager_lines(seen.frames_run_eager or ())
        yield Violation(limit="fullgraph=True", measured=measured, details=details)
    elif None in counts.values():
        whys = dict.fromkeys(why_unmeasured(seen, metric) for metric, count in counts.items() if count is None)
        yield Violation(limit="fullgraph=True", measured=f"{unmeasurable}: {'; '.join(whys)}")


def _judge_limit_hits(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if limits.allow_recompile_limit:
        return
    label = "allow_recompile_limit=False"
    if limits.allow_recompile_limit is None:
        label = by_default(label)
    if seen.limit_hits is None:
        if limits.allow_recompile_limit is False:
            yield Violation(limit=label, measured=f"{unmeasurable}: {why_unmeasured(seen, 'limit_hits')}")
    elif seen.limit_hits:
        measured = f"reached by {counted(len({hit.frame for hit in seen.limit_hits}), 'frame')}"
        yield Violation(limit=label, measured=measured, details=limit_hit_lines(seen.limit_hits))


def _judge_numerics(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if limits.numerics is None:
        return
    found = seen.numerics
    label = _numerics_label(limits)
    if found is None:
        if numerics_given(limits) and seen.raised is None:
            yield Violation(limit=label, measured=f"{unmeasurable}: {why_unmeasured(seen, 'numerics')}")
    elif found.differences:
        measured = counted(len(found.differences), "difference")
        if found.method != limits.numerics or found.note:
            measured += f", judged by {found.method}" + (f" ({found.note})" if found.note else "")
        details = tuple(f"{each.at}: {each.kind}: {each.detail}" for each in found.differences)
        yield Violation(limit=label, measured=measured, details=details)


def _judge_state(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if not limits.check_state_dict:
        return
    if seen.state_change is None:
        if seen.raised is None:
            why = why_unmeasured(seen, "state_change")
            yield Violation(limit="check_state_dict=True", measured=f"{unmeasurable}: {why}")
    elif seen.state_change:
        details = state_lines(seen.state_change)
        yield Violation(limit="check_state_dict=True", measured="changed by compiling", details=details)


def _eager_calls(limits: Limits, seen: Measurement) -> tuple[str, ...]:
    """The steady calls that ran no compiled graph where one before them ran some. Calls are counted from 0."""
    if eager_calls_allowed(limits):
        return ()
    late: list[str] = []
    first: tuple[int, int] | None = None
    for number, call in enumerate(seen.calls or ()):
        if call.phase == "cold":
            first = None
        if first is None and call.graphs_executed:
            first = number, call.graphs_executed
        elif call.phase == "steady" and call.graphs_executed == 0 and first is not None:
            executed = counted(first[1], "compiled graph")
            ran = f"call {first[0]}{'' if first[0] else ' (the first)'} ran {executed}"
            late.append(f"call {number}: ran no compiled graph, {ran}")
    return tuple(late)


def _numerics_label(limits: Limits) -> str:
    tolerances = {"rtol": limits.rtol, "atol": limits.atol}
    parts = [
        f"numerics={limits.numerics!r}",
        *(f"{name}={value!r}" for name, value in tolerances.items() if value is not None),
    ]
    label = ", ".join(parts)
    return label if numerics_given(limits) else by_default(label)
