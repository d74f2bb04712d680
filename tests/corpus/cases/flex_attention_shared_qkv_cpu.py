"""flex_attention with one tensor as query, key and value.

Right: as without compile.
Source: own find.
"""

from __future__ import annotations

import torch
from torch.nn.attention.flex_attention import flex_attention


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


def build():
    def f(q):
        return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")))

    return f, [(rnd(1, 1, 128, 32),)]
