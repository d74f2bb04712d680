"""Excuses: a change that is no drift after all says by which rule, and reports name the rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.receipts import BREAK, DIFFERENCE, EAGER, HOLDING, RECOMPILE, after, an_entry, before

from pytest_compilecontract.compare.comparison import compare
from pytest_compilecontract.compare.drift import Comparison
from pytest_compilecontract.compare.excuses import (
    Change,
    as_eager_does,
    reported_differently,
    steady_limit_is_left_out,
)
from pytest_compilecontract.compare.matrix import matrix
from pytest_compilecontract.facts.measurement import Kernels, Measurement, StepKernels
from pytest_compilecontract.facts.verdict import Violation
from pytest_compilecontract.report.comparison import comparison_lines
from pytest_compilecontract.report.matrix import terminal_lines

TUNED = {"backend": "inductor", "mode": "max-autotune"}
STALE = replace(HOLDING, numerics=replace(HOLDING.numerics, differences=(DIFFERENCE,)))  # type: ignore[type-var]
NOTHING = replace(HOLDING, graphs=0, graphs_executed=0, backward_graphs=0, ops_captured=0, eager_frames=(EAGER,))
WRITTEN_OUT = replace(HOLDING, ops_captured=34, operations={"add_": 11, "mul": 11, "sub": 12})
WRITTEN_IN_ONE = replace(HOLDING, ops_captured=23, operations={"add_": 11, "sub": 12})
MOVED = replace(RECOMPILE, guard="scale == 2", continuation=False)
STEADY = Violation(limit="compiled code runs in steady calls (default)", measured="2 of 3 calls ran none")


def stepping(eager: int, compiled: int) -> Measurement:
    """A steady step with so many kernels of one library."""
    eagers, ours = (Kernels(total=count, names={"gemm": count}) for count in (eager, compiled))
    return replace(HOLDING, kernels=StepKernels(compiled=ours, eager=eagers))


def between(old: Measurement, new: Measurement, **changes: Any) -> Comparison:
    """The comparison of two receipts that have one lane each; `changes` are of both entries."""
    return compare(before(an_entry(old, **changes)), after(an_entry(new, **changes)))


def excuses(comparison: Comparison) -> dict[str, str]:
    return {drift.metric: drift.excuse for drift in comparison.drifts if drift.excuse}


@pytest.mark.parametrize(
    ("found", "metric", "name"),
    [
        pytest.param(
            between(replace(NOTHING, recompiles=()), replace(HOLDING, recompiles=(RECOMPILE,))),
            "recompiles",
            "one side had nothing to recompile",
            id="nothing-to-recompile",
        ),
        pytest.param(
            between(
                replace(HOLDING, graph_breaks=(BREAK,), recompiles=(RECOMPILE,)),
                replace(HOLDING, recompiles=(replace(MOVED, frame=BREAK.location, location=None),)),
            ),
            "recompiles",
            "only moved with its graph break",
            id="moved",
        ),
        pytest.param(
            between(WRITTEN_OUT, WRITTEN_IN_ONE), "ops_captured", "traced as different operations", id="traced"
        ),
        pytest.param(
            between(replace(HOLDING, graphs=2, ops_captured=200, recompiles=(RECOMPILE,)), HOLDING),
            "ops_captured",
            "recompiled more or fewer times",
            id="compiled-again",
        ),
        pytest.param(
            between(stepping(10, 5), stepping(10, 9), lane_settings=TUNED),
            "kernels_a_step",
            "kernels chosen by timing",
            id="stopwatch",
        ),
        pytest.param(between(stepping(10, 5), stepping(14, 9)), "kernels_a_step", "as in eager", id="as-eager"),
        pytest.param(
            between(STALE, replace(HOLDING, recompiles=(RECOMPILE,))),
            "recompiles",
            "wrong results are now correct",
            id="mended",
        ),
    ],
)
def test_a_change_that_is_no_drift_says_by_which_rule(found: Comparison, metric: str, name: str) -> None:
    drift = next(each for each in found.drifts if each.metric == metric)

    assert (drift.excuse, drift.gates) == (name, False)
    assert f"not gated: {name}" in "\n".join(comparison_lines(found, everything=True))


def kernels(compiled: dict[str, int], eager: dict[str, int]) -> Measurement:
    """A steady step that runs these kernels."""
    ours, eagers = (Kernels(total=sum(each.values()), names=each) for each in (compiled, eager))
    return replace(HOLDING, kernels=StepKernels(compiled=ours, eager=eagers))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(({"a": 1}, {"a": 1}), ({"a": 4}, {"a": 2}), id="more-than-eager-has"),
        pytest.param(({"a": 1}, {"a": 1}), ({"a": 2, "b": 1}, {"a": 3}), id="another-beside-it"),
        pytest.param(({"a": 2}, {"a": 2}), ({"a": 3}, {"a": 1}), id="eager-has-fewer"),
        pytest.param(({"a": 2}, {"b": 2}), ({"a": 3}, {"b": 4}), id="eager-has-more-of-another"),
        pytest.param(({"a": 1, "b": 1}, {"b": 1}), ({"a": 2, "b": 1}, {"b": 2}), id="eager-alone-has-more"),
        pytest.param(
            ({"triton_red_0": 1}, {"triton_red_0": 1}), ({"triton_red_0": 2}, {"triton_red_0": 2}), id="inductor's-own"
        ),
    ],
)
def test_kernels_that_eager_does_not_explain_are_drift(
    old: tuple[dict[str, int], dict[str, int]], new: tuple[dict[str, int], dict[str, int]]
) -> None:
    found = between(kernels(*old), kernels(*new))

    assert [(each.metric, each.direction) for each in found.drifts] == [("kernels_a_step", "worse")]
    assert excuses(found) == {}


def test_kernels_that_one_side_did_not_count_are_not_compared() -> None:
    for sides in ((HOLDING, stepping(10, 5)), (stepping(10, 5), HOLDING)):
        assert [each.metric for each in between(*sides).drifts] == []


def test_fewer_kernels_than_eager_dropped_are_an_improvement() -> None:
    found = between(kernels({"a": 4}, {"a": 2}), kernels({"a": 1}, {"a": 1}))

    assert [(each.direction, each.excuse) for each in found.drifts] == [("better", "")]


@pytest.mark.parametrize("rule", [as_eager_does, reported_differently])
def test_a_rule_excuses_nothing_that_one_side_did_not_measure(rule: Any) -> None:
    known, bare = (an_entry(each) for each in (stepping(10, 5), replace(HOLDING, kernels=None, recompiles=None)))

    for old, new in ((known, bare), (bare, known), (bare, bare)):
        assert not rule(Change(old=old, new=new, other_torch=True, metric="any", direction="worse"))


def test_only_the_limit_on_steady_calls_is_left_out() -> None:
    one, two = (an_entry(violations=(Violation(limit="max_graphs=1", measured=2),) * count) for count in (1, 2))
    steady = an_entry(violations=(STEADY,))

    assert not steady_limit_is_left_out(one, two)
    assert steady_limit_is_left_out(an_entry(), steady)
    assert not steady_limit_is_left_out(steady, steady)


def test_kernels_of_one_name_are_counted_together_whatever_their_numbers() -> None:
    old = kernels({"triton_red_0": 1, "triton_red_1": 2}, {"a": 4})
    new = kernels({"triton_red_0": 2, "triton_red_7": 2}, {"a": 4})

    (drift,) = between(old, new).drifts

    assert [each.reason for each in drift.came] == ["triton_red 3 -> 4"]


def test_kernels_without_names_add_no_fact() -> None:
    old, new = (
        replace(HOLDING, kernels=StepKernels(compiled=Kernels(total=count), eager=Kernels(total=9))) for count in (5, 6)
    )

    (drift,) = between(old, new).drifts

    assert (drift.metric, drift.came, drift.went) == ("kernels_a_step", (), ())


def test_recompiles_that_one_side_did_not_measure_are_not_excused_as_reported_otherwise() -> None:
    for sides in (
        (replace(HOLDING, recompiles=None), replace(HOLDING, recompiles=(RECOMPILE,))),
        (replace(HOLDING, recompiles=(RECOMPILE,)), replace(HOLDING, recompiles=None)),
    ):
        lane = between(*sides).lanes[0]

        assert lane.excused == ()
        assert lane.unknown


@pytest.mark.parametrize("lost", ["graph_breaks", "eager_frames"])
def test_operations_are_not_traced_otherwise_where_code_was_lost_or_that_is_unknown(lost: str) -> None:
    more: dict[str, Any] = {lost: (BREAK,) if lost == "graph_breaks" else (EAGER,)}

    for change in (more, {lost: None}):
        assert "ops_captured" not in excuses(between(WRITTEN_OUT, replace(WRITTEN_IN_ONE, **change)))
    # What is lost on the way back was gained on the way there.
    assert "ops_captured" not in excuses(between(replace(WRITTEN_IN_ONE, **more), WRITTEN_OUT))
    assert "ops_captured" in excuses(between(WRITTEN_IN_ONE, replace(WRITTEN_OUT, **more)))


def test_recompiles_that_went_with_their_break_are_an_improvement() -> None:
    old = replace(HOLDING, graph_breaks=(BREAK,), recompiles=(RECOMPILE, replace(RECOMPILE, guard="y == 2")))

    found = next(each for each in between(old, HOLDING).drifts if each.metric == "recompiles")

    assert (found.direction, found.excuse) == ("better", "")


def test_a_drift_has_no_excuse() -> None:
    assert excuses(between(HOLDING, replace(HOLDING, recompiles=(RECOMPILE,)))) == {}


def test_what_a_rule_leaves_out_is_named_as_well() -> None:
    size, branch = "tensor 'x' size mismatch at index 0. expected 16, actual 20", "(x.size()[0] % 8) == 0"
    was = replace(RECOMPILE, kind="dynamic", guard=size, guards=(branch, size))
    now = replace(RECOMPILE, kind="guard", guard=branch, guards=(branch, size))

    found = between(replace(HOLDING, recompiles=(was,)), replace(HOLDING, recompiles=(now,)))

    assert found.lanes[0].drifts == ()
    assert found.lanes[0].excused == ("recompiles (the same guards, a different one reported)",)
    assert "  not gated: recompiles (the same guards, a different one reported)" in comparison_lines(
        found, everything=True
    )


def test_steady_calls_that_ran_nothing_before_are_named() -> None:
    gained = compare(
        before(an_entry(NOTHING, verdict="violated")), after(an_entry(verdict="violated", violations=(STEADY,)))
    )

    assert gained.lanes[0].excused == ("limits exceeded (runs no compiled graph at all)",)


def test_the_matrix_names_a_rule_once() -> None:
    lanes = [an_entry(WRITTEN_OUT, lane=name) for name in ("aot", "capture")]
    newer = [an_entry(WRITTEN_IN_ONE, lane=name) for name in ("aot", "capture")]

    lines = terminal_lines(matrix([before(*lanes), after(*newer)]))

    assert lines[-2:] == [
        "2 of 2 lanes held everywhere, and are folded",
        "not gated in 2 lanes: ops captured (traced as different operations)",
    ]
