"""A method of a class is replaced between calls.

Right: a recompile, and the new method.
Source: own find.
"""

from __future__ import annotations

import torch


def build():
    class Scale:
        def apply(self, x):
            return x * 2

    def f(x):
        return Scale().apply(x)

    f.scale = Scale
    return f, [(2,), (5,), (7,)]


def drive(run, target, calls):
    out = []
    for (gain,) in calls:
        target.scale.apply = lambda self, x, gain=gain: x * gain
        out.append(run(torch.ones(4)))
    return out
