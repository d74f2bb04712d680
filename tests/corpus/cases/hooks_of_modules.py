"""Forward, pre-forward and backward hooks of a module count their calls.

Right: eager's counts.
Source: own find.
"""

from __future__ import annotations

import torch
from torch import nn


def build():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    net.fired = {"pre": 0, "forward": 0, "backward": 0}

    def count(name):
        def hook(*_):
            net.fired[name] += 1

        return hook

    net[0].register_forward_pre_hook(count("pre"))
    net[0].register_forward_hook(count("forward"))
    net[2].register_full_backward_hook(count("backward"))
    return net, [(torch.ones(2, 4),)] * 3


def drive(run, target, calls):
    out = []
    for each in calls:
        target.zero_grad()
        y = run(*each)
        y.sum().backward()
        out.append((y.detach(), dict(target.fired), target[0].weight.grad.clone()))
    return out
