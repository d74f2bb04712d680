"""A float on a class, not on an instance, changes between calls.

Right: a recompile and the new value; unguarded, the numbers go stale.
Source: pytorch/pytorch#176851, pytorch/pytorch#177191.
"""

from __future__ import annotations

import math

import torch


def ramp(*s):
    return torch.arange(float(math.prod(s))).reshape(s) * 0.1 + 0.3


def build():
    class Settings:
        gain = 1.0

    def f(x):
        return x * Settings.gain

    f.settings = Settings
    return f, [(1.0,), (10.0,), (-3.0,)]


def drive(c, target, calls):
    out = []
    for (g,) in calls:
        target.settings.gain = g
        out.append(c(ramp(4)))
    return out
