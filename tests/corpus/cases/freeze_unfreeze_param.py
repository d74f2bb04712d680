"""A weight is frozen in the first step and trained from the second on.

Right: a recompile, and a gradient on the weight.
Source: pytorch/pytorch#139476, pytorch/pytorch#162174, pytorch/pytorch#177158.
"""

from __future__ import annotations

import torch
from torch import nn


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        return self.b(self.a(x).relu())


def build():
    return Net(), [(False,), (True,), (True,)]


def drive(c, target, calls):
    out = []
    for (on,) in calls:
        target.a.weight.requires_grad_(on)
        target.zero_grad()
        y = c(rnd(2, 4)).sum()
        y.backward()
        g = target.a.weight.grad
        out.append((y.detach(), g is not None, torch.zeros(1) if g is None else g.clone()))
    return out
