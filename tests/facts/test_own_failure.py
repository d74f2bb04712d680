"""What is said of a test that failed by itself, and what two such failures have in common."""

from __future__ import annotations

import pytest

from pytest_compilecontract.facts.own_failure import SUBTEST, OwnFailure, kind_of


@pytest.mark.parametrize(
    ("failure", "text", "common"),
    [
        pytest.param(
            OwnFailure(phase="call", exception="ValueError", said="x: y"),
            "the test failed in call: ValueError: x: y",
            ("call", "ValueError"),
            id="an-exception",
        ),
        pytest.param(
            OwnFailure(phase="call", said=SUBTEST),
            "the test failed in call: a subtest failed",
            ("call", SUBTEST),
            id="a-subtest",
        ),
        pytest.param(
            OwnFailure(phase="call", said="[XPASS(strict)] why"),
            "the test failed in call: [XPASS(strict)] why",
            ("call", "[XPASS(strict)] why"),
            id="a-strict-xfail",
        ),
    ],
)
def test_what_two_failures_have_in_common_is_phase_and_type(
    failure: OwnFailure, text: str, common: tuple[str, str]
) -> None:
    assert str(failure) == text
    assert kind_of(failure, text) == common
    assert kind_of(None, text) == common  # of a receipt that an older version wrote


def test_what_a_message_says_is_no_part_of_the_kind() -> None:
    said = OwnFailure(phase="call", exception="", said="one: two")

    assert said.kind == ("call", "one: two")
    assert kind_of(None, "the process ended while this lane ran") == ("the process ended while this lane ran", "")
