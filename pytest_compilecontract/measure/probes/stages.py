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


# Of one lane, where torch by itself keeps the last 64 of the process.
MOST = 4096


class Stages:
    """Seconds of compiling from here to `stop`, by stage. Until then torch keeps the metrics of more compilations."""

    def __init__(self) -> None:
        self._before = _kept()
        self._found: tuple[dict[str, float] | None, str] | None = None
        self._limit = _limit()
        if self._limit is not None and self._limit < MOST:
            # One more than is counted: what is full may be all that there is.
            _keep(MOST + 1)

    def stop(self) -> None:
        """Read them for the last time, and let torch keep as many metrics as before."""
        self._found = self.read()
        # A limit that the test has set is the test's.
        if self._limit is not None and self._limit < MOST and _limit() == MOST + 1:
            _keep(self._limit)

    def read(self) -> tuple[dict[str, float] | None, str]:
        """The seconds, or why they are not known."""
        if self._found is not None:
            return self._found
        if self._before is None:
            return None, "this torch keeps no compilation metrics"
        known, most = set(map(id, self._before)), _limit()
        kept = _kept() or []
        added = [each for each in kept if id(each) not in known]
        # At run time Triton's kernels are tuned and CUDA graphs recorded, which is no stage of compiling.
        new = [_microseconds(each) for each in added if not getattr(each, "is_runtime", False)]
        if most is not None and len(added) >= most:
            return None, f"torch keeps the metrics of {most} compilations, and there may have been more"
        if not all(new):
            return None, "the compilation metrics of this torch have other names"
        if self._before and not any(each is self._before[-1] for each in kept):
            return None, "the test cleared torch's compilation metrics"
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


def _limit() -> int | None:
    """The number of compilations for which torch keeps metrics; None if that is not known."""
    return getattr(getattr(_utils(), "_compilation_metrics", None), "maxlen", None)


def _keep(most: int) -> None:
    """Let torch keep the metrics of so many compilations, if it can be told to."""
    if (limited := getattr(_utils(), "set_compilation_metrics_limit", None)) is not None:
        limited(most)
