"""warnings.warn inside the function; the caller counts what is shown.

Right: as many as in eager.
Source: own find.
"""

from __future__ import annotations

import warnings

import torch


def build():
    def f(x):
        warnings.warn("old", UserWarning, stacklevel=1)
        return x.sin()

    return f, [(torch.ones(4),)] * 3


def drive(run, target, calls):
    out = []
    for each in calls:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            out.append(run(*each))
        out.append(len([one for one in seen if str(one.message) == "old"]))
    return out
