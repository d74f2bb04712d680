"""Python numbers that are made of sizes and of floats, beside a tensor.

Right: eager's numbers, of eager's types.
Source: own find.
"""

from __future__ import annotations

import torch


def build():
    def f(x, k):
        n = x.shape[0]
        return x + n, n, n * 2, n / 2, k * 2, n > 3, float(n), -n // 3, True + n

    return f, [(torch.ones(n), k) for n, k in ((3, 0.5), (4, 0.5), (7, 0.5), (7, 1.5))]
