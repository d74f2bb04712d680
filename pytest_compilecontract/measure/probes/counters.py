"""How much Dynamo's own counters rose. A test may read and clear them."""

from __future__ import annotations

import contextlib
import importlib
from collections import Counter
from collections.abc import Iterator


def counters() -> dict[str, Counter[object]]:
    """The counters: a Counter for each group, created on access."""
    found: dict[str, Counter[object]] = importlib.import_module("torch._dynamo.utils").counters
    return found


class Rises:
    """How much each counter rises from here on."""

    def __init__(self) -> None:
        self._before = {group: dict(values) for group, values in counters().items()}
        self._stats = counters().get("stats")

    def settle(self) -> None:
        """From now on, clearing the counters makes a comparison impossible; clearing them earlier only starts anew."""
        if not self.intact():
            self._before = {}
        self._stats = counters()["stats"]

    def intact(self) -> bool:
        """Whether the counters were not cleared: clearing makes new objects of the groups."""
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
    """Restore every counter."""
    saved = {group: dict(values) for group, values in counters().items()}
    try:
        yield
    finally:
        counters().clear()
        for group, values in saved.items():
            counters()[group].update(values)
