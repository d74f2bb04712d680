"""Drift: each thing that got worse is told by its fact, and what torch only renamed is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.receipts import (
    BENIGN,
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
    WORSE,
    WORSENED,
    a_receipt,
    a_walk,
    after,
    an_entry,
    before,
    repeated,
)

from pytest_compilecontract.compare.attribution import Attribution, device_of
from pytest_compilecontract.compare.comparison import compare, unsteady
from pytest_compilecontract.compare.drift import Comparison, Drift, Fact, LaneComparison
from pytest_compilecontract.compare.gate import answer
from pytest_compilecontract.compare.policy import Policy
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.facts.ladder import StepVerdict
from pytest_compilecontract.facts.limits import OBSERVED
from pytest_compilecontract.facts.measurement import Call, Kernels, Location, Measurement, Numerics, StepKernels
from pytest_compilecontract.facts.metrics import BANDED, METRICS
from pytest_compilecontract.facts.own_failure import OwnFailure
from pytest_compilecontract.facts.receipt import Entry, Environment, Receipt, defaults_key
from pytest_compilecontract.facts.rerun import rerun_command
from pytest_compilecontract.facts.verdict import Violation


def compared(old: Measurement | None, new: Measurement | None, **changes: Any) -> LaneComparison:
    """The lane of two receipts that have one lane each; `changes` are of the newer entry."""
    return compare(before(an_entry(old)), after(an_entry(new, **changes))).lanes[0]


def metrics(lane: LaneComparison) -> dict[str, str]:
    """What drifted, by metric, of what the policy judges."""
    return {drift.metric: drift.direction for drift in lane.drifts if drift.gates}


# What torch renames, and what is no drift


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
        ("graphs_executed", "changed", False),
        ("backward_graphs", "changed", False),
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
                at=BREAK.location,
            ),
        ),
        attribution=Attribution(torch=("torch 2.11.0 -> 2.15.0", "triton 3.6.0 -> 3.9.0")),
    )
    assert str(lane.rerun) == f"pytest --compile-contracts --contract-lanes=aot -- '{CONTRACT}[aot]'"


def test_a_fact_says_how_often_it_was_and_its_reason_does_not() -> None:
    (fact,) = compared(HOLDING, replace(HOLDING, graph_breaks=(BREAK, BREAK))).drifts[1].came

    assert (fact.reason, fact.times) == ("copy.deepcopy() is not supported (GB0179)", 2)
    assert fact.said == "copy.deepcopy() is not supported (GB0179) (2 times)"


def test_one_break_gone_and_another_come_are_two_facts() -> None:
    lane = compared(replace(HOLDING, graph_breaks=(BREAK,)), replace(HOLDING, graph_breaks=(OTHER_BREAK,)))

    drift = lane.drifts[0]
    assert lane.verdict == "drifted"
    assert (drift.before, drift.after) == (1, 1)
    assert [fact.where for fact in drift.came] == ["model.py:45 in forward"]
    assert [fact.where for fact in drift.went] == ["model.py:41 in forward"]


def test_two_breaks_in_a_wrapper_of_python_s_are_no_more_than_one() -> None:
    made = Location(file="contextlib.py", line=105, function="__init__", source="self.gen = func(*args, **kwds)")
    one = replace(BREAK, location=made, stacks=((made,),))
    other = replace(BREAK, location=replace(made, line=80), stacks=((replace(made, line=80),),))

    lane = compared(replace(HOLDING, graph_breaks=(one,)), replace(HOLDING, graph_breaks=(one, other)))

    assert (lane.verdict, lane.drifts) == ("held", ())


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
    assert lane.drifts[0].came == (Fact(where="max_graphs=1", reason="measured 2", name="max_graphs"),)


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


def climbed(*verdicts: StepVerdict, **changes: Any) -> Entry:
    return an_entry(lane="frontier", frontier=a_walk(*verdicts), **changes)


def test_a_frontier_that_retreats_says_which_rung_and_why_and_nothing_of_other_counts() -> None:
    old, new = climbed("held", "held"), climbed("held", "failed", measurement=WORSENED["graph_breaks"])

    lane = compare(before(old), after(new)).lanes[0]

    assert lane.verdict == "drifted"
    assert [(drift.metric, drift.before, drift.after) for drift in lane.drifts] == [("frontier", "aot", "capture")]
    assert lane.drifts[0].came == (Fact(where="rung aot", reason="max_graph_breaks=0: 1"),)
    assert str(lane.rerun).endswith(f"--compile-contracts -- '{CONTRACT}[aot]'")


def test_a_frontier_that_advances_is_an_improvement() -> None:
    lane = compare(before(climbed("held", "failed")), after(climbed("held", "held"))).lanes[0]

    assert (lane.verdict, [drift.direction for drift in lane.drifts]) == ("improved", ["better"])


def test_on_the_same_rung_the_counts_are_compared() -> None:
    lane = compare(
        before(climbed("held", "failed")), after(climbed("held", "failed", measurement=WORSENED["graph_breaks"]))
    ).lanes[0]

    assert "graph_breaks" in [drift.metric for drift in lane.drifts]


@pytest.mark.parametrize(
    ("then", "now"),
    [
        pytest.param(("held", "held", "held"), ("held", "unmeasured", "held"), id="below-the-top"),
        pytest.param(("held", "held"), ("unmeasured", "held"), id="the-first"),
        pytest.param(("held", "failed"), ("held", "unmeasured"), id="what-failed"),
        pytest.param(("held", "held", "failed"), ("held", "unmeasured", "held"), id="higher-without-it"),
        pytest.param(("held", "unmeasured", "held"), ("held", "held", "held"), id="measured-since"),
    ],
)
def test_ladders_of_other_rungs_are_not_held_against_one_another(
    then: tuple[StepVerdict, ...], now: tuple[StepVerdict, ...]
) -> None:
    lane = compare(before(climbed(*then)), after(climbed(*now))).lanes[0]

    assert (lane.verdict, lane.drifts) == ("unverified", ())
    assert "was not measured on both sides" in lane.unknown[0]


def test_a_rung_that_was_not_measured_leaves_the_frontier_unknown() -> None:
    lane = compare(before(climbed("held", "held")), after(climbed("held", "unmeasured"))).lanes[0]

    assert lane.verdict == "unverified"
    assert lane.unknown == ("frontier: aot was not measured on both sides: max_graph_breaks=0: 1",)


def test_another_ladder_is_no_frontier_to_compare() -> None:
    lane = compare(before(climbed("held")), after(climbed("held", "held"))).lanes[0]

    assert lane.unknown[0] == "frontier: the ladder has changed"


def stepping(eager: dict[str, int], **compiled: int) -> Entry:
    """A lane whose steady step runs these kernels."""
    ours, eagers = (Kernels(total=sum(names.values()), names=names) for names in (compiled, eager))
    return an_entry(replace(HOLDING, kernels=StepKernels(compiled=ours, eager=eagers)))


PLAIN = {"gemm": 5, "mul": 5}
SPLIT = {"gemm": 5, "mul": 5, "splitk": 1}


@pytest.mark.parametrize(
    ("then", "now", "direction", "facts"),
    [
        pytest.param(
            stepping(PLAIN, gemm=5, triton_poi_fused_mul_1=1),
            stepping(SPLIT, gemm=5, splitk=1, triton_poi_fused_mul_0=1),
            "changed",
            ("kernels: splitk 0 -> 1", "eager: kernels of a step 10 -> 11"),
            id="as-eager",
        ),
        pytest.param(
            stepping(PLAIN, gemm=6),
            stepping(SPLIT, gemm=6, triton_poi_fused_mul_0=1, triton_poi_fused_add_1=1),
            "worse",
            ("kernels: triton_poi_fused_add 0 -> 1, triton_poi_fused_mul 0 -> 1", "eager: kernels of a step 10 -> 11"),
            id="fusion-lost",
        ),
        pytest.param(stepping(PLAIN, gemm=2), stepping(SPLIT, gemm=4), "worse", ..., id="other-names"),
        pytest.param(stepping({}, gemm=5), stepping(PLAIN, gemm=9), "worse", ..., id="a-profile-that-saw-nothing"),
        pytest.param(stepping(SPLIT, gemm=5, splitk=1), stepping(PLAIN, gemm=5), "changed", ..., id="fewer-as-eager"),
        pytest.param(stepping(PLAIN, gemm=6), stepping(PLAIN, gemm=4), "better", ("kernels: gemm 6 -> 4",), id="fewer"),
    ],
)
def test_kernels_are_held_to_what_eager_does_as_well(then: Entry, now: Entry, direction: str, facts: Any) -> None:
    lane = compare(before(then), after(now)).lanes[0]

    drift = next(each for each in lane.drifts if each.metric == "kernels_a_step")
    assert drift.direction == direction
    assert facts is ... or tuple(f"{each.where}: {each.reason}" for each in drift.came) == facts


def test_on_the_same_torch_more_kernels_are_the_codes_own() -> None:
    then, now = stepping(PLAIN, gemm=5), stepping(SPLIT, gemm=5, splitk=1)

    lane = compare(after(then), after(now)).lanes[0]

    assert metrics(lane) == {"kernels_a_step": "worse"}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"backend": "inductor", "mode": "max-autotune-no-cudagraphs"}, id="mode"),
        pytest.param({"backend": "inductor", "options": {"max_autotune": True}}, id="option"),
        pytest.param({"backend": "inductor", "inductor": {"max_autotune_gemm": True}}, id="setting"),
    ],
)
@pytest.mark.parametrize("kernels", [pytest.param(9, id="more"), pytest.param(3, id="fewer")])
def test_kernels_chosen_by_a_stopwatch_are_told_and_not_held(settings: dict[str, object], kernels: int) -> None:
    then, now = (replace(stepping(PLAIN, gemm=each), lane_settings=settings) for each in (6, kernels))

    lane = compare(after(then), after(now)).lanes[0]

    (drift,) = lane.drifts
    assert (lane.verdict, drift.metric, drift.direction) == ("held", "kernels_a_step", "changed")
    assert drift.came[-1].reason == "it chooses kernels by timing them, so their number may differ between runs"


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"backend": "inductor", "mode": "reduce-overhead"}, id="mode"),
        pytest.param({"backend": "inductor", "options": {"max_autotune": False}}, id="option"),
    ],
)
def test_kernels_of_other_lanes_are_held(settings: dict[str, object]) -> None:
    then, now = (replace(stepping(PLAIN, gemm=each), lane_settings=settings) for each in (6, 9))

    assert metrics(compare(after(then), after(now)).lanes[0]) == {"kernels_a_step": "worse"}


WRITTEN_OUT = replace(HOLDING, ops_captured=34, operations={"add_": 11, "mul": 11, "sub": 12})
WRITTEN_IN_ONE = replace(HOLDING, ops_captured=23, operations={"add_": 11, "sub": 12})


def test_another_torch_that_writes_the_same_capture_in_other_operations_is_no_drift() -> None:
    fewer, more = compared(WRITTEN_OUT, WRITTEN_IN_ONE), compared(WRITTEN_IN_ONE, WRITTEN_OUT)

    told = [(drift.metric, drift.direction, drift.came) for drift in fewer.drifts]
    assert (fewer.verdict, more.verdict) == ("held", "held")
    assert told == [("ops_captured", "changed", (Fact(where="operations", reason="mul 11 -> 0"),))]


def test_fewer_operations_for_fewer_recompiles_are_no_drift_whatever_a_graph_holds() -> None:
    often = replace(WRITTEN_OUT, graphs=4, recompiles=(RECOMPILE,) * 3)
    once = replace(WRITTEN_IN_ONE, ops_captured=8, graphs=2, recompiles=(RECOMPILE,))

    assert metrics(compared(often, once)) == {"recompiles": "better"}


def test_fewer_operations_are_no_drift_where_more_graphs_run_than_before() -> None:
    """What was eager behind the recompile limit runs compiled."""
    limited = replace(WRITTEN_OUT, graphs=8, graphs_executed=8, recompiles=(RECOMPILE,) * 7, limit_hits=(LIMIT_HIT,))
    free = replace(WRITTEN_IN_ONE, graphs=2, graphs_executed=9, recompiles=(RECOMPILE,))

    assert metrics(compared(limited, free)) == {"recompiles": "better", "limit_hits": "better"}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"graph_breaks": (BREAK,)}, id="a-break-came"),
        pytest.param({"eager_frames": (EAGER,)}, id="a-frame-went-eager"),
        pytest.param({"graphs_executed": 2}, id="fewer-graphs-ran"),
        pytest.param({"graphs": 2}, id="another-number-of-graphs"),
        pytest.param({"operations": None}, id="nobody-knows-which"),
    ],
)
def test_fewer_operations_are_drift_where_capture_may_be_lost(changes: dict[str, Any]) -> None:
    lane = compared(WRITTEN_OUT, replace(WRITTEN_IN_ONE, **changes))

    assert lane.verdict == "drifted"
    assert metrics(lane)["ops_captured"] == "worse"


def test_fewer_operations_on_the_same_torch_are_drift() -> None:
    lane = compare(before(an_entry(WRITTEN_OUT)), before(an_entry(WRITTEN_IN_ONE))).lanes[0]

    assert (lane.verdict, metrics(lane)) == ("drifted", {"ops_captured": "worse"})


def test_a_frame_that_is_eager_for_another_cause_is_another_fact() -> None:
    other = replace(EAGER, cause="suppressed error")

    lane = compared(replace(HOLDING, eager_frames=(EAGER,)), replace(HOLDING, eager_frames=(other,)))

    assert [(len(drift.came), len(drift.went)) for drift in lane.drifts] == [(1, 1)]


# What moves by itself

TIMES = Policy(gate=frozenset({"steady_seconds"}))


def of_bands(
    before_: tuple[float, float] | None, after_: tuple[float, float] | None, policy: Policy = TIMES
) -> LaneComparison:
    """A lane by the bands of a steady call's seconds on both sides; None was measured once."""
    sides = [an_entry() if band is None else repeated(steady_seconds=band) for band in (before_, after_)]
    return compare(before(sides[0]), after(sides[1]), policy).lanes[0]


