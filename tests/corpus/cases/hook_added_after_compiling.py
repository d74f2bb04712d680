"""A forward hook is registered after the first compiled call.

Right: it fires in each call that follows.
Source: own find.
"""

from __future__ import annotations

import torch
from torch import nn


def build():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    return net, [(torch.ones(2, 4),)] * 3


def drive(run, target, calls):
    fired = []
    out = [run(*calls[0]).detach()]
    handle = target[0].register_forward_hook(lambda module, args, output: fired.append(1) or output * 2)
    for each in calls[1:]:
        out.append((run(*each).detach(), len(fired)))
    handle.remove()
    out.append((run(*calls[0]).detach(), len(fired)))
    return out
