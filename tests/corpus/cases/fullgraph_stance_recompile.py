"""`fullgraph=True` and the stance eager_on_recompile: the second value would recompile.

Right: eager's result, and no exception.
Source: pytorch/pytorch#181817.
"""

from __future__ import annotations

import math

import torch


def ramp(*s):
    return torch.arange(float(math.prod(s))).reshape(s) * 0.1 + 0.3


KW = {"fullgraph": True, "dynamic": False}


def build():
    def f(x, n):
        return x + n

    return f, [(ramp(4), 1), (ramp(4), 2)]


def drive(c, target, calls):
    out = [c(*calls[0])]
    with torch.compiler.set_stance("eager_on_recompile"):
        out.append(c(*calls[1]))
    return out
