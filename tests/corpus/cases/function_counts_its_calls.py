"""A helper counts its calls in an attribute of its own, which it makes in the first call.

Right: the number of the call, also in compiled code. That the attribute is not there yet is no guard.
Source: own find.
"""

from __future__ import annotations

import torch


def build():
    def counted(x):
        counted.calls = getattr(counted, "calls", 0) + 1
        return x * counted.calls

    def f(x):
        return counted(x).sin()

    return f, [(torch.ones(4),)] * 3
