"""An f-string formats a tensor in the middle of a function.

Right: one graph break and two graphs; not a frame given back to eager.
Source: pytorch/pytorch#120375, pytorch/pytorch#186500.
"""

from __future__ import annotations

import math

import torch


def ramp(*s):
    return torch.arange(float(math.prod(s))).reshape(s) * 0.1 + 0.3


def build():
    def f(x):
        y = (x.sin() + x.cos()).exp()
        msg = f"stats {y.mean()}"
        return (y * 2).tanh() + len(msg) * 0

    return f, [(ramp(8),), (ramp(8),)]
