"""Runs of compiled graphs: counted on any thread, and timed or wrapped in a context on request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from .attempts import Graph


class Runs:
    """The number of runs of compiled graphs.

    While a `clock` is set, `seconds_inside` adds up their time; each runs in the context `around`.
    """

    def __init__(self) -> None:
        self.executed = 0
        self.clock: Callable[[], float] | None = None
        self.around: Callable[[Graph], AbstractContextManager[None]] | None = None
        self.seconds_inside = 0.0
        self._lock = threading.Lock()
        self._local = threading.local()

    def counted(self, run: Callable[..., object], graph: Graph) -> Callable[..., object]:
        """The same compiled graph, counted each time it runs."""

        def counted(*args: object, **kwargs: object) -> object:
            with self._lock:
                self.executed += 1
            self._here()[0] += 1
            if (around := self.around) is not None:
                with around(graph):
                    return run(*args, **kwargs)
            if (clock := self.clock) is None:
                return run(*args, **kwargs)
            started = clock()
            try:
                return run(*args, **kwargs)
            finally:
                self.seconds_inside += clock() - started

        return counted

    def here(self) -> Callable[[], int]:
        """A function that returns the number of runs on this thread."""
        count = self._here()
        return lambda: count[0]

    def _here(self) -> list[int]:
        count: list[int] | None = getattr(self._local, "executed", None)
        if count is None:
            count = self._local.executed = [0]
        return count
