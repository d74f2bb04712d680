"""The state_dict keys of what torch.compile(module) returns.

Right: the keys of the module; torch.compile(module) puts a prefix before each, module.compile() does not.
Source: huggingface/pytorch-image-models#1566, karpathy/nanoGPT#325.
"""

from __future__ import annotations

import torch
from torch import nn


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


def build():
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    torch.manual_seed(0)
    nn.init.constant_(m[0].weight, 0.1)
    nn.init.constant_(m[0].bias, 0.1)
    return m, [(rnd(2, 4),)]
