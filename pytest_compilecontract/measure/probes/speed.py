"""Speed: steady steps timed on the device, eager and compiled alternately. Only on request: it takes many steps.

Each sample is a step between two CUDA events. The L2 cache is overwritten before it, so that nothing of the previous
step is cached; meanwhile the CPU starts launching. A step whose launches take longer than its kernels is as slow as its
launches. Eager and compiled alternate, so that a change of the clock affects both.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pytest_compilecontract import clock
from pytest_compilecontract.facts.measurement import Timing

SAMPLES = 60
WARM = 5
SECONDS = 20.0
L2_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A step that can be repeated, and the context that it needs, which is not timed."""

    run: Callable[[], object]
    around: Callable[[], AbstractContextManager[object]]

    def __call__(self) -> object:
        with self.around():
            return self.run()


def timing(samples: Sequence[float]) -> Timing:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(median=median, low=low, high=high)


def timed(
    eager: Step,
    compiled: Step,
    *,
    samples: int = SAMPLES,
    seconds: float = SECONDS,
) -> tuple[list[float], list[float]]:
    """Device seconds of each step, eager and compiled; fewer samples than requested if they take too long."""
    import torch

    flush = torch.empty(L2_BYTES, dtype=torch.int8, device="cuda")
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(WARM):
        for step in (eager, compiled):
            step()
    torch.cuda.synchronize()
    deadline = clock.seconds() + seconds
    while len(found[1]) < samples and clock.seconds() < deadline:
        for step, kept in zip((eager, compiled), found, strict=True):
            kept.append(_once(step, flush))
    return found


def _once(step: Step, flush: Any) -> float:
    import torch

    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    with step.around():
        flush.zero_()
        start.record()
        step.run()
        end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000
