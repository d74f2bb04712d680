"""Zeros whose sign tells: a negation, a product with -0.0, a sum of two, and a float that is -0.0.

Right: eager's signs.
Source: own find.
"""

from __future__ import annotations

import torch


def build():
    def f(x, gain):
        zero = x * 0.0
        return (-zero).reciprocal(), (x * gain).reciprocal(), (zero + gain).reciprocal(), (gain - zero).reciprocal()

    return f, [(torch.tensor([1.0, -1.0, 2.0]), 0.0), (torch.tensor([1.0, -1.0, 2.0]), -0.0), (torch.ones(3), 2.0)]
