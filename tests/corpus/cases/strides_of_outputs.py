"""Outputs whose strides are those of a transpose, an expand, channels last and a slice.

Right: eager's strides.
Source: own find.
"""

from __future__ import annotations

import torch


def build():
    def f(x):
        y = x.relu()
        last = y.to(memory_format=torch.channels_last)
        return (
            y.transpose(1, 2),
            y[:, :, ::2] * 1,
            last,
            last + 1,
            y.expand(2, -1, -1, -1),
            torch.empty_like(last).zero_(),
        )

    return f, [(torch.arange(96.0).reshape(1, 4, 6, 4),)]
