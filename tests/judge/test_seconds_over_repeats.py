"""Limits on seconds of compiling: one rule over repeats, by which noise alone exceeds nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import Measurement, WarmStart
from pytest_compilecontract.facts.verdict import Violation
from pytest_compilecontract.judge.budget import judge_seconds, spoken
from pytest_compilecontract.judge.limits import judge


def taking(seconds: float | None, warm: float | None = None) -> Measurement:
    """A measurement of which compiling took so long, in two stages."""
    stages = None if seconds is None else {"dynamo": seconds / 4, "inductor": seconds * 3 / 4}
    again = None if warm is None else WarmStart(stage_seconds={"dynamo": warm})
    return Measurement(stage_seconds=stages, warm=again)


def judged(*repeats: float, limit: float = 10, **lane: Any) -> tuple[tuple[Violation, ...], tuple[str, ...]]:
    return judge_seconds({"max_cold_seconds": limit}, lane, [[taking(each)] for each in repeats])


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        pytest.param([9.0], "held", id="one run within the limit"),
        pytest.param([10.0], "held", id="one run at the limit"),
        pytest.param([99.0], "open", id="one run far over it"),
        pytest.param([99.0, 99.0], "open", id="two runs far over it"),
        pytest.param([99.0, 99.0, 99.0], "violated", id="three runs far over it"),
        pytest.param([20.0, 21.0, 40.0], "violated", id="a first run that imports hides nothing"),
        pytest.param([11.0, 12.0, 12.5], "open", id="over it by no more than the spread"),
        pytest.param([11.5, 12.0, 12.5], "violated", id="over it by more than the spread"),
        pytest.param([9.9, 30.0, 31.0], "open", id="the fastest within it"),
        pytest.param([8.0, 9.0, 60.0], "held", id="one run slowed down"),
        pytest.param([8.0, 60.0, 60.0], "open", id="two runs slowed down"),
        pytest.param([8.0, 60.0], "open", id="one of two runs slowed down"),
    ],
)
def test_what_repeats_say(seconds: list[float], said: str) -> None:
    for order in (seconds, seconds[::-1]):
        assert spoken(order, 10) == said


@pytest.mark.parametrize("repeats", [1, 2, 3, 5, 9])
def test_noise_alone_never_exceeds_a_limit(repeats: int) -> None:
    draw = random.Random(repeats)
    for _ in range(2000):
        # Compiling takes 9 s, and whatever else the machine does comes on top.
        seconds = [9.0 + draw.expovariate(1 / draw.choice((0.1, 1.0, 30.0))) for _ in range(repeats)]

        if min(seconds) <= 10:
            assert spoken(seconds, 10) != "violated"


def test_a_limit_that_every_repeat_exceeds_is_violated_with_the_seconds() -> None:
    violations, doubts = judged(20.0, 21.0, 40.0)

    assert doubts == ()
    assert [(each.limit, each.bound, each.measured) for each in violations] == [
        ("max_cold_seconds=10", 10, "20 to 40 s in 3 repeats, median 21 s")
    ]


@pytest.mark.parametrize(
    ("seconds", "doubt"),
    [
        ([12.5], "12.5 s, measured once (--contract-repeat=3 or more)"),
        ([12.0, 13.0], "12 to 13 s in 2 repeats, median 13 s (--contract-repeat=3 or more)"),
        ([9.0, 13.0, 14.0], "9 to 14 s in 3 repeats, median 13 s"),
    ],
)
def test_what_repeats_cannot_tell_is_a_doubt(seconds: list[float], doubt: str) -> None:
    assert judged(*seconds) == ((), (f"max_cold_seconds=10: cannot tell: {doubt}",))


def test_caches_that_others_have_warmed_hold_no_limit_on_cold_ones() -> None:
    violations, doubts = judged(1.0, 1.0, 1.0, cache="shared")

    assert violations == ()
    assert doubts == ("max_cold_seconds=10: the lane has the compile caches of the process, which may be warm",)


def test_the_slowest_rank_counts() -> None:
    ranks = [[taking(1.0), taking(50.0 + each)] for each in range(3)]

    (violation,), _ = judge_seconds({"max_cold_seconds": 10}, {}, ranks)

    assert violation.measured == "50 to 52 s in 3 repeats, median 51 s"


def test_the_seconds_of_a_warm_start_are_those_of_the_second_process() -> None:
    limits = {"max_cold_seconds": 30, "max_warm_seconds": 3}

    violations, doubts = judge_seconds(limits, {}, [[taking(20.0, warm)] for warm in (7.0, 7.1, 7.2)])

    assert ([each.name for each in violations], doubts) == (["max_warm_seconds"], ())


@pytest.mark.parametrize(
    ("limits", "seen", "name", "why"),
    [
        (Limits(max_cold_seconds=1), {"stage_seconds": "torch keeps no metrics"}, "max_cold_seconds", "no metrics"),
        (Limits(max_warm_seconds=1), {"warm": "the second process failed"}, "max_warm_seconds", "process failed"),
        (Limits(max_warm_misses=1), {"warm": "the second process failed"}, "max_warm_misses", "process failed"),
    ],
)
def test_seconds_that_are_not_known_hold_no_limit(limits: Limits, seen: dict[str, str], name: str, why: str) -> None:
    measured = Measurement(graphs=1, ops_captured=1, eager_frames=(), limit_hits=(), unmeasured=seen)

    found = judge(replace(limits, numerics=None), measured, torch_version="2.13.0")

    assert [each.name for each in found] == [name]
    assert why in str(found[0].measured)
    assert judge_seconds(limits.to_dict(), {}, [[measured]] * 3) == ((), ())
