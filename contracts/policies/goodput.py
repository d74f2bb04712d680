"""Goodput: where the wall time of a run goes, in parts that add up to the whole.

with Goodput() as run:
    for number, batch in enumerate(batches):
        with run.step():
            train(batch)
        if number % 100 == 99:
            with run.checkpoint():
                save(model)
print(run.told())
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch._dynamo.callback import CallbackArgs, callback_handler

PARTS = ("compile", "warm-up", "checkpoint", "steady")


def synchronized() -> float:
    """Seconds by the clock, once the work that is queued on the CUDA device is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass(slots=True)
class Goodput:
    """Seconds of wall time by part, and how many steps compiled something (`warmed_up`) or did not (`steady`).

    Time is counted once: compiling within a step is not part of the step, and time between two steps belongs to the
    step that waited for it. The rest of a step that compiled is warm-up. By its own clock, a part ends once its work on
    the CUDA device is done: a step that only queues its kernels would seem to take no time, and a checkpoint all of it.

    Compiling is timed by torch's callbacks around it. `torch._dynamo.reset()` removes them: then what compiled since is
    in other parts, `known` is false, and there is no goodput to tell.
    """

    clock: Callable[[], float] = synchronized
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    warmed_up: int = 0
    steady: int = 0
    known: bool = True
    _since: float = 0.0
    _compiling_since: float = 0.0
    _compiled: float = 0.0

    def __enter__(self) -> Goodput:
        callback_handler.register_start_callback(self._start)
        callback_handler.register_end_callback(self._end)
        self._since = self.clock()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._look()
        if self.known:
            callback_handler.remove_start_callback(self._start)
            callback_handler.remove_end_callback(self._end)

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step of the run."""
        yield
        compiled = self._compiled > 0
        self.warmed_up += compiled
        self.steady += not compiled
        self._credit("warm-up" if compiled else "steady")

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """Saving or loading, between two steps."""
        yield
        self._credit("checkpoint")

    @property
    def whole(self) -> float:
        """Total seconds of all parts."""
        return sum(self.seconds.values())

    @property
    def share(self) -> float:
        """The goodput: the share of the run that was steady steps, from 0 to 1; NaN if it is not known."""
        if not self.known:
            return math.nan
        return self.seconds["steady"] / self.whole if self.whole else 0.0

    def told(self) -> str:
        """One line: each part in seconds, and the goodput."""
        if not self.known:
            return "goodput is not known: torch._dynamo.reset() removed the callbacks that time compiling"
        parts = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in self.seconds.items())
        return f"{parts}: goodput {self.share:.0%} in {self.warmed_up + self.steady} steps"

    def _look(self) -> None:
        self.known = self.known and self._end in callback_handler.end_callbacks

    def _credit(self, part: str) -> None:
        self._look()
        now = self.clock()
        self.seconds[part] += now - self._since - self._compiled
        self.seconds["compile"] += self._compiled
        self._since, self._compiled = now, 0.0

    def _start(self, _args: CallbackArgs) -> None:
        self._compiling_since = self.clock()

    def _end(self, _args: CallbackArgs) -> None:
        self._compiled += self.clock() - self._compiling_since
