"""The entry of a lane that ran once: its verdict, the reason in words, and what of it is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.receipts import BREAK, HOLDING

from pytest_compilecontract.facts.lanes import BUILT_IN
from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import Measurement, RaisedInBoth
from pytest_compilecontract.facts.metrics import combined
from pytest_compilecontract.facts.own_failure import OwnFailure
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.plugin.judged import Judged, Subject, failed, judged, unmeasured

SUBJECT = Subject(
    contract="tests/test_block.py::test_block",
    lane=BUILT_IN["aot"],
    test="tests/test_block.py::test_block[aot]",
    limits=Limits(max_graph_breaks=0),
    environment="here",
    worker="gw0",
    card="H200",
)
BOTH = RaisedInBoth(type="ValueError", message="too long", at="call 1")
BROKEN_UP = replace(HOLDING, graph_breaks=(BREAK,))
DOUBTED = replace(HOLDING, disagreements=("1, 2",))


def of(*measurements: Measurement, seconds: float = 0.5, **changes: Any) -> Judged:
    return judged(replace(SUBJECT, **changes), measurements=measurements, seconds=seconds, torch_version="2.13.0")


def test_a_lane_that_holds_has_its_measurement_and_no_reason() -> None:
    found = of(HOLDING)

    assert found == Judged(
        entry=Entry(
            contract="tests/test_block.py::test_block",
            lane="aot",
            test="tests/test_block.py::test_block[aot]",
            limits={"max_graph_breaks": 0},
            lane_settings=BUILT_IN["aot"].to_dict(),
            environment="here",
            worker="gw0",
            card="H200",
            verdict="held",
            reason="",
            seconds=0.5,
            measurement=HOLDING,
        )
    )
    assert not found.failed


@pytest.mark.parametrize(
    ("measurements", "changes", "verdict", "reason"),
    [
        pytest.param((BROKEN_UP,), {}, "violated", "max_graph_breaks=0: 1", id="violated"),
        pytest.param((DOUBTED,), {}, "unverified", "two independent counts disagree: 1, 2", id="unverified"),
        pytest.param(
            (DOUBTED, DOUBTED), {}, "unverified", "two independent counts disagree: 1, 2", id="one doubt of two parts"
        ),
        pytest.param(
            (replace(BROKEN_UP, raised_in_both=BOTH),),
            {"notes": ("a setting", "another")},
            "violated",
            f"{BOTH}; max_graph_breaks=0: 1; a setting; another",
            id="everything there is to say",
        ),
        pytest.param((BROKEN_UP,), {"lane": BUILT_IN["eager"]}, "reference", "", id="the reference"),
        pytest.param(
            (),
            {},
            "violated",
            "something to measure: the test measured nothing with compile_lane",
            id="nothing measured",
        ),
    ],
)
def test_the_verdict_and_its_reason(
    measurements: tuple[Measurement, ...], changes: dict[str, Any], verdict: str, reason: str
) -> None:
    found = of(*measurements, **changes)

    assert (found.entry.verdict, found.entry.reason) == (verdict, reason)
    assert found.failed == (verdict not in ("held", "reference"))


def test_what_is_violated_and_doubted_is_kept_beside_the_entry() -> None:
    found = of(replace(BROKEN_UP, disagreements=("1, 2",)))

    assert [each.limit for each in found.entry.violations] == ["max_graph_breaks=0"]
    assert found.doubts == ("two independent counts disagree: 1, 2",)
    assert found.entry.reason == "max_graph_breaks=0: 1; two independent counts disagree: 1, 2"


def test_the_parts_of_a_test_are_judged_together() -> None:
    found = of(HOLDING, BROKEN_UP).entry

    assert found.verdict == "violated"
    assert found.measurement == combined((HOLDING, BROKEN_UP))


def test_what_cannot_run_here_is_unmeasured_with_its_reason() -> None:
    found = unmeasured(SUBJECT, "no CUDA device here")

    assert found == replace(
        of(HOLDING).entry, verdict="unmeasured", reason="no CUDA device here", measurement=None, seconds=0.0
    )


def test_a_test_that_failed_by_itself_keeps_what_it_had_measured() -> None:
    own = OwnFailure(phase="call", exception="AssertionError", said="no")
    measured = of(HOLDING).entry
    both = replace(measured, measurement=replace(HOLDING, raised_in_both=BOTH))

    before = failed(SUBJECT, "the test failed", None, own)
    after = failed(SUBJECT, "the test failed", measured, own)
    told = failed(SUBJECT, "the test failed", both)

    assert before == replace(unmeasured(SUBJECT, "the test failed"), verdict="broken", own_failure=own)
    assert after == replace(measured, verdict="broken", reason="the test failed", own_failure=own)
    assert (told.reason, told.own_failure) == (f"the test failed ({BOTH})", None)
