"""What a limit allows by default, and why a metric that it needs is not known."""

from __future__ import annotations

from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import NO_CUDA, NOT_ASKED, Measurement
from pytest_compilecontract.facts.verdict import by_default


def means_nothing(seen: Measurement, metric: str) -> bool:
    """Whether a metric is None because the device or the lane has no such thing."""
    return seen.unmeasured.get(metric) in (NO_CUDA, NOT_ASKED)


def bound_of(limits: Limits, name: str) -> tuple[float | None, str]:
    """The bound, given or by default, and how to call it; None where nothing is to be kept."""
    given: float | None = getattr(limits, name)
    if given is not None:
        return given, f"{name}={given}"
    if name == "max_eager_frames" and not limits.fullgraph:
        return 0, by_default("max_eager_frames=0")
    if name == "min_ops_captured" and limits.max_graphs != 0:
        return 1, by_default("min_ops_captured=1")
    if name == "max_memory_growth":
        return 0, by_default("max_memory_growth=0")
    return None, name


def eager_calls_allowed(limits: Limits) -> bool:
    return bool(limits.allow_recompile_limit) or bool(limits.max_eager_frames)


def not_known(seen: Measurement, metric: str) -> str:
    return f"{metric}: cannot be measured: {why_unmeasured(seen, metric)}"


def why_unmeasured(seen: Measurement, metric: str) -> str:
    return seen.unmeasured.get(metric, "nothing measured it")


def numerics_given(limits: Limits) -> bool:
    return limits.numerics != "fp64" or limits.rtol is not None or limits.atol is not None or bool(limits.check_grads)
