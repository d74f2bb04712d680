"""Two dtypes that eager does not multiply.

Right: compiled refuses them too. A control: so on all five releases.
Source: pytorch/pytorch#150993.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


def build():
    def f(x, w):
        return F.linear(x, w)

    return f, [(rnd(2, 4), rnd(3, 4, seed=1).double())]
