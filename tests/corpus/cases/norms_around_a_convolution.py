"""Convolutions that shrink an image, with layer norms over its channels around them and behind the mean.

Right: eager's gradients.
Source: own find, from timm's ConvNeXt.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class ChannelNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def shrink(width, wider):
    return [ChannelNorm(width), nn.Conv2d(width, wider, 2, 2)]


def build():
    torch.manual_seed(0)
    stages = [nn.Conv2d(3, 8, 4, 4), *shrink(8, 16), *shrink(16, 24)]
    head = [nn.AdaptiveAvgPool2d(1), ChannelNorm(24), nn.Flatten(1), nn.Linear(24, 4)]
    return nn.Sequential(*stages, *head), [(torch.randn(4, 3, 64, 64),)]


def drive(run, target, calls):
    out = []
    for (x,) in calls:
        F.cross_entropy(run(x), torch.tensor([0, 1, 2, 1])).backward()
        out.append({name: each.grad for name, each in target.named_parameters()})
    return out
