"""What is said of a test that failed by itself, and what two such failures have in common."""

from __future__ import annotations

import pytest

from pytest_compilecontract.facts.own_failure import SUBTEST, failed_by, failed_text


@pytest.mark.parametrize(
    ("said", "text", "common"),
    [
        pytest.param(
            failed_text("call", "x: y", exception="ValueError"),
            "the test failed in call: ValueError: x: y",
            ("call", "ValueError"),
            id="an-exception",
        ),
        pytest.param(
            failed_text("call", SUBTEST), "the test failed in call: a subtest failed", ("call", SUBTEST), id="a-subtest"
        ),
        pytest.param(
            failed_text("call", "[XPASS(strict)] why"),
            "the test failed in call: [XPASS(strict)] why",
            ("call", "[XPASS(strict)] why"),
            id="a-strict-xfail",
        ),
    ],
)
def test_what_two_failures_have_in_common_is_phase_and_type(said: str, text: str, common: tuple[str, str]) -> None:
    assert said == text
    assert failed_by(said) == common
