"""A generator whose body breaks, consumed inside the function.

Right: eager's values, and a break or an eager frame that is seen.
Source: own find.
"""

from __future__ import annotations

import torch


def parts(x):
    for index in range(3):
        torch._dynamo.graph_break()
        yield x * index


def build():
    def f(x):
        return sum(parts(x.sin()))

    return f, [(torch.ones(4),)] * 2
