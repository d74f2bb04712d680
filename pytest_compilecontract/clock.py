"""The clock: seconds that go by, whatever a test has put in place of the functions of `time`.

A test may freeze time, run it backwards, or have its functions raise; and what is measured of the test goes on.
"""

from __future__ import annotations

import time


class _Real:
    """In a class, for libraries that freeze time replace what modules name.

    `perf_counter` is the one that they leave alone where they replace the system's own functions.
    """

    seconds = staticmethod(time.perf_counter)


def seconds() -> float:
    """Seconds since some moment, the same for all processes of a machine; only differences mean anything."""
    return _Real.seconds()
