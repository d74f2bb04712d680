"""Lanes of one contract beside one another: both are measured in the same test, and compared one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import numerics


@dataclass(kw_only=True, slots=True)
class Turn:
    """One measurement of a lane: what it has kept, and what `lane`, the other one if there is any, kept of the same."""

    keeps: bool = False
    lane: str = ""
    other: numerics.Kept | None = None
    kept: numerics.Kept | None = None

    @property
    def wanted(self) -> bool:
        """Whether anything is done with what is kept."""
        return self.keeps or bool(self.lane)


class Lanes:
    """The measurements of a lane, in the order of the test, beside those of another one."""

    def __init__(self, *, keeps: bool = False, lane: str = "", others: Sequence[numerics.Kept | None] = ()) -> None:
        self.turns: list[Turn] = []
        self._keeps = keeps
        self._lane = lane
        self._others = others
        self._left_out = False

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """Compare and keep nothing of what is measured inside."""
        self._left_out = True
        try:
            yield
        finally:
            self._left_out = False

    def next(self) -> Turn:
        """The next measurement."""
        if self._left_out:
            return Turn()
        number = len(self.turns)
        other = self._others[number] if number < len(self._others) else None
        self.turns.append(Turn(keeps=self._keeps, lane=self._lane, other=other))
        return self.turns[-1]
