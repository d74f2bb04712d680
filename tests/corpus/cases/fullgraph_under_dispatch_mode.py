"""`fullgraph=True` while a TorchDispatchMode of the user's is active: Dynamo skips the frame.

Right: an error, for the promise of one graph is broken. Up to 2.12 the call runs in eager.
Source: pytorch/pytorch#181247, pytorch/pytorch#161790, pytorch/pytorch#177809.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


def ramp(*s):
    return torch.arange(float(math.prod(s))).reshape(s) * 0.1 + 0.3


KW = {"fullgraph": True}


class Count(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def build():
    def f(x):
        return x.sin() + 1

    return f, [(ramp(4),)]


def drive(c, target, calls):
    out = []
    for a in calls:
        with Count():
            out.append(c(*a))
    return out


def contract(compile_lane):
    target, calls = build()
    with compile_lane.observe(), pytest.raises(RuntimeError, match="fullgraph"):
        drive(compile_lane.compile(target), target, calls)
