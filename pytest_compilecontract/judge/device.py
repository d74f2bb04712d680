"""Limits that need a GPU, checked against a measurement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_compilecontract.facts.limits import LIMITS, Limits
from pytest_compilecontract.facts.measurement import NO_DYNAMO, HostSync, Measurement, Speed, StepKernels
from pytest_compilecontract.facts.verdict import Bound, Facts, Violation, violated
from pytest_compilecontract.wording import counted

from .bounds import bound_of, means_nothing, why_unmeasured
from .tell import NOWHERE, told_line


def judge_device(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    """Judge the limits that only a GPU can measure. On another device they are not judged: see `undecided`."""
    yield from _judge_graphs(limits, seen, unmeasurable)
    kernels, syncs, memory, speed = seen.kernels, seen.host_syncs, seen.memory, seen.speed
    values: dict[str, tuple[float | None, Facts]] = {
        "max_kernels": (None if kernels is None else kernels.compiled.total, _told_kernels(kernels)),
        "max_kernels_ratio": (None if kernels is None else kernels.ratio, _told_kernels(kernels)),
        "max_host_syncs": (_sync_count(syncs), _told_syncs(syncs or ())),
        "max_memory_ratio": (None if memory is None else memory.ratio, ()),
        "max_memory_growth": (None if memory is None else memory.growth_bytes, ()),
        "min_speedup": (None if speed is None else speed.speedup, ()),
    }
    for limit, (value, facts) in values.items():
        given, metric = getattr(limits, limit), LIMITS[limit].metric
        bound = bound_of(limits, limit)
        if bound is None or (value is None and (given is None or means_nothing(seen, metric))):
            continue
        if value is None:
            yield violated(bound, f"{unmeasurable}: {why_unmeasured(seen, metric)}")
        elif limit == "min_speedup":
            assert seen.speed is not None
            if seen.speed.spread[1] < bound.allows:
                yield violated(bound, speed_text(seen.speed), _told_speed(seen.speed))
        elif value > bound.allows:
            yield violated(bound, _measured(limit, seen, value), facts)


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
    bound = Bound(name="cudagraphs", allows=limits.cudagraphs)
    found = seen.cuda_graphs
    if found is None:
        if not means_nothing(seen, "cuda_graphs"):
            yield violated(bound, f"{unmeasurable}: {why_unmeasured(seen, 'cuda_graphs')}")
        return
    if found.steady is None:
        yield violated(bound, f"{unmeasurable}: {why_unmeasured(seen, 'cuda_graphs.steady')}")
    if failures := found.failures(whole=limits.cudagraphs == "required"):
        measured = f"{found.recorded} recorded, {found.replayed} replayed, {counted(len(found.skips), 'skip')}"
        told = [(str(each),) if each.location is None else (told_line(each.location), str(each)) for each in failures]
        yield violated(bound, measured, told)


def undecided(limits: Limits, seen: Measurement) -> tuple[str, ...]:
    """What the verdict does not cover: limits that need a GPU if there is none, and what other processes did."""
    told = (f"{name} is not judged: {why}" for name, why in unjudged(limits.to_dict(), seen))
    return (*told, *((seen.elsewhere,) if seen.elsewhere else ()))


def unjudged(limits: Mapping[str, object], seen: Measurement) -> tuple[tuple[str, str], ...]:
    """The limits that were given and not judged, because the device or the lane has no such thing; each with why."""
    return tuple(
        (limit.name, seen.unmeasured[limit.metric])
        for limit in LIMITS.values()
        if limits.get(limit.name) is not None
        and means_nothing(seen, limit.metric)
        and (limit.optional or seen.unmeasured[limit.metric] == NO_DYNAMO)
    )


def _told_kernels(kernels: StepKernels | None) -> Facts:
    if kernels is None:
        return ()
    compiled = kernels.compiled
    most = sorted(compiled.names.items(), key=lambda each: (-each[1], each[0]))
    kinds = f"{compiled.triton} Triton, {compiled.library} library, {compiled.copies} copies"
    return ((f"{kinds}; eager {kernels.eager.total}",), *((f"{count} x {name}",) for name, count in most))


def _sync_count(syncs: Sequence[HostSync] | None) -> int | None:
    return None if syncs is None else sum(each.count for each in syncs)


def _told_syncs(syncs: Sequence[HostSync]) -> Facts:
    return tuple(
        (f"{told_line(each.location) if each.location else NOWHERE} ({each.count} per step)",) for each in syncs
    )


def speed_text(speed: Speed) -> str:
    low, high = speed.spread
    return f"{speed.speedup:.2f} ({low:.2f} to {high:.2f} in {speed.samples} pairs)"


def _told_speed(speed: Speed) -> Facts:
    even = "never pays off" if speed.break_even is None else f"pays off after {speed.break_even} steps"
    return (
        (f"eager {speed.eager.median * 1e6:.1f} us, compiled {speed.compiled.median * 1e6:.1f} us per step",),
        (f"compiling took {speed.compile_seconds:.1f} s and {even}",),
    )


def _size(count: int) -> str:
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
