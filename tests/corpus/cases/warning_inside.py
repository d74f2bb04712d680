"""warnings.warn inside the function; the caller has made warnings errors.

Right: the warning is raised as in eager.
Source: own find.
"""

from __future__ import annotations

import warnings

import torch


def build():
    def f(x):
        warnings.warn("old", DeprecationWarning, stacklevel=2)
        return x.sin()

    return f, [(torch.ones(4),)] * 2


def drive(run, target, calls):
    out = []
    for each in calls:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)
            try:
                out.append(run(*each))
            except DeprecationWarning as error:
                out.append(str(error))
    return out