@pytest.mark.parametrize(
    ("band", "verdict"),
    [
        pytest.param((1.0, 1.2), "held", id="the-same"),
        pytest.param((1.2, 1.5), "held", id="touching"),
        pytest.param((0.5, 2.0), "held", id="around-it"),
        pytest.param((1.05, 1.1), "held", id="within-it"),
        pytest.param((1.21, 1.5), "drifted", id="slower"),
        pytest.param((0.8, 0.99), "improved", id="faster"),
    ],
)
def test_a_change_within_the_bands_is_none(band: tuple[float, float], verdict: str) -> None:
    assert of_bands((1.0, 1.2), band).verdict == verdict


def test_a_change_beyond_the_bands_is_told_with_both() -> None:
    lane = of_bands((1.0, 1.2), (1.3, 1.5))

    (drift,) = lane.drifts
    assert (drift.metric, drift.direction, drift.gates) == ("steady_seconds", "worse", True)
    assert drift.came == (Fact(where="1.3 to 1.5 over 3 repeats"),)
    assert drift.went == (Fact(where="1 to 1.2 over 3 repeats"),)
    assert str(lane.rerun) == (
        f"pytest --compile-contracts --contract-lanes=aot --contract-repeat=3 -- '{CONTRACT}[aot]'"
    )


