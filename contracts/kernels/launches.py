"""Which kernels a step launches on the GPU, by the profiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from pytest_compilecontract.lane import CompileLane


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


def launched_by_training(compile_lane: CompileLane, model: nn.Module, *inputs: Tensor) -> Counter[str]:
    """How often each kernel runs in a steady training step, forward and backward; inputs have gradients as well."""
    warm_profiler()
    model.to(compile_lane.device)
    given = [each.to(compile_lane.device).requires_grad_(each.is_floating_point()) for each in inputs]
    with compile_lane.observe():
        compiled = compile_lane.compile(model)

        def step() -> None:
            compiled(*given).square().mean().backward()
            model.zero_grad()
            for each in given:
                # Left in place, it would be a CUDA graph's output that the next replay overwrites.
                each.grad = None

        for _ in range(4):
            step()
        return launches(step)
