"""Stages: the time that each stage of compiling took, from torch's metrics of every compilation."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

# Each stage, the metric that has its microseconds, and that of the stage within it, whose time is its own
# (`CompilationMetrics` in torch/_dynamo/utils.py). In what compiles a backward alone, Dynamo has no part.
DYNAMO, AOT, INDUCTOR, CODE = (
    "dynamo_cumulative_compile_time_us",
    "aot_autograd_cumulative_compile_time_us",
    "inductor_cumulative_compile_time_us",
    "inductor_code_gen_cumulative_compile_time_us",
)
BACKWARD = "backward_cumulative_compile_time_us"
STAGES = {
    "dynamo": ((DYNAMO,), (AOT,)),
    "aot_autograd": ((AOT, BACKWARD), (INDUCTOR,)),
    "inductor": ((INDUCTOR,), (CODE,)),
    "code_generation": ((CODE,), ()),
}


_NAMES = frozenset(name for sides in STAGES.values() for side in sides for name in side)


class Stages:
    """Seconds of compiling since this object was created, by stage."""

    def __init__(self) -> None:
        self._before = _kept()

    def read(self) -> tuple[dict[str, float] | None, str]:
        """The seconds, or why they are not known."""
        if self._before is None:
            return None, "this torch keeps no compilation metrics"
        known, most = set(map(id, self._before)), _most_kept()
        new = [_microseconds(each) for each in _kept() or () if id(each) not in known]
        if len(new) >= most:
            return None, f"torch keeps the metrics of {most} compilations, and there were more"
        if not all(new):
            return None, "the compilation metrics of this torch have other names"
        return seconds_of(new), ""


def seconds_of(compiles: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Seconds by stage, each without its nested stages."""
    found = {}
    for stage, (whole, inner) in STAGES.items():
        took = sum(each.get(name, 0.0) for each in compiles for name in whole)
        took -= sum(each.get(name, 0.0) for each in compiles for name in inner)
        found[stage] = max(took, 0.0) / 1e6
    return found


def _microseconds(metrics: object) -> dict[str, float]:
    return {name: value for name in _NAMES if (value := getattr(metrics, name, None)) is not None}


def _utils() -> Any:
    return importlib.import_module("torch._dynamo.utils")


def _kept() -> list[object] | None:
    """The metrics of the last compilations of this process; None if torch keeps none."""
    read = getattr(_utils(), "get_compilation_metrics", None)
    return None if read is None else list(read())


def _most_kept() -> float:
    """The number of compilations for which torch keeps metrics."""
    return getattr(getattr(_utils(), "_compilation_metrics", None), "maxlen", None) or float("inf")
