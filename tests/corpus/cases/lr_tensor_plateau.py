"""A tensor as learning rate, under a scheduler that acts on a plateau.

Right: the rate stays a tensor, and the step never compiles again.
Source: pytorch/pytorch#163093.
"""

from __future__ import annotations

import torch
from torch import nn


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


def build():
    p = nn.Parameter(rnd(8))
    opt = torch.optim.Adam([p], lr=torch.tensor(0.1))
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)

    def step():
        opt.step()

    step.opt, step.p, step.sched = opt, p, sched
    return step, [(i,) for i in range(6)]


def drive(c, target, calls):
    out = []
    for (i,) in calls:
        target.p.grad = rnd(8, seed=i + 1)
        c()
        target.sched.step(1.0)
        out.append((target.p.detach().clone(), type(target.opt.param_groups[0]["lr"]).__name__))
    return out