@pytest.mark.parametrize("metric", ["compile_seconds", "warm_seconds"])
def test_seconds_of_compiling_are_told_where_they_doubled_and_gate_nothing(metric: str) -> None:
    def changed(*band: float) -> list[tuple[str, str, bool]]:
        sides = [repeated(**{metric: each}) for each in ((10.0, 12.0), band)]
        lane = compare(before(sides[0]), after(sides[1])).lanes[0]
        assert lane.verdict == "held"
        return [(each.metric, each.direction, each.gates) for each in lane.drifts]

    # Beyond the spread, and by more than as much again.
    assert changed(23.9, 30.0) == []
    assert changed(24.1, 30.0) == [(metric, "worse", False)]
    assert changed(3.0, 4.9) == [(metric, "better", False)]


def test_seconds_of_compiling_that_were_measured_once_are_not_compared() -> None:
    sides = [an_entry(replace(HOLDING, stage_seconds={"dynamo": each})) for each in (1.0, 99.0)]

    lane = compare(before(sides[0]), after(sides[1])).lanes[0]

    assert (lane.verdict, lane.drifts) == ("held", ())


def test_the_policy_s_width_comes_on_top_of_the_bands() -> None:
    policy = Policy(gate=TIMES.gate, band={"steady_seconds": 0.25})

    verdicts = [of_bands((1.0, 2.0), (low, 3.0), policy).verdict for low in (2.1, 2.5, 2.51)]

    assert verdicts == ["held", "held", "drifted"]


