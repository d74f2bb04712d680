"""Facts by rank: what only some ranks of a lane have that they had not before, or no longer have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.receipt import Entry

from .drift import Fact
from .tell import Facts, without

Read = Callable[[Measurement], Facts | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Moves:
    """The facts added and removed, and the numbers that are shown for them."""

    came: tuple[Fact, ...]
    went: tuple[Fact, ...]
    before: int
    after: int


def moves(before: Facts, after: Facts, old: Entry, new: Entry, read: Read | None) -> Moves:
    """What moved between two measurements of a lane, each fact with its ranks unless all of them have it.

    Where both sides have ranks, each rank is compared with itself: what one has alone may be in no other measurement. A
    baseline has one measurement for all ranks, and says of a fact no more than which ranks have it now.
    """
    of_lane = _between(before, after)
    if read is None or not new.ranks:
        return of_lane
    then, now = _facts_by_rank(old, read), _facts_by_rank(new, read)
    each = {rank: _between(then.get(rank, before), found) for rank, found in now.items()}
    came, went = ({rank: getattr(by, side) for rank, by in each.items()} for side in ("came", "went"))
    if then.keys() != now.keys():
        return replace(of_lane, came=_named(of_lane.came, came))
    moved = [by for by in (of_lane, *each.values()) if by.came or by.went] or [of_lane]
    return replace(moved[0], came=_named(_all(of_lane.came, came), came), went=_named(_all(of_lane.went, went), went))


def _between(before: Facts, after: Facts) -> Moves:
    return Moves(
        came=without(after.of, before.of), went=without(before.of, after.of), before=before.count, after=after.count
    )


def _facts_by_rank(entry: Entry, read: Read) -> dict[int, Facts]:
    found = {each.rank: read(each.measurement) for each in entry.ranks if each.measurement is not None}
    return {rank: facts for rank, facts in found.items() if facts is not None}


def _all(facts: Sequence[Fact], of_ranks: Mapping[int, Sequence[Fact]]) -> tuple[Fact, ...]:
    return tuple(dict.fromkeys([*facts, *(fact for found in of_ranks.values() for fact in found)]))


def _named(facts: Sequence[Fact], of_ranks: Mapping[int, Sequence[Fact]]) -> tuple[Fact, ...]:
    named = []
    for fact in facts:
        having = tuple(rank for rank, found in of_ranks.items() if fact in found)
        named.append(replace(fact, ranks=having) if having and len(having) < len(of_ranks) else fact)
    return tuple(named)
