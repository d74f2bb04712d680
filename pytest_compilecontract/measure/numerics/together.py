"""Tensors side by side: on one device, of one shape, and a part at a time. Pure."""

from __future__ import annotations

import torch

# Elements compared at a time: 8 MiB in float64, about ten times in one comparison; on a device 128 MiB, for there each
# operation takes as long to start as it takes for thousands of elements.
CHUNK = 1 << 20
LARGE_CHUNK = 1 << 24


def level(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors on one device: small ones are on the CPU, where a large one may be on the device that judges."""
    there = next((each.device for each in tensors if each.device.type != "cpu"), None)
    return tensors if there is None else tuple(each.to(there) for each in tensors)


def broadcast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same, broadcast to one shape."""
    return tuple(torch.broadcast_tensors(*level(*tensors)))  # type: ignore[no-untyped-call]


def chunk_of(tensor: torch.Tensor) -> int:
    """How many elements are compared at a time where this tensor is."""
    return CHUNK if tensor.device.type == "cpu" else LARGE_CHUNK


def kth(tensor: torch.Tensor, k: int) -> torch.Tensor:
    """The `k`-th smallest along the last dimension, from 1, which is kept. A GPU sorts sooner than it selects.

    `kthvalue` has one block of threads for each row there, whether the row is of four elements or of a million.
    """
    if tensor.device.type == "cpu":
        return tensor.kthvalue(k, dim=-1, keepdim=True).values
    return tensor.sort(dim=-1).values[..., k - 1 : k]


def two_largest(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The largest and the second largest along the first dimension, and where the largest is.

    Of a single one both are the same.
    """
    if values.device.type == "cpu":
        most = values.topk(min(2, len(values)), dim=0)
        return most.values[0], most.values[-1], most.indices[0]
    return one_after_another(values)


def one_after_another(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same without `topk`, for which a GPU has one block of threads for each element."""
    largest, second = values[0], values[0] if len(values) == 1 else torch.full_like(values[0], -torch.inf)
    where = torch.zeros_like(largest, dtype=torch.int64)
    for index, each in enumerate(values[1:], start=1):
        above = each > largest
        second = torch.where(above, largest, torch.maximum(second, each))
        largest = torch.where(above, each, largest)
        where.masked_fill_(above, index)
    return largest, second, where
