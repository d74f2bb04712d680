"""An intermediate tensor and an input that nobody holds any more after the call.

Right: both are freed, as in eager.
Source: own find.
"""

from __future__ import annotations

import gc
import weakref

import torch


class Box:
    pass


def build():
    def f(x, box):
        y = x.sin()
        box.value = None
        return y.sum()

    return f, [(1,), (2,)]


def drive(run, target, calls):
    out = []
    for (step,) in calls:
        x, box = torch.full((4,), float(step)), Box()
        refs = weakref.ref(x), weakref.ref(box)
        out.append(run(x, box))
        del x, box
        gc.collect()
        out.append([each() is None for each in refs])
    return out
