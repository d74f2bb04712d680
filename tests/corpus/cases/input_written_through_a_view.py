"""A view of an input is written to, and so is an expanded copy of it.

Right: the input changes as eager changes it.
Source: own find.
"""

from __future__ import annotations

import torch


def build():
    def f(x):
        row = x[0]
        row.mul_(2)
        copy = x.clone()
        copy[1].zero_()
        return x.sum(), copy

    return f, [(torch.arange(6.0).reshape(2, 3),)] * 2
