"""The functions of the random module draw inside.

Right: each call draws the next numbers, and the state moves as in eager.
Source: own find.
"""

from __future__ import annotations

import random

import torch


def build():
    def f(x):
        return x * random.random() + random.randint(1, 9) + random.uniform(0, 1)

    return f, [(torch.ones(4),)] * 3


def drive(run, target, calls):
    random.seed(3)
    out = [run(*each) for each in calls]
    return [*out, random.random()]
