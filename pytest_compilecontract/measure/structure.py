"""Structure: the modules that a pass leaves, with their keys, types, and where their parameters are on a mesh."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from pytest_compilecontract.errors import message_of
from pytest_compilecontract.facts.measurement import Measurement, StateChange, without
from pytest_compilecontract.facts.structure import PLAIN, Placements
from pytest_compilecontract.wording import first_line

from . import numerics
from .probes.tensors import storage_of

# What torch.compile's wrapper puts into the names of what it wraps.
WRAPPER = "_orig_mod."
# Containers within containers that are looked into.
DEPTH = 8
NO_MODULE = "the body returns no module"
NO_DTENSOR = f"{NO_MODULE} and no DTensor"


# Ranks of a mesh that are told.
SHOWN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class At:
    """Where a tensor is: its placements and the shape of its mesh in words, and the ranks of the mesh."""

    words: str = PLAIN
    ranks: tuple[int, ...] = ()

    def beside(self, other: At | None) -> str:
        """The words, with the ranks if the other is at another mesh of the same shape."""
        if other is None or self.words != other.words or self.ranks == other.ranks:
            return self.words
        more = ", ..." if len(self.ranks) > SHOWN else ""
        return f"{self.words} of ranks {', '.join(map(str, self.ranks[:SHOWN]))}{more}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Structure:
    """The modules that a pass left: their types, the keys of their state dicts, and the placements of all DTensors.

    `storages` are those of their parameters, told apart as long as these are alive. `unread`: why there are no keys.
    """

    placed: dict[str, At]
    storages: frozenset[int] = frozenset()
    types: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    unread: str = ""

    @property
    def tells_placements(self) -> bool:
        """Whether it is known which parameters are DTensors: there are modules, or some DTensor."""
        return bool(self.types) or any(at != At() for at in self.placed.values())

    def placements(self, beside: Structure) -> dict[str, str]:
        """The placements in words that tell them apart from those of the other pass."""
        return {name: at.beside(beside.placed.get(name)) for name, at in self.placed.items()}


def structure_of(value: object) -> Structure:
    """The structure of what a body returned: of its modules and DTensors; several modules are numbered in the names."""
    found = [*_found(value, "output", DEPTH)]
    modules = [each for _, each in found if isinstance(each, torch.nn.Module)]
    keys, unread = list[str](), ""
    placed: dict[str, At] = {}
    for number, module in enumerate(modules):
        prefix = f"{number}." if len(modules) > 1 else ""
        try:
            keys += [prefix + key for key in module.state_dict()]
        except Exception as error:  # noqa: BLE001 - the project's own code, which the test has no need to call
            unread = (
                f"{type(module).__name__}.state_dict() raises {type(error).__name__}: {first_line(message_of(error))}"
            )
        placed |= {prefix + name: at for name, at in _placements(module).items()}
    for at, each in found:
        if isinstance(each, torch.Tensor):
            placed |= {name: there for name, there in _placed(at, each).items() if there != At()}
    return Structure(
        placed=placed,
        storages=frozenset(storage for module in modules for storage in _storages(module)),
        types=tuple(type(each).__qualname__ for each in modules),
        keys=tuple(keys),
        unread=unread,
    )


def results_in(value: object, structure: Structure) -> object:
    """What a body returned, without modules: what compiled code keeps of these is no result."""
    if not structure.types:
        return value
    return [each for _, each in _found(value, "output", DEPTH) if isinstance(each, torch.Tensor)]


def placed_in(target: object) -> Structure:
    """The placements of a target, which is asked for nothing else: its state dict is the user's to take."""
    if not isinstance(target, torch.nn.Module):
        return Structure(placed={})
    return Structure(placed=_placements(target), storages=frozenset(_storages(target)))


def with_structure(
    measured: Measurement, eager: Structure | None, compiled: Structure | None, *, body: bool
) -> Measurement:
    """The measurement with what the two passes left; `body`: the test's own, which returns what is looked at."""
    if eager is None or compiled is None:
        return without(measured, "placements", "the run raised")
    if not body or eager.tells_placements or compiled.tells_placements:
        both = Placements(compiled=compiled.placements(eager), eager=eager.placements(compiled))
        measured = replace(measured, placements=both)
    else:
        measured = without(measured, "placements", NO_DTENSOR)
    if not body:
        return measured
    if not eager.types:
        return without(measured, "state_change", NO_MODULE)
    if unread := eager.unread or compiled.unread:
        return without(measured, "state_change", unread)
    unmeasured = {name: why for name, why in measured.unmeasured.items() if name != "state_change"}
    return replace(measured, state_change=_change(eager, compiled), unmeasured=unmeasured)


def _change(eager: Structure, compiled: Structure) -> StateChange:
    was, now = ", ".join(eager.types), ", ".join(compiled.types) or "no module"
    return StateChange(
        keys_added=tuple(key for key in compiled.keys if key not in eager.keys),
        keys_removed=tuple(key for key in eager.keys if key not in compiled.keys),
        type_changed=f"{was} became {now}" if was != now else "",
    )


def _found(value: object, at: str, depth: int) -> Iterator[tuple[str, object]]:
    """The modules and tensors in a value, each with its place."""
    if isinstance(value, (torch.nn.Module, torch.Tensor)):
        yield at, value
    elif depth and isinstance(value, dict):
        for key, each in value.items():
            yield from _found(each, f"{at}[{key!r}]", depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from _found(each, f"{at}[{number}]", depth - 1)


def _placements(module: torch.nn.Module) -> dict[str, At]:
    named = (*module.named_parameters(), *module.named_buffers())
    return {at: found for name, tensor in named for at, found in _placed(name.replace(WRAPPER, ""), tensor).items()}


def _storages(module: torch.nn.Module) -> Iterator[int]:
    for each in module.parameters():
        yield from (storage_of(part) for part in numerics.with_parts(each) if numerics.has_storage(part))


def _placed(name: str, tensor: Any) -> dict[str, At]:
    """The placement of a tensor by its name; nothing where there are no ranks."""
    if not dist.is_available() or not dist.is_initialized():
        return {}
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    if kind is None or not isinstance(tensor, kind):
        return {name: At()}
    mesh = tensor.device_mesh
    words = f"{', '.join(map(_told, tensor.placements))} on {' x '.join(map(str, mesh.shape))}"
    return {name: At(words=words, ranks=tuple(mesh.mesh.flatten().tolist()))}


def _told(placement: Any) -> str:
    """A placement in words that do not change with torch: a strided shard is a shard."""
    if placement.is_replicate():
        return "Replicate"
    if (dim := getattr(placement, "dim", None)) is not None:
        return f"Shard({dim})"
    kind, how = type(placement).__name__.lstrip("_"), getattr(placement, "reduce_op", "")
    return f"{kind}({how})" if how else kind
