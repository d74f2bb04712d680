"""A hook on an intermediate tensor doubles its gradient and counts.

Right: eager's gradient and count.
Source: own find.
"""

from __future__ import annotations

import torch


def build():
    fired = []

    def f(x):
        y = x.sin()
        y.register_hook(lambda grad: grad * 2)
        return (y * 3).sum()

    f.fired = fired
    return f, [(1,), (2,)]


def drive(run, target, calls):
    out = []
    for (step,) in calls:
        x = torch.full((4,), float(step)).requires_grad_()
        run(x).backward()
        out.append(x.grad)
    return out
