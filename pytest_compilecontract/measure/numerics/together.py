"""Tensors side by side: on one device, and of one shape. Pure."""

from __future__ import annotations

import torch


def level(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors on one device: small ones are on the CPU, where a large one may be on the device that judges."""
    there = next((each.device for each in tensors if each.device.type != "cpu"), None)
    return tensors if there is None else tuple(each.to(there) for each in tensors)


def broadcast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same, broadcast to one shape."""
    return tuple(torch.broadcast_tensors(*level(*tensors)))  # type: ignore[no-untyped-call]
