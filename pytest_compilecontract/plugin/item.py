"""Contracts as pytest collects them: a test with limits, in one lane. `run` has the outcome of running one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.escaping import plain
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.files.sense import name_fault

FIXTURE = "compile_lane"
# The lane of a test that compiles by itself: nothing but its body says how.
BODY = Lane(name="body", backend="")


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """A collected test that is a contract, in one lane (on a ladder, that of its highest rung).

    A `bare` one compiles by itself. If its marker is `inherited` from a class or module, it is a contract only if it
    compiles anything, since that class or module may also contain ordinary tests.
    """

    item: pytest.Item
    limits: Limits
    lane: Lane
    bare: bool
    inherited: bool = False

    @property
    def name(self) -> str:
        """pytest's node id without the lane."""
        nodeid = self.item.nodeid
        return nodeid if self.bare else contract_name(nodeid, self.item.name, self.lane.name)

    @property
    def ladder(self) -> tuple[str, ...]:
        """Its rungs, the lowest first; none if it has one lane."""
        return self.limits.frontier or ()


CONTRACT = pytest.StashKey[Contract]()


def contract_of(item: pytest.Item) -> Contract | None:
    """The contract of an item, if it is one."""
    return item.stash.get(CONTRACT, None)


def contract_name(nodeid: str, name: str, lane: str) -> str:
    """pytest's node id without the lane, the first in the brackets: `test_x[inductor-64]` becomes `test_x[64]`."""
    test, _, parameters = name.partition("[")
    others = parameters.removesuffix("]").removeprefix(lane)
    path = nodeid.removesuffix(name)
    return f"{path}{test}[{others.removeprefix('-')}]" if others else f"{path}{test}"


def test_of(item: pytest.Item) -> str:
    """The name of the test function, without lanes and parameters."""
    return item.nodeid.partition("[")[0]


def refuse_name(item: pytest.Item) -> None:
    """Refuse a test whose name a receipt cannot hold."""
    if fault := name_fault(item.nodeid):
        raise UsageError(f"{plain(test_of(item))}: {fault} (rename the file)")
