"""Pattern: describes a tensor's difference in words if it looks like a simple fault. Pure."""

from __future__ import annotations

import torch

from .bias import spread

# As many elements at least, and what a pattern leaves unexplained, as a share of the RMS of the difference.
FEW = 4
LEFT = 0.1
# The share of the elements that are off where all are in another order.
MANY = 0.1


def pattern(compiled: torch.Tensor, reference: torch.Tensor, named: str) -> str:
    """How compiled differs from the reference, called `named`, as a simple pattern; empty if none fits.

    Both are real and of one shape. Of a large tensor, an evenly spaced sample is examined.
    """
    part = spread(compiled.shape)
    c, g = (each[part].reshape(-1).to(torch.float64) for each in (compiled, reference))
    both = c.isfinite() & g.isfinite()
    c, g = c[both], g[both]
    off, size = c - g, float(g.square().sum())
    if c.numel() < FEW or not size or not off.any():
        return ""

    def explains(others: torch.Tensor) -> bool:
        return float((c - others).norm()) <= LEFT * float(off.norm())

    factor, more = float(c @ g) / size, float(off.mean())
    if not c.any():
        return "0 in all elements"
    if explains(factor * g):
        return f"{factor:.6g} times {named} in all elements"
    if explains(g + more):
        return f"{named} {'+' if more > 0 else '-'} {abs(more):.3g} in all elements"
    # One wrong element hardly changes what sorted values are.
    spread_out = float(off.norm()) ** 4 >= MANY * off.numel() * float(off.pow(4).sum())
    if spread_out and float((c.sort().values - g.sort().values).norm()) <= LEFT * float(off.norm()):
        return f"the values of {named} in another order"
    return ""
