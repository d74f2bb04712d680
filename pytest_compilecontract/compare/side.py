"""A side: one lane of one run and where it ran. Sides are compared, whether read from a receipt or a baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from packaging.version import Version

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.facts.receipt import Entry, Environment, Receipt
from pytest_compilecontract.facts.rerun import PYTEST, start_of
from pytest_compilecontract.facts.versions import version_key

Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One lane before or after: what was measured, where, and torch's own defaults there (empty if not known).

    `start` are the words that started pytest.
    """

    entry: Entry
    environment: Environment
    defaults: Mapping[str, str] = field(default_factory=dict)
    start: tuple[str, ...] = PYTEST


def sides_of(receipt: Receipt) -> dict[Key, Side]:
    """Every lane of a receipt, by contract and lane.

    Raises:
        ReceiptError: the receipt has a lane of a contract twice, for example in several environments.
    """
    sides: dict[Key, Side] = {}
    start = start_of(receipt.command)
    for entry in receipt.entries:
        key = (entry.contract, entry.lane)
        if key in sides:
            other = sides[key].entry.environment
            where = f"in environment {other!r}"
            if other != entry.environment:
                both = f"{other!r} and {entry.environment!r}"
                where = f"in environments {both}; `compilecontract matrix` has a column for each"
            raise ReceiptError(f"{entry.contract}, lane {entry.lane}: twice, {where}")
        environment = receipt.environments[entry.environment]
        defaults = receipt.defaults.get(environment.defaults or "", {})
        sides[key] = Side(entry=entry, environment=environment, defaults=defaults, start=start)
    return sides


def apart(receipt: Receipt) -> tuple[Receipt, ...]:
    """A receipt for each environment, the oldest torch first, if lanes ran in each (xdist's `--dist=each`); else it."""
    times = Counter((entry.contract, entry.lane) for entry in receipt.entries)
    if max(times.values(), default=1) == 1:
        return (receipt,)
    by_age = sorted(receipt.environments.items(), key=lambda each: (_age(each[1]), each[0]))
    parts = [
        replace(receipt, environments={name: each}, entries=tuple(e for e in receipt.entries if e.environment == name))
        for name, each in by_age
    ]
    return tuple(part for part in parts if part.entries)


def _age(environment: Environment) -> Version:
    return version_key(environment.torch or "") or Version("0")
