"""Shards: a suite split for several machines, the same way on each of them. Data in, data out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

MOST_SHARDS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """Which part of a suite a session held: number `index` of `of`, counted from 1.

    `tests` are the names of all tests in it, contracts or not. `plan` is 12 hex digits over the tests of all shards:
    shards with the same plan are parts of one suite that was split in one way.
    """

    index: int
    of: int
    plan: str
    tests: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"shard {self.index} of {self.of}"


def planned(tests: Mapping[str, bool], seconds: Mapping[str, float], of: int) -> tuple[Shard, ...]:
    """The tests split into this many parts of about equal duration; `tests` says of each test whether it is a contract.

    A contract of unknown duration counts as the median, any other test as almost nothing. The longest is assigned
    first, each to the shortest part, so that the result depends neither on the order of tests nor on the machine.
    """
    usual = median(known) if (known := [seconds[test] for test in tests if test in seconds]) else 1.0
    lasts = {test: seconds.get(test, usual) if is_contract else 0.0 for test, is_contract in tests.items()}
    parts: list[list[str]] = [[] for _ in range(of)]
    loads = [0.0] * of
    for test in sorted(lasts, key=lambda test: (-lasts[test], test)):
        at = min(range(of), key=lambda index: (loads[index], len(parts[index])))
        parts[at].append(test)
        loads[at] += lasts[test]
    kept = [tuple(sorted(each)) for each in parts]
    plan = plan_of(kept)
    return tuple(Shard(index=at + 1, of=of, plan=plan, tests=each) for at, each in enumerate(kept))


def plan_of(parts: Sequence[Iterable[str]]) -> str:
    """12 hex digits over the tests of all shards, in their order."""
    return hashlib.sha256(json.dumps([sorted(each) for each in parts]).encode()).hexdigest()[:12]
