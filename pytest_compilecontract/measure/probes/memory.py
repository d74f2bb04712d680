"""Device memory: the peak of a step, the pools of CUDA graphs, growth over steps, and running out of memory."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_compilecontract.errors import chain

from .. import numerics

# The pool of what no CUDA graph holds.
DEFAULT_POOL = (0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pools:
    """Memory pools of CUDA graphs: the bytes reserved on the device, and those in use."""

    reserved: int = 0
    active: int = 0


def read_pools(segments: Iterable[Mapping[str, Any]], device: int, known: frozenset[object] = frozenset()) -> Pools:
    """The pools of one device in a snapshot of torch's allocator, without those that are `known`."""
    reserved = active = 0
    for each in segments:
        pool = tuple(each["segment_pool_id"])
        if each["device"] == device and pool != DEFAULT_POOL and pool not in known:
            reserved += int(each["total_size"])
            active += int(each["allocated_size"])
    return Pools(reserved=reserved, active=active)


def pool_ids() -> frozenset[object]:
    """The ids of the current pools."""
    return frozenset(tuple(each["segment_pool_id"]) for each in _segments()) - {DEFAULT_POOL}


def pools(known: frozenset[object]) -> Pools:
    """The pools of CUDA graphs on this device that are not in `known`."""
    return read_pools(_segments(), torch.cuda.current_device(), known)


def bytes_of(values: Iterable[object]) -> int:
    """The bytes of all storages on the device in the values, each counted once."""
    storages: dict[int, int] = {}
    for value in values:
        for tensor in numerics.tensors_in(value):
            if tensor.device.type == "cuda" and numerics.has_storage(tensor):
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def allocated() -> int:
    """The bytes in use by tensors outside the pools of CUDA graphs, uncollected garbage included."""
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated() - read_pools(_segments(), torch.cuda.current_device()).active


def peak_of(step: Callable[[], object]) -> int:
    """The peak of bytes in use during a step, without what the pools of CUDA graphs held at its start."""
    inside = read_pools(_segments(), torch.cuda.current_device()).active
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - inside


def growth(samples: Sequence[int]) -> int:
    """The bytes that each steady step leaves behind, from what was in use after each; 0 if memory does not keep
    growing.

    A single allocation, such as a library's workspace, is not growth: more must be in use after the last step than in
    the middle, and in the middle than at the start.
    """
    if len(samples) < 3:
        return 0
    middle = len(samples) // 2
    first, second = samples[middle] - samples[0], samples[-1] - samples[middle]
    return second // (len(samples) - 1 - middle) if first > 0 and second > 0 else 0


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an exception, or one of its causes, is that the device ran out of memory."""
    return any(isinstance(each, torch.OutOfMemoryError) for each in chain(error))


def let_go(error: BaseException) -> None:
    """Free what the frames of an exception hold, and release it to the device."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            pending += [each.__cause__, each.__context__]
    gc.collect()
    torch.cuda.empty_cache()


def _segments() -> list[dict[str, Any]]:
    found: list[dict[str, object]] = torch.cuda.memory_snapshot(include_traces=False)  # type: ignore[no-untyped-call]
    return found
