"""Contracts: what an author allows compiling to do, and whether a measurement keeps to it. No torch, no pytest."""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.ladder import faults
from pytest_compilecontract.facts.measurement import (
    NO_CUDA,
    NOT_ASKED,
    EagerFrame,
    GraphBreak,
    HostSync,
    LimitHit,
    Location,
    Measurement,
    Raised,
    Recompile,
    Speed,
    StateChange,
    StepKernels,
    StepOperators,
)
from pytest_compilecontract.wording import counted, first_line, repeated

LARGEST_COUNT = 10**9
LONGEST_SHOWN = 80
Rule = Literal["fp64", "allclose", "bitwise"]
Graphs = Literal["required", "partitioned"]
Verdict = Literal["held", "violated", "broken", "unmeasured", "unverified", "unstable", "reference"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one contract allows. None means that the author did not say, and the default rule is used, if there is one.

    `numerics` is the exception: its default is "fp64", and None is the author's "do not compare". `check_grads` None
    compares gradients where the contract trains. `lanes` None is every lane that was chosen.
    """

    max_recompiles: int | None = None
    max_graph_breaks: int | None = None
    max_graphs: int | None = None
    max_eager_frames: int | None = None
    max_eager_ops: int | None = None
    min_ops_captured: int | None = None
    fullgraph: bool | None = None
    allow_recompile_limit: bool | None = None
    check_grads: bool | None = None
    check_state_dict: bool | None = None
    rtol: float | None = None
    atol: float | None = None
    numerics: Rule | None = "fp64"
    lanes: tuple[str, ...] | None = None
    frontier: tuple[str, ...] | None = None
    min_frontier: str | None = None
    capture_targets: tuple[str, ...] | None = None
    keeps_outputs: bool | None = None
    cudagraphs: Graphs | None = None
    max_kernels: int | None = None
    max_kernels_ratio: float | None = None
    max_host_syncs: int | None = None
    max_memory_ratio: float | None = None
    max_memory_growth: int | None = None
    min_speedup: float | None = None

    def to_dict(self) -> dict[str, object]:
        """The limits that the author gave, as JSON can hold them; without those that say what the default says."""
        unsaid = Limits()
        given: dict[str, object] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if value != getattr(unsaid, each.name):
                given[each.name] = list(value) if isinstance(value, tuple) else value
        return given


# What a test that is only observed allows: everything. It has no author to have said less.
OBSERVED = Limits(max_eager_frames=LARGEST_COUNT, min_ops_captured=0, allow_recompile_limit=True, numerics=None)
# The same, as an entry has it.
OBSERVED_LIMITS = OBSERVED.to_dict()


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A limit that a measurement does not keep.

    `measured` is a count, or what to say where a count says too little. `details` are lines for people: a fact starts
    at the margin, and what belongs to it follows with two spaces of indentation. They hold torch's and the user's text
    as it came.
    """

    limit: str
    measured: int | str
    details: tuple[str, ...] = ()


def limits_from(markers: Sequence[tuple[str, Mapping[str, object]]], *, test: str) -> Limits:
    """The limits of a test from its markers, outermost first, each as (where it is, its keywords); the nearer wins.

    `where` is empty for the test's own marker.

    Raises:
        UsageError: a name that is no limit, a value of the wrong type, or limits that contradict one another.
    """
    values: dict[str, Any] = {}
    for where, keywords in markers:
        at = f"{test}: {where}" if where else test
        for name, value in keywords.items():
            if name not in _LIMITS:
                raise _refusal(f"{at}: unknown limit {name!r}{_meant(name)}")
            expected, accept = _LIMITS[name]
            if name == "capture_targets" and isinstance(value, (list, tuple)):
                value = [f"{each.__module__}.{each.__qualname__}" if isinstance(each, type) else each for each in value]
            if not accept(value):
                raise _refusal(f"{at}: {name}: expected {expected}, got {_shown(value)}")
            if isinstance(value, (list, tuple)):
                # The order of a ladder is its meaning, and a rung twice a mistake.
                value = tuple(value) if name == "frontier" else tuple(dict.fromkeys(value))
            values[name] = value
    limits = Limits(**values)
    if found := "; ".join(_contradictions(limits)):
        raise _refusal(f"{test}: {found}")
    return limits


def judge(limits: Limits, measurement: Measurement, *, torch_version: str) -> tuple[Violation, ...]:
    """Every limit that the measurement does not keep, given or by default."""
    if limits == OBSERVED:
        return ()  # not even one that cannot be measured on this torch
    found = tuple(_violations(limits, measurement, f"cannot be measured on torch {torch_version}"))
    if found and measurement.raised_in_both is not None:
        first, *others = found
        return (replace(first, details=(str(measurement.raised_in_both), *first.details)), *others)
    return found


def doubts(limits: Limits, measurement: Measurement) -> tuple[str, ...]:
    """Why the lane is unverified: two ways of counting disagree, or nothing is known of what only a default judges.

    Where `calls` is None the test calls by itself: then there is nothing to compare with eager, and no call to count.
    """
    return tuple(_doubts(limits, measurement))


def verdict(measurement: Measurement, violations: Sequence[Violation], doubted: Sequence[str]) -> Verdict:
    """The verdict of a lane that ran and is judged. The worst counts: broken, violated, unverified, held."""
    if measurement.raised is not None:
        return "broken"
    if violations:
        return "violated"
    return "unverified" if doubted else "held"


def _violations(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if seen.raised is not None:
        measured = f"raised {seen.raised.type}" if not seen.raised.out_of_memory else "out of memory"
        yield Violation(limit="no exception (default)", measured=measured, details=_raised_lines(seen.raised))
    yield from _judge_fullgraph(limits, seen, unmeasurable)
    breaks = _break_lines(seen.graph_breaks or ())
    recompiles = _recompile_lines(seen.compiled_again or ())
    eager = _eager_lines(seen.eager_frames or ())
    lost = _eager_lines(seen.frames_run_eager or ())
    for limit, metric, count, details in (
        ("max_graph_breaks", "graph_breaks", _length(seen.graph_breaks), breaks),
        ("max_recompiles", "recompiles", _length(seen.compiled_again), recompiles),
        ("max_graphs", "graphs", seen.graphs, breaks + recompiles),
        ("max_eager_frames", "eager_frames", _length(seen.frames_run_eager), lost),
        ("max_eager_ops", "operators_run", seen.eager_ops, _operator_lines(seen.operators_run)),
        ("min_ops_captured", "ops_captured", seen.ops_captured, eager + breaks or _nothing_lines(seen)),
    ):
        bound, label = _bound(limits, limit)
        if bound is None:
            continue
        if count is None:
            if getattr(limits, limit) is not None:
                yield Violation(limit=label, measured=f"{unmeasurable}: {_why(seen, metric)}")
        elif count < bound if limit.startswith("min_") else count > bound:
            yield Violation(limit=label, measured=count, details=details)
    yield from _judge_limit_hits(limits, seen, unmeasurable)
    if late := _eager_calls(limits, seen):
        steady = sum(call.phase == "steady" for call in seen.calls or ())
        yield Violation(
            limit="compiled code runs in steady calls (default)",
            measured=f"{len(late)} of {counted(steady, 'steady call')} ran none",
            details=late,
        )
    yield from _judge_numerics(limits, seen, unmeasurable)
    yield from _judge_state(limits, seen, unmeasurable)
    yield from _judge_targets(limits, seen, unmeasurable)
    yield from _judge_outputs(limits, seen, unmeasurable)
    yield from _judge_device(limits, seen, unmeasurable)


def _judge_targets(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if limits.capture_targets is None:
        return
    label = f"capture_targets={list(limits.capture_targets)}"
    found = seen.capture_targets
    if found is None:
        yield Violation(limit=label, measured=f"{unmeasurable}: {_why(seen, 'capture_targets')}")
    elif found.missing:
        measured = f"{len(found.compiled)} compiled, {len(found.missing)} missing"
        details = (*(f"compiled: {name}" for name in found.compiled), *(f"missing: {name}" for name in found.missing))
        yield Violation(limit=label, measured=measured, details=details)


def _judge_outputs(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if not limits.keeps_outputs:
        return
    if seen.overwritten is None:
        if not _means_nothing(seen, "overwritten"):
            yield Violation(limit="keeps_outputs=True", measured=f"{unmeasurable}: {_why(seen, 'overwritten')}")
    elif seen.overwritten:
        measured = f"{counted(len(seen.overwritten), 'output')} changed by a later call"
        yield Violation(limit="keeps_outputs=True", measured=measured, details=seen.overwritten)


def _judge_device(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    """What only a GPU can feed. On another device these limits hold nothing: see `undecided`."""
    yield from _judge_graphs(limits, seen, unmeasurable)
    kernels, syncs, memory, speed = seen.kernels, seen.host_syncs, seen.memory, seen.speed
    values: dict[str, tuple[str, float | None, tuple[str, ...]]] = {
        "max_kernels": ("kernels", None if kernels is None else kernels.compiled.total, _kernel_lines(kernels)),
        "max_kernels_ratio": ("kernels", None if kernels is None else kernels.ratio, _kernel_lines(kernels)),
        "max_host_syncs": ("host_syncs", _sync_count(syncs), _sync_lines(syncs or ())),
        "max_memory_ratio": ("memory", None if memory is None else memory.ratio, ()),
        "max_memory_growth": ("memory", None if memory is None else memory.growth_bytes, ()),
        "min_speedup": ("speed", None if speed is None else speed.speedup, ()),
    }
    for limit, (metric, value, details) in values.items():
        given = getattr(limits, limit)
        bound = 0 if limit == "max_memory_growth" and given is None else given
        if bound is None or (value is None and (given is None or _means_nothing(seen, metric))):
            continue
        label = f"{limit}={bound}" + (" (default)" if given is None else "")
        if value is None:
            yield Violation(limit=label, measured=f"{unmeasurable}: {_why(seen, metric)}")
        elif limit == "min_speedup":
            assert seen.speed is not None
            if seen.speed.spread[1] < bound:
                yield Violation(limit=label, measured=_speed_text(seen.speed), details=_speed_lines(seen.speed))
        elif value > bound:
            yield Violation(limit=label, measured=_measured(limit, seen, value), details=details)


def _measured(limit: str, seen: Measurement, value: float) -> int | str:
    if limit == "max_kernels_ratio" and seen.kernels is not None:
        return f"{value:.2f} ({seen.kernels.compiled.total} compiled, {seen.kernels.eager.total} eager)"
    if limit == "max_memory_ratio" and seen.memory is not None:
        sizes = f"{_size(seen.memory.peak_bytes)} compiled, {_size(seen.memory.eager_peak_bytes)} eager"
        pools = f", {_size(seen.memory.pool_bytes)} of it in CUDA graphs" if seen.memory.pool_bytes else ""
        return f"{value:.2f} ({sizes}{pools})"
    if limit == "max_memory_growth":
        again = ", and CUDA graphs are recorded again" if seen.cuda_graphs and seen.cuda_graphs.recorded_again else ""
        return f"each steady step leaves {_size(int(value))} behind{again}"
    return int(value)


def _judge_graphs(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if limits.cudagraphs is None:
        return
    label = f"cudagraphs={limits.cudagraphs!r}"
    found = seen.cuda_graphs
    if found is None:
        if not _means_nothing(seen, "cuda_graphs"):
            yield Violation(limit=label, measured=f"{unmeasurable}: {_why(seen, 'cuda_graphs')}")
        return
    if found.steady is None:
        yield Violation(limit=label, measured=f"{unmeasurable}: {_why(seen, 'cuda_graphs.steady')}")
    if failures := found.failures(whole=limits.cudagraphs == "required"):
        lines: list[str] = []
        for reason, location in failures:
            lines += [reason] if location is None else [_line(location), f"  {reason}"]
        measured = f"{found.recorded} recorded, {found.replayed} replayed, {counted(len(found.skips), 'skip')}"
        yield Violation(limit=label, measured=measured, details=tuple(lines))


def _means_nothing(seen: Measurement, metric: str) -> bool:
    """Whether a metric is None because the device or the lane has no such thing."""
    return seen.unmeasured.get(metric) in (NO_CUDA, NOT_ASKED)


def undecided(limits: Limits, seen: Measurement) -> tuple[str, ...]:
    """What the verdict says nothing of: limits about a GPU, where there is none, and what other processes did."""
    asked = {
        "cudagraphs": "cuda_graphs",
        "max_kernels": "kernels",
        "max_kernels_ratio": "kernels",
        "max_host_syncs": "host_syncs",
        "max_memory_ratio": "memory",
        "max_memory_growth": "memory",
        "min_speedup": "speed",
        "keeps_outputs": "overwritten",
    }
    unjudged = (
        f"{limit} is not judged: {seen.unmeasured[metric]}"
        for limit, metric in asked.items()
        if getattr(limits, limit) is not None and _means_nothing(seen, metric)
    )
    return (*unjudged, *((seen.elsewhere,) if seen.elsewhere else ()))


def _kernel_lines(kernels: StepKernels | None) -> tuple[str, ...]:
    if kernels is None:
        return ()
    compiled = kernels.compiled
    most = sorted(compiled.names.items(), key=lambda each: (-each[1], each[0]))
    kinds = f"{compiled.triton} Triton, {compiled.library} of libraries, {compiled.copies} copies"
    return (f"{kinds}; eager {kernels.eager.total}", *(f"{count} x {name}" for name, count in most))


def _sync_count(syncs: Sequence[HostSync] | None) -> int | None:
    return None if syncs is None else sum(each.count for each in syncs)


def _sync_lines(syncs: Sequence[HostSync]) -> tuple[str, ...]:
    return tuple(
        f"{_line(each.location) if each.location else 'not in a line of the project'} ({each.count} a step)"
        for each in syncs
    )


def _speed_text(speed: Speed) -> str:
    low, high = speed.spread
    return f"{speed.speedup:.2f} ({low:.2f} to {high:.2f} in {speed.samples} pairs)"


def _speed_lines(speed: Speed) -> tuple[str, ...]:
    even = "never" if speed.break_even is None else f"after {speed.break_even} steps"
    return (
        f"eager {speed.eager.median * 1e6:.1f} us, compiled {speed.compiled.median * 1e6:.1f} us a step",
        f"compiling took {speed.compile_seconds:.1f} s and pays {even}",
    )


def _size(count: int) -> str:
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def _bound(limits: Limits, name: str) -> tuple[int | None, str]:
    """The bound, given or by default, and how to call it; None where nothing is to be kept."""
    given: int | None = getattr(limits, name)
    if given is not None:
        return given, f"{name}={given}"
    if name == "max_eager_frames" and not limits.fullgraph:
        return 0, "max_eager_frames=0 (default)"
    if name == "min_ops_captured" and limits.max_graphs != 0:
        return 1, "min_ops_captured=1 (default)"
    return None, name


def _judge_fullgraph(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if not limits.fullgraph:
        return
    counts = {
        "graph_breaks": _length(seen.graph_breaks),
        "eager_frames": _length(seen.frames_run_eager),
        "graphs": seen.graphs,
    }
    if counts["graph_breaks"] or counts["eager_frames"] or counts["graphs"] == 0:
        measured = ", ".join(
            counted(count, noun)
            for count, noun in zip(counts.values(), ("graph break", "eager frame", "graph"), strict=True)
            if count is not None
        )
        details = _break_lines(seen.graph_breaks or ()) + _eager_lines(seen.frames_run_eager or ())
        yield Violation(limit="fullgraph=True", measured=measured, details=details)
    elif None in counts.values():
        whys = dict.fromkeys(_why(seen, metric) for metric, count in counts.items() if count is None)
        yield Violation(limit="fullgraph=True", measured=f"{unmeasurable}: {'; '.join(whys)}")


def _judge_limit_hits(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if limits.allow_recompile_limit:
        return
    label = "allow_recompile_limit=False" + (" (default)" if limits.allow_recompile_limit is None else "")
    if seen.limit_hits is None:
        if limits.allow_recompile_limit is False:
            yield Violation(limit=label, measured=f"{unmeasurable}: {_why(seen, 'limit_hits')}")
    elif seen.limit_hits:
        measured = f"reached by {counted(len({hit.frame for hit in seen.limit_hits}), 'frame')}"
        yield Violation(limit=label, measured=measured, details=_limit_hit_lines(seen.limit_hits))


def _judge_numerics(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if limits.numerics is None:
        return
    found = seen.numerics
    label = _numerics_label(limits)
    if found is None:
        if _numerics_given(limits) and seen.raised is None:
            yield Violation(limit=label, measured=f"{unmeasurable}: {_why(seen, 'numerics')}")
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
            why = _why(seen, "state_change")
            yield Violation(limit="check_state_dict=True", measured=f"{unmeasurable}: {why}")
    elif seen.state_change:
        details = _state_lines(seen.state_change)
        yield Violation(limit="check_state_dict=True", measured="changed by compiling", details=details)


def _eager_calls(limits: Limits, seen: Measurement) -> tuple[str, ...]:
    """The steady calls that ran no compiled graph where one before them ran some. Calls are counted from 0."""
    if _eager_calls_allowed(limits):
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


def _eager_calls_allowed(limits: Limits) -> bool:
    return bool(limits.allow_recompile_limit) or bool(limits.max_eager_frames)


def _doubts(limits: Limits, seen: Measurement) -> Iterator[str]:
    for each in seen.disagreements:
        yield f"two ways of counting disagree: {each}"
    yield from seen.doubts
    for limit, metric, value in (
        ("max_eager_frames", "eager_frames", seen.eager_frames),
        ("min_ops_captured", "ops_captured", seen.ops_captured),
    ):
        judged_by_default = getattr(limits, limit) is None and _bound(limits, limit)[0] is not None
        if judged_by_default and value is None:
            yield _unknown(seen, metric)
    if limits.allow_recompile_limit is None and seen.limit_hits is None:
        yield _unknown(seen, "limit_hits")
    if seen.calls is None and "eager_by_request" in seen.unmeasured and limits.max_eager_frames is None:
        yield _unknown(seen, "eager_by_request")
    if limits.min_speedup is not None and seen.speed is not None:
        low, high = seen.speed.spread
        if low < limits.min_speedup <= high:
            yield f"unstable: min_speedup={limits.min_speedup} lies within the spread: {_speed_text(seen.speed)}"
    if seen.calls is None or seen.raised is not None:
        return
    if limits.numerics is not None and not _numerics_given(limits) and seen.numerics is None:
        yield _unknown(seen, "numerics")
    for each in seen.numerics.uncompared if seen.numerics is not None else ():
        yield f"not compared with eager: {each}"
    if not _eager_calls_allowed(limits) and any(call.graphs_executed is None for call in seen.calls):
        yield _unknown(seen, "graphs_executed")


def _unknown(seen: Measurement, metric: str) -> str:
    return f"{metric}: cannot be measured: {_why(seen, metric)}"


def _why(seen: Measurement, metric: str) -> str:
    return seen.unmeasured.get(metric, "nothing measured it")


def _numerics_given(limits: Limits) -> bool:
    return limits.numerics != "fp64" or limits.rtol is not None or limits.atol is not None or bool(limits.check_grads)


def _numerics_label(limits: Limits) -> str:
    tolerances = {"rtol": limits.rtol, "atol": limits.atol}
    parts = [
        f"numerics={limits.numerics!r}",
        *(f"{name}={value!r}" for name, value in tolerances.items() if value is not None),
    ]
    return ", ".join(parts) + ("" if _numerics_given(limits) else " (default)")


def _break_lines(breaks: Sequence[GraphBreak]) -> tuple[str, ...]:
    lines: list[str] = []
    for each in breaks:
        lines += [_line(each.location), f"  {first_line(each.reason) or each.kind}"]
        lines += [f"  hint: {first_line(hint)}" for hint in each.hints[:1]]
    return tuple(lines)


def _recompile_lines(recompiles: Sequence[Recompile]) -> tuple[str, ...]:
    lines: list[str] = []
    for each in recompiles:
        after = " after its graph break" if each.continuation else ""
        module = f" of {each.module}" if each.module else ""
        lines += [f"{each.frame}{module}{after}: {each.kind} recompile"]
        lines += [f"  guard: {first_line(each.guard)}" if each.guard else "  torch names no guard"]
        if each.meaning:
            lines += [f"  {each.meaning}"]
        if "___stack" in each.guard:
            lines += ["  ___stack: a value that was at hand when the graph broke, such as what the call there returned"]
        if each.location is not None:
            lines += [f"  at {_line(each.location)}"]
    return tuple(lines)


def _eager_lines(frames: Sequence[EagerFrame]) -> tuple[str, ...]:
    lines: list[str] = []
    for each, times in Counter(frames).items():
        after = " after its graph break" if each.continuation else ""
        lines += [f"{each.frame}{after}: ran eager, {each.cause}{repeated(times)}"]
        if each.reason:
            lines += [f"  {first_line(each.reason)}"]
        if each.location is not None and each.location != each.frame:
            lines += [f"  at {_line(each.location)}"]
    return tuple(lines)


def _operator_lines(found: StepOperators | None) -> tuple[str, ...]:
    lines: list[str] = []
    for each in found.groups if found is not None else ():
        place = each.location or each.frame
        lines += [_line(place) if place is not None else "not in a line of the project", f"  {each.told}"]
        lines += [f"  in {each.name}" if each.name else "  the call that broke the graph"]
    return tuple(lines)


def _nothing_lines(seen: Measurement) -> tuple[str, ...]:
    """What to say of a test in which Dynamo had nothing to do at all."""
    if seen.graphs or seen.first_compiles or seen.recompiles or seen.limit_hits:
        return ()
    if seen.elsewhere:
        return (f"nothing was compiled in this process; {seen.elsewhere}",)
    return ("nothing was compiled: no compiled function was called, or none that computes with tensors",)


def _limit_hit_lines(hits: Sequence[LimitHit]) -> tuple[str, ...]:
    lines: list[str] = []
    for each in hits:
        lines += [f"{each.frame}: {each.limit}", f"  {first_line(each.reason)}"]
        if each.guard:
            lines += [f"  guard: {first_line(each.guard)}"]
    return tuple(lines)


def _raised_lines(raised: Raised) -> tuple[str, ...]:
    message = first_line(raised.message)
    lines = [f"{raised.type}: {message}" if message else raised.type]
    if raised.location is not None:
        lines += [f"  at {_line(raised.location)}"]
    return tuple(lines)


def _state_lines(change: StateChange) -> tuple[str, ...]:
    prefix = _common_prefix(change)
    if prefix:
        lines = [f"{counted(len(change.keys_added), 'key')} with a prefix now: {prefix!r}"]
    else:
        lines = [f"key added: {key}" for key in change.keys_added]
        lines += [f"key removed: {key}" for key in change.keys_removed]
    if change.type_changed:
        lines += [f"type changed: {change.type_changed}"]
    return tuple(lines)


def _common_prefix(change: StateChange) -> str:
    """What every removed key has before it now, as the `_orig_mod.` of torch.compile's wrapper."""
    if not change.keys_removed or len(change.keys_added) != len(change.keys_removed):
        return ""
    prefix = change.keys_added[0].removesuffix(change.keys_removed[0])
    moved = all(now == prefix + was for now, was in zip(change.keys_added, change.keys_removed, strict=True))
    return prefix if moved else ""


def _line(location: Location) -> str:
    return f"{location}: {location.source.strip()}" if location.source.strip() else str(location)


def _length(facts: Sequence[object] | None) -> int | None:
    return None if facts is None else len(facts)


def _contradictions(limits: Limits) -> Iterator[str]:
    if limits.fullgraph:
        for name in ("max_graph_breaks", "max_eager_frames"):
            if value := getattr(limits, name):
                yield f"fullgraph=True contradicts {name}={value}"
        if limits.max_graphs == 0:
            yield "fullgraph=True contradicts max_graphs=0"
    if limits.numerics in (None, "bitwise"):
        for name in ("rtol", "atol"):
            value = getattr(limits, name)
            if value is not None:
                yield f"numerics={limits.numerics!r} contradicts {name}={value!r}"
    if limits.numerics is None and limits.check_grads:
        yield "numerics=None contradicts check_grads=True"
    if limits.frontier is not None:
        if limits.lanes is not None:
            yield "frontier walks a ladder of its own, and contradicts lanes"
        yield from faults(limits.frontier, limits.min_frontier)
    elif limits.min_frontier is not None:
        yield f"min_frontier={limits.min_frontier!r} needs frontier"
    if limits.min_ops_captured and limits.max_graphs == 0:
        yield f"min_ops_captured={limits.min_ops_captured} contradicts max_graphs=0"


def _refusal(message: str) -> UsageError:
    return UsageError(f"{message} (known limits: {', '.join(sorted(_LIMITS))})")


def _meant(name: str) -> str:
    close = difflib.get_close_matches(name, _LIMITS, n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _shown(value: object) -> str:
    """A value in a message, whatever it is: its `repr` may be endless, or raise."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a class of the user's, or a number with too many digits
        return f"a {type(value).__name__}"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_COUNT


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_tolerance(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


def _is_rule(value: object) -> bool:
    return value is None or (isinstance(value, str) and value in ("fp64", "allclose", "bitwise"))


def _is_factor(value: object) -> bool:
    return _is_tolerance(value) and value != 0


def _is_graphs(value: object) -> bool:
    return isinstance(value, str) and value in ("required", "partitioned")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _are_lanes(value: object) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(each, str) and each for each in value)


_COUNT = (f"a whole number from 0 to {LARGEST_COUNT}", _is_count)
_FLAG = ("True or False", _is_flag)
_TOLERANCE = ("a finite number of at least 0", _is_tolerance)
_FACTOR = ("a finite number above 0", _is_factor)
_LIMITS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "max_recompiles": _COUNT,
    "max_graph_breaks": _COUNT,
    "max_graphs": _COUNT,
    "max_eager_frames": _COUNT,
    "max_eager_ops": _COUNT,
    "min_ops_captured": _COUNT,
    "fullgraph": _FLAG,
    "allow_recompile_limit": _FLAG,
    "check_grads": _FLAG,
    "check_state_dict": _FLAG,
    "rtol": _TOLERANCE,
    "atol": _TOLERANCE,
    "numerics": ("'fp64', 'allclose', 'bitwise' or None", _is_rule),
    "lanes": ("a list of lane names", _are_lanes),
    "frontier": ("a list of rungs, the lowest first", _are_lanes),
    "min_frontier": ("the name of a rung", _is_name),
    "capture_targets": ("a list of classes, or of their names", _are_lanes),
    "keeps_outputs": _FLAG,
    "cudagraphs": ("'required' or 'partitioned'", _is_graphs),
    "max_kernels": _COUNT,
    "max_kernels_ratio": _TOLERANCE,
    "max_host_syncs": _COUNT,
    "max_memory_ratio": _FACTOR,
    "max_memory_growth": _COUNT,
    "min_speedup": _FACTOR,
}
