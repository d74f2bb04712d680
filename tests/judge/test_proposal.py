"""Proposals: the tightest contract that what was measured keeps, and which lanes no contract would hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_compilecontract.facts.measurement import (
    Call,
    EagerFrame,
    GraphBreak,
    LimitHit,
    Location,
    Measurement,
    Numerics,
    Recompile,
)
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.verdict import Verdict
from pytest_compilecontract.judge.proposal import Proposal, proposed

LINE = Location(file="model.py", line=3, function="forward", source="x = f(x)")
BREAK = GraphBreak(location=LINE, kind="call", reason="a call that Dynamo cannot trace")
RECOMPILE = Recompile(frame=LINE, kind="guard", guard="L['n'] == 3")
LOST = EagerFrame(frame=LINE, cause="graph break", reason="in a loop")
HIT = LimitHit(frame=LINE, limit="recompile_limit", reason="8 times")
CALLS = (Call(phase="cold", seconds=0.1, graphs_executed=1), Call(phase="steady", seconds=0.1, graphs_executed=1))


def seen(**facts: Any) -> Measurement:
    usual: dict[str, Any] = {
        "graphs": 1,
        "ops_captured": 3,
        "graph_breaks": (),
        "recompiles": (),
        "eager_frames": (),
        "limit_hits": (),
        "graphs_executed": 2,
        "calls": CALLS,
        "numerics": Numerics(method="fp64", compared=1),
    }
    return Measurement(**{**usual, **facts})


def entry(lane: str, measurement: Measurement | None, *, verdict: Verdict = "held", reason: str = "") -> Entry:
    return Entry(
        contract="model:sample",
        lane=lane,
        test=f"test_sample[{lane}]",
        verdict=verdict,
        environment="here",
        reason=reason,
        measurement=measurement,
    )


def of(*entries: Entry) -> Proposal:
    return proposed(entries, torch_version="2.13.0")


def test_the_largest_count_of_any_lane_is_the_limit() -> None:
    found = of(entry("capture", seen(recompiles=(RECOMPILE,))), entry("aot", seen(graph_breaks=(BREAK,))))

    assert found.decorator() == "@compile_contract(max_recompiles=1, max_graph_breaks=1)"
    assert (found.lanes, found.refused, found.calls) == (("capture", "aot"), {}, 2)


def test_a_lane_without_a_steady_call_is_told() -> None:
    assert of(entry("capture", seen()), entry("aot", seen())).steady == 1
    assert of(entry("capture", seen()), entry("aot", seen(calls=CALLS[:1]))).steady == 0


def test_what_it_allows_is_told_with_the_lanes_that_show_it() -> None:
    lost = seen(eager_frames=(LOST,))

    found = of(entry("capture", lost), entry("aot", lost), entry("inductor", seen(graph_breaks=(BREAK,))))

    assert found.allowed == {
        ("max_eager_frames", (("model.py:3 in forward: ran in eager, graph break", "in a loop"),)): ("capture", "aot"),
        ("max_graph_breaks", (("model.py:3 in forward: x = f(x)", "a call that Dynamo cannot trace"),)): ("inductor",),
    }


def test_what_cannot_be_counted_is_not_told_as_allowed() -> None:
    assert of(entry("capture", seen(recompiles=None))).allowed == {}


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"eager_frames": (LOST,)}, "@compile_contract(max_recompiles=0, max_graph_breaks=0, max_eager_frames=1)"),
        ({"limit_hits": (HIT,)}, "@compile_contract(max_recompiles=0, max_graph_breaks=0, allow_recompile_limit=True)"),
        ({}, "@compile_contract(max_recompiles=0, max_graph_breaks=0)"),
    ],
    ids=["eager frame", "recompile limit", "nothing"],
)
def test_an_allowance_is_named_where_it_is_needed(facts: dict[str, Any], line: str) -> None:
    found = of(entry("aot", seen(**facts)))

    assert found.decorator() == line


def test_what_each_limit_tolerates_is_told_once() -> None:
    forward = replace(LINE, scope="GPT")
    lost = replace(LOST, frame=forward, location=LINE)
    facts = seen(
        graph_breaks=(BREAK,), recompiles=(replace(RECOMPILE, frame=forward),), eager_frames=(lost,), limit_hits=(HIT,)
    )

    found = of(entry("aot", facts), entry("capture", facts))

    assert found.tolerates == {
        "max_graph_breaks": ("a graph break at model.py:3 in forward: x = f(x)",),
        "max_recompiles": ("that GPT.forward (model.py:3) is compiled again: L['n'] == 3",),
        "max_eager_frames": (
            "that GPT.forward (model.py:3) runs in eager: graph break, model.py:3 in forward: x = f(x)",
        ),
        "allow_recompile_limit": ("that forward (model.py:3) reaches recompile_limit",),
    }


def test_a_limit_of_0_tolerates_nothing() -> None:
    assert of(entry("aot", seen())).tolerates == {}


def test_a_count_that_one_lane_cannot_measure_is_no_limit() -> None:
    unknown = seen(recompiles=None)

    found = of(entry("capture", seen()), entry("aot", unknown))

    assert found.decorator() == "@compile_contract(max_graph_breaks=0)"


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (entry("aot", None, verdict="broken", reason="the worker died"), "the worker died"),
        (
            entry("aot", seen(graphs=0, ops_captured=0, graphs_executed=0)),
            "min_ops_captured=1 (default): 0",
        ),
        (
            entry("aot", seen(limit_hits=None, unmeasured={"limit_hits": "moved"})),
            "limit_hits: cannot be measured: moved",
        ),
        (
            entry("aot", seen(disagreements=("2 graphs, 1 traced",)), verdict="unverified"),
            "two independent counts disagree: 2 graphs, 1 traced",
        ),
    ],
    ids=["broken", "nothing captured", "not measured", "two counts"],
)
def test_a_lane_that_no_limit_makes_hold_is_refused(refused: Entry, reason: str) -> None:
    found = of(entry("capture", seen()), refused)

    assert found.refused == {"aot": reason}
    assert found.decorator() == "@compile_contract(max_recompiles=0, max_graph_breaks=0, lanes=['capture'])"


def test_lanes_that_cannot_run_here_say_nothing() -> None:
    found = of(entry("cudagraphs", None, verdict="unmeasured", reason="no CUDA device here"), entry("aot", seen()))

    assert (found.lanes, found.refused) == (("aot",), {})
