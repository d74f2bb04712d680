"""A compiled optimizer step whose learning rate, a Python float, is another at each step.

Right: at most one more compile (the float becomes symbolic), and eager's parameters. On no release with aot_eager and
Inductor: one a value.
Source: pytorch/pytorch#120934.
"""

from __future__ import annotations

import torch
from torch import nn


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


def build():
    p = nn.Parameter(rnd(8))
    opt = torch.optim.SGD([p], lr=0.1, momentum=0.9)

    def step():
        opt.step()

    step.opt, step.p = opt, p
    return step, [(i,) for i in range(6)]


def drive(c, target, calls):
    out = []
    for (i,) in calls:
        target.p.grad = rnd(8, seed=i + 1)
        target.opt.param_groups[0]["lr"] = 0.1 / (i + 1)
        c()
        out.append(target.p.detach().clone())
    return out
