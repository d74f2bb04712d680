"""Dynamo's own counters, by how much they rose. They are the test's to read and to clear."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any


def counters() -> Any:
    """The counters: a Counter for each group, made when it is asked for."""
    return importlib.import_module("torch._dynamo.utils").counters


class Rises:
    """How much each counter rises from here on."""

    def __init__(self) -> None:
        self._before = {group: dict(values) for group, values in counters().items()}
        self._stats = counters().get("stats")

    def settle(self) -> None:
        """Whoever clears them from now on spoils a comparison; who has, since this was made, only started anew."""
        if not self.intact():
            self._before = {}
        self._stats = counters()["stats"]

    def intact(self) -> bool:
        """Whether nobody cleared them: that makes another of each group."""
        return counters().get("stats") is self._stats

    def of(self, group: str, key: object) -> int:
        before = self._before.get(group, {}).get(key, 0) if self.intact() else 0
        return int(counters()[group][key]) - int(before)

    def all(self) -> dict[str, dict[str, int]]:
        """Those that rose."""
        found = {
            group: {str(key): rise for key in values if (rise := self.of(group, key))}
            for group, values in list(counters().items())
        }
        return {group: values for group, values in found.items() if values}


@contextlib.contextmanager
def counters_kept() -> Iterator[None]:
    """Put every counter back."""
    saved = {group: dict(values) for group, values in counters().items()}
    try:
        yield
    finally:
        counters().clear()
        for group, values in saved.items():
            counters()[group].update(values)
