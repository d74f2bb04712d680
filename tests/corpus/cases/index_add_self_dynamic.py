"""`y[k] += y[k]` by computed indices, with dynamic=True.

Right: doubled, once. A control: right on all five releases.
Source: pytorch/pytorch#138908.
"""

from __future__ import annotations

import torch


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


KW = {"dynamic": True}


def build():
    def f(x, y):
        k = x + 2
        y = y.clone()
        y[k] += y[k]
        return y

    return f, [(torch.tensor([[-2, -1]]), rnd(2, 8))]
