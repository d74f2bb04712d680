"""A string argument takes more values than the recompile limit allows; what follows runs in eager.

Right: the limit is seen, and results are eager's.
Source: vllm-project/vllm#27178, NVIDIA/TensorRT-LLM#6142.
"""

from __future__ import annotations

import math

import torch


def ramp(*s):
    return torch.arange(float(math.prod(s))).reshape(s) * 0.1 + 0.3


def build():
    def f(x, tag):
        return x.sin() * len(tag) if tag else x

    return f, [(ramp(4), "k" * (i + 1)) for i in range(12)]
