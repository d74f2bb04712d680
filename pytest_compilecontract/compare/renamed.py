"""Renamed tests: a missing and a new contract that measured the same in the same lanes, or nearly so in one file.

Reported as a question and never judged: two contracts that measure the same need not be one. If several candidates fit,
as with small tests of one kind, nothing is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

from .side import Key, Side

# Of the operations that either captured, the part that both did: below it a test is another one, not a changed one.
ALIKE = 0.5
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


def perhaps_renamed(
    old: Mapping[Key, Side], new: Mapping[Key, Side], known: Collection[str]
) -> dict[str, tuple[str, str]]:
    """Pairs (older name, newer name) of contracts that may be one that was renamed and changed, by either name.

    They are the only missing and the only new contract of their file, or of their name in any file; they have the same
    lanes and limits, and captured much the same operations. Those in `known` are left out.
    """
    gone = {name: each for name, each in _by_contract(old, {name for name, _ in new}).items() if name not in known}
    come = {name: each for name, each in _by_contract(new, {name for name, _ in old}).items() if name not in known}
    pairs: set[tuple[str, str]] = set()
    for at in (0, 2):
        were, are = _by_part(gone, at), _by_part(come, at)
        pairs |= {(*were[part], *are[part]) for part in were if len(were[part]) == len(are.get(part, ())) == 1}  # type: ignore[misc]
    fitting = {(was, now) for was, now in pairs if _is_alike(gone[was], come[now])}
    times = Counter(name for pair in pairs for name in pair)
    return {name: pair for pair in fitting if max(times[each] for each in pair) == 1 for name in pair}


def _by_part(names: Iterable[str], part: int) -> dict[str, list[str]]:
    """Names by their file (0), or by what follows it (2)."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.partition("::")[part], []).append(name)
    return found


def _is_alike(was: Lanes, now: Lanes) -> bool:
    """Whether one may be the other, changed."""
    if was.keys() != now.keys() or any(was[lane].entry.limits != now[lane].entry.limits for lane in was):
        return False
    both = [(Counter(dict(_operations(was[lane]))), Counter(dict(_operations(now[lane])))) for lane in was]
    shared, all_ = sum((one & other).total() for one, other in both), sum((one | other).total() for one, other in both)
    return shared > 0 and shared >= ALIKE * all_


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
