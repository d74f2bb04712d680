"""Renamed tests: a contract that is missing and one that is new, which show the same in the same lanes.

Only said, never judged: that two contracts show the same does not make them one. Where more than one would fit, as with
small tests of one kind, nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .side import Key, Side

# By lane, what a contract showed there.
Lanes = Mapping[str, Side]


def renamed(
    old: Mapping[Key, Side], new: Mapping[Key, Side], same: Callable[[Side, Side], bool]
) -> dict[str, tuple[str, str]]:
    """By contract of either side, the only one of the other that has its facts, and its name in the older run first.

    `same` says of one lane, before and after, whether nothing in it has changed.
    """
    gone = _by_contract(old, {contract for contract, _ in new})
    come = _by_contract(new, {contract for contract, _ in old})
    fits = [
        (was, now)
        for was, lanes in gone.items()
        for now, others in come.items()
        if lanes.keys() == others.keys() and all(_is_same(lanes[lane], others[lane], same) for lane in lanes)
    ]
    pairs = [
        (was, now)
        for was, now in fits
        if sum(was == each for each, _ in fits) == 1 and sum(now == each for _, each in fits) == 1
    ]
    return {name: pair for pair in pairs for name in pair}


def _by_contract(sides: Mapping[Key, Side], known: set[str]) -> dict[str, dict[str, Side]]:
    """The contracts that the other run has not in any lane; a reference shows nothing."""
    found: dict[str, dict[str, Side]] = {}
    for (contract, lane), side in sides.items():
        if contract not in known and side.entry.verdict != "reference":
            found.setdefault(contract, {})[lane] = side
    return found


def _is_same(was: Side, now: Side, same: Callable[[Side, Side], bool]) -> bool:
    before, after = was.entry.measurement, now.entry.measurement
    if before is None or after is None or not before.operations:
        # What captured nothing is like everything else that did not.
        return False
    return before.operations == after.operations and same(was, now)
