"""Evidence of observed tests: one that drifted, or failed by itself, is run once more with torch's trace enabled.

A contract is rerun by a strategy, in its lane; an observed test runs as pytest runs it, and is rerun in the same way.
"""

from __future__ import annotations

from functools import partial

import pytest

from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.files.evidence import Folder

from .evidence import shown, with_evidence
from .item import Contract
from .observe import Observer
from .run import Turn
from .settings import Settings


class ObservedEvidence:
    """The strategy for tests that are not contracts: their reports, with evidence of those that are not held."""

    def __init__(self, settings: Settings, observer: Observer) -> None:
        self._settings = settings
        self._observer = observer

    def takes(self, _contract: Contract) -> bool:
        """All of them: which of them compile is known once they have run."""
        return True

    def reports(self, turn: Turn) -> list[pytest.TestReport]:
        """The reports of the test, which name its evidence."""
        return with_evidence(turn, self._settings, turn.run_plainly, partial(_OnceMore, turn, self._observer))


class _OnceMore:
    """One more run of an observed test."""

    backend = ""

    def __init__(self, turn: Turn, observer: Observer, before: Entry) -> None:
        self._turn = turn
        self._observer = observer
        self._before = before

    def run(self) -> str:
        from pytest_compilecontract.measure.probes.caches import own_caches

        # With empty caches: of what a cache has, torch traces no graphs.
        with self._observer.aside(self._turn.contract.item) as watched, own_caches():
            reports = self._turn.run_plainly()
        again = watched()
        if again is None or again.judged is None:
            return "nothing was measured"
        if not again.drifted and any(each.failed for each in reports):
            return "the test itself failed"
        return shown(again.judged.entry, self._before, drifted=bool(again.drifted))

    def minified(self, _folder: Folder) -> str:
        """None: nothing bisects an observed test."""
        return ""
