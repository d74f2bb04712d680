"""A function behind a break returns its input in one call, as a drop path does in evaluation, and else computes.

Right: compiled code in every call that computes. A frame in which Dynamo finds no operation once is skipped for good,
with the code that it had, while the frames around it run their graphs and the numbers are right.
Source: own find.
"""

from __future__ import annotations

import torch


def dropped(x, keep):
    if keep is None:
        return x
    return (x * keep).sin()


@torch.compiler.disable(recursive=False)
def called(x, keep):
    return dropped(x, keep)


def build():
    def f(x, keep):
        return called(x + 1, keep) * 2

    x = torch.ones(3)
    return f, [(x, 0.5), (x, None), (x, 0.5), (x, 0.5)]
