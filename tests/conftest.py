"""What all tests have in common: workers of pytest-xdist share the cores, and so do the sessions that they start."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest

# Read when torch is imported. Otherwise each worker has a thread for each core, and threads that wait for one another
# do so busily: a product of 32 columns in bfloat16 took ten times as long.
if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(workers))))

# Printed commands begin with `python` and `pytest` where the shell finds these, as in an activated environment.
os.environ["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))

# A shell's job in the background ignores it, and so would all that a test starts and then interrupts: it waits in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """All that is imported and made here stays: to look through it for garbage again and again finds none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
