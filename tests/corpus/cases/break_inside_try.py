"""A graph break inside try, with the operation after it in the same try.

Right: a break, and what is around it compiled; where the frame goes back to eager that is seen.
Source: own find.
"""

from __future__ import annotations

import torch


def build():
    def f(x):
        y = x.sin()
        try:
            torch._dynamo.graph_break()
            y = y.cos()
        finally:
            y = y + 1
        return y * 2

    return f, [(torch.ones(4),)] * 2
