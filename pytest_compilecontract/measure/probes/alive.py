"""What a run keeps in memory: which arguments and outputs are alive after the last outside reference is gone."""

from __future__ import annotations

import gc

from torch.multiprocessing.reductions import StorageWeakRef

from .. import numerics


class Watch:
    """Watches the memory of tensors without keeping it alive."""

    def __init__(self) -> None:
        self._watched: dict[str, StorageWeakRef] = {}

    def add(self, value: object, at: str) -> None:
        """Watch the tensors in a value."""
        for index, tensor in enumerate(numerics.tensors_in(value)):
            if numerics.has_storage(tensor):
                storage = tensor.untyped_storage()
                self._watched[f"{at} tensor {index}"] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def alive(self) -> frozenset[str]:
        """The places whose memory is still alive."""
        return frozenset(at for at, storage in self._watched.items() if not storage.expired())  # type: ignore[no-untyped-call]

    def kept(self, allowed: frozenset[str]) -> frozenset[str]:
        """The places that are alive after garbage collection and not in `allowed`."""
        if self.alive() <= allowed:
            return frozenset()
        gc.collect()
        return self.alive() - allowed