@pytest.mark.parametrize(
    ("before_", "after_", "reason"),
    [
        pytest.param(None, None, "no band before and now", id="neither"),
        pytest.param((1.0, 1.2), None, "no band now", id="not-now"),
        pytest.param(None, (1.3, 1.5), "no band before", id="not-before"),
    ],
)
def test_a_time_without_a_band_is_not_known_and_never_guessed(before_: Any, after_: Any, reason: str) -> None:
    policy = Policy(gate=TIMES.gate, band={"steady_seconds": 0.25})

    asked, left_out = of_bands(before_, after_, policy), of_bands(before_, after_, Policy())

    assert asked.verdict == "unverified"
    assert asked.reason == f"steady_seconds: {reason}, it was measured once (--contract-repeat)"
    assert (left_out.verdict, left_out.drifts) == ("held", ())


def test_a_band_of_one_run_is_no_band() -> None:
    forged = an_entry(spread={"steady_seconds": (1.0, 1.0), "ops_captured": (0.0, 1000.0)})

    lane = compare(before(forged), after(repeated(steady_seconds=(2.0, 2.0))), TIMES).lanes[0]
    lost = compare(before(forged), after(an_entry(WORSENED["ops_captured"]))).lanes[0]

    assert (lane.verdict, lost.verdict) == ("unverified", "drifted")


