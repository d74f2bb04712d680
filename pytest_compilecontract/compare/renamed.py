"""Renamed tests: a missing and a new contract that measured the same in the same lanes.

Only said, never judged: that two contracts show the same does not make them one. Where more than one would fit, as with
small tests of one kind, nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from .side import Key, Side

# By lane, what a contract showed there.
Lanes = Mapping[str, Side]


def renamed(
    old: Mapping[Key, Side], new: Mapping[Key, Side], same: Callable[[Side, Side], bool]
) -> dict[str, tuple[str, str]]:
    """By contract of either side, the only one of the other that has its facts, and its name in the older run first.

    `same` says of one lane, before and after, whether nothing in it has changed.
    """
    gone = _by_look(_by_contract(old, {contract for contract, _ in new}))
    come = _by_look(_by_contract(new, {contract for contract, _ in old}))
    found: dict[str, tuple[str, str]] = {}
    for look in gone.keys() & come.keys():
        if len(gone[look]) == len(come[look]) == 1:
            (was, lanes), (now, others) = gone[look][0], come[look][0]
            if all(same(lanes[lane], others[lane]) for lane in lanes):
                found |= {was: (was, now), now: (was, now)}
    return found


def _by_look(contracts: Mapping[str, Lanes]) -> dict[Hashable, list[tuple[str, Lanes]]]:
    """The contracts by what they are told apart by at a glance, as lanes and operations; with neither they have none.

    So each is compared once at most, however many were moved to another file.
    """
    found: dict[Hashable, list[tuple[str, Lanes]]] = {}
    for name, lanes in contracts.items():
        look = tuple((lane, _operations(lanes[lane])) for lane in sorted(lanes))
        # What captured nothing is like everything else that did not.
        if all(operations for _, operations in look):
            found.setdefault(look, []).append((name, lanes))
    return found


def _operations(side: Side) -> tuple[tuple[str, int], ...]:
    seen = side.entry.measurement
    return tuple(sorted((seen.operations or {}).items())) if seen is not None else ()


def _by_contract(sides: Mapping[Key, Side], known: set[str]) -> dict[str, dict[str, Side]]:
    """The contracts that the other run has not in any lane; a reference shows nothing."""
    found: dict[str, dict[str, Side]] = {}
    for (contract, lane), side in sides.items():
        if contract not in known and side.entry.verdict != "reference":
            found.setdefault(contract, {})[lane] = side
    return found
