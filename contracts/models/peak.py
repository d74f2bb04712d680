"""Functions that ask a tensor for a number in the middle of their work, as much real code does."""

from __future__ import annotations

from torch import Tensor


def to_unit_peak(wave: Tensor) -> Tensor:
    """A wave centred on zero, made as loud as one."""
    centred = wave - wave.mean()
    peak = centred.abs().max().item()
    return centred / peak


def limited(wave: Tensor) -> Tensor:
    """A wave centred on zero and, where it is louder than one, made as loud as one."""
    centred = wave - wave.mean()
    peak = centred.abs().max().item()
    return centred / max(peak, 1.0)