def test_what_no_policy_judges_is_told_where_both_have_a_band() -> None:
    lane = of_bands((1.0, 1.2), (1.3, 1.5), Policy())

    assert lane.verdict == "held"
    assert [(drift.metric, drift.direction, drift.gates) for drift in lane.drifts] == [
        ("steady_seconds", "worse", False)
    ]


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        pytest.param((100, 100), (94, 94), "drifted", id="lost"),
        pytest.param((100, 100), (96, 96), "held", id="lost-by-less-than-the-policy-says"),
        pytest.param((90, 100), (80, 84), "drifted", id="beyond-a-wide-band"),
        pytest.param((90, 100), (80, 92), "held", id="within-a-wide-band"),
        pytest.param((90, 90), (96, 96), "improved", id="gained"),
    ],
)
def test_ops_are_held_to_their_band_and_the_policy_s_width(
    old: tuple[float, float], new: tuple[float, float], verdict: str
) -> None:
    lane = compare(before(repeated(ops_captured=old)), after(repeated(ops_captured=new))).lanes[0]

    assert lane.verdict == verdict


def test_ops_of_a_single_run_are_held_to_the_band_of_several() -> None:
    lane = compare(before(repeated(ops_captured=(96.0, 104.0))), after(an_entry(WORSENED["ops_captured"]))).lanes[0]
    lost = compare(before(repeated(ops_captured=(99.0, 104.0))), after(an_entry(WORSENED["ops_captured"]))).lanes[0]

    assert (lane.verdict, lost.verdict) == ("held", "drifted")
    assert lost.drifts[0].came == (Fact(where="94 measured once"),)


@pytest.mark.parametrize(
    ("old", "new", "verdict", "reason"),
    [
        pytest.param("held", "unstable", "unstable", "graph breaks: 0 in repeat 1, 1 in repeat 2", id="now"),
        pytest.param("unstable", "held", "unstable", "unstable before: graph breaks: 0 in ", id="before"),
        pytest.param("unmeasured", "unstable", "unstable", "graph breaks: 0 in ", id="not-measured-before"),
        pytest.param("broken", "unstable", "unstable", "graph breaks: 0 in ", id="broken-before"),
        pytest.param("unstable", "broken", "broken", "graph breaks: 0 in ", id="broken-now"),
        pytest.param("unstable", "unmeasured", "unmeasured", "graph breaks: 0 in ", id="not-measured-now"),
    ],
)
def test_repeats_that_disagree_are_neither_held_nor_drift(old: Any, new: Any, verdict: str, reason: str) -> None:
    said = "graph breaks: 0 in repeat 1, 1 in repeat 2"
    entries = [
        an_entry(WORSENED["graph_breaks"] if own == "unstable" else HOLDING, verdict=own, reason=said)
        for own in (old, new)
    ]

    lane = compare(before(entries[0]), after(entries[1])).lanes[0]

    assert lane.verdict == verdict
    assert lane.reason.startswith(reason)
    assert not lane.compared or verdict == "broken"


@pytest.mark.parametrize("name", [name for name in WORSE if METRICS[name].gates])
def test_a_repeat_that_shows_another_fact_is_named(name: str) -> None:
    one, other = WORSE[name]

    said = unsteady([one, one, other])

    if METRICS[name].banded:
        assert said == ()
        return
    assert any(line.startswith(f"{METRICS[name].label}: ") and "in repeat 3" in line for line in said)
    assert unsteady([other, other]) == ()


def test_a_metric_that_only_one_repeat_has_is_unsteady() -> None:
    without = replace(HOLDING, recompiles=None)

    assert unsteady([an_entry(), an_entry(without)]) == ("recompiles: no longer measured (repeat 2)",)


def test_what_moves_by_itself_may_differ_between_repeats() -> None:
    other = replace(HOLDING, ops_captured=90, steady_seconds=7.0, caches={"hits": 3})

    assert unsteady([an_entry(), an_entry(other)]) == ()


# What broke


def test_a_lane_that_raises_now_is_broken() -> None:
    lane = compared(HOLDING, Measurement(raised=RAISED), verdict="broken", reason="raised")

    assert (lane.verdict, lane.newly_broken) == ("broken", True)
    assert lane.drifts[0].came[0].reason == "torch._dynamo.exc.InternalTorchDynamoError: oh no"


def test_a_test_that_fails_by_itself_now_is_broken() -> None:
    lane = compared(HOLDING, None, verdict="broken", reason="the test failed in call: AssertionError: 3 is not 2")

    assert [fact.where for fact in lane.drifts[0].came] == ["the test failed in call: AssertionError: 3 is not 2"]


def test_two_failures_of_one_type_are_no_drift_whatever_they_say() -> None:
    def failing(exception: str, said: str) -> Entry:
        own = OwnFailure(phase="call", exception=exception, said=said)
        return an_entry(None, verdict="broken", reason=str(own), own_failure=own)

    alike = compare(before(failing("ValueError", "3: no")), after(failing("ValueError", "4: no"))).lanes[0]
    other = compare(before(failing("ValueError", "3")), after(failing("TypeError", "3"))).lanes[0]

    assert (alike.drifts, [each.metric for each in other.drifts]) == ((), ["errors"])


