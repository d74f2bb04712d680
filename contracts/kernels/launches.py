"""Which kernels a step launches on the card, by the profiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile


def launches(step: Callable[[], object]) -> Counter[str]:
    """How often each kernel ran in one step, by name; those replayed from a CUDA graph too."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    return Counter(event.name for event in seen.events() if event.device_type == DeviceType.CUDA)


def warm_profiler() -> None:
    """Start and end the profiler once: kernels of a CUDA graph recorded before its first start would not be seen."""
    launches(lambda: torch.zeros(1, device="cuda"))
