"""float32 to half and back in a pointwise chain; a backend that fuses may drop the casts.

Right: a difference from eager no larger than half's rounding, which the contract declares.
Source: pytorch/pytorch#183761.
"""

from __future__ import annotations

import torch


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


def build():
    def f(x):
        a = torch.where(x > 0, x, torch.full_like(x, 0.1))
        return a.half().float() * 1.001 + x.half().float()

    return f, [(rnd(256) * 30,)]