def test_a_lane_that_took_its_process_with_it_is_broken_wherever_that_was() -> None:
    gpu = a_receipt(an_entry(), environment=replace(OLD, capability="9.0"))
    lost = a_receipt(an_entry(None, verdict="broken", reason="worker 'gw0' crashed"), environment=Environment())

    assert compare(gpu, lost).lanes[0].newly_broken


def test_a_lane_that_raised_before_too_is_broken_and_not_newly() -> None:
    entry = an_entry(Measurement(raised=RAISED), verdict="broken", reason="raised")

    lane = compare(before(entry), after(entry)).lanes[0]

    assert (lane.verdict, lane.newly_broken, lane.drifts) == ("broken", False, ())


def test_a_lane_that_raised_before_and_holds_now_is_improved() -> None:
    entry = an_entry(Measurement(raised=RAISED), verdict="broken")

    assert compare(before(entry), after(an_entry())).lanes[0].verdict == "improved"


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        pytest.param(None, "did not end within 3 s (--contract-timeout)", id="it hung"),
        pytest.param(None, "worker 'gw0' crashed", id="it was killed"),
        pytest.param(HOLDING, "the test failed in call: AssertionError: 3 is not 2", id="it failed by itself"),
        pytest.param(Measurement(raised=replace(RAISED, out_of_memory=True)), "out of memory", id="out of memory"),
    ],
)
def test_a_lane_that_did_not_come_to_its_end_before_is_not_known_and_not_improved(
    seen: Measurement | None, reason: str
) -> None:
    lane = compare(before(an_entry(seen, verdict="broken", reason=reason)), after(an_entry())).lanes[0]

    assert (lane.verdict, lane.reason) == ("unverified", f"not known before: {reason}")


@pytest.mark.parametrize("side", ["before", "now"])
def test_a_run_that_was_cut_short_is_compared_with_nothing(side: str) -> None:
    part = an_entry(replace(WORSENED["recompiles"], cut_short="AssertionError: 3"), verdict="violated")
    pair = (part, an_entry()) if side == "before" else (an_entry(), part)

    lane = compare(before(pair[0]), after(pair[1])).lanes[0]

    when = " before" if side == "before" else ""
    assert (lane.verdict, lane.drifts) == ("unverified", ())
    assert lane.reason == f"the test ended early{when}, so its counts are incomplete: AssertionError: 3"


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
    assert gone.reason.endswith("no longer measured: this torch has no such tap")
    assert come.reason.endswith("not measured before: this torch has no such tap")


def test_drift_is_drift_whatever_else_is_not_known() -> None:
    lane = compared(HOLDING, replace(HOLDING, graph_breaks=(BREAK,), recompiles=None))

    assert (lane.verdict, lane.unknown) == ("drifted", ("recompiles: no longer measured",))


@pytest.mark.parametrize("empty", [None, Measurement()], ids=["no-measurement", "a-measurement-of-nothing"])
def test_nothing_measured_on_both_sides_is_not_held(empty: Measurement | None) -> None:
    assert compared(empty, empty).verdict == "unmeasured"


def test_nothing_captured_on_both_sides_is_not_held() -> None:
    nothing = replace(HOLDING, graphs=0, ops_captured=0, graphs_executed=0, backward_graphs=0)

    assert compared(nothing, nothing).verdict == "unmeasured"
    assert compared(nothing, nothing, limits={"max_graphs": 0}).verdict == "held"


def test_another_kind_of_device_is_not_known() -> None:
    gpu = replace(NEW, device="A GPU", capability="9.0")

    lane = compare(before(an_entry()), a_receipt(an_entry(), environment=gpu)).lanes[0]

    assert lane.verdict == "unverified"
    assert lane.reason == (
        "different device types: cpu -> cuda sm90 "
        "(`compilecontract compare --across-devices` compares what does not depend on them)"
    )
    assert lane.attribution.hardware == ("device A processor -> A GPU", "capability none -> 9.0")


def test_a_lane_of_the_processor_is_the_same_beside_a_gpu() -> None:
    gpu = replace(OLD, device="A GPU", capability="9.0")

    assert device_of(gpu, {"device": "cpu"}) == device_of(OLD, {})


def test_a_lane_is_rerun_as_its_run_was_started() -> None:
    new = replace(after(an_entry()), command="python -m pytest --compile-contracts tests")

    (lane,) = compare(before(an_entry()), new).lanes

    assert str(lane.rerun) == f"python -m pytest --compile-contracts --contract-lanes=aot -- '{CONTRACT}[aot]'"


