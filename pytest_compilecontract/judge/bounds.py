"""What a limit allows by default, and why a metric that it needs is unknown."""

from __future__ import annotations

from dataclasses import replace

from pytest_compilecontract.facts.limits import LIMITS, Limits
from pytest_compilecontract.facts.measurement import MEANINGLESS, NO_DYNAMO, Measurement
from pytest_compilecontract.facts.verdict import Bound


def means_nothing(seen: Measurement, metric: str) -> bool:
    """Whether a metric is None because it does not exist on the device or in the lane."""
    return seen.unmeasured.get(metric) in MEANINGLESS


def limits_in(limits: Limits, seen: Measurement) -> Limits:
    """The limits as they are judged in a lane of XLA's: without those on what Dynamo alone has.

    An operator that runs outside of XLA, on the CPU, is what a frame that runs in eager is to Dynamo: there is none by
    default.
    """
    if seen.unmeasured.get("eager_frames") != NO_DYNAMO:
        return limits
    none = [each.name for each in LIMITS.values() if seen.unmeasured.get(each.metric) == NO_DYNAMO]
    limits = replace(limits, **dict.fromkeys(none))
    if limits.max_eager_ops is None and seen.operators_run is not None:
        return replace(limits, max_eager_ops=0)
    return limits


def bound_of(limits: Limits, name: str) -> Bound[float] | None:
    """What a limit on a number allows, given or by default; None if there is no limit."""
    given: float | None = getattr(limits, name)
    if given is not None:
        return Bound(name=name, allows=given)
    if name == "max_eager_frames" and not limits.fullgraph:
        return Bound(name=name, allows=0, given=False)
    if name == "min_ops_captured" and limits.max_graphs != 0:
        return Bound(name=name, allows=1, given=False)
    if name == "max_memory_growth":
        return Bound(name=name, allows=0, given=False)
    return None


def eager_calls_allowed(limits: Limits) -> bool:
    return bool(limits.allow_recompile_limit) or bool(limits.max_eager_frames)


def not_known(seen: Measurement, metric: str) -> str:
    return f"{metric}: cannot be measured: {why_unmeasured(seen, metric)}"


def why_unmeasured(seen: Measurement, metric: str) -> str:
    return seen.unmeasured.get(metric, "nothing measured it")


def numerics_given(limits: Limits) -> bool:
    return limits.numerics != "fp64" or limits.rtol is not None or limits.atol is not None or bool(limits.check_grads)
