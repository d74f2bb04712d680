"""A key that is missing, caught inside and handled.

Right: the handler's value.
Source: own find.
"""

from __future__ import annotations

import torch


def build():
    def f(x, key):
        table = {"a": 1.0, "b": 2.0}
        try:
            gain = table[key]
        except KeyError as error:
            gain = float(len(error.args[0]))
        return x * gain

    return f, [(torch.ones(4), key) for key in ("a", "missing", "b")]
