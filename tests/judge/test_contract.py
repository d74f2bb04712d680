"""Contracts: limits from markers, and what they make of a measurement."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.collectives import Collective, Collectives
from pytest_compilecontract.facts.limits import OBSERVED, Limits, limits_from
from pytest_compilecontract.facts.measurement import (
    NO_CUDA,
    Call,
    CaptureTargets,
    Difference,
    EagerFrame,
    GraphBreak,
    Hunted,
    LimitHit,
    Location,
    Measurement,
    Numerics,
    Raised,
    RaisedInBoth,
    Recompile,
    StateChange,
    StepOperators,
)
from pytest_compilecontract.facts.structure import PLAIN, Placements, SavedBytes
from pytest_compilecontract.facts.verdict import STEADY, Violation
from pytest_compilecontract.judge.limits import judge
from pytest_compilecontract.judge.tell import told_breaks
from pytest_compilecontract.judge.verdicts import doubts, verdict

KNOWN_LIMITS = (
    "(known limits: allow_recompile_limit, atol, capture_targets, check_grads, check_state_dict, cudagraphs, "
    "frontier, fullgraph, keeps_outputs, lanes, max_cache_bypasses, max_cache_misses, max_cold_seconds, "
    "max_collectives, max_eager_frames, max_eager_ops, max_graph_breaks, max_graphs, max_guards, max_host_syncs, "
    "max_kernels, max_kernels_ratio, max_memory_growth, max_memory_ratio, max_recompiles, max_recomputed_graphs, "
    "max_saved_ratio, max_warm_misses, max_warm_seconds, min_frontier, min_ops_captured, min_speedup, numerics, "
    "process_group, ranks, ranks_agree, rtol, same_as, same_collectives, same_placements)"
)
FORWARD = Location(file="model.py", line=40, function="forward")
ITEM = Location(file="model.py", line=41, function="forward", source="n = mask.sum().item()")
BREAK = GraphBreak(
    location=ITEM,
    kind="Tensor.item()",
    reason="Unsupported Tensor.item() call\nwith capture_scalar_outputs=False",
    hints=("Set torch._dynamo.config.capture_scalar_outputs = True", "second"),
)
RECOMPILE = Recompile(frame=FORWARD, kind="dynamic", guard="size mismatch at index 0", location=ITEM)
LOST = EagerFrame(frame=FORWARD, cause="graph break", reason="a break in a loop", location=ITEM)
EMPTY = EagerFrame(frame=FORWARD, cause="nothing to compile", reason="no ops")
BREAK_LINES = (
    "model.py:41 in forward: n = mask.sum().item()",
    "  Unsupported Tensor.item() call",
    "  hint: Set torch._dynamo.config.capture_scalar_outputs = True",
)
RECOMPILE_LINES = (
    "model.py:40 in forward: dynamic recompile",
    "  guard: size mismatch at index 0",
    "  at model.py:41 in forward: n = mask.sum().item()",
)
LOST_LINES = (
    "model.py:40 in forward: ran in eager, graph break",
    "  a break in a loop",
    "  at model.py:41 in forward: n = mask.sum().item()",
)


def a_call(executed: int | None, phase: str = "steady", *, attempted: bool = False, raised: bool = False) -> Call:
    tried = attempted or phase == "warm-up"
    return Call(phase=phase, seconds=0.1, graphs_executed=executed, attempted=tried, raised=raised)  # type: ignore[arg-type]


GOOD = Measurement(
    backend="inductor",
    graphs=1,
    ops_captured=5,
    recompiles=(),
    graph_breaks=(),
    eager_frames=(EMPTY,),
    limit_hits=(),
    calls=(a_call(1, "cold"), a_call(1)),
    numerics=Numerics(method="fp64", compared=2),
    state_change=StateChange(),
)


def judged(limits: Limits, measurement: Measurement) -> tuple[Violation, ...]:
    return judge(limits, measurement, torch_version="2.16.0")


# Limits


def test_the_nearer_marker_wins_by_keyword() -> None:
    markers: list[tuple[str, dict[str, object]]] = [
        ("module", {"max_recompiles": 3, "max_graph_breaks": 1}),
        ("class", {"max_recompiles": 2, "lanes": ["aot", "aot"]}),
        ("function", {"max_recompiles": 0, "numerics": None}),
    ]

    limits = limits_from(markers, test="test_a")

    assert limits == Limits(max_recompiles=0, max_graph_breaks=1, lanes=("aot",), numerics=None)


def test_to_dict_has_only_what_was_given() -> None:
    limits = limits_from([("function", {"fullgraph": False, "rtol": 0, "lanes": ["aot"]})], test="test_a")

    assert limits.to_dict() == {"fullgraph": False, "rtol": 0, "lanes": ["aot"]}


def test_to_dict_has_numerics_that_are_not_compared() -> None:
    assert Limits(numerics=None).to_dict() == {"numerics": None}


def test_no_marker_is_no_limit() -> None:
    assert limits_from([], test="test_a").to_dict() == {}


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        pytest.param(
            {"max_recompile": 0},
            "function: unknown limit 'max_recompile', did you mean 'max_recompiles'?",
            id="misspelt",
        ),
        pytest.param({"colour": 1}, "function: unknown limit 'colour'", id="unknown"),
        pytest.param(
            {"max_graphs": True},
            "function: max_graphs: expected a whole number from 0 to 1000000000, got True",
            id="a flag",
        ),
        pytest.param(
            {"max_graphs": -1},
            "function: max_graphs: expected a whole number from 0 to 1000000000, got -1",
            id="negative",
        ),
        pytest.param(
            {"max_recompiles": None},
            "function: max_recompiles: expected a whole number from 0 to 1000000000, got None",
            id="no count",
        ),
        pytest.param({"fullgraph": 1}, "function: fullgraph: expected True or False, got 1", id="number as flag"),
        pytest.param(
            {"rtol": float("nan")}, "function: rtol: expected a finite number of at least 0, got nan", id="not a number"
        ),
        pytest.param(
            {"numerics": "exact"},
            "function: numerics: expected 'fp64', 'allclose', 'bitwise' or None, got 'exact'",
            id="unknown rule",
        ),
        pytest.param({"lanes": "aot"}, "function: lanes: expected a list of lane names, got 'aot'", id="one lane"),
        pytest.param({"lanes": []}, "function: lanes: expected a list of lane names, got []", id="no lanes"),
        pytest.param(
            {"fullgraph": True, "max_graph_breaks": 1, "max_eager_frames": 2},
            "fullgraph=True contradicts max_graph_breaks=1; fullgraph=True contradicts max_eager_frames=2",
            id="whole and broken",
        ),
        pytest.param(
            {"fullgraph": True, "max_graphs": 0}, "fullgraph=True contradicts max_graphs=0", id="whole and none"
        ),
        pytest.param(
            {"numerics": "bitwise", "rtol": 0.1}, "numerics='bitwise' contradicts rtol=0.1", id="bitwise tolerance"
        ),
        pytest.param({"numerics": None, "atol": 0}, "numerics=None contradicts atol=0", id="tolerance of nothing"),
        pytest.param(
            {"frontier": ["capture", "aot"], "max_cold_seconds": 2.5},
            "max_cold_seconds=2.5 is judged over repeats, so it contradicts frontier",
            id="seconds of rungs",
        ),
        pytest.param(
            {"frontier": ["capture", "aot"], "max_warm_misses": 0},
            "max_warm_misses=0 starts one lane again, so it contradicts frontier",
            id="warm start of rungs",
        ),
        pytest.param(
            {"numerics": None, "check_grads": True},
            "numerics=None contradicts check_grads=True",
            id="gradients not compared",
        ),
        pytest.param(
            {"min_ops_captured": 2, "max_graphs": 0},
            "min_ops_captured=2 contradicts max_graphs=0",
            id="ops of no graph",
        ),
        pytest.param({"ranks": 1}, "function: ranks: expected a whole number from 2 to 1024, got 1", id="one rank"),
        pytest.param(
            {"ranks": 2, "process_group": "mpi"},
            "function: process_group: expected 'gloo', 'nccl' or 'fake', got 'mpi'",
            id="unknown group",
        ),
        pytest.param({"process_group": "gloo"}, "process_group='gloo' needs ranks", id="group of nobody"),
        pytest.param(
            {"ranks": 2, "process_group": "fake", "rtol": 0.1},
            "process_group='fake' moves no data, so it contradicts rtol=0.1",
            id="tolerance of no data",
        ),
        pytest.param(
            {"ranks": 2, "frontier": ["capture", "aot"]},
            "frontier runs in one process, so it contradicts ranks=2",
            id="ladder in ranks",
        ),
    ],
)
def test_limits_that_cannot_mean_anything(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        limits_from([("function", keywords)], test="test_block.py::test_a")

    assert str(caught.value) == f"test_block.py::test_a: {message} {KNOWN_LIMITS}"


def test_markers_can_contradict_across_levels() -> None:
    with pytest.raises(UsageError) as caught:
        limits_from([("module", {"max_graph_breaks": 2}), ("function", {"fullgraph": True})], test="test_a")

    assert str(caught.value) == f"test_a: fullgraph=True contradicts max_graph_breaks=2 {KNOWN_LIMITS}"


# Judging


def test_a_good_measurement_is_held() -> None:
    everything = Limits(max_recompiles=0, max_graph_breaks=0, max_graphs=1, fullgraph=True, check_state_dict=True)

    assert judged(everything, GOOD) == ()
    assert doubts(everything, GOOD) == ()
    assert verdict(GOOD, (), ()) == "held"


def test_breaks_and_recompiles_are_not_judged_by_default() -> None:
    assert judged(Limits(), replace(GOOD, graph_breaks=(BREAK,), recompiles=(RECOMPILE,))) == ()


@pytest.mark.parametrize(
    ("limits", "change", "violation"),
    [
        pytest.param(
            Limits(max_graph_breaks=1),
            {"graph_breaks": (BREAK, BREAK)},
            Violation(limit="max_graph_breaks=1", measured=2, details=BREAK_LINES * 2),
            id="breaks",
        ),
        pytest.param(
            Limits(max_recompiles=0),
            {"recompiles": (RECOMPILE,)},
            Violation(limit="max_recompiles=0", measured=1, details=RECOMPILE_LINES),
            id="recompiles",
        ),
        pytest.param(
            Limits(max_recompiles=0),
            {"recompiles": (Recompile(frame=FORWARD, kind="guard", guard="", continuation=True, module="Linear"),)},
            Violation(
                limit="max_recompiles=0",
                measured=1,
                details=(
                    "model.py:40 in forward of Linear after its graph break: guard recompile",
                    "  torch reports no guard",
                ),
            ),
            id="recompile of a continuation",
        ),
        pytest.param(
            Limits(max_graphs=1),
            {"graphs": 3, "graph_breaks": (BREAK,), "recompiles": (RECOMPILE,)},
            Violation(limit="max_graphs=1", measured=3, details=BREAK_LINES + RECOMPILE_LINES),
            id="graphs",
        ),
        pytest.param(
            Limits(),
            {"eager_frames": (LOST, EMPTY)},
            Violation(limit="max_eager_frames=0 (default)", measured=1, details=LOST_LINES),
            id="lost frame by default",
        ),
        pytest.param(
            Limits(max_eager_frames=1),
            {"eager_frames": (LOST, LOST)},
            Violation(limit="max_eager_frames=1", measured=2, details=(f"{LOST_LINES[0]} (2 times)", *LOST_LINES[1:])),
            id="lost frames",
        ),
        pytest.param(
            Limits(),
            {"ops_captured": 0},
            Violation(
                limit="min_ops_captured=1 (default)",
                measured=0,
                details=("model.py:40 in forward: ran in eager, nothing to compile", "  no ops"),
            ),
            id="nothing captured",
        ),
        pytest.param(
            Limits(fullgraph=True),
            {"graph_breaks": (BREAK,), "eager_frames": (LOST,), "graphs": 2},
            Violation(
                limit="fullgraph=True",
                measured="1 graph break, 1 eager frame, 2 graphs",
                details=BREAK_LINES + LOST_LINES,
            ),
            id="not whole",
        ),
        pytest.param(
            Limits(fullgraph=True, min_ops_captured=0),
            {"graphs": 0},
            Violation(limit="fullgraph=True", measured="0 graph breaks, 0 eager frames, 0 graphs"),
            id="no graph at all",
        ),
        pytest.param(
            Limits(),
            {"limit_hits": (LimitHit(frame=FORWARD, limit="recompile_limit", reason="hit (8)", guard="n == 2"),)},
            Violation(
                limit="allow_recompile_limit=False (default)",
                measured="reached by 1 frame",
                details=("model.py:40 in forward: recompile_limit", "  hit (8)", "  guard: n == 2"),
            ),
            id="recompile limit",
        ),
        pytest.param(
            Limits(),
            {"calls": (a_call(2, "cold"), a_call(0), a_call(2), a_call(0))},
            Violation(
                limit="compiled code runs in steady calls (default)",
                measured="2 of 4 calls ran none",
                details=(
                    "call 1: ran no compiled graph, call 0 (the first) ran 2 compiled graphs",
                    "call 3: ran no compiled graph, call 0 (the first) ran 2 compiled graphs",
                ),
            ),
            id="steady calls run in eager",
        ),
        pytest.param(
            Limits(),
            {"numerics": Numerics(method="fp64", differences=(Difference(at="out", kind="value", detail="1 % off"),))},
            Violation(limit="numerics='fp64' (default)", measured="1 difference", details=("out: value: 1 % off",)),
            id="numerics by default",
        ),
        pytest.param(
            Limits(rtol=0.0),
            {
                "numerics": Numerics(
                    method="allclose",
                    note="float64 cannot run",
                    differences=(Difference(at="out", kind="nan", detail="3 elements"),) * 2,
                )
            },
            Violation(
                limit="numerics='fp64', rtol=0.0",
                measured="2 differences, judged by allclose (float64 cannot run)",
                details=("out: nan: 3 elements",) * 2,
            ),
            id="numerics by another rule",
        ),
        pytest.param(
            Limits(check_state_dict=True),
            {"state_change": StateChange(keys_added=("_orig_mod.w",), keys_removed=("w",), type_changed="A to B")},
            Violation(
                limit="check_state_dict=True",
                measured="changed by compiling",
                details=("1 key now prefixed with '_orig_mod.'", "type changed: A to B"),
            ),
            id="state_dict",
        ),
        pytest.param(
            Limits(),
            {"raised": Raised(type="RuntimeError", message="\nno kernel\nmore", location=ITEM), "numerics": None},
            Violation(
                limit="no exception (default)",
                measured="raised RuntimeError",
                details=("RuntimeError: no kernel", "  at model.py:41 in forward: n = mask.sum().item()"),
            ),
            id="raised",
        ),
    ],
)
def test_one_violation(limits: Limits, change: dict[str, object], violation: Violation) -> None:
    assert judged(limits, replace(GOOD, **change)) == (violation,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("calls", "late"),
    [
        pytest.param(
            (a_call(0, "cold"), a_call(0)),
            [f"call {each}: ran no compiled graph, 1 graph ran outside the calls" for each in (0, 1)],
            id="a trial outside the calls",
        ),
        pytest.param(
            (a_call(0, "cold", attempted=True), a_call(0, "warm-up")),
            [f"call {each}: ran no compiled graph, 1 graph ran outside the calls" for each in (0, 1)],
            id="a trial, and calls that compile something without an operation",
        ),
        pytest.param(
            (a_call(0, "cold"), a_call(0), a_call(1, "warm-up"), a_call(1)),
            [f"call {each}: ran no compiled graph, call 2 ran 1 compiled graph" for each in (0, 1)],
            id="compiled from the third call on",
        ),
        pytest.param(
            (a_call(1, "cold"), a_call(0, "warm-up")),
            ["call 1: ran no compiled graph, call 0 (the first) ran 1 compiled graph"],
            id="a later call that compiles something without an operation",
        ),
        pytest.param(
            (a_call(1, "cold"), a_call(0, "cold"), a_call(0)),
            [f"call {each}: ran no compiled graph, and Dynamo did not try to compile it" for each in (1, 2)],
            id="two targets, one never compiled",
        ),
    ],
)
def test_calls_that_ran_eager_throughout(calls: tuple[Call, ...], late: list[str]) -> None:
    (violation,) = judged(Limits(), replace(GOOD, graphs=1, graphs_executed=1, calls=calls, eager_frames=()))

    assert violation.name == STEADY
    assert violation.measured == f"{len(late)} of {len(calls)} calls ran none"
    assert violation.details == tuple(late)


def test_an_allowance_for_eager_frames_is_none_for_calls_of_which_not_one_ran_compiled() -> None:
    seen = replace(GOOD, graphs=1, graphs_executed=1, calls=(a_call(0, "cold"), a_call(0)), eager_frames=())

    (violation,) = judged(Limits(max_eager_frames=2, allow_recompile_limit=True), seen)

    assert violation.name == STEADY


def test_all_violations_at_once() -> None:
    bad = replace(GOOD, graph_breaks=(BREAK,), recompiles=(RECOMPILE,), eager_frames=(LOST,), ops_captured=0)

    violations = judged(Limits(max_graph_breaks=0, max_recompiles=0), bad)

    assert [each.limit for each in violations] == [
        "max_graph_breaks=0",
        "max_recompiles=0",
        "max_eager_frames=0 (default)",
        "min_ops_captured=1 (default)",
    ]
    assert verdict(bad, violations, ()) == "violated"


@pytest.mark.parametrize(
    ("limits", "change"),
    [
        pytest.param(Limits(max_graphs=0), {"graphs": 0, "ops_captured": 0}, id="nothing may be captured"),
        pytest.param(Limits(min_ops_captured=0), {"ops_captured": 0}, id="nothing need be captured"),
        pytest.param(Limits(max_eager_frames=1), {"eager_frames": (LOST,)}, id="a frame may be eager"),
        pytest.param(Limits(max_eager_frames=1), {"calls": (a_call(1, "cold"), a_call(0))}, id="eager calls"),
        pytest.param(
            Limits(allow_recompile_limit=True),
            {
                "limit_hits": (LimitHit(frame=FORWARD, limit="recompile_limit", reason=""),),
                "calls": (a_call(1, "cold"), a_call(0)),
            },
            id="the recompile limit",
        ),
        pytest.param(
            Limits(numerics=None),
            {"numerics": Numerics(method="fp64", differences=(Difference(at="", kind="", detail=""),))},
            id="numerics not compared",
        ),
        pytest.param(Limits(), {"state_change": StateChange(keys_added=("a",))}, id="state_dict not asked for"),
        pytest.param(
            Limits(),
            {"calls": (a_call(1, "cold"), a_call(0, "cold", attempted=True), a_call(0))},
            id="two targets, one without tensor operations",
        ),
        pytest.param(
            Limits(),
            {"calls": (a_call(1, "cold"), a_call(0, "cold"), a_call(0)), "eager_frames": (EMPTY,)},
            id="two targets, one known to have no tensor operations",
        ),
        pytest.param(Limits(), {"calls": (a_call(1, "cold"), a_call(0, raised=True))}, id="a call that raises"),
        pytest.param(
            Limits(min_ops_captured=0),
            {"calls": (a_call(0, "cold"),), "graphs_executed": 1},
            id="nothing need be captured: no call",
        ),
        pytest.param(
            Limits(),
            {"calls": (a_call(0, "cold"), a_call(0)), "eager_frames": (), "graphs_executed": 0},
            id="graphs that ran nowhere, as far as is known",
        ),
        pytest.param(
            Limits(),
            {"calls": None, "numerics": None, "unmeasured": {"calls": "the test calls by itself", "numerics": "same"}},
            id="the test calls by itself",
        ),
    ],
)
def test_what_is_allowed(limits: Limits, change: dict[str, object]) -> None:
    measurement = replace(GOOD, **change)  # type: ignore[arg-type]

    assert judged(limits, measurement) == ()
    assert doubts(limits, measurement) == ()


@pytest.mark.parametrize(
    ("limits", "label", "field", "metric"),
    [
        pytest.param(Limits(max_graph_breaks=9), "max_graph_breaks=9", "graph_breaks", "graph_breaks", id="breaks"),
        pytest.param(Limits(max_recompiles=9), "max_recompiles=9", "recompiles", "recompiles", id="recompiles"),
        pytest.param(Limits(max_graphs=9), "max_graphs=9", "graphs", "graphs", id="graphs"),
        pytest.param(Limits(max_eager_frames=0), "max_eager_frames=0", "eager_frames", "eager_frames", id="eager"),
        pytest.param(Limits(min_ops_captured=1), "min_ops_captured=1", "ops_captured", "ops_captured", id="ops"),
        pytest.param(Limits(fullgraph=True), "fullgraph=True", "graph_breaks", "graph_breaks", id="fullgraph"),
        pytest.param(
            Limits(allow_recompile_limit=False), "allow_recompile_limit=False", "limit_hits", "limit_hits", id="limit"
        ),
        pytest.param(Limits(atol=0.1), "numerics='fp64', atol=0.1", "numerics", "numerics", id="numerics"),
        pytest.param(
            Limits(check_state_dict=True), "check_state_dict=True", "state_change", "state_change", id="state_dict"
        ),
    ],
)
def test_a_limit_on_what_cannot_be_measured_is_violated(limits: Limits, label: str, field: str, metric: str) -> None:
    blind = replace(GOOD, unmeasured={metric: "its tap is gone"}, **{field: None})  # type: ignore[arg-type]

    assert judged(limits, blind) == (
        Violation(limit=label, measured="cannot be measured on torch 2.16.0: its tap is gone"),
    )
    assert doubts(limits, blind) == ()


@pytest.mark.parametrize("metric", ["eager_frames", "ops_captured", "limit_hits", "numerics"])
def test_a_default_on_what_cannot_be_measured_is_unverified(metric: str) -> None:
    blind = replace(GOOD, unmeasured={metric: "its tap is gone"}, **{metric: None})  # type: ignore[arg-type]

    doubted = doubts(Limits(), blind)

    assert judged(Limits(), blind) == ()
    assert doubted == (f"{metric}: cannot be measured: its tap is gone",)
    assert verdict(blind, (), doubted) == "unverified"


@pytest.mark.parametrize(
    "seen",
    [
        replace(GOOD, eager_frames=(LOST,), graphs=0, ops_captured=0, recompiles=(RECOMPILE,), graph_breaks=(BREAK,)),
        replace(GOOD, limit_hits=(LimitHit(frame=FORWARD, limit="recompile_limit", reason="8 reached"),)),
        Measurement(),
    ],
    ids=["everything-lost", "the-recompile-limit", "nothing-can-be-measured"],
)
def test_a_test_that_is_only_observed_exceeds_nothing(seen: Measurement) -> None:
    assert judged(OBSERVED, seen) == ()
    assert doubts(OBSERVED, seen) == ()


def test_nothing_measured_is_never_held() -> None:
    assert doubts(Limits(), Measurement()) == (
        "eager_frames: cannot be measured: nothing measured it",
        "ops_captured: cannot be measured: nothing measured it",
        "limit_hits: cannot be measured: nothing measured it",
    )


def test_calls_of_which_the_graphs_are_not_known_are_a_doubt() -> None:
    blind = replace(GOOD, calls=(a_call(None, "cold"), a_call(None)), unmeasured={"graphs_executed": "no profiler"})

    assert doubts(Limits(), blind) == ("graphs_executed: cannot be measured: no profiler",)


def test_calls_that_torch_was_asked_to_run_in_eager_are_a_doubt_where_they_cannot_be_told() -> None:
    own = replace(GOOD, calls=None, unmeasured={"eager_by_request": "its tap is gone"})
    said = "eager_by_request: cannot be measured: its tap is gone"

    assert doubts(Limits(), own) == (said,)
    assert doubts(Limits(max_eager_frames=0), own) == ()
    assert doubts(Limits(), replace(own, unmeasured={})) == ()
    assert doubts(Limits(), replace(own, calls=GOOD.calls)) == ()


def broken_below(*files: str) -> GraphBreak:
    """A break at model.py:9, which these files led to from model.py:5."""
    inner = [Location(file=file, line=7, function="forward") for file in files]
    ends = [Location(file="model.py", line=line, function="forward") for line in (5, 9)]
    return GraphBreak(location=ends[1], kind="k", reason="r", stacks=((ends[0], *inner, ends[1]),))


CONTAINER = "torch/nn/modules/container.py"
UNSEEN = (
    f"what ran in eager in forward of {CONTAINER} is unknown: it is torch's own code and broke at model.py:9, and "
    "the body makes its own calls; max_eager_frames=1 allows it"
)


@pytest.mark.parametrize(
    ("limits", "files", "said"),
    [
        (Limits(), [CONTAINER], (UNSEEN,)),
        (Limits(max_eager_frames=0), [CONTAINER], (UNSEEN,)),
        (Limits(max_eager_frames=1), [CONTAINER], ()),
        (Limits(), [], ()),
        (Limits(), ["torch/nn/modules/module.py"], ()),
        (Limits(), ["layers.py", "contextlib.py", "torch/_dynamo/polyfills/__init__.py", "torch/optim/sgd.py"], ()),
    ],
    ids=["torch's code", "no eager frame", "eager frames allowed", "the project's", "a call", "not skipped"],
)
def test_what_ran_in_eager_below_torchs_code_is_a_doubt(
    limits: Limits, files: list[str], said: tuple[str, ...]
) -> None:
    why = {"operators_run": "the body makes its own calls"}
    seen = replace(GOOD, graph_breaks=(broken_below(*files),), operators_run=None, unmeasured=why)

    assert doubts(limits, seen) == said


def test_what_ran_in_eager_is_no_doubt_where_it_is_known_or_said_already() -> None:
    seen = replace(GOOD, graph_breaks=(broken_below(CONTAINER),))
    already = ("what ran in eager besides the graph breaks is unknown: the call starts processes",)

    assert doubts(Limits(), replace(seen, operators_run=StepOperators(compiled=1, eager=0))) == ()
    assert doubts(Limits(), replace(seen, operators_run=None, doubts=already)) == already


def test_what_is_not_compared_is_a_doubt() -> None:
    numerics = Numerics(method="fp64", compared=1, uncompared=("call 0 output: cannot be read",))

    assert doubts(Limits(), replace(GOOD, numerics=numerics)) == (
        "not compared with eager: call 0 output: cannot be read",
    )


@pytest.mark.parametrize("limits", [Limits(check_grads=True), Limits(rtol=0.1), Limits(atol=0.1)])
def test_numbers_that_are_asked_for_and_not_compared_are_no_doubt_but_a_violation(limits: Limits) -> None:
    blind = replace(GOOD, numerics=None, unmeasured={"numerics": "no eager run"})

    (violation,) = judged(limits, blind)

    assert violation.measured == "cannot be measured on torch 2.16.0: no eager run"
    assert doubts(limits, blind) == ()


def test_disagreements_are_doubts() -> None:
    torn = replace(GOOD, disagreements=("graphs: 2 by taps, 3 by trace",))

    assert doubts(Limits(), torn) == ("two independent counts disagree: graphs: 2 by taps, 3 by trace",)


def test_a_run_that_raised_is_broken_whatever_else() -> None:
    raised = replace(GOOD, raised=Raised(type="RuntimeError", message="x"), numerics=None, state_change=None)
    limits = Limits(check_state_dict=True, rtol=0.1)

    violations = judged(limits, raised)

    assert [each.limit for each in violations] == ["no exception (default)"]
    assert verdict(raised, violations, ("doubt",)) == "broken"


@given(
    limit=st.sampled_from(["max_graph_breaks", "max_recompiles", "max_graphs", "max_eager_frames"]),
    count=st.integers(0, 6),
    tight=st.integers(1, 6),
    more=st.integers(0, 6),
)
def test_a_wider_limit_never_finds_more(limit: str, count: int, tight: int, more: int) -> None:
    seen = replace(
        GOOD,
        graphs=count,
        graph_breaks=(BREAK,) * count,
        recompiles=(RECOMPILE,) * count,
        eager_frames=(LOST,) * count,
    )

    narrow = judged(Limits(**{limit: tight}), seen)  # type: ignore[arg-type]
    wide = judged(Limits(**{limit: tight + more}), seen)  # type: ignore[arg-type]

    assert len(wide) <= len(narrow)
    assert any(each.limit == f"{limit}={tight}" for each in narrow) == (count > tight)


@given(count=st.integers(0, 6), bound=st.integers(0, 6))
def test_min_ops_captured_is_a_lower_bound(count: int, bound: int) -> None:
    violations = judged(Limits(min_ops_captured=bound), replace(GOOD, ops_captured=count))

    assert bool(violations) == (count < bound)


def test_a_test_that_compiled_nothing_is_told_so() -> None:
    seen = Measurement(graphs=0, ops_captured=0, first_compiles=0, eager_frames=(), limit_hits=())

    (violation,) = judge(Limits(), seen, torch_version="2.13.0")

    assert violation.details == (
        "nothing was compiled: no compiled function was called, or none that computes with tensors",
    )


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("RuntimeError when making fake tensor call", ("zoo::op: there was no fake impl",)),
        ("TypeError/AttributeError when tracing", ("zoo::op: there was no fake impl",)),
        ("Unsupported Tensor.item() call", ()),
        ("Error-prone call", ()),
    ],
)
def test_an_exception_that_breaks_a_graph_is_told_with_what_it_said(reason: str, shown: tuple[str, ...]) -> None:
    said = "zoo::op: there was no fake impl\nsee the docs"
    found = GraphBreak(location=ITEM, kind="call", reason=reason, explanation=said)

    assert told_breaks([found]) == ((f"{ITEM}: {ITEM.source}", reason, *shown),)


def test_a_value_from_a_break_is_explained_beside_its_guard() -> None:
    frame = Location(file="model.py", line=1, function="f")
    recompile = Recompile(frame=frame, kind="guard", guard="tensor '___stack0' size mismatch at index 0")
    seen = Measurement(graphs=2, ops_captured=2, recompiles=(recompile,), eager_frames=(), limit_hits=())

    (violation,) = judge(Limits(max_recompiles=0), seen, torch_version="2.13.0")

    assert violation.details[1:] == (
        "  guard: tensor '___stack0' size mismatch at index 0",
        "  ___stack: a value that was on the stack when the graph broke, such as what the call there returned",
    )


def test_what_a_reset_dropped_counts_as_compiled_again_and_what_was_asked_for_as_eager() -> None:
    frame = Location(file="model.py", line=1, function="f")
    seen = Measurement(
        graphs=2,
        ops_captured=2,
        recompiles=(),
        dropped=(Recompile(frame=frame, kind="reset", guard="dropped"),),
        eager_frames=(),
        eager_by_request=(EagerFrame(frame=frame, cause="by request", reason="stance 'force_eager' was set"),),
        limit_hits=(),
    )

    violations = judge(Limits(max_recompiles=0), seen, torch_version="2.13.0")

    assert [(each.limit, each.measured, each.details) for each in violations] == [
        ("max_recompiles=0", 1, ("model.py:1 in f: reset recompile", "  guard: dropped")),
        (
            "max_eager_frames=0 (default)",
            1,
            ("model.py:1 in f: ran in eager, by request", "  stance 'force_eager' was set"),
        ),
    ]


def test_a_doubt_of_the_measurement_makes_the_lane_unverified() -> None:
    seen = Measurement(graphs=1, ops_captured=1, eager_frames=(), limit_hits=(), doubts=("a thread",))

    assert doubts(Limits(), seen) == ("a thread",)


# What else a violation is told with


def test_the_first_violation_says_that_both_runs_ended_and_what_a_hunt_found() -> None:
    both = RaisedInBoth(type="ValueError", message="too long", at="call 1", unit="call", left=2)
    hunted = Hunted(sequences=3, calls=9, counterexample=("compile_lane.run(f, (2,))",))
    seen = replace(GOOD, graph_breaks=(BREAK,), recompiles=(RECOMPILE,), raised_in_both=both, hunted=hunted)

    first, second = judged(Limits(max_graph_breaks=0, max_recompiles=0), seen)

    assert first.details == (
        str(both),
        *BREAK_LINES,
        "the shortest sequence that fails:",
        "  compile_lane.run(f, (2,))",
    )
    assert (first.limit, first.measured, second.details) == ("max_graph_breaks=0", 1, RECOMPILE_LINES)
    assert judged(Limits(), replace(GOOD, raised_in_both=both, hunted=hunted)) == ()


def test_a_hunt_without_a_counterexample_adds_nothing() -> None:
    seen = replace(GOOD, graph_breaks=(BREAK,), hunted=Hunted(sequences=3, calls=9))

    (violation,) = judged(Limits(max_graph_breaks=0), seen)

    assert violation.details == BREAK_LINES


# Limits on collectives, targets, outputs and operators

GATHER, REDUCE = Collective(kind="all_gather"), Collective(kind="all_reduce", times=2)


def test_collectives_are_held_to_their_number_and_to_eagers_kinds() -> None:
    limits = Limits(max_collectives=2, same_collectives=True)
    fewer = Collectives(compiled=(REDUCE,), eager=(REDUCE,))
    more = Collectives(compiled=(REDUCE, GATHER), eager=(REDUCE,))

    assert judged(limits, replace(GOOD, collectives=fewer)) == ()
    assert judged(limits, replace(GOOD, collectives=more)) == (
        Violation(
            limit="max_collectives=2",
            measured=3,
            details=("compiled: 1 all_gather, 2 all_reduce", "  eager: 2 all_reduce"),
        ),
        Violation(
            limit="same_collectives=True",
            measured="not the same as in eager",
            details=("compiled: 1 all_gather, 2 all_reduce", "  eager: 2 all_reduce"),
        ),
    )
    assert judged(Limits(), replace(GOOD, collectives=more)) == ()
    assert judged(Limits(same_collectives=False), replace(GOOD, collectives=more)) == ()


def test_collectives_that_were_not_recorded_are_a_violation() -> None:
    limits = Limits(max_collectives=9, same_collectives=True)
    told = {"collectives": "its tap is gone"}
    said = "cannot be measured on torch 2.16.0: its tap is gone"

    neither = judged(limits, replace(GOOD, unmeasured=told))
    compiled_alone = judged(limits, replace(GOOD, collectives=Collectives(compiled=(REDUCE,)), unmeasured=told))

    assert [(each.limit, each.measured) for each in neither] == [
        ("max_collectives=9", said),
        ("same_collectives=True", said),
    ]
    assert [(each.limit, each.measured) for each in compiled_alone] == [("same_collectives=True", said)]


def test_placements_are_held_to_eagers_and_to_there_being_any() -> None:
    limits = Limits(same_placements=True)
    placed, lost = {"w": "Shard(0) on 2", "b": PLAIN}, {"w": PLAIN, "b": PLAIN}

    assert judged(limits, replace(GOOD, placements=Placements(compiled=placed, eager=placed))) == ()
    assert judged(Limits(), replace(GOOD, placements=Placements(compiled=lost, eager=placed))) == ()
    assert judged(limits, replace(GOOD, placements=Placements(compiled=lost, eager=placed))) == (
        Violation(
            limit="same_placements=True",
            measured="1 parameter not placed as in eager",
            details=("w: Shard(0) on 2 in eager, a plain tensor compiled",),
        ),
    )
    for nowhere in (Placements(compiled=lost, eager=lost), Placements(compiled={}, eager={})):
        (violation,) = judged(limits, replace(GOOD, placements=nowhere))
        assert violation.measured == "no parameter is a DTensor, in eager either"


def test_what_is_saved_is_held_to_a_share_of_eagers() -> None:
    limits = Limits(max_saved_ratio=1.5)

    assert judged(limits, replace(GOOD, saved_bytes=SavedBytes(compiled=150, eager=100))) == ()
    assert judged(limits, replace(GOOD, saved_bytes=SavedBytes(compiled=151, eager=100))) == (
        Violation(limit="max_saved_ratio=1.5", measured="1.51 (151 bytes compiled, 100 bytes eager)"),
    )
    (violation,) = judged(limits, replace(GOOD, saved_bytes=SavedBytes(compiled=0, eager=0)))
    assert violation.measured == "eager saves nothing for a backward"


def test_structure_that_was_not_measured_is_a_violation() -> None:
    limits = Limits(same_placements=True, max_saved_ratio=1.0, max_recomputed_graphs=0)
    told = {"placements": "no module", "saved_bytes": "no hooks", "recomputed_graphs": "no task"}

    found = judged(limits, replace(GOOD, unmeasured=told))

    assert {each.limit: each.measured for each in found} == {
        "same_placements=True": "cannot be measured on torch 2.16.0: no module",
        "max_saved_ratio=1.0": "cannot be measured on torch 2.16.0: no hooks",
        "max_recomputed_graphs=0": "cannot be measured on torch 2.16.0: no task",
    }
    (violation,) = judged(Limits(max_recomputed_graphs=0), replace(GOOD, recomputed_graphs=2))
    assert (violation.limit, violation.measured) == ("max_recomputed_graphs=0", 2)


def test_targets_and_outputs_that_are_not_known_are_a_violation_unless_there_can_be_none() -> None:
    limits = Limits(capture_targets=("Block",), keeps_outputs=True)
    blind = replace(GOOD, unmeasured={"capture_targets": "no graph", "overwritten": "no profiler"})

    assert [(each.limit, each.measured) for each in judged(limits, blind)] == [
        ("capture_targets=['Block']", "cannot be measured on torch 2.16.0: no graph"),
        ("keeps_outputs=True", "cannot be measured on torch 2.16.0: no profiler"),
    ]
    found = CaptureTargets(requested=("Block",), compiled=("Block",))
    assert judged(limits, replace(GOOD, capture_targets=found, unmeasured={"overwritten": NO_CUDA})) == ()


@pytest.mark.parametrize(("allowed", "violated"), [(3, True), (4, False)])
def test_operators_of_a_step_that_run_in_eager_are_counted(allowed: int, violated: bool) -> None:
    seen = replace(GOOD, operators_run=StepOperators(compiled=9, eager=4))

    found = judged(Limits(max_eager_ops=allowed), seen)

    assert [(each.limit, each.measured) for each in found] == ([("max_eager_ops=3", 4)] if violated else [])


def test_memory_of_the_device_is_an_exception_of_its_own() -> None:
    seen = replace(GOOD, raised=Raised(type="OutOfMemoryError", message="x", out_of_memory=True), numerics=None)

    (violation,) = judged(Limits(), seen)

    assert (violation.limit, violation.measured) == ("no exception (default)", "out of memory")
