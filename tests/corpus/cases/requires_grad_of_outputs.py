"""Outputs that are detached, made under no_grad, integer, or a view of an input.

Right: eager's requires_grad and whether there is a grad_fn.
Source: own find.
"""

from __future__ import annotations

import torch


def build():
    def f(x):
        y = x * 2
        with torch.no_grad():
            z = y + 1
        w = y.detach()
        return y, z, w, y.argmax(), x.view(-1), w.requires_grad_()

    return f, [(1,), (2,)]


def drive(run, target, calls):
    out = []
    for (seed,) in calls:
        x = torch.full((4,), float(seed)).requires_grad_()
        out.append([(each.detach(), each.requires_grad, each.grad_fn is not None) for each in run(x)])
    return out
