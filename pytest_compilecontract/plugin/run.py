"""Running: who runs a test that is a contract, and how often. Everything else runs as pytest runs it.

A strategy runs a contract several times (its rungs, its repeats, the stages of torch) and surrounds each run itself.
Without one it runs once, surrounded by the hooks. So the surroundings are those of the lane that runs, and of no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import pytest

from .repeat import as_one_test

if TYPE_CHECKING:
    from .hooks import Contract, Hooks


class Strategy(Protocol):
    """A way to run a contract more than once, as one test."""

    def takes(self, item: pytest.Item, contract: Contract) -> bool:
        """Whether this contract is run in this way."""

    def reports(self, item: pytest.Item, contract: Contract, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """Run it, each time in surroundings of its own, and give the reports that it comes to."""


class Running:
    """The part of the plugin that runs contracts more than once: the first strategy that takes one runs it."""

    def __init__(self, hooks: Hooks, strategies: Sequence[Strategy]) -> None:
        self._hooks = hooks
        self._strategies = strategies
        hooks.runs_once = lambda item, contract: self._of(item, contract) is None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        contract = self._hooks.contract_of(item)
        strategy = self._of(item, contract) if contract is not None and not self._hooks.lost else None
        if contract is None or strategy is None:
            return None
        return as_one_test(item, lambda: strategy.reports(item, contract, nextitem))

    def _of(self, item: pytest.Item, contract: Contract) -> Strategy | None:
        return next((each for each in self._strategies if each.takes(item, contract)), None)
