"""Structure: where the parameters of a contract are on a device mesh, and what it saves for the backward."""

from __future__ import annotations

from dataclasses import dataclass

# Of a parameter that the other side has on a mesh.
PLAIN = "a plain tensor"


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """A parameter, and its placement in eager and compiled."""

    name: str
    eager: str
    compiled: str

    @property
    def sentence(self) -> str:
        return f"{self.eager} in eager, {self.compiled} compiled"

    def __str__(self) -> str:
        return f"{self.name}: {self.sentence}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Placements:
    """The placement of each parameter after the calls, by its name, compiled and in eager; empty without ranks.

    A placement is in words, as "Shard(0) on 2": one for each dimension of the mesh, and the mesh's shape; PLAIN for a
    parameter that is no DTensor.
    """

    compiled: dict[str, str]
    eager: dict[str, str]

    @property
    def changed(self) -> tuple[Moved, ...]:
        """The parameters that are placed otherwise than in eager."""
        names = dict.fromkeys((*self.eager, *self.compiled))
        both = [Moved(name=each, eager=_at(self.eager, each), compiled=_at(self.compiled, each)) for each in names]
        return tuple(each for each in both if each.eager != each.compiled)

    @property
    def plain(self) -> tuple[str, ...]:
        """The parameters that are no DTensors, compiled."""
        return tuple(name for name, at in self.compiled.items() if at == PLAIN)

    @property
    def total(self) -> int:
        """How many DTensors there are, compiled."""
        return _distributed(self.compiled)

    @property
    def in_eager(self) -> int:
        """How many there are in eager."""
        return _distributed(self.eager)


def _at(placed: dict[str, str], name: str) -> str:
    return placed.get(name, PLAIN)


def _distributed(placed: dict[str, str]) -> int:
    return sum(at != PLAIN for at in placed.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedBytes:
    """The bytes of the tensors that autograd saved for the backward, over all calls, compiled and in eager.

    A storage counts once while it is saved; parameters do not count. Neither does what a checkpoint recomputes, or what
    a selective one keeps by itself in eager.
    """

    compiled: int
    eager: int

    @property
    def ratio(self) -> float:
        """Compiled divided by eager."""
        if not self.eager:
            return float("inf") if self.compiled else 1.0
        return self.compiled / self.eager
