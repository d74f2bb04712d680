"""The entry of a lane that ran once: its verdict, the reason in words, and what of it is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.receipts import BREAK, HOLDING, a_walk

from pytest_compilecontract.facts.lanes import BUILT_IN
from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import Measurement, RaisedInBoth
from pytest_compilecontract.facts.metrics import combined
from pytest_compilecontract.facts.own_failure import OwnFailure
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.plugin.judged import Judged, Subject, failed, judged, over_walk, unmeasured

SUBJECT = Subject(
    contract="tests/test_block.py::test_block",
    lane=BUILT_IN["aot"],
    test="tests/test_block.py::test_block[aot]",
    limits=Limits(max_graph_breaks=0),
    environment="here",
    worker="gw0",
    gpu="H200",
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


# A ladder

NAMES = ("capture", "aot", "inductor")


def walked(*verdicts: Any, least: str | None = None) -> Judged:
    """A contract that climbed so far: a run for each rung that could be measured."""
    limits = Limits(max_graph_breaks=0, frontier=NAMES, min_frontier=least)
    runs = [
        of(HOLDING if each == "held" else BROKEN_UP, limits=limits) for each in verdicts if each in ("held", "failed")
    ]
    return over_walk(replace(SUBJECT, limits=limits), runs, a_walk(*verdicts))


def test_a_contract_that_reaches_the_rung_that_is_required_holds() -> None:
    found = walked("held", "held", "failed", least="aot")

    assert (found.entry.verdict, found.entry.reason, found.entry.violations) == ("held", "", ())
    # Of the highest rung that held.
    assert found.entry.measurement == HOLDING
    assert found.entry.frontier == a_walk("held", "held", "failed")
    assert found.entry.seconds == 1.5
    assert (found.entry.lane, found.entry.test) == ("aot", SUBJECT.test)
    assert found.entry.lane_settings == BUILT_IN["aot"].to_dict()


@pytest.mark.parametrize(
    ("verdicts", "least", "limit"),
    [
        pytest.param(("held", "failed", "not reached"), "aot", "min_frontier='aot'", id="below the one required"),
        pytest.param(("failed", "not reached", "not reached"), None, "min_frontier='capture' (default)", id="no rung"),
    ],
)
def test_a_contract_that_does_not_is_violated_by_what_stopped_it(
    verdicts: tuple[str, ...], least: str | None, limit: str
) -> None:
    entry = walked(*verdicts, least=least).entry

    (violation,) = entry.violations
    assert (entry.verdict, violation.limit, violation.measured) == ("violated", limit, a_walk(*verdicts).told())  # type: ignore[arg-type]
    assert entry.reason == f"{limit}: {violation.measured}"
    assert violation.facts == of(BROKEN_UP).entry.violations[0].facts


def test_a_rung_that_is_required_and_cannot_be_measured_leaves_the_contract_unmeasured() -> None:
    found = walked("held", "unmeasured", "unmeasured", least="inductor")

    assert (found.entry.verdict, found.entry.violations) == ("unmeasured", ())
    assert found.entry.reason == "inductor: max_graph_breaks=0: 1"
