"""An operator that is registered without a fake kernel.

Right: a break at the call, and eager's result. A control: so on all five releases.
Source: pytorch/pytorch#144540, pytorch/pytorch#128061.
"""

from __future__ import annotations

import math
import uuid

import torch


def ramp(*s):
    return torch.arange(float(math.prod(s))).reshape(s) * 0.1 + 0.3


def build():
    name = "n" + uuid.uuid4().hex[:8]
    torch.library.define("ccase::" + name, "(Tensor x) -> Tensor")
    torch.library.impl("ccase::" + name, "CPU")(lambda x: x.cos())
    op = getattr(torch.ops.ccase, name)

    def f(x):
        return op(x.sin()) * 2

    return f, [(ramp(4),)]
