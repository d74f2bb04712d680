"""What was reached from the targets, and what is still to be saved."""

from __future__ import annotations

from collections import deque

import torch

from .pieces import Pieces
from .values import PLAIN

# How far values of the project and Python's containers are followed.
DEPTH = 32


class Reached:
    """What was reached: each object once, the modules and tensors among them, and the pieces of their state."""

    def __init__(self) -> None:
        self.pieces = Pieces()
        self.modules: list[torch.nn.Module] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.seen: dict[int, object] = {}
        self.shared: dict[tuple[type, ...], list[tuple[str, object]]] = {}
        self.pending: deque[tuple[object, str, int]] = deque()

    def reach(self, value: object, name: str, *, depth: int) -> None:
        """Save a value under this name, if it has state and was not reached before."""
        if isinstance(value, PLAIN) or id(value) in self.seen or depth > DEPTH:
            return
        self.pending.append((value, name, depth))
