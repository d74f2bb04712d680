"""Verdicts: derived from the violations and doubts of a lane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import Location, Measurement
from pytest_compilecontract.facts.verdict import Verdict, Violation

from .bounds import bound_of, eager_calls_allowed, means_nothing, not_known, numerics_given
from .device import speed_text

# Where torch's own code computes what a model does; that of optimizers, for instance, Dynamo compiles as the project's.
_LAYERS = ("torch/nn/modules/", "torch/nn/utils/", "torch/nn/functional.py", "torch/distributions/")


def doubts(limits: Limits, measurement: Measurement) -> tuple[str, ...]:
    """Why the lane is unverified: two independent counts disagree, or a metric with only a default limit is unknown.

    If `calls` is None the test makes its own calls: then there is nothing to compare with eager, and no call to count.
    """
    return tuple(_doubts(limits, measurement))


def verdict(measurement: Measurement, violations: Sequence[Violation], doubted: Sequence[str]) -> Verdict:
    """The verdict of a lane that ran and is judged: the worst of broken, violated, unverified, held."""
    if measurement.raised is not None:
        return "broken"
    if violations:
        return "violated"
    return "unverified" if doubted else "held"


def _doubts(limits: Limits, seen: Measurement) -> Iterator[str]:
    for each in seen.disagreements:
        yield f"two independent counts disagree: {each}"
    yield from seen.doubts
    for limit, metric, value in (
        ("max_eager_frames", "eager_frames", seen.eager_frames),
        ("min_ops_captured", "ops_captured", seen.ops_captured),
    ):
        judged_by_default = getattr(limits, limit) is None and bound_of(limits, limit) is not None
        if judged_by_default and value is None and not means_nothing(seen, metric):
            yield not_known(seen, metric)
    if limits.allow_recompile_limit is None and seen.limit_hits is None and not means_nothing(seen, "limit_hits"):
        yield not_known(seen, "limit_hits")
    if seen.calls is None and "eager_by_request" in seen.unmeasured and limits.max_eager_frames is None:
        yield not_known(seen, "eager_by_request")
    yield from _unseen(limits, seen)
    if limits.min_speedup is not None and seen.speed is not None:
        low, high = seen.speed.spread
        if low < limits.min_speedup <= high:
            yield f"unstable: min_speedup={limits.min_speedup} lies within the spread: {speed_text(seen.speed)}"
    if seen.calls is None or seen.raised is not None:
        return
    if limits.numerics is not None and not numerics_given(limits) and seen.numerics is None:
        yield not_known(seen, "numerics")
    for each in seen.numerics.uncompared if seen.numerics is not None else ():
        yield f"not compared with eager: {each}"
    if not eager_calls_allowed(limits) and any(call.graphs_executed is None for call in seen.calls):
        yield not_known(seen, "graphs_executed")


def _unseen(limits: Limits, seen: Measurement) -> Iterator[str]:
    """Breaks below torch's own code, which Dynamo then skips, where nothing recorded what ran in eager."""
    # Where the runner has a doubt, that is enough.
    if limits.max_eager_frames or seen.operators_run is not None or seen.raised is not None or seen.doubts:
        return
    why = seen.unmeasured.get("operators_run", "the test makes its own calls")
    for each in seen.graph_breaks or ():
        torchs = [frame for stack in each.stacks for frame in stack[1:] if _is_skipped(frame)]
        if torchs:
            at, inside = each.location, torchs[0]
            yield (
                f"what ran in eager in {inside.function} of {inside.file} is unknown: it is torch's own code and broke "
                f"at {at.file}:{at.line}, and {why}; max_eager_frames=1 allows it"
            )


def _is_skipped(frame: Location) -> bool:
    # A module's call alone, as of one that has hooks or is disabled, may lead to the project's forward.
    return frame.file.startswith(_LAYERS) and frame.file != "torch/nn/modules/module.py"
