"""Two lanes of a contract: the facts in which one may not differ from the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_compilecontract.facts.measurement import (
    NO_DYNAMO,
    Difference,
    EagerFrame,
    GraphBreak,
    Location,
    Measurement,
    Numerics,
    Recompile,
    StateChange,
)
from pytest_compilecontract.facts.verdict import Facts
from pytest_compilecontract.judge.agreement import OtherLane, lanes_differ

AT = Location(file="net.py", line=12, function="forward")
FRAME = Location(file="net.py", line=9, function="forward")
AGREES = Numerics(method="fp64", compared=1)
SEEN = Measurement(
    graphs=1,
    graph_breaks=(),
    recompiles=(),
    dropped=(),
    eager_frames=(),
    state_change=StateChange(),
    numerics=AGREES,
    beside=AGREES,
)
BREAK = GraphBreak(location=AT, kind="item", reason="Tensor.item")
RECOMPILE = Recompile(frame=FRAME, kind="shape", guard="size mismatch", location=FRAME)
EAGER = EagerFrame(frame=FRAME, cause="skipped", reason="skipped")
OFF = Difference(at="call 0 output", kind="value", detail="2 of 4 elements differ")


def told(seen: Measurement) -> tuple[str, Facts]:
    found = lanes_differ(OtherLane(name="aot", measurement=SEEN), "inductor", seen)
    assert found is not None
    assert (found.limit, found.name) == ("same_as='aot'", "same_as")
    return str(found.measured), found.facts


def by_xla(**changes: object) -> Measurement:
    seen = replace(SEEN, eager_frames=None, unmeasured={"eager_frames": NO_DYNAMO})
    return replace(seen, **changes)  # type: ignore[arg-type]


def test_a_lane_of_xla_makes_other_programs_of_a_module_with_the_same_keys() -> None:
    wrapped = StateChange(keys_added=("_orig_mod.a", "_orig_mod.b"), keys_removed=("a", "b"), type_changed="to another")
    other = OtherLane(name="inductor", measurement=replace(SEEN, state_change=wrapped))

    assert lanes_differ(other, "xla-lazy", by_xla(graphs=3, recompiles=(RECOMPILE,))) is None


@pytest.mark.parametrize(
    ("seen", "measured"),
    [
        pytest.param(by_xla(state_change=StateChange(keys_removed=("a",))), "state dict keys differ", id="a key"),
        pytest.param(by_xla(state_change=None), "state dict keys differ", id="keys not known"),
        pytest.param(by_xla(beside=replace(AGREES, differences=(OFF,))), "results differ", id="a number"),
        pytest.param(by_xla(beside=None), "results not compared", id="nothing compared"),
    ],
)
def test_a_lane_of_xla_that_differs_is_told(seen: Measurement, measured: str) -> None:
    found = lanes_differ(OtherLane(name="inductor", measurement=SEEN), "xla-lazy", seen)

    assert found is not None
    assert found.measured == measured


def test_lanes_that_measured_alike_agree() -> None:
    assert lanes_differ(OtherLane(name="aot", measurement=SEEN), "inductor", SEEN) is None


@pytest.mark.parametrize(
    ("seen", "name", "of_other", "of_own"),
    [
        pytest.param(replace(SEEN, graphs=2), "graphs", "1 graph", "2 graphs", id="a graph more"),
        pytest.param(replace(SEEN, graphs=None), "graphs", "1 graph", "not measured", id="not counted"),
        pytest.param(
            replace(SEEN, graph_breaks=(BREAK,)), "graph breaks", "none", "net.py:12 in forward: item", id="a break"
        ),
        pytest.param(
            replace(SEEN, recompiles=(RECOMPILE,)), "recompiles", "none", "net.py:9 in forward: shape", id="a recompile"
        ),
        pytest.param(
            replace(SEEN, eager_frames=(EAGER,)),
            "eager frames",
            "none",
            "net.py:9 in forward: skipped",
            id="an eager frame",
        ),
        pytest.param(
            replace(SEEN, state_change=StateChange(keys_added=("_orig_mod.w",), keys_removed=("w",))),
            "state dicts",
            "unchanged",
            "1 key now prefixed with '_orig_mod.'",
            id="a renamed key",
        ),
    ],
)
def test_a_fact_that_only_one_has_is_named(seen: Measurement, name: str, of_other: str, of_own: str) -> None:
    measured, facts = told(seen)

    assert measured == f"{name} differ"
    assert facts == ((f"{name} differ", f"aot: {of_other}", f"inductor: {of_own}"),)


def test_results_that_differ_are_named_after_the_counts() -> None:
    seen = replace(SEEN, graphs=2, beside=replace(AGREES, differences=(OFF,)))

    measured, facts = told(seen)

    assert measured == "graphs, results differ"
    assert facts[1] == ("results differ", "call 0 output: value: 2 of 4 elements differ")


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (replace(SEEN, beside=replace(AGREES, uncompared=("random numbers",))), "random numbers"),
        (replace(SEEN, beside=None), "calls that hypothesis draws are compared with eager alone"),
    ],
)
def test_results_that_nothing_compared_do_not_agree(seen: Measurement, why: str) -> None:
    assert told(seen) == ("results not compared", (("results not compared", why),))


def test_where_nothing_is_compared_with_eager_there_are_no_results() -> None:
    seen = replace(SEEN, numerics=None, beside=None)

    assert lanes_differ(OtherLane(name="aot", measurement=seen), "inductor", seen) is None


def test_a_lane_that_showed_nothing_agrees_with_none() -> None:
    found = lanes_differ(OtherLane(name="aot", ended="the test was skipped there: no"), "inductor", SEEN)

    assert found is not None
    assert found.measured == "nothing to compare with: the test was skipped there: no"
