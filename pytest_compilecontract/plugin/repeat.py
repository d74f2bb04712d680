"""Repeats: with `--contract-repeat=N` a contract runs N times, each from a clean start, as one test with one verdict.

Kept out: what the repeats come to (`session`), and how one of them is measured (`hooks`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

# As the plugins that rerun tests do: pytest has no other way to run one again, and provides for it there.
from _pytest.runner import runtestprotocol

if TYPE_CHECKING:
    from .hooks import Contract, Hooks


class Repeating:
    """The part of the plugin that is there only where lanes are measured more than once."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._repeats = hooks.session.settings.repeat

    def takes(self, _item: pytest.Item, contract: Contract) -> bool:
        """Whether the contract is measured in one lane: a ladder is climbed once."""
        return contract.limits.frontier is None

    def reports(self, item: pytest.Item, contract: Contract, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """The reports of the last repeat, which is judged over all; fixtures of the function are set up for each."""
        reports: list[pytest.TestReport] = []
        sections, properties = len(item._report_sections), len(item.user_properties)
        for number in range(1, self._repeats + 1):
            forget(item, sections, properties)
            contract.number = number
            earlier, last = reports, number == self._repeats
            with self._hooks.surrounded(contract):
                # Torn down as far as the item's parent, so that wider fixtures are those of all repeats.
                reports = runtestprotocol(item, log=False, nextitem=nextitem if last else item.parent)  # type: ignore[arg-type]
            if last or (contract.goes_on and not any(report.failed for report in reports if report.when == "teardown")):
                continue
            # A repeat that was skipped hides nothing that an earlier one has shown.
            hidden = _failed(earlier) and not _failed(reports)
            return [*(earlier if hidden else reports), *tear_down_the_rest(item, nextitem)]
        return reports


def as_one_test(item: pytest.Item, run: Callable[[], list[pytest.TestReport]]) -> bool:
    """Tell pytest of several runs as of one test, by the reports that they come to."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in run():
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def tear_down_the_rest(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """What the last repeat does otherwise: tear down what the next test does not share. A report if that fails."""
    call = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(nextitem), when="teardown")
    return [item.ihook.pytest_runtest_makereport(item=item, call=call)] if call.excinfo is not None else []


def _failed(reports: list[pytest.TestReport]) -> bool:
    return any(report.failed for report in reports)


def forget(item: pytest.Item, sections: int, properties: int) -> None:
    """What the repeat before has left in the item: its output, its properties, and the instance of its class."""
    del item._report_sections[sections:]
    del item.user_properties[properties:]
    # pytest gives each test an instance of its own, and a repeat is to find no more than a first run does.
    if isinstance(item.parent, pytest.Class) and isinstance(item, pytest.Function) and "_instance" in vars(item):
        item.obj = None
        del vars(item)["_instance"]
