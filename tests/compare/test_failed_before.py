"""A lane whose test failed by itself before and that holds now: good news, if nothing can hide behind the failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.receipts import (
    BREAK,
    HOLDING,
    NEW,
    OLD,
    VIOLATION,
    WORSENED,
    a_receipt,
    a_walk,
    an_entry,
)

from pytest_compilecontract.compare.comparison import compare
from pytest_compilecontract.compare.drift import Comparison, LaneComparison
from pytest_compilecontract.compare.gate import answer
from pytest_compilecontract.compare.matrix import fact_of
from pytest_compilecontract.compare.policy import Policy
from pytest_compilecontract.facts.limits import OBSERVED_LIMITS
from pytest_compilecontract.facts.measurement import Measurement, StateChange
from pytest_compilecontract.facts.own_failure import OwnFailure
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.report.comparison import answer_lines

WRONG = OwnFailure(phase="call", exception="AssertionError", said="Tensor-likes are not close!")
# What the test had shown when it failed.
PART = replace(HOLDING, ops_captured=40, calls=())


def failed(own: OwnFailure = WRONG, seen: Measurement | None = PART, **changes: Any) -> Entry:
    return an_entry(seen, verdict="broken", reason=str(own), own_failure=own, **changes)


def since(old: Entry, new: Entry, policy: Policy = Policy()) -> LaneComparison:  # noqa: B008 - it is frozen
    (lane,) = compare(a_receipt(old), a_receipt(new, environment=NEW), policy).lanes
    return lane


def beside_another(old: Entry, new: Entry) -> Comparison:
    """The same lane, beside one that held before and holds now."""
    other = an_entry(lane="capture")
    return compare(a_receipt(old, other), a_receipt(new, other, environment=NEW))


@pytest.mark.parametrize("seen", [None, PART, HOLDING], ids=["before anything compiled", "half-way", "at its end"])
def test_it_is_improved(seen: Measurement | None) -> None:
    lane = since(failed(seen=seen), an_entry())

    assert lane.verdict == "improved"
    assert lane.reason == (
        "failed by itself before, and holds now: the test failed in call: AssertionError: Tensor-likes are not close!"
    )


def test_a_cell_of_the_matrix_says_that_the_failure_is_gone() -> None:
    assert fact_of(since(failed(), an_entry())) == f"gone: {WRONG}"


def test_the_gate_does_not_wait_for_it() -> None:
    comparison = beside_another(failed(), an_entry())

    found = answer(comparison)

    assert (found.outcome, found.open) == ("yes", ())
    assert answer_lines(comparison, found)[-1].endswith(" yes")


def test_alone_it_answers_nothing() -> None:
    comparison = compare(a_receipt(failed()), a_receipt(an_entry(), environment=NEW))

    found = answer(comparison)

    assert (found.outcome, found.note) == ("not known", "no lane was measured on both sides")


def test_one_that_fails_by_itself_now_is_broken_whatever_it_did_before() -> None:
    other = OwnFailure(phase="call", exception="ValueError", said="no")

    again, anew = since(failed(), failed(other)), since(an_entry(), failed(other))

    assert (again.verdict, again.newly_broken) == ("broken", False)
    assert (anew.verdict, anew.newly_broken) == ("broken", True)
    assert answer(beside_another(failed(), failed(other))).outcome == "not known"
    assert answer(beside_another(an_entry(), failed(other))).outcome == "no"


# What could hide behind it


def fails(exception: str, said: str, phase: str = "call") -> Entry:
    return failed(OwnFailure(phase=phase, exception=exception, said=said), None)


@pytest.mark.parametrize(
    ("old", "why"),
    [
        pytest.param(fails("ModuleNotFoundError", "No module named 'timm'"), "environment", id="a package"),
        pytest.param(fails("FileNotFoundError", "weights.pt"), "environment", id="a file"),
        pytest.param(fails("RuntimeError", "No CUDA GPUs are available"), "environment", id="no device"),
        pytest.param(fails("AssertionError", "Torch not compiled with CUDA enabled"), "environment", id="a build"),
        pytest.param(fails("RuntimeError", "CPU: out of memory"), "environment", id="memory"),
        pytest.param(fails("Failed", "Timeout (>60.0s) from pytest-timeout"), "environment", id="time"),
        pytest.param(fails("ValueError", "no", phase="setup"), "its body did not fail", id="a fixture"),
        pytest.param(fails("ValueError", "no", phase="teardown"), "its body did not fail", id="its teardown"),
        pytest.param(fails("", "[XPASS(strict)] "), "its body did not fail", id="it passed unexpectedly"),
        pytest.param(failed(frontier=a_walk("held", "failed")), "a ladder is compared by its rungs", id="a ladder"),
    ],
)
def test_a_failure_that_says_nothing_of_the_lane_leaves_it_not_known(old: Entry, why: str) -> None:
    lane = since(old, an_entry())

    assert lane.verdict == "unverified"
    assert lane.reason.startswith(f"not known before: {old.reason}; ")
    assert why in lane.reason
    assert answer(beside_another(old, an_entry())).outcome == "not known"


@pytest.mark.parametrize(
    ("now", "why"),
    [
        pytest.param(
            replace(HOLDING, ops_captured=39),
            "it had captured 40 operations by then, and 39 now",
            id="it captures less",
        ),
        pytest.param(replace(HOLDING, calls=()), "it had made 1 call by then, and 0 now", id="it calls less"),
        pytest.param(replace(HOLDING, graphs=None), "graphs not measured now", id="its graphs are not counted"),
        pytest.param(replace(HOLDING, cut_short="Skipped: on 2.15"), "ended early now: Skipped: ", id="it skips"),
        pytest.param(replace(HOLDING, graph_breaks=None), "graph breaks not measured now", id="it is not counted"),
    ],
)
def test_a_test_that_leaves_out_what_would_have_failed_is_not_known(now: Measurement, why: str) -> None:
    lane = since(failed(seen=replace(PART, calls=HOLDING.calls)), an_entry(now))

    assert lane.verdict == "unverified"
    assert why in lane.reason


def test_one_that_captures_nothing_now_is_unmeasured_unless_its_limits_ask_for_that() -> None:
    old, nothing = failed(seen=None), replace(HOLDING, graphs=0, ops_captured=0)

    lane, meant = since(old, an_entry(nothing)), since(old, an_entry(nothing, limits={"max_graphs": 0}))
    observed = since(old, an_entry(nothing, limits=OBSERVED_LIMITS))

    assert (lane.verdict, meant.verdict, observed.verdict) == ("unmeasured", "improved", "unmeasured")
    assert lane.reason == f"nothing was captured now, and not known before: {WRONG}"


@pytest.mark.parametrize("metric", ["graph_breaks", "recompiles", "eager_frames", "limit_hits", "numerics", "errors"])
def test_what_the_lane_shows_now_may_have_come_with_the_upgrade(metric: str) -> None:
    worse = WORSENED[metric]

    came, was_there = (
        since(failed(), an_entry(worse)),
        since(failed(seen=replace(worse, ops_captured=40)), an_entry(worse)),
    )

    assert came.verdict == "unverified"
    assert came.reason.endswith("now, which may be new")
    assert was_there.verdict == "improved"


def test_what_every_compiled_module_has_is_nothing_new() -> None:
    named = StateChange(keys_added=("_orig_mod.weight",), keys_removed=("weight",))

    assert since(failed(seen=None), an_entry(replace(HOLDING, state_change=named))).verdict == "improved"


def test_what_the_policy_does_not_judge_does_not_count() -> None:
    now = an_entry(WORSENED["recompiles"])
    policy = Policy()

    found = since(failed(), now, replace(policy, gate=policy.gate - {"recompiles"}))

    assert found.verdict == "improved"


def test_one_that_exceeds_its_limits_now_is_not_known() -> None:
    now = an_entry(replace(HOLDING, graph_breaks=(BREAK,)), verdict="violated", violations=(VIOLATION,))

    assert since(failed(), now).verdict == "unverified"


def test_on_another_device_it_is_not_known() -> None:
    gpu = replace(OLD, capability="9.0")

    (lane,) = compare(a_receipt(failed(), environment=gpu), a_receipt(an_entry(), environment=NEW)).lanes

    assert (lane.verdict, lane.reason.rpartition("; ")[2]) == ("unverified", "it ran on another device")


def test_the_reason_alone_of_an_older_receipt_is_not_known() -> None:
    old = an_entry(PART, verdict="broken", reason=str(WRONG))

    lane = since(old, an_entry())

    assert (lane.verdict, lane.reason) == ("unverified", f"not known before: {WRONG}")
