"""Two inputs are views of one tensor; one is written to.

Right: the other sees it.
Source: own find.
"""

from __future__ import annotations

import torch


def build():
    def f(x, y):
        x.add_(1)
        return y * 2

    return f, [(1,), (2,)]


def drive(run, target, calls):
    out = []
    for (step,) in calls:
        base = torch.arange(6.0) * step
        out.append((run(base[:4], base[2:]), base.clone()))
    return out
