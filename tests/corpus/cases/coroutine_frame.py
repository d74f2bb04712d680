"""A compiled function makes a coroutine and drives it; ordinary compiles follow.

Right: no crash. The damage shows later, so the compiles are repeated.
Source: own find.
"""

from __future__ import annotations

import gc
import math

import torch


def ramp(*s):
    return torch.arange(float(math.prod(s))).reshape(s) * 0.1 + 0.3


async def work(x):
    return x.sin()


def build():
    def f(x):
        co = work(x)
        try:
            co.send(None)
        except StopIteration as e:
            return e.value

    return f, [(ramp(4),)]


def drive(c, target, calls):
    out = [c(*calls[0])]
    if c is target:
        return out

    def g(x, n):
        with torch.no_grad():
            y = x.sin()
            torch._dynamo.graph_break()
            return y * n

    for i in range(25):
        torch._dynamo.reset()
        torch.compile(target, backend="eager")(*calls[0])
        torch.compile(g, backend="eager")(ramp(4), i)
    gc.collect()
    return out
