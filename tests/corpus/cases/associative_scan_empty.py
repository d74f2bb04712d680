"""associative_scan over an axis of length 0.

Right: an empty result. Up to 2.13 eager raises as well.
Source: own find.
"""

from __future__ import annotations

import torch
from torch._higher_order_ops.associative_scan import associative_scan


def build():
    def f(x):
        return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")

    return f, [(torch.zeros(0, 4),)]
