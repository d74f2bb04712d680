"""A side: one lane of one run and where it ran. Sides are compared, whether read from a receipt or a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.facts.receipt import Entry, Environment, Receipt

Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One lane before or after: what was measured, where, and torch's own defaults there (empty if not known)."""

    entry: Entry
    environment: Environment
    defaults: Mapping[str, str] = field(default_factory=dict)


def sides_of(receipt: Receipt) -> dict[Key, Side]:
    """Every lane of a receipt, by contract and lane.

    Raises:
        ReceiptError: the receipt has a lane of a contract twice, for example in several environments.
    """
    sides: dict[Key, Side] = {}
    for entry in receipt.entries:
        key = (entry.contract, entry.lane)
        if key in sides:
            where = f"environments {sides[key].entry.environment!r} and {entry.environment!r}"
            raise ReceiptError(f"{entry.contract}, lane {entry.lane}: twice ({where}), compare one at a time")
        environment = receipt.environments[entry.environment]
        defaults = receipt.defaults.get(environment.defaults or "", {})
        sides[key] = Side(entry=entry, environment=environment, defaults=defaults)
    return sides
