"""Numerics: values of a compiled run held against an eager one and a float64 one. Runs nothing, knows no lane."""

from .copies import Copies, gradients_in, leaves_of, moved, tensors_in, wide
from .judging import judge
from .snapshot import (
    MADE,
    Branch,
    Opaque,
    Run,
    ScalarLeaf,
    Snapshot,
    TensorLeaf,
    aliases,
    is_numpy,
    joined,
    renamed,
    slots_of,
    snapshot,
)

__all__ = [
    "MADE",
    "Branch",
    "Copies",
    "Opaque",
    "Run",
    "ScalarLeaf",
    "Snapshot",
    "TensorLeaf",
    "aliases",
    "gradients_in",
    "is_numpy",
    "joined",
    "judge",
    "leaves_of",
    "moved",
    "renamed",
    "slots_of",
    "snapshot",
    "tensors_in",
    "wide",
]
