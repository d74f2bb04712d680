"""`_replace` of a named tuple.

Right: it compiles.
Source: own find.
"""

from __future__ import annotations

import collections
import math

import torch


def ramp(*s):
    return torch.arange(float(math.prod(s))).reshape(s) * 0.1 + 0.3


Rec = collections.namedtuple("Rec", "a b")


def build():
    def f(x):
        r = Rec(x.sin(), x.cos())
        return r._replace(a=x)

    return f, [(ramp(4),)]
