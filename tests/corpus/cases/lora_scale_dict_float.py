"""A float in a dict of a module, as a LoRA scale, changes between calls.

Right: one more compile, then symbolic. A control for counts: so on all five releases.
Source: huggingface/diffusers#9279, huggingface/diffusers#9453.
"""

from __future__ import annotations

import torch
from torch import nn


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


class Lora(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(4, 4)
        self.scaling = {"default": 1.0}

    def forward(self, x):
        return self.lin(x) * self.scaling["default"]


def build():
    return Lora(), [(s,) for s in (1.0, 0.5, 0.25, 2.0, 0.0, 1.5)]


def drive(c, target, calls):
    out = []
    for (s,) in calls:
        target.scaling["default"] = s
        out.append(c(rnd(2, 4)).detach())
    return out
