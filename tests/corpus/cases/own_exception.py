"""An exception of the user's own, with a value, raised inside and caught outside.

Right: the same exception with the same value.
Source: own find.
"""

from __future__ import annotations

import torch


class Refused(Exception):
    pass


def build():
    def f(x, n):
        if n > 2:
            raise Refused(n)
        return x * n

    return f, [(1,), (3,), (2,)]


def drive(run, target, calls):
    out = []
    for (n,) in calls:
        try:
            out.append(run(torch.ones(4), n))
        except Exception as error:
            out.append((type(error).__name__, error.args))
    return out
