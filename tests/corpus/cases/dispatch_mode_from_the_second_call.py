"""A TorchDispatchMode of the user's is active from the second call on.

Right: the calls under it run in eager, and that is seen.
Source: own find.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def build():
    def f(x):
        return x.sin() + 1

    return f, [(False,), (True,), (True,)]


def drive(run, target, calls):
    out = []
    for (under,) in calls:
        if under:
            with Passing():
                out.append(run(torch.ones(4)))
        else:
            out.append(run(torch.ones(4)))
    return out
