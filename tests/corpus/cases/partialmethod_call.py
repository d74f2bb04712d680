"""functools.partialmethod of a plain class.

Right: it compiles.
Source: own find.
"""

from __future__ import annotations

import functools
import math

import torch


def ramp(*s):
    return torch.arange(float(math.prod(s))).reshape(s) * 0.1 + 0.3


class Op:
    def run(self, x, k):
        return x * k

    twice = functools.partialmethod(run, k=2)


def build():
    o = Op()

    def f(x):
        return o.twice(x).sin()

    return f, [(ramp(4),)]
