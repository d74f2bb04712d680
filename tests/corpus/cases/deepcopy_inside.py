"""copy.deepcopy of a dict of tensors inside the function.

Right: at most a break, at that line.
Source: own find.
"""

from __future__ import annotations

import copy

import torch


def build():
    def f(x):
        table = {"x": x.sin()}
        other = copy.deepcopy(table)
        return other["x"] + 1

    return f, [(torch.ones(4),)] * 2
