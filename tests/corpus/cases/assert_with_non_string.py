"""assert of a condition on a tensor, with a number as its message.

Right: as Python does. On no release: compiling it raises.
Source: own find.
"""

from __future__ import annotations

import math

import torch


def ramp(*s):
    return torch.arange(float(math.prod(s))).reshape(s) * 0.1 + 0.3


def build():
    def f(x):
        assert (x > 0).all(), 17
        return x.sin()

    return f, [(ramp(4),)]
