"""Renamed tests: a missing and a new contract that measured the same in the same lanes.

Reported as a question and never judged: two contracts that measure the same need not be one. If several candidates fit,
as with small tests of one kind, nothing is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from .side import Key, Side

# By lane, what a contract showed there.
Lanes = Mapping[str, Side]


def renamed(
    old: Mapping[Key, Side], new: Mapping[Key, Side], same: Callable[[Side, Side], bool]
) -> dict[str, tuple[str, str]]:
    """Pairs (older name, newer name) of contracts with the same facts that no other contract has, by either name.

    `same` tells whether nothing has changed in one lane, before and after.
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
    """The contracts by a quick key of lanes and operations; contracts without either are left out.

    So each is compared at most once, however many were moved to another file.
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
    """The contracts that the other run does not have in any lane; reference lanes are ignored."""
    found: dict[str, dict[str, Side]] = {}
    for (contract, lane), side in sides.items():
        if contract not in known and side.entry.verdict != "reference":
            found.setdefault(contract, {})[lane] = side
    return found
