"""Goodput: where the wall time of a test's own loop goes, in parts that add up to the whole."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch

from pytest_compilecontract import clock
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.measurement import PARTS, Goodput

from .probes.compiling import Compiling
from .probes.device import used

T = TypeVar("T")


def synchronized() -> float:
    """Seconds by the clock, once the work that is queued on the CUDA devices of this process is done."""
    for index in used():
        torch.cuda.synchronize(index)
    return clock.seconds()


class Parts:
    """The parts of a loop, as its code names them.

    Time is counted once: what compiles within a step is not part of the step, and the rest of a step that compiled is
    warm-up. Time between two parts belongs to the later one. A part ends once its work on CUDA devices is done: a step
    that only queues its kernels would seem to take no time, and a checkpoint all of it.
    """

    def __init__(self, now: Callable[[], float] = synchronized) -> None:
        self._now = now
        self._compiling = Compiling(now)
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._steady: list[float] = []
        self._eager: list[float] = []
        self._warmed_up = 0
        self._since = 0.0
        self._inside = ""
        self._over = False
        self._unknown = ""

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One step of the loop. It is warm-up if something compiles in it."""
        with self._part("step"):
            try:
                yield
            except BaseException as error:
                # Its seconds are none of a step, and of no other part.
                self._unknown = f"a step was not finished: {type(error).__name__}"
                raise
        took, compiled = self._took()
        if compiled:
            self._warmed_up += 1
        else:
            self._steady.append(took)
        self._credit("warm-up" if compiled else "steady", took, compiled)

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[None]:
        """Saving or loading."""
        with self._part("checkpoint"):
            try:
                yield
            finally:
                self._credit("checkpoint", *self._took())

    def data(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches, one after another; the time that each takes to come is "data"."""
        source = iter(batches)
        while True:
            with self._part("data"):
                try:
                    batch = next(source)
                except StopIteration:
                    return
                finally:
                    self._credit("data", *self._took())
            yield batch

    @contextlib.contextmanager
    def eager(self) -> Iterator[None]:
        """A step of the eager model, for comparison: it is in none of the parts, and what is before it neither."""
        with self._part("eager"):
            self._took()
            try:
                yield
            except BaseException:
                self._took()
                raise
        took, compiled = self._took()
        if not compiled:
            self._eager.append(took)

    def start(self) -> None:
        """Begin to count."""
        self._compiling.start()
        self._since = self._now()

    def stop(self) -> None:
        """End; what follows the last part is in none."""
        self._compiling.stop()
        self._over = True

    def found(self) -> tuple[Goodput | None, str]:
        """The seconds of all parts until now, or why they are not known."""
        if unknown := self._unknown or self._compiling.unknown:
            return None, unknown
        if not self._steady and not self._warmed_up:
            return None, "no step was made inside goodput()"
        return Goodput(
            seconds=dict(self._seconds),
            warmed_up=self._warmed_up,
            steady=len(self._steady),
            step_seconds=statistics.median(self._steady) if self._steady else None,
            eager_step_seconds=statistics.median(self._eager) if self._eager else None,
        ), ""

    @contextlib.contextmanager
    def _part(self, name: str) -> Iterator[None]:
        if self._over:
            raise UsageError(f"goodput: {name} after the end of its `with` block, where nothing is timed")
        if self._inside:
            raise UsageError(f"goodput: {name} inside of {self._inside}; the parts of a loop follow one another")
        self._inside = name
        try:
            yield
        finally:
            self._inside = ""

    def _credit(self, part: str, took: float, compiled: float) -> None:
        self._seconds[part] += took - compiled
        self._seconds["compile"] += compiled

    def _took(self) -> tuple[float, float]:
        """Seconds since the last part ended, and how many of them something was compiled in."""
        now, compiled = self._now(), self._compiling.taken()
        took, self._since = now - self._since, now
        return took, min(compiled, took)
