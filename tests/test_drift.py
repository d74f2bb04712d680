"""Drift: each thing that got worse is told by its fact, and what torch only renamed is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from receipts import (
    BREAK,
    CALLER,
    CONTRACT,
    COPY,
    DIFFERENCE,
    EAGER,
    FAILURE,
    FORWARD,
    HOLDING,
    LIMIT_HIT,
    NEW,
    OLD,
    OTHER_BREAK,
    RAISED,
    RECOMPILE,
    VIOLATION,
    WORSENED,
    a_receipt,
    after,
    an_entry,
    before,
)

from pytest_compilecontract.contract import Violation
from pytest_compilecontract.drift import (
    Attribution,
    Comparison,
    Drift,
    Fact,
    LaneComparison,
    compare,
    device_of,
    rerun_command,
)
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.gate import answer
from pytest_compilecontract.measurement import Call, Location, Measurement, Numerics
from pytest_compilecontract.policy import Policy
from pytest_compilecontract.receipt import Entry, Environment, Receipt


def compared(old: Measurement | None, new: Measurement | None, **changes: Any) -> LaneComparison:
    """The lane of two receipts that have one lane each; `changes` are of the newer entry."""
    return compare(before(an_entry(old)), after(an_entry(new, **changes))).lanes[0]


def metrics(lane: LaneComparison) -> dict[str, str]:
    """What drifted, by metric, of what the policy judges."""
    return {drift.metric: drift.direction for drift in lane.drifts if drift.gates}


# What torch renames, and what is no drift

BENIGN = {
    "reworded": replace(BREAK, reason="deepcopy is unsupported", explanation="other", kind="copy.deepcopy", hints=()),
    "renumbered": replace(BREAK, registry_id="GB0007"),
    "met-more-often": replace(BREAK, events=5, whole_frame=True),
    "moved-lines": replace(BREAK, location=replace(COPY, line=57), stacks=((replace(COPY, line=57),), BREAK.stacks[1])),
    "met-by-its-caller-alone": replace(BREAK, stacks=BREAK.stacks[1:]),
    "in-a-resume-function": replace(
        BREAK,
        location=replace(COPY, function="torch_dynamo_resume_in_forward_at_40"),
    ),
}


@pytest.mark.parametrize("changed", BENIGN.values(), ids=BENIGN)
def test_a_break_that_torch_tells_otherwise_is_held(changed: Any) -> None:
    lane = compared(replace(HOLDING, graph_breaks=(BREAK,)), replace(HOLDING, graph_breaks=(changed,)))

    assert (lane.verdict, lane.drifts) == ("held", ())


@pytest.mark.parametrize(
    ("metric", "one", "other"),
    [
        pytest.param(
            "recompiles",
            RECOMPILE,
            replace(
                RECOMPILE,
                frame=replace(FORWARD, function="torch_dynamo_resume_in_forward_at_40", line=99),
                kind="guard",
                guard="0/0: tensor 'L['x']' size mismatch at index 0. expected 7, actual 9",
                module="Block",
            ),
            id="recompile",
        ),
        pytest.param(
            "eager_frames",
            EAGER,
            replace(EAGER, frame=replace(FORWARD, line=50), reason="other words", location=None),
            id="eager-frame",
        ),
        pytest.param(
            "limit_hits", LIMIT_HIT, replace(LIMIT_HIT, reason="other words", guard="a guard"), id="limit-hit"
        ),
        pytest.param(
            "errors_suppressed",
            FAILURE,
            replace(FAILURE, type="torch._inductor.errors.LoweringException", message="other"),
            id="failure",
        ),
    ],
)
def test_a_fact_that_torch_tells_otherwise_is_held(metric: str, one: Any, other: Any) -> None:
    lane = compared(replace(HOLDING, **{metric: (one,)}), replace(HOLDING, **{metric: (other,)}))

    assert (lane.verdict, lane.drifts) == ("held", ())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"cold_seconds": 90.0, "steady_seconds": 9.0}, id="times"),
        pytest.param({"ops_captured": 95}, id="five-percent-of-the-ops"),
        pytest.param({"caches": {"hits": 3}, "counters": {"stats": {"unique_graphs": 2}}}, id="caches-and-counters"),
        pytest.param({"calls": (Call(phase="cold", seconds=9.0, graphs_executed=3),)}, id="calls"),
        pytest.param({"numerics": Numerics(method="fp64", worst_error=3e-7)}, id="the-size-of-an-error-that-passes"),
        pytest.param(
            {"eager_frames": (replace(EAGER, cause="nothing to compile"),)}, id="a-frame-with-nothing-to-compile"
        ),
    ],
)
def test_what_moves_by_itself_is_held(changes: dict[str, Any]) -> None:
    lane = compared(HOLDING, replace(HOLDING, **changes))

    assert (lane.verdict, lane.drifts) == ("held", ())


def test_the_number_of_graphs_alone_is_told_and_never_judged() -> None:
    lane = compared(HOLDING, replace(HOLDING, graphs=5, graphs_executed=15, backward_graphs=5))

    assert lane.verdict == "held"
    assert [(drift.metric, drift.direction, drift.gates) for drift in lane.drifts] == [
        ("graphs", "changed", False),
        ("backward_graphs", "changed", False),
        ("graphs_executed", "changed", False),
    ]


# What got worse


@pytest.mark.parametrize("metric", WORSENED)
def test_each_metric_that_got_worse_is_drift(metric: str) -> None:
    lane = compared(HOLDING, WORSENED[metric])

    assert lane.verdict == "drifted"
    assert set(metrics(lane).items()) - {("fullgraph", "worse")} == {(metric, "worse")}


@pytest.mark.parametrize("metric", WORSENED)
def test_each_metric_that_got_better_is_an_improvement(metric: str) -> None:
    lane = compared(WORSENED[metric], HOLDING)

    assert lane.verdict == "improved"
    assert set(metrics(lane).items()) - {("fullgraph", "better")} == {(metric, "better")}


@pytest.mark.parametrize("metric", WORSENED)
def test_a_metric_that_the_policy_leaves_out_is_told_and_not_judged(metric: str) -> None:
    policy = Policy(gate=Policy().gate - {metric, "fullgraph"})

    lane = compare(before(an_entry()), after(an_entry(WORSENED[metric])), policy).lanes[0]

    assert lane.verdict == "held"
    assert metric in [drift.metric for drift in lane.drifts]


def test_a_drift_names_the_fact_the_cause_and_the_command() -> None:
    lane = compared(HOLDING, replace(HOLDING, graph_breaks=(BREAK,)))

    assert lane.drifts[1] == Drift(
        contract=CONTRACT,
        lane="aot",
        metric="graph_breaks",
        direction="worse",
        before=0,
        after=1,
        gates=True,
        came=(
            Fact(
                where="model.py:41 in forward",
                source="mask = copy.deepcopy(self.mask)",
                reason="copy.deepcopy() is not supported (GB0179)",
                hint="Avoid calling copy.deepcopy()",
                stack=("train.py:9 in step",),
            ),
        ),
        attribution=Attribution(torch=("torch 2.11.0 -> 2.15.0", "triton 3.6.0 -> 3.9.0")),
        rerun=f"pytest --compile-contracts --contract-lanes=aot '{CONTRACT}[aot]'",
    )


def test_one_break_gone_and_another_come_are_two_facts() -> None:
    lane = compared(replace(HOLDING, graph_breaks=(BREAK,)), replace(HOLDING, graph_breaks=(OTHER_BREAK,)))

    drift = lane.drifts[0]
    assert lane.verdict == "drifted"
    assert (drift.before, drift.after) == (1, 1)
    assert [fact.where for fact in drift.came] == ["model.py:45 in forward"]
    assert [fact.where for fact in drift.went] == ["model.py:41 in forward"]


def test_a_second_break_of_the_same_line_is_one_more() -> None:
    again = replace(BREAK, location=replace(COPY, line=48), stacks=((CALLER, replace(COPY, line=48)),))

    lane = compared(replace(HOLDING, graph_breaks=(BREAK,)), replace(HOLDING, graph_breaks=(BREAK, again)))

    assert [len(drift.came) for drift in lane.drifts] == [1]


def test_one_more_recompile_of_the_same_guard_is_drift() -> None:
    lane = compared(replace(HOLDING, recompiles=(RECOMPILE,)), replace(HOLDING, recompiles=(RECOMPILE, RECOMPILE)))

    assert [(drift.before, drift.after, len(drift.came)) for drift in lane.drifts] == [(1, 2, 1)]


def test_a_limit_newly_exceeded_is_drift() -> None:
    lane = compared(HOLDING, replace(HOLDING, graphs=2), verdict="violated", violations=(VIOLATION,))

    assert lane.verdict == "drifted"
    assert lane.drifts[0].came == (Fact(where="max_graphs=1", reason="measured 2"),)


def test_all_that_drifted_is_told() -> None:
    worst = replace(HOLDING, graph_breaks=(BREAK,), recompiles=(RECOMPILE,), limit_hits=(LIMIT_HIT,), ops_captured=9)

    lane = compared(HOLDING, replace(worst, numerics=replace(WORSENED["numerics"].numerics)))  # type: ignore[type-var]

    assert set(metrics(lane)) == {"fullgraph", "graph_breaks", "recompiles", "limit_hits", "ops_captured", "numerics"}


def test_what_got_better_does_not_hide_what_got_worse() -> None:
    lane = compared(replace(HOLDING, recompiles=(RECOMPILE,)), WORSENED["numerics"])

    assert (lane.verdict, metrics(lane)) == ("drifted", {"recompiles": "better", "numerics": "worse"})


def test_fewer_operations_because_fewer_frames_were_compiled_again_are_an_improvement() -> None:
    often = replace(HOLDING, graphs=6, ops_captured=13, recompiles=(RECOMPILE,) * 4)
    once = replace(HOLDING, graphs=3, ops_captured=8, recompiles=(RECOMPILE,))

    lane = compared(often, once)

    assert lane.verdict == "improved"
    assert ("ops_captured", "changed") in [(drift.metric, drift.direction) for drift in lane.drifts]


def test_smaller_graphs_are_drift_though_fewer_frames_were_compiled_again() -> None:
    often = replace(HOLDING, graphs=6, ops_captured=60, recompiles=(RECOMPILE,) * 4)
    once = replace(HOLDING, graphs=3, ops_captured=27, recompiles=(RECOMPILE,))

    assert compared(often, once).verdict == "drifted"


def test_a_frame_that_is_eager_for_another_cause_is_another_fact() -> None:
    other = replace(EAGER, cause="suppressed error")

    lane = compared(replace(HOLDING, eager_frames=(EAGER,)), replace(HOLDING, eager_frames=(other,)))

    assert [(len(drift.came), len(drift.went)) for drift in lane.drifts] == [(1, 1)]


def test_times_are_compared_within_the_band_that_the_project_gives() -> None:
    policy = Policy(gate=frozenset({"steady_seconds"}), band={"steady_seconds": 0.25})

    verdicts = [
        compare(before(an_entry()), after(an_entry(replace(HOLDING, steady_seconds=seconds))), policy).lanes[0].verdict
        for seconds in (0.00124, 0.00126, 0.0007)
    ]

    assert verdicts == ["held", "drifted", "improved"]


# What broke


def test_a_lane_that_raises_now_is_broken() -> None:
    lane = compared(HOLDING, Measurement(raised=RAISED), verdict="broken", reason="raised")

    assert (lane.verdict, lane.newly_broken) == ("broken", True)
    assert lane.drifts[0].came[0].reason == "torch._dynamo.exc.InternalTorchDynamoError: oh no"


def test_a_test_that_fails_by_itself_now_is_broken() -> None:
    lane = compared(HOLDING, None, verdict="broken", reason="the test failed in call: AssertionError: 3 is not 2")

    assert [fact.where for fact in lane.drifts[0].came] == ["the test failed in call: AssertionError: 3 is not 2"]


def test_a_lane_that_took_its_process_with_it_is_broken_wherever_that_was() -> None:
    card = a_receipt(an_entry(), environment=replace(OLD, capability="9.0"))
    lost = a_receipt(an_entry(None, verdict="broken", reason="worker 'gw0' crashed"), environment=Environment())

    assert compare(card, lost).lanes[0].newly_broken


def test_a_lane_that_raised_before_too_is_broken_and_not_newly() -> None:
    entry = an_entry(Measurement(raised=RAISED), verdict="broken", reason="raised")

    lane = compare(before(entry), after(entry)).lanes[0]

    assert (lane.verdict, lane.newly_broken, lane.drifts) == ("broken", False, ())


def test_a_lane_that_raised_before_and_holds_now_is_improved() -> None:
    entry = an_entry(Measurement(raised=RAISED), verdict="broken")

    assert compare(before(entry), after(an_entry())).lanes[0].verdict == "improved"


def test_a_lane_that_raised_before_and_exceeds_its_limits_now_is_not_known() -> None:
    entry = an_entry(Measurement(raised=RAISED), verdict="broken")

    lane = compare(before(entry), after(an_entry(verdict="violated", violations=(VIOLATION,)))).lanes[0]

    assert (lane.verdict, lane.reason) == ("unverified", "broken before and violated now, so nothing to compare")


def test_a_reference_lane_counts_only_where_it_breaks() -> None:
    eager = an_entry(lane="eager", verdict="reference")

    held = compare(before(eager), after(eager))
    broken = compare(before(eager), after(replace(eager, verdict="broken", reason="the test failed in call: E: x")))

    assert held.lanes == ()
    assert broken.lanes[0].newly_broken


# What is not known


def test_lanes_of_one_side_are_new_or_missing() -> None:
    old, new = an_entry(lane="inductor"), an_entry(lane="capture")

    comparison = compare(before(old, an_entry()), after(new, an_entry()))

    assert [(lane.lane, lane.verdict) for lane in comparison.lanes] == [
        ("aot", "held"),
        ("capture", "new"),
        ("inductor", "missing"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "verdict", "reason"),
    [
        pytest.param("unmeasured", "unmeasured", "unmeasured", "needs CUDA", id="never"),
        pytest.param("held", "unmeasured", "unmeasured", "needs CUDA", id="not-any-more"),
        pytest.param("unmeasured", "held", "new", "not measured before: needs CUDA", id="not-before"),
        pytest.param("held", "unverified", "unverified", "unverified: needs CUDA", id="unverified-now"),
        pytest.param("unverified", "held", "unverified", "unverified before: needs CUDA", id="unverified-before"),
    ],
)
def test_what_one_side_does_not_know_is_not_held(old: Any, new: Any, verdict: str, reason: str) -> None:
    entries = [
        an_entry(None if own == "unmeasured" else HOLDING, verdict=own, reason="" if own == "held" else "needs CUDA")
        for own in (old, new)
    ]

    lane = compare(before(entries[0]), after(entries[1])).lanes[0]

    assert (lane.verdict, lane.reason) == (verdict, reason)


@pytest.mark.parametrize(
    "metric",
    [
        "graphs",
        "graphs_executed",
        "ops_captured",
        "graph_breaks",
        "recompiles",
        "eager_frames",
        "limit_hits",
        "numerics",
        "state_change",
        "backend_failures",
    ],
)
def test_a_metric_that_only_one_side_has_is_not_known(metric: str) -> None:
    without = replace(HOLDING, **{metric: None}, unmeasured={metric: "this torch has no such tap"})

    gone, come = compared(HOLDING, without), compared(without, HOLDING)

    assert (gone.verdict, come.verdict) == ("unverified", "unverified")
    assert gone.reason.endswith("not measured any more: this torch has no such tap")
    assert come.reason.endswith("not measured before: this torch has no such tap")


def test_drift_is_drift_whatever_else_is_not_known() -> None:
    lane = compared(HOLDING, replace(HOLDING, graph_breaks=(BREAK,), recompiles=None))

    assert (lane.verdict, lane.unknown) == ("drifted", ("recompiles: not measured any more",))


@pytest.mark.parametrize("empty", [None, Measurement()], ids=["no-measurement", "a-measurement-of-nothing"])
def test_nothing_measured_on_both_sides_is_not_held(empty: Measurement | None) -> None:
    assert compared(empty, empty).verdict == "unmeasured"


def test_nothing_captured_on_both_sides_is_not_held() -> None:
    nothing = replace(HOLDING, graphs=0, ops_captured=0, graphs_executed=0, backward_graphs=0)

    assert compared(nothing, nothing).verdict == "unmeasured"
    assert compared(nothing, nothing, limits={"max_graphs": 0}).verdict == "held"


def test_another_kind_of_device_is_not_known() -> None:
    card = replace(NEW, device="A card", capability="9.0")

    lane = compare(before(an_entry()), a_receipt(an_entry(), environment=card)).lanes[0]

    assert lane.verdict == "unverified"
    assert lane.reason == "another kind of device, so nothing to compare: cpu -> cuda sm90"
    assert lane.attribution.hardware == ("device A processor -> A card", "capability none -> 9.0")


def test_a_lane_of_the_processor_is_the_same_beside_a_card() -> None:
    card = replace(OLD, device="A card", capability="9.0")

    assert device_of(card, {"device": "cpu"}) == device_of(OLD, {})


def test_a_lane_twice_in_a_receipt_is_refused() -> None:
    twice = before(an_entry(), an_entry(test="another"))

    with pytest.raises(ReceiptError) as caught:
        compare(twice, after(an_entry()))

    assert str(caught.value) == f"{CONTRACT}, lane aot: twice (environments 'here' and 'here'), compare one at a time"


# Attribution


@pytest.mark.parametrize(
    ("changes", "suspects"),
    [
        pytest.param({}, (), id="nothing"),
        pytest.param({"torch": "2.15.0", "triton": "3.9.0", "cuda": "13.0"}, ("torch",), id="torch"),
        pytest.param({"libraries": {"transformers": "5.0"}}, ("library",), id="library"),
        pytest.param({"python": "3.12.1"}, ("library",), id="python"),
        pytest.param({"driver": "580.1", "processor": "another"}, ("hardware",), id="hardware"),
        pytest.param({"settings": {"torch._dynamo.config.x": "1"}}, ("settings",), id="settings"),
        pytest.param({"variables": {"TORCH_LOGS": "+dynamo"}}, ("settings",), id="variables"),
        pytest.param({"commit": "b" * 40}, ("project",), id="commit"),
        pytest.param({"dirty": True}, ("project",), id="uncommitted"),
    ],
)
def test_a_drift_is_due_to_what_was_not_held_fixed(changes: dict[str, Any], suspects: tuple[str, ...]) -> None:
    newer = a_receipt(an_entry(), environment=replace(OLD, **changes))

    assert compare(before(an_entry()), newer).lanes[0].attribution.suspects() == suspects


def test_a_changed_lane_or_limit_is_the_project_s() -> None:
    lane = compared(HOLDING, HOLDING, lane_settings={"backend": "aot_eager", "dynamic": True}, limits={"max_graphs": 1})

    assert lane.attribution.project == ("lane: dynamic none -> True", "limit: max_graphs none -> 1")


def test_the_settings_that_changed_are_listed() -> None:
    old, new = ({"torch._dynamo.config.cache": value, "same": "1"} for value in ("8", "16"))

    comparison = compare(
        a_receipt(an_entry(), environment=replace(OLD, settings=old)),
        a_receipt(an_entry(), environment=replace(OLD, settings=new)),
    )

    assert comparison.lanes[0].attribution.settings == ("torch._dynamo.config.cache 8 -> 16",)


def test_the_command_of_a_test_that_compiles_by_itself_names_no_lane() -> None:
    entry = an_entry(lane="body", lane_settings={"backend": ""}, test="tests/test_a.py::test_b[a b]")

    assert rerun_command(entry) == "pytest --compile-contracts 'tests/test_a.py::test_b[a b]'"


# For all receipts

NAMES = st.sampled_from(["a.py", "b.py"])
LOCATIONS = st.builds(Location, file=NAMES, line=st.integers(1, 3), function=NAMES, source=st.sampled_from(["", "x()"]))
SOME = {
    "graph_breaks": st.builds(
        replace, st.just(BREAK), location=LOCATIONS, stacks=st.lists(st.tuples(LOCATIONS), max_size=2).map(tuple)
    ),
    "recompiles": st.builds(replace, st.just(RECOMPILE), frame=LOCATIONS, guard=st.text(max_size=12)),
    "eager_frames": st.builds(replace, st.just(EAGER), frame=LOCATIONS),
    "limit_hits": st.builds(replace, st.just(LIMIT_HIT), frame=LOCATIONS),
    "backend_failures": st.builds(replace, st.just(FAILURE), frame=LOCATIONS),
}
COUNT = st.none() | st.integers(0, 40)
MEASUREMENTS = st.builds(
    replace,
    st.just(HOLDING),
    graphs=COUNT,
    ops_captured=COUNT,
    graphs_executed=COUNT,
    backward_graphs=COUNT,
    numerics=st.sampled_from([None, HOLDING.numerics, Numerics(method="fp64", differences=(DIFFERENCE,))]),
    raised=st.sampled_from([None, None, RAISED]),
    **{name: st.none() | st.lists(facts, max_size=3).map(tuple) for name, facts in SOME.items()},
)
ENTRIES = st.builds(
    an_entry,
    st.none() | MEASUREMENTS,
    verdict=st.sampled_from(["held", "violated", "broken", "unmeasured", "unverified", "reference"]),
    violations=st.sampled_from([(), (VIOLATION,)]),
    reason=st.sampled_from(["", "the test failed in call: ValueError: no"]),
    lane=st.sampled_from(["aot", "capture", "inductor"]),
)
ENVIRONMENTS = st.builds(
    replace,
    st.just(OLD),
    torch=st.sampled_from([None, "2.11.0", "2.15.0"]),
    capability=st.sampled_from([None, "9.0"]),
    commit=st.sampled_from([None, "a", "b"]),
)


@st.composite
def receipts(draw: st.DrawFn) -> Receipt:
    entries: list[Entry] = draw(st.lists(ENTRIES, unique_by=lambda entry: entry.lane, max_size=3))
    environment: Environment = draw(ENVIRONMENTS)
    return a_receipt(*entries, environment=environment)


def lanes(comparison: Comparison, verdict: str) -> set[str]:
    return {lane.lane for lane in comparison.lanes if lane.verdict == verdict}


def wheres(*sides: tuple[Fact, ...]) -> list[list[str]]:
    return [[fact.where for fact in side] for side in sides]


@given(receipts())
def test_a_receipt_compared_with_itself_shows_nothing(receipt: Receipt) -> None:
    comparison = compare(receipt, receipt)

    assert comparison.drifts == ()
    assert {lane.verdict for lane in comparison.lanes} <= {"held", "broken", "unmeasured", "unverified"}
    assert answer(comparison).outcome != "no"


@given(receipts(), receipts())
def test_swapping_the_sides_swaps_the_verdicts(one: Receipt, other: Receipt) -> None:
    there, back = compare(one, other), compare(other, one)

    swapped = {"worse": "better", "better": "worse", "changed": "changed"}
    for ahead, behind in zip(there.drifts, back.drifts, strict=True):
        assert (ahead.metric, ahead.before, ahead.after) == (behind.metric, behind.after, behind.before)
        assert wheres(ahead.came, ahead.went) == wheres(behind.went, behind.came)
        both = ahead.came and ahead.went
        assert behind.direction == (ahead.direction if both else swapped[ahead.direction])
    only_there = {lane.lane for lane in there.lanes if lane.before is None}
    assert only_there == {lane.lane for lane in back.lanes if lane.after is None}
    assert lanes(there, "missing") == {lane.lane for lane in back.lanes if lane.before is None}
    assert lanes(there, "improved") <= lanes(back, "drifted") | lanes(back, "broken")


@given(receipts(), receipts())
def test_yes_is_said_only_where_every_lane_is_known(one: Receipt, other: Receipt) -> None:
    comparison = compare(one, other)

    if answer(comparison).outcome == "yes":
        assert comparison.lanes
        assert {lane.verdict for lane in comparison.lanes} <= {"held", "improved"}
        assert {lane.after for lane in comparison.lanes} <= {"held", "reference"}


# What a mend costs


STALE = replace(HOLDING, numerics=replace(HOLDING.numerics, differences=(DIFFERENCE,)))  # type: ignore[type-var]


def test_the_recompile_that_stale_numbers_needed_is_shown_and_gates_nothing() -> None:
    lane = compare(
        before(an_entry(STALE, verdict="violated")), after(an_entry(replace(HOLDING, recompiles=(RECOMPILE,))))
    ).lanes[0]

    assert lane.verdict == "improved"
    assert [(each.metric, each.direction, each.gates) for each in lane.drifts] == [
        ("recompiles", "worse", False),
        ("numerics", "better", True),
    ]


def test_a_mend_that_exceeds_a_limit_is_drift() -> None:
    lane = compare(
        before(an_entry(STALE, verdict="violated")),
        after(an_entry(replace(HOLDING, recompiles=(RECOMPILE,)), verdict="violated", violations=(VIOLATION,))),
    ).lanes[0]

    assert lane.verdict == "drifted"


def test_right_numbers_before_excuse_no_recompile() -> None:
    lane = compared(HOLDING, replace(HOLDING, recompiles=(RECOMPILE,)))

    assert lane.verdict == "drifted"


def test_recompiles_after_a_break_that_is_gone_move_to_its_frame() -> None:
    resumed = replace(HOLDING, graph_breaks=(BREAK,), recompiles=(RECOMPILE,))
    whole = replace(HOLDING, recompiles=(replace(RECOMPILE, guard="scale == 2", continuation=False),))

    lane = compared(resumed, whole)

    assert lane.verdict == "improved"
    assert metrics(lane) == {"fullgraph": "better", "graph_breaks": "better"}


def test_one_recompile_more_is_drift_also_where_a_break_is_gone() -> None:
    resumed = replace(HOLDING, graph_breaks=(BREAK,), recompiles=(RECOMPILE,))
    moved = replace(RECOMPILE, guard="scale == 2", continuation=False)

    lane = compared(resumed, replace(HOLDING, recompiles=(moved, moved)))

    assert lane.verdict == "drifted"


def test_fewer_operations_of_fewer_recompiles_are_no_loss() -> None:
    twice = replace(HOLDING, graphs=2, ops_captured=200, recompiles=(RECOMPILE,))

    lane = compared(twice, HOLDING)

    assert lane.verdict == "improved"
    assert metrics(lane) == {"recompiles": "better"}


def test_steady_calls_that_ran_nothing_before_are_not_lost_now() -> None:
    nothing = replace(HOLDING, graphs=0, graphs_executed=0, ops_captured=0)
    steady = Violation(limit="compiled code runs in steady calls (default)", measured="2 of 3 calls ran none")
    captured = Violation(limit="min_ops_captured=1 (default)", measured=0)

    lane = compare(
        before(an_entry(nothing, verdict="violated", violations=(captured,))),
        after(an_entry(verdict="violated", violations=(steady,))),
    ).lanes[0]

    assert lane.verdict == "improved"
