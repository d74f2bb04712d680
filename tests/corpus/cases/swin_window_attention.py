"""Shifted windows with a mask made by slices, and cosine attention.

Right: it compiles, and agrees with eager.
Source: pytorch/pytorch#179135.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


class WinAttn(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(8, 24)
        self.scale = nn.Parameter(torch.zeros(2, 1, 1))
        self.bias = nn.Parameter(rnd(2, 16, 16))

    def forward(self, x):
        b, h, w, c = x.shape
        x = torch.roll(x, (-2, -2), (1, 2))
        win = x.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        q, k, v = self.qkv(win).reshape(-1, 16, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        a = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2)
        a = a * torch.clamp(self.scale, max=math.log(100.0)).exp() + 16 * torch.sigmoid(self.bias)
        m = x.new_zeros((h, w))
        n = 0
        for i in ((0, -4), (-4, -2), (-2, None)):
            for j in ((0, -4), (-4, -2), (-2, None)):
                m[i[0] : i[1], j[0] : j[1]] = n
                n += 1
        m = m.view(h // 4, 4, w // 4, 4).permute(0, 2, 1, 3).reshape(-1, 16)
        m = m.unsqueeze(1) - m.unsqueeze(2)
        m = m.masked_fill(m != 0, -100.0)
        a = (a.view(b, -1, 2, 16, 16) + m.unsqueeze(1).unsqueeze(0)).view(-1, 2, 16, 16).softmax(-1)
        y = (a @ v).transpose(1, 2).reshape(-1, 16, c)
        y = y.view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return torch.roll(y, (2, 2), (1, 2))


def build():
    return WinAttn(), [(rnd(1, 8, 8, 8),), (rnd(1, 12, 8, 8),)]
