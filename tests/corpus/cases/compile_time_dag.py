"""A chain of adds and multiplications that doubles at each step.

Right: seconds to compile, not minutes. A control: so on all five releases.
Source: pytorch/pytorch#148073.
"""

from __future__ import annotations

import torch


def build():
    def f(a, b):
        chain = [a, b]
        for _ in range(8):
            chain.append(chain[-1] + chain[-2])
            chain.append(chain[-2] * chain[-3])
        return chain[-2] + chain[-1]

    return f, [(torch.tensor(0.1), torch.tensor(0.2))]
