"""How a suite is cut into shards: evenly by what is known of its times, and the same everywhere."""

from __future__ import annotations

import random

import pytest

from pytest_compilecontract.facts.shards import planned

TESTS = {f"test_{number:02}": True for number in range(20)}
SECONDS = {test: float(2 ** (index % 7)) for index, test in enumerate(TESTS)}


def loads(of: int) -> list[float]:
    return [sum(SECONDS[test] for test in shard.tests) for shard in planned(TESTS, SECONDS, of)]


@pytest.mark.parametrize("of", [1, 2, 3, 8, 20, 30])
def test_each_test_is_in_one_shard(of: int) -> None:
    shards = planned(TESTS, SECONDS, of)

    assert sorted(test for shard in shards for test in shard.tests) == sorted(TESTS)
    assert [str(shard) for shard in shards] == [f"shard {index} of {of}" for index in range(1, of + 1)]


@pytest.mark.parametrize("of", [2, 3, 4])
def test_shards_take_about_as_long(of: int) -> None:
    # No more apart than the shortest that could be moved.
    assert max(loads(of)) - min(loads(of)) <= 8


def test_without_times_there_are_as_many_in_each() -> None:
    assert [len(shard.tests) for shard in planned(TESTS, {}, 6)] == [4, 4, 3, 3, 3, 3]


def test_what_is_no_contract_goes_where_there_is_least() -> None:
    tests = {"test_long": True, "test_short": True, **{f"test_plain_{each}": False for each in range(4)}}

    first, second = planned(tests, {"test_long": 9.0, "test_short": 1.0}, 2)

    assert first.tests == ("test_long",)
    assert len(second.tests) == 5


def test_a_contract_without_a_time_is_taken_for_a_usual_one() -> None:
    tests = {"test_a": True, "test_b": True, "test_c": True, "test_new": True}

    shards = planned(tests, {"test_a": 4.0, "test_b": 2.0, "test_c": 2.0}, 2)

    assert [shard.tests for shard in shards] == [("test_a", "test_new"), ("test_b", "test_c")]


def test_no_order_has_a_say() -> None:
    shuffled = list(TESTS)
    random.Random(0).shuffle(shuffled)

    assert planned(dict.fromkeys(shuffled, True), SECONDS, 3) == planned(TESTS, SECONDS, 3)


def test_another_cut_is_another_plan() -> None:
    plans = {
        planned(TESTS, SECONDS, 3)[0].plan,
        planned(TESTS, SECONDS, 4)[0].plan,
        planned(TESTS, {}, 3)[0].plan,
        planned({**TESTS, "test_more": True}, SECONDS, 3)[0].plan,
    }

    assert len(plans) == 4
