"""The default of a function that the target calls is replaced between calls.

Right: a recompile, and the new default.
Source: own find.
"""

from __future__ import annotations

import torch


def build():
    def scale(x, gain=1.0):
        return x * gain

    def f(x):
        return scale(x) + 1

    f.scale = scale
    return f, [(1.0,), (10.0,), (-3.0,)]


def drive(run, target, calls):
    out = []
    for (gain,) in calls:
        target.scale.__defaults__ = (gain,)
        out.append(run(torch.ones(4)))
    return out
