"""A slice as long as a tensor of one element says.

Right: one break at `.item()`, and no recompile for each length. With aot_eager and Inductor there are three
up to 2.14, and two from 2.15 on.
Source: huggingface/transformers#46858.
"""

from __future__ import annotations

import torch


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


def build():
    def f(x, n):
        k = n.item()
        return x[:k].sum() * 2

    return f, [(rnd(12), torch.tensor(k)) for k in (3, 4, 7, 9, 1, 0)]
