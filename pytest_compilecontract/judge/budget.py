"""The compile budget: limits on what compiling costs. Counts are judged by one measurement, seconds over repeats."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pytest_compilecontract.facts.limits import LIMITS, Limits
from pytest_compilecontract.facts.measurement import CACHE_MISSES, CacheBypass, Measurement, WarmStart
from pytest_compilecontract.facts.verdict import Bound, Facts, Violation, violated
from pytest_compilecontract.wording import after_break, counted, first_line, repeated

from .bounds import bound_of, means_nothing, why_unmeasured

# Frames whose guards are told, those with the most first, and kinds of guards of each.
_FRAMES, _KINDS = 3, 4


def judge_budget(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    """Judge the limits on guards and compile caches. In a lane without compile caches theirs are not judged."""
    values: dict[str, tuple[int | None, Facts]] = {
        "max_guards": (seen.guards_a_call, _told_guards(seen)),
        "max_cache_misses": (seen.cache_misses, _told_misses(seen.caches)),
        "max_cache_bypasses": (_bypassed(seen), _told_bypasses(seen.cache_bypasses)),
        "max_warm_misses": (seen.warm_misses, _told_warm(seen)),
    }
    for limit, (value, facts) in values.items():
        bound, metric = bound_of(limits, limit), LIMITS[limit].metric
        if bound is None or means_nothing(seen, metric):
            continue
        if value is None:
            yield violated(bound, f"{unmeasurable}: {why_unmeasured(seen, metric)}")
        elif value > bound.allows:
            yield violated(bound, value, facts)
    for limit, metric in SECONDS.items():
        bound, field = bound_of(limits, limit), LIMITS[limit].metric
        if bound is not None and getattr(seen, metric) is None and not means_nothing(seen, field):
            yield violated(bound, f"{unmeasurable}: {why_unmeasured(seen, field)}")


# Seconds, which vary: one rule for all of them.

# The limits on seconds, each with its metric.
SECONDS = {"max_cold_seconds": "compile_seconds", "max_warm_seconds": "warm_seconds"}
LEAST_REPEATS = 3
Spoken = Literal["held", "violated", "open"]


def spoken(seconds: Sequence[float], allowed: float) -> Spoken:
    """What repeats say of a limit on seconds.

    Noise only adds: a machine that is busy makes a repeat slower, and the first one also imports. So the fastest repeat
    is nearest to the truth, and the distance from it to the median is the spread. The limit is held if the median is
    within it, and violated if every one of at least 3 repeats is over it, the fastest by more than the spread. Else the
    repeats cannot tell.
    """
    fastest, middle = min(seconds), statistics.median_high(seconds)
    if middle <= allowed:
        return "held"
    clearly = len(seconds) >= LEAST_REPEATS and fastest - allowed > middle - fastest
    return "violated" if clearly else "open"


def judge_seconds(
    limits: Mapping[str, object], lane: Mapping[str, object], repeats: Sequence[Sequence[Measurement | None]]
) -> tuple[tuple[Violation, ...], tuple[str, ...]]:
    """The limits on seconds that all repeats exceed, and what they cannot tell; of several ranks the slowest counts."""
    violations: list[Violation] = []
    doubts: list[str] = []
    for limit, metric in SECONDS.items():
        allowed = limits.get(limit)
        taken = [[getattr(each, metric) for each in ranks if each is not None] for ranks in repeats]
        # One that is not known is a violation of its own repeat.
        if not isinstance(allowed, int | float) or not all(ranks and None not in ranks for ranks in taken):
            continue
        bound = Bound(name=limit, allows=allowed)
        if limit == "max_cold_seconds" and lane.get("cache") == "shared":
            doubts.append(f"{bound}: the lane has the compile caches of the process, which may be warm")
            continue
        seconds = [max(ranks) for ranks in taken]
        match spoken(seconds, allowed):
            case "violated":
                violations.append(violated(bound, _told_seconds(seconds)))
            case "open":
                doubts.append(f"{bound}: cannot tell: {_told_seconds(seconds)}")
    return tuple(violations), tuple(doubts)


def _told_seconds(seconds: Sequence[float]) -> str:
    if len(seconds) == 1:
        return f"{seconds[0]:.3g} s, measured once (--contract-repeat={LEAST_REPEATS} or more)"
    ends = f"{min(seconds):.3g} to {max(seconds):.3g} s in {len(seconds)} repeats"
    more = "" if len(seconds) >= LEAST_REPEATS else f" (--contract-repeat={LEAST_REPEATS} or more)"
    return f"{ends}, median {statistics.median_high(seconds):.3g} s{more}"


# What is told below a violated limit.


def _told_guards(seen: Measurement) -> Facts:
    most = sorted(seen.guards or (), key=lambda each: -each.count)[:_FRAMES]
    facts: list[tuple[str, ...]] = []
    for each in most:
        after = after_break(continuation=each.continuation)
        kinds = sorted(each.kinds.items(), key=lambda kind: (-kind[1], kind[0]))
        rest = sum(count for _, count in kinds[_KINDS:])
        told = [f"{count} {name}" for name, count in kinds[:_KINDS]] + ([f"{rest} others"] if rest else [])
        facts.append((f"{each.frame}{after}: {each.count} guards", ", ".join(told)))
    return tuple(facts)


def _told_misses(caches: Mapping[str, int] | None) -> Facts:
    found = {cache: (caches or {}).get(name) for name, cache in CACHE_MISSES.items()}
    return tuple((f"{cache}: {count} looked up and not found",) for cache, count in found.items() if count)


def _bypassed(seen: Measurement) -> int | None:
    return None if seen.cache_bypasses is None else len(seen.cache_bypasses)


def _told_warm(seen: Measurement) -> Facts:
    warm = seen.warm
    if warm is None:
        return ()
    return (*_told_misses(warm.caches), *_told_not_kept(seen, warm), *_told_bypasses(warm.cache_bypasses))


def _told_not_kept(seen: Measurement, warm: WarmStart) -> Facts:
    """Why the second process missed what no process keeps: a forward whose backward was never compiled."""
    first = seen.caches or {}
    kept, made = first.get("aot_autograd_saved"), first.get("aot_autograd_miss", 0)
    missed = (warm.caches or {}).get("aot_autograd_miss")
    if kept is None or kept >= made or not missed or seen.backward_graphs:
        return ()
    why = "torch keeps one that needs gradients only once its backward is compiled, as compile_lane.train does"
    return ((f"the first process kept {kept} of {counted(made, 'graph')} there: {why}",),)


def _told_bypasses(bypasses: Sequence[CacheBypass] | None) -> Facts:
    found = Counter((each.cache, first_line(each.reason)) for each in bypasses or ())
    return tuple((f"{cache}: {reason}{repeated(times)}",) for (cache, reason), times in found.items())
