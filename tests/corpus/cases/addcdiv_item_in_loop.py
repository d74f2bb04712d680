"""A hand-written Adam step in a loop: `.item()` in a callee, then addcdiv_ by what it gave.

Right: one break, eager's parameters; where a float differs by compiling, by rounding alone.
Source: pytorch/pytorch#185382.
"""

from __future__ import annotations

import torch


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


def adam(p, g, m, v, t):
    t.add_(1)
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.99).addcmul_(g, g, value=0.01)
    k = t.item()
    p.addcdiv_(m, (v / (1 - 0.99**k)).sqrt().add_(1e-8), value=-0.1 / (1 - 0.9**k))


def build():
    def f(p, g):
        p = p.clone()
        m, v, t = torch.zeros_like(p), torch.zeros_like(p), torch.zeros(())
        for _ in range(6):
            adam(p, g, m, v, t)
        return p

    return f, [(rnd(8), rnd(8, seed=1))]
