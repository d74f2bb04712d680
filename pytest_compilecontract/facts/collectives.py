"""Collectives: what the calls of a contract make their process groups do, compiled and in eager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One kind of collective, by its name in torch.distributed, and how many times in a row."""

    kind: str
    times: int = 1

    def __str__(self) -> str:
        return f"{self.times} {self.kind}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Collectives:
    """All collectives of the calls in the order in which they began; `eager` is None if eager was not recorded."""

    compiled: tuple[Collective, ...]
    eager: tuple[Collective, ...] | None = None

    @property
    def total(self) -> int:
        """How many there are, compiled."""
        return sum(each.times for each in self.compiled)


def by_kind(sequence: Iterable[Collective]) -> dict[str, int]:
    """How many there are of each kind, by name."""
    found: Counter[str] = Counter()
    for each in sequence:
        found[each.kind] += each.times
    return dict(sorted(found.items()))


def told(sequence: Iterable[Collective]) -> str:
    """A sequence in words."""
    return ", ".join(map(str, sequence)) or "none"


def told_by_kind(sequence: Iterable[Collective]) -> str:
    """The number of each kind, in words."""
    return ", ".join(f"{times} {kind}" for kind, times in by_kind(sequence).items()) or "none"
