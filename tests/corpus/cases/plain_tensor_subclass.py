"""An input of a Tensor subclass that overrides nothing.

Right: it compiles on every backend.
Source: pytorch/pytorch#150265.
"""

from __future__ import annotations

import math

import torch


def ramp(*s):
    return torch.arange(float(math.prod(s))).reshape(s) * 0.1 + 0.3


class Tagged(torch.Tensor):
    pass


def build():
    def f(x):
        return (x.sin() + 1).as_subclass(torch.Tensor)

    return f, [(ramp(4).as_subclass(Tagged),)]
