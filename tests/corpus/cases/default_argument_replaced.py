"""The default of an argument is replaced between calls.

Right: a recompile, and the new default.
Source: own find.
"""

from __future__ import annotations

import torch


def build():
    def f(x, gain=1.0):
        return x * gain

    return f, [(1.0,), (10.0,), (-3.0,)]


def drive(run, target, calls):
    out = []
    for (gain,) in calls:
        target.__defaults__ = (gain,)
        out.append(run(torch.ones(4)))
    return out
