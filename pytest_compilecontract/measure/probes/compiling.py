"""Compiling: the wall time in which something is compiled, in any thread, from torch's callbacks around it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from pytest_compilecontract import clock

GONE = "the test removed the callbacks that time compiling, as torch._dynamo.reset() does"


class Compiling:
    """Adds up seconds from `start` to `stop`. torch calls the callbacks once for nested compilations.

    `unknown` is why the seconds are not known (torch/_dynamo/callback.py).
    """

    def __init__(self, now: Callable[[], float] = clock.seconds) -> None:
        self._now = now
        self._handler: Any = None
        self._since: float | None = None
        self._seconds = 0.0
        self.unknown = ""

    def start(self) -> None:
        """Register the callbacks."""
        self._handler = getattr(importlib.import_module("torch._dynamo.callback"), "callback_handler", None)
        try:
            self._handler.register_start_callback(self._begin)
            self._handler.register_end_callback(self._end)
        except AttributeError:
            self._handler = None
            self.unknown = "this torch has no callbacks around compiling"

    def stop(self) -> None:
        """Remove the callbacks."""
        if self._handler is None or not self._is_there():
            return
        self._handler.remove_start_callback(self._begin)
        self._handler.remove_end_callback(self._end)

    def taken(self) -> float:
        """The seconds since this was asked for the last time, also of what another thread still compiles."""
        self._is_there()
        if self._since is not None:
            self._end()
            self._begin()
        found, self._seconds = self._seconds, 0.0
        return found

    def _is_there(self) -> bool:
        if self._handler is None:
            return False
        registered = getattr(self._handler, "end_callbacks", None)
        if registered is not None and self._end not in registered:
            self.unknown = GONE
            return False
        return True

    def _begin(self, *_given: object) -> None:
        self._since = self._now()

    def _end(self, *_given: object) -> None:
        if self._since is not None:
            self._seconds += self._now() - self._since
            self._since = None
