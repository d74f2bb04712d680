"""An import that fails, inside the function.

Right: a break at the import's line. On no release: the frame is given back to eager.
Source: PriorLabs/TabPFN#1166.
"""

from __future__ import annotations

import math

import torch


def ramp(*s):
    return torch.arange(float(math.prod(s))).reshape(s) * 0.1 + 0.3


def build():
    def f(x):
        y = x.sin()
        try:
            import a_module_that_does_not_exist as z
        except ImportError:
            z = None
        return y.cos() if z is None else y

    return f, [(ramp(4),)]
