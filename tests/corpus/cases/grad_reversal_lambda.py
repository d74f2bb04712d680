"""An autograd.Function that takes a float, which is annealed.

Right: two compiles, and the gradient times the float of the call.
Source: own find.
"""

from __future__ import annotations

import torch


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lam):
        ctx.lam = lam
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return -ctx.lam * g, None


def build():
    def f(x, lam):
        return Reverse.apply(x.sin(), lam).sum()

    return f, [(v,) for v in (0.1, 0.2, 0.3, 0.4)]


def drive(c, target, calls):
    out = []
    for (v,) in calls:
        x = rnd(4).requires_grad_()
        c(x, v).backward()
        out.append(x.grad)
    return out
