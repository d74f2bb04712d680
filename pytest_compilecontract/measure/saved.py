"""What autograd saves for the backward, by torch's hooks on saved tensors: a pass of its own, eager and compiled.

The hooks are no part of the measured pass: torch.func refuses them, and compiled code may treat its buffers otherwise.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

import torch

from . import numerics
from .probes.taps import Taps
from .probes.tensors import base_of, storage_of, waited

CHECKPOINT = "torch.utils.checkpoint"


class Saving:
    """The bytes of all storages that are saved, each once for as long as anything keeps it saved.

    Parameters are left out: they are there anyway, and a checkpoint in eager has no need to save them. Compiled code
    saves what a DTensor consists of, which is none: see `without`.
    """

    def __init__(self) -> None:
        # The class of hooks that the test has set, if it has: those that are set last are asked alone.
        self.others = ""
        self._held: dict[int, int] = {}
        self._bytes: dict[int, int] = {}

    def without(self, storages: frozenset[int]) -> int:
        """All bytes that were saved, without these storages: those of the parameters."""
        return sum(count for storage, count in self._bytes.items() if storage not in storages)

    def note(self, enter: Callable[..., object], hooks: object) -> object:
        """Note hooks that are set inside. What a checkpoint takes is recomputed, and so is not saved."""
        kind = type(hooks)
        if kind.__module__ != CHECKPOINT:
            self.others = kind.__qualname__
        return enter(hooks)

    def pack(self, tensor: torch.Tensor) -> _Packed:
        """Count what is saved."""
        storages = []
        with torch.no_grad():
            for part in _parts(tensor) if not _is_parameter(tensor) else ():
                storage = storage_of(part)
                if storage not in self._held:
                    self._bytes[storage] = self._bytes.get(storage, 0) + part.untyped_storage().nbytes()
                self._held[storage] = self._held.get(storage, 0) + 1
                storages.append(storage)
        return _Packed(tensor, storages, self)

    def drop(self, storages: list[int]) -> None:
        """Autograd has let go of these."""
        for storage in storages:
            self._held[storage] -= 1
            if not self._held[storage]:
                del self._held[storage]


class _Packed:
    """A saved tensor, for as long as autograd keeps it."""

    def __init__(self, tensor: torch.Tensor, storages: list[int], saving: Saving) -> None:
        self.tensor = tensor
        self._storages = storages
        self._saving = saving

    def __del__(self) -> None:
        self._saving.drop(self._storages)


@contextlib.contextmanager
def saving() -> Iterator[Saving]:
    """Count what is saved for the backward inside."""
    found, hooks = Saving(), torch.autograd.graph.saved_tensors_hooks
    with warnings.catch_warnings(), hooks(found.pack, lambda packed: packed.tensor), Taps() as taps:
        taps.set("hooks", hooks, "__enter__", found.note)
        # torch 2.15: a selective checkpoint keeps its tensors to itself, and says that a later release will not.
        warnings.filterwarnings("ignore", message="A saved_tensors_hooks context", category=FutureWarning)
        yield found


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with memory of their own that a tensor consists of, itself if it is a plain one."""
    tensor = waited(tensor)
    if numerics.is_wrapper(tensor):
        for each in numerics.parts_of_wrapper(tensor).values():
            yield from _parts(each)
    elif numerics.has_storage(tensor):
        yield tensor


def _is_parameter(tensor: torch.Tensor) -> bool:
    """Whether it is a parameter, or a view of one."""
    base = base_of(tensor)
    return isinstance(tensor if base is None else base, torch.nn.Parameter)