def test_a_lane_twice_in_a_receipt_is_refused() -> None:
    twice = before(an_entry(), an_entry(test="another"))

    with pytest.raises(ReceiptError) as caught:
        compare(twice, after(an_entry()))

    assert str(caught.value) == f"{CONTRACT}, lane aot: twice, in environment 'here'"


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


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        pytest.param(False, True, f"commit {'a' * 12} -> {'b' * 12} with uncommitted changes", id="on-top-of-another"),
        pytest.param(True, False, f"commit {'a' * 12} with uncommitted changes -> {'b' * 12}", id="before-it"),
        pytest.param(False, False, f"commit {'a' * 12} -> {'b' * 12}", id="none"),
    ],
)
def test_uncommitted_changes_are_told_beside_a_change_of_commit(old: bool, new: bool, told: str) -> None:
    sides = (replace(OLD, dirty=old), replace(OLD, commit="b" * 40, dirty=new))

    (lane,) = compare(*(a_receipt(an_entry(), environment=side) for side in sides)).lanes

    assert lane.attribution.project == (told,)


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


def with_defaults(receipt: Receipt, **table: str) -> Receipt:
    """The receipt with a table of torch's own defaults."""
    full = {f"torch._dynamo.config.{name}": value for name, value in table.items()}
    key = defaults_key(full)
    environments = {name: replace(each, defaults=key) for name, each in receipt.environments.items()}
    return replace(receipt, environments=environments, defaults={key: full})


def test_the_settings_that_both_torches_have_and_whose_defaults_differ_are_listed() -> None:
    old = with_defaults(before(an_entry()), a="True", b="8", same="1", gone="1")
    new = with_defaults(after(an_entry()), a="False", b="16", same="1", come="1")

    attribution = compare(old, new).lanes[0].attribution

    assert attribution.defaults == ("torch._dynamo.config.a True -> False", "torch._dynamo.config.b 8 -> 16")
    assert attribution.suspects() == ("torch",)


def test_without_the_table_of_both_no_default_is_listed() -> None:
    new = with_defaults(after(an_entry()), a="False")

    assert compare(before(an_entry()), new).lanes[0].attribution.defaults == ()


@pytest.mark.parametrize("verdict", ["held", "broken", "unstable", "violated"])
@pytest.mark.parametrize("sides", ["after", "before", "both"])
def test_a_run_with_settings_of_its_own_is_never_a_normal_one(sides: str, verdict: Any) -> None:
    entry = an_entry(WORSENED["recompiles"], verdict=verdict)
    given = {"overrides": {"torch._dynamo.config.a": "1"}}
    environments = [
        replace(OLD, **(given if sides != "after" else {})),
        replace(NEW, **(given if sides != "before" else {})),
    ]

    comparison = compare(*(a_receipt(entry, environment=each) for each in environments))

    when = " before" if sides == "before" else ""
    lane = comparison.lanes[0]
    assert lane.verdict == "unverified"
    assert lane.reason == f"run with non-default torch settings{when}: --contract-set torch._dynamo.config.a=1"
    assert answer(comparison).outcome == "not known"


def test_the_command_of_a_test_that_compiles_by_itself_names_no_lane() -> None:
    entry = an_entry(lane="body", lane_settings={"backend": ""}, test="tests/test_a.py::test_b[a b]")

    assert str(rerun_command(entry)) == "pytest --compile-contracts -- 'tests/test_a.py::test_b[a b]'"


def test_the_command_of_a_test_that_is_only_observed_observes_it() -> None:
    entry = an_entry(
        lane="body", lane_settings={"backend": ""}, limits=OBSERVED.to_dict(), test="tests/test_a.py::test_b"
    )

    assert str(rerun_command(entry)) == "pytest --compile-contracts --contract-observe -- tests/test_a.py::test_b"


def test_an_observed_test_that_captured_nothing_before_and_after_is_held() -> None:
    nothing = replace(HOLDING, graphs=0, graphs_executed=0, ops_captured=0)
    entry = an_entry(nothing, lane="body", limits=OBSERVED.to_dict())

    assert compare(before(entry), after(entry)).lanes[0].verdict == "held"


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
    verdict=st.sampled_from(["held", "violated", "broken", "unmeasured", "unverified", "unstable", "reference"]),
    repeats=st.integers(1, 3),
    spread=st.dictionaries(st.sampled_from(BANDED), st.sampled_from([(0.0, 0.0), (1.0, 1.0), (2.0, 4.0)]), max_size=2),
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
    assert {lane.verdict for lane in comparison.lanes} <= {"held", "broken", "unmeasured", "unverified", "unstable"}
    assert answer(comparison).outcome != "no"


