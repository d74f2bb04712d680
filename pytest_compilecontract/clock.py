"""The clock: real seconds, even while a test has replaced the functions of `time`.

A test may freeze time, run it backwards, or make its functions raise; measuring that test goes on.
"""

from __future__ import annotations

import time


class _Real:
    """Holds the function in a class, since libraries that freeze time replace the attributes of modules.

    `perf_counter` is the one that they do not replace in `time` itself.
    """

    seconds = staticmethod(time.perf_counter)


def seconds() -> float:
    """Seconds since some moment, the same for all processes of a machine; only differences mean anything."""
    return _Real.seconds()
