"""The time limit of a lane: a test that runs too long is ended and named."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn, TextIO

# Native code hears no signal until it returns. After as much again, the process is given up.
GRACE_SECONDS = 10.0


@contextlib.contextmanager
def ends_within(seconds: float | None, say: Callable[[FrameType | None], NoReturn], stream: TextIO) -> Iterator[None]:
    """After `seconds`, call `say`, which raises, in the running frame; None is no limit.

    If that does not end the test, for example in native code that never returns, the process ends, with all its stacks
    on `stream`.
    """
    if seconds is None:
        yield
        return
    faulthandler.dump_traceback_later(seconds + max(seconds, GRACE_SECONDS), exit=True, file=stream)
    usable = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    try:
        if not usable:
            yield
            return
        before = signal.signal(signal.SIGALRM, lambda _number, frame: say(frame))
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    finally:
        faulthandler.cancel_dump_traceback_later()


def uncaptured_stderr() -> TextIO:
    """Standard error as it is now, independent of a test's later capture."""
    try:
        return os.fdopen(os.dup(sys.__stderr__.fileno()), "w")  # type: ignore[union-attr, return-value]
    except (AttributeError, OSError, ValueError):
        return sys.stderr
