"""What the contracts of goodput catch: each test plants the fault that one of them is there for."""

from __future__ import annotations

import pytest
from holding import hold_contract

from contracts import test_policy_goodput as contracts
from contracts.policies.goodput import Goodput

pytestmark = pytest.mark.insides


def test_the_policy_as_it_is_holds() -> None:
    assert hold_contract(contracts.test_the_parts_add_up_to_the_whole).verdict == "held"


class CountsTwice(Goodput):
    """Compiling is a part of its own, and of the step that it is in as well."""

    def _credit(self, part: str) -> None:
        self.seconds[part] += self._compiled
        super()._credit(part)


class ForgetsCheckpoints(Goodput):
    """What is saved is in no part at all."""

    def _credit(self, part: str) -> None:
        super()._credit(part)
        self.seconds["checkpoint"] = 0.0


class SeesNoCompile(Goodput):
    """Each step is a steady one."""

    def _end(self, _args: object) -> None:
        pass


@pytest.mark.parametrize("fault", [CountsTwice, ForgetsCheckpoints, SeesNoCompile])
def test_a_split_that_is_wrong_is_caught(monkeypatch: pytest.MonkeyPatch, fault: type[Goodput]) -> None:
    monkeypatch.setattr(contracts, "Goodput", fault)

    with pytest.raises(AssertionError):
        hold_contract(contracts.test_the_parts_add_up_to_the_whole)


def test_a_step_that_compiles_again_and_is_called_steady_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracts, "Goodput", SeesNoCompile)

    with pytest.raises(AssertionError):
        hold_contract(contracts.test_a_step_that_compiles_again_is_no_steady_step)
