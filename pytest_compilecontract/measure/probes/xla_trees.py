"""Arguments and results as a flat list of tensors and the rest, which XLA programs take and return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

# torch's own, since it knows the outputs of the libraries that register theirs with it.
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten


@dataclass(frozen=True, slots=True)
class Tree:
    """The shape of a value without its tensors: `rest` are its other leaves, by place."""

    spec: TreeSpec
    places: tuple[int, ...]
    rest: tuple[tuple[int, object], ...]

    def filled(self, tensors: Sequence[object]) -> Any:
        """The value with these tensors in it."""
        leaves: list[object] = [None] * (len(self.places) + len(self.rest))
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        for place, other in self.rest:
            leaves[place] = other
        return tree_unflatten(leaves, self.spec)

    @property
    def told(self) -> str:
        """What is part of a program of XLA's besides its tensors, as text that tells two programs apart."""
        return f"{self.spec} {[(place, _told(other)) for place, other in self.rest]}"


def apart(value: object, kind: type = torch.Tensor) -> tuple[list[Any], Tree]:
    """The tensors of a value, of this type, and the rest of it."""
    leaves, spec = tree_flatten(value)
    places = tuple(place for place, leaf in enumerate(leaves) if isinstance(leaf, kind))
    rest = tuple((place, leaf) for place, leaf in enumerate(leaves) if not isinstance(leaf, kind))
    return [leaves[place] for place in places], Tree(spec, places, rest)


def _told(value: object) -> str:
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype, torch.device)):
        return repr(value)
    # Another object of its class may be another value, and none of them is an input of the program.
    return f"{type(value).__qualname__} {id(value)}"
