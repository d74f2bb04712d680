"""DDP with small buckets cuts one Dynamo graph into several for the backend.

Right: one Dynamo graph, handed over in four pieces; both are counted.
Source: pytorch/pytorch#108966.
"""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
from torch import nn


def rnd(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


class Stack(nn.Module):  # a user class: frames of torch.nn containers are never compiled on their own
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(256, 256) for _ in range(14)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


def build():
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
    torch.manual_seed(0)
    m = Stack()
    ddp = nn.parallel.DistributedDataParallel(m, bucket_cap_mb=1)
    return ddp, [(rnd(2, 256),)]


def drive(c, target, calls):
    out = []
    for (x,) in calls:
        y = c(x)
        y.sum().backward()
        out.append((y.detach(), target.module.layers[0].weight.grad.clone()))
    return out
