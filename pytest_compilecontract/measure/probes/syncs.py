"""Host syncs: where a step makes the CPU wait for the device, by torch's own warning, each with the user's line.

torch warns in `.item()`, `.cpu()`, `nonzero` and blocking copies, not in `torch.cuda.synchronize()`, in waits for an
event, or inside libraries (c10/cuda/CUDAFunctions.h).
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable

from pytest_compilecontract.facts.measurement import HostSync, Location

from .source import Paths

WARNING = "called a synchronizing CUDA operation"


def host_syncs(step: Callable[[], object], paths: Paths) -> tuple[HostSync, ...]:
    """The lines at which one step made the CPU wait, in the order first met."""
    import torch

    found: Counter[Location | None] = Counter()

    def note(message: Warning | str, *_: object, **__: object) -> None:
        if WARNING in str(message):
            found[paths.innermost(sys._getframe(1))] += 1

    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return tuple(HostSync(location=location, count=count) for location, count in found.items())
