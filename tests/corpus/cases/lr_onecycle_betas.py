"""OneCycleLR moves a float in a tuple (beta 1) beside a learning rate that is a tensor.

Right: a bounded number of recompiles, and eager's parameters. Not so anywhere: one a step.
Source: pytorch/pytorch#133898.
"""

from __future__ import annotations

import torch
from torch import nn


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


def build():
    p = nn.Parameter(rnd(8))
    opt = torch.optim.AdamW([p], lr=torch.tensor(0.1))
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=20)

    def step():
        opt.step()

    step.opt, step.p, step.sched = opt, p, sched
    return step, [(i,) for i in range(6)]


def drive(c, target, calls):
    out = []
    for (i,) in calls:
        target.p.grad = rnd(8, seed=i + 1)
        c()
        target.sched.step()
        out.append(target.p.detach().clone())
    return out
