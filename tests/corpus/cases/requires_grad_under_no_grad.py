"""An input requires a gradient in one of three calls, all under no_grad.

Right: two variants at most. A control: so on all five releases.
Source: pytorch/pytorch#131975.
"""

from __future__ import annotations

import torch


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


def build():
    def f(a, b):
        return (a + b).clamp(min=0)

    return f, [(False,), (True,), (False,)]


def drive(c, target, calls):
    out = []
    with torch.no_grad():
        for (r,) in calls:
            out.append(c(rnd(4).requires_grad_(r), rnd(4, seed=1)))
    return out
