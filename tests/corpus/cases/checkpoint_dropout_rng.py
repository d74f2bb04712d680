"""Dropout in a non-reentrant checkpoint: its recomputation in the backward needs the forward's mask.

Right: the gradient is zero where, and only where, the output is.
Source: pytorch/pytorch#96118, pytorch/pytorch#113718, pytorch/pytorch#102450.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def build():
    def f(x):
        return checkpoint(lambda y: F.dropout(y * 2, 0.5), x, use_reentrant=False)

    return f, [(torch.ones(64),)]


def drive(c, target, calls):
    out = []
    for (x,) in calls:
        x = x.clone().requires_grad_()
        torch.manual_seed(3)
        y = c(x)
        torch.manual_seed(11)
        y.sum().backward()
        out.append(bool(((y.detach() != 0) == (x.grad != 0)).all()))
    return out
