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
