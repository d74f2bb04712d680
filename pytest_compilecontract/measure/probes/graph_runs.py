"""Runs of compiled graphs: counted on any thread, and timed or wrapped in a context on request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import CodeType

from .attempts import Graph
from .backward import in_backward


class Runs:
    """The number of runs of compiled graphs.

    `recomputed` are those in a backward of graphs whose frame ran one before, outside of any: what a checkpoint around
    compiled code runs again, whatever its policy says. Compiled autograd and hooks have frames of their own.

    While a `clock` is set, `seconds_inside` adds up their time; each runs in the context `around`.
    """

    def __init__(self) -> None:
        self.executed = 0
        self.recomputed: int | None = 0
        self.clock: Callable[[], float] | None = None
        self.around: Callable[[Graph], AbstractContextManager[None]] | None = None
        self.seconds_inside = 0.0
        self._outside: set[CodeType] = set()
        self._lock = threading.Lock()
        self._local = threading.local()

    def counted(self, run: Callable[..., object], graph: Graph, code: CodeType) -> Callable[..., object]:
        """The same compiled graph, counted each time it runs."""

        def counted(*args: object, **kwargs: object) -> object:
            with self._lock:
                self.executed += 1
                self._note(code)
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

    def _note(self, code: CodeType) -> None:
        within = in_backward()
        if within is None or self.recomputed is None:
            self.recomputed = None
        elif not within:
            self._outside.add(code)
        elif code in self._outside:
            self.recomputed += 1

    def here(self) -> Callable[[], int]:
        """A function that returns the number of runs on this thread."""
        count = self._here()
        return lambda: count[0]

    def _here(self) -> list[int]:
        count: list[int] | None = getattr(self._local, "executed", None)
        if count is None:
            count = self._local.executed = [0]
        return count
