"""chunk(4) over a dimension that grows.

Right: one recompile to a free size on every backend. A control: so on all five releases.
Source: pytorch/pytorch#139936.
"""

from __future__ import annotations

import torch


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


def build():
    def f(x):
        return [c * 2 for c in x.chunk(4)]

    return f, [(rnd(4 * i),) for i in range(2, 8)]