@given(receipts(), receipts())
def test_swapping_the_sides_swaps_the_verdicts(one: Receipt, other: Receipt) -> None:
    there, back = compare(one, other), compare(other, one)

    swapped = {"worse": "better", "better": "worse", "changed": "changed"}
    for ahead, behind in zip(there.drifts, back.drifts, strict=True):
        assert (ahead.metric, ahead.before, ahead.after) == (behind.metric, behind.after, behind.before)
        assert wheres(ahead.came, ahead.went) == wheres(behind.went, behind.came)
        if ahead.metric == "ops_captured" and "changed" in (ahead.direction, behind.direction):
            # That there are more of them is doubted sooner than that there are fewer.
            assert "better" not in (ahead.direction, behind.direction)
            continue
        both = ahead.came and ahead.went and not METRICS[ahead.metric].banded
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


SIZE = "tensor 'x' size mismatch at index 0. expected 16, actual 20"
BRANCH = "(x.size()[0] % 8) == 0"


def test_another_of_the_same_guards_is_no_drift() -> None:
    was = replace(RECOMPILE, kind="dynamic", guard=SIZE, guards=(BRANCH, SIZE))
    now = replace(RECOMPILE, kind="guard", guard=BRANCH, guards=(BRANCH, SIZE), meaning="in plain words")

    lane = compared(replace(HOLDING, recompiles=(was,)), replace(HOLDING, recompiles=(now,)))

    assert (lane.verdict, lane.drifts) == ("held", ())


@pytest.mark.parametrize(
    ("guard", "guards"),
    [
        pytest.param(BRANCH, (BRANCH,), id="one-of-them-alone"),
        pytest.param(BRANCH, (), id="none-kept"),
        pytest.param(BRANCH, (BRANCH, "n == 2"), id="with-another"),
    ],
)
def test_another_guard_is_drift(guard: str, guards: tuple[str, ...]) -> None:
    was = replace(RECOMPILE, guard=SIZE, guards=(BRANCH, SIZE))

    lane = compared(
        replace(HOLDING, recompiles=(was,)),
        replace(HOLDING, recompiles=(replace(RECOMPILE, guard=guard, guards=guards),)),
    )

    assert lane.verdict == "drifted"


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


NOTHING = replace(HOLDING, graphs=0, graphs_executed=0, backward_graphs=0, ops_captured=0, eager_frames=(EAGER,))
CAPTURED = Violation(limit="min_ops_captured=1 (default)", measured=0)


def test_what_captured_nothing_before_had_nothing_to_recompile() -> None:
    nothing = an_entry(NOTHING, verdict="violated", violations=(CAPTURED,))

    lane = compare(before(nothing), after(an_entry(replace(HOLDING, recompiles=(RECOMPILE,) * 2)))).lanes[0]

    assert lane.verdict == "improved"
    assert metrics(lane)["capture"] == "better"
    assert ("recompiles", "changed", 0, 2) in [
        (drift.metric, drift.direction, drift.before, drift.after) for drift in lane.drifts
    ]


def test_what_captures_nothing_now_has_not_recompiled_less() -> None:
    nothing = an_entry(NOTHING, verdict="violated", violations=(CAPTURED,))

    lane = compare(before(an_entry(replace(HOLDING, recompiles=(RECOMPILE,) * 2))), after(nothing)).lanes[0]

    assert lane.verdict == "drifted"
    assert metrics(lane)["capture"] == "worse"
    assert "recompiles" not in metrics(lane)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(HOLDING, replace(HOLDING, recompiles=(RECOMPILE,)), id="captured-before"),
        pytest.param(
            replace(NOTHING, recompiles=(RECOMPILE,)),
            replace(HOLDING, recompiles=(RECOMPILE,) * 2),
            id="recompiled-without-a-graph",
        ),
        pytest.param(NOTHING, replace(NOTHING, recompiles=(RECOMPILE,)), id="nothing-on-both-sides"),
        pytest.param(replace(NOTHING, graphs=None), replace(HOLDING, recompiles=(RECOMPILE,)), id="not-known"),
    ],
)
def test_one_recompile_more_is_drift_where_there_was_something_to_recompile(old: Measurement, new: Measurement) -> None:
    lane = compared(old, new)

    assert metrics(lane)["recompiles"] == "worse"


def test_steady_calls_that_ran_nothing_before_are_not_lost_now() -> None:
    nothing = replace(HOLDING, graphs=0, graphs_executed=0, ops_captured=0)
    steady = Violation(limit="compiled code runs in steady calls (default)", measured="2 of 3 calls ran none")
    captured = Violation(limit="min_ops_captured=1 (default)", measured=0)

    lane = compare(
        before(an_entry(nothing, verdict="violated", violations=(captured,))),
        after(an_entry(verdict="violated", violations=(steady,))),
    ).lanes[0]

    assert lane.verdict == "improved"
