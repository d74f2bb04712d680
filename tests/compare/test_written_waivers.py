"""Waivers that are written: one for a cause, in all lanes that show the same of it, and for nothing else."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.receipts import (
    BREAK,
    COPY,
    DIFFERENCE,
    FORWARD,
    HOLDING,
    ITEM,
    OTHER_BREAK,
    RAISED,
    RECOMPILE,
    SKIPPED,
    VIOLATION,
    WORSE,
    after,
    an_entry,
    before,
)

from pytest_compilecontract.compare.comparison import compare
from pytest_compilecontract.compare.drift import Comparison
from pytest_compilecontract.compare.policy import Policy
from pytest_compilecontract.compare.waive import Rest, Written, written
from pytest_compilecontract.compare.waivers import read_waivers, stale, waived
from pytest_compilecontract.facts.measurement import EagerFrame, Measurement, StateChange, StepOperators
from pytest_compilecontract.facts.metrics import GATEABLE
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.verdict import Violation

TODAY = datetime.date(2026, 6, 15)
REST = Rest(issue="https://example.org/1", owner='a "b" 🦉', expires=TODAY, kind="workaround")
LANES = ("aot", "capture")
# One break with all that it brings along.
AFTER_IT = replace(RECOMPILE, frame=FORWARD)
ONE_BREAK = replace(
    HOLDING,
    graphs=2,
    graph_breaks=(BREAK,),
    ops_captured=60,
    recompiles=(AFTER_IT,),
    eager_frames=(EagerFrame(frame=FORWARD, cause="graph break", reason="a loop", location=COPY),),
    operators_run=StepOperators(compiled=92, eager=8, groups=(SKIPPED,)),
)
OVER = Violation(limit="max_graph_breaks=0", measured=1)
SLOW = Violation(limit="min_speedup=2.0", measured="1.1")


def worse(measured: Measurement, lane: str = "aot", **changes: Any) -> Entry:
    return an_entry(measured, lane=lane, **changes)


def compared(*entries: Entry) -> Comparison:
    return compare(before(*(an_entry(lane=each.lane) for each in entries)), after(*entries))


def made_of(comparison: Comparison) -> tuple[Written, ...]:
    return written((lane, "==2.15.*") for lane in comparison.lanes)


def waivers_of(comparison: Comparison, file: Path) -> Any:
    file.write_text("\n".join(each.as_toml(REST) for each in made_of(comparison)), encoding="utf-8")
    return read_waivers(file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "waivers.toml"


def test_one_break_is_one_waiver_in_all_lanes_that_show_it() -> None:
    entries = [worse(ONE_BREAK, lane, verdict="violated", violations=(OVER,)) for lane in LANES]

    (found,) = made_of(compared(*entries))

    assert found.as_toml(REST) == (
        "[[waiver]]\n"
        'contract = "tests/test_block.py::test_block"\n'
        'lane = ["aot", "capture"]\n'
        "metric = {graph_breaks = 1, recompiles = 1, eager_frames = 1, eager_ops = 8, ops_captured = 60, "
        'fullgraph = "no", limits = 1}\n'
        "fact = [\n"
        '    "model.py:* in forward: mask = copy.deepcopy(self.mask)",\n'
        "    \"model.py:* in forward after its graph break: tensor 'x' size mismatch at index 0. "
        'expected *, actual *",\n'
        '    "train.py:* in step: loss = model(x)",\n'
        "]\n"
        'torch = "==2.15.*"\n'
        'issue = "https://example.org/1"\n'
        'owner = "a \\"b\\" 🦉"\n'
        "expires = 2026-06-15\n"
        'kind = "workaround"\n'
    )


@pytest.mark.parametrize("metric", GATEABLE)
def test_what_is_written_of_a_drift_waives_it_and_nothing_more(metric: str, file: Path) -> None:
    policy = Policy(gate=frozenset(GATEABLE))
    was, now = WORSE[metric]
    comparison = compare(before(was), after(now), policy)
    waivers = waivers_of(comparison, file)

    again = waived(comparison, waivers, TODAY)
    other = [
        waived(compare(before(*WORSE[each][:1]), after(*WORSE[each][1:]), policy), waivers, TODAY).lanes[0]
        for each in GATEABLE
        if each not in (metric, "fullgraph", "graph_breaks")
    ]

    assert again.lanes[0].verdict == "waived"
    assert stale(again, waivers, TODAY, whole=True) == ()
    assert {lane.verdict for lane in other} <= {"drifted", "broken", "unverified", "unstable", "held"}
    assert "drifted" in {lane.verdict for lane in other}


def test_what_was_not_there_is_drift_beside_what_is_waived(file: Path) -> None:
    waivers = waivers_of(compared(worse(ONE_BREAK)), file)

    def verdict(lane: str = "aot", limits: tuple[Violation, ...] = (), **changed: Any) -> str:
        entry = worse(replace(ONE_BREAK, **changed), lane, violations=limits)
        return waived(compared(entry), waivers, TODAY).lanes[0].verdict

    moved = replace(BREAK, location=replace(COPY, line=57), stacks=((replace(COPY, line=57),), BREAK.stacks[1]))
    again = replace(AFTER_IT, guard="tensor 'x' size mismatch at index 1. expected 3, actual 4")
    twice = StepOperators(compiled=92, eager=9, groups=(replace(SKIPPED, operators={"linear": 5, "relu": 4}),))
    assert verdict() == "waived"
    assert verdict(graph_breaks=(moved,)) == "waived"
    assert verdict(ops_captured=70) == "waived"
    assert verdict("capture") == "drifted"
    assert verdict(graph_breaks=(BREAK, OTHER_BREAK)) == "drifted"
    assert verdict(graph_breaks=(replace(BREAK, location=ITEM, stacks=((ITEM,),)),)) == "drifted"
    assert verdict(graph_breaks=(BREAK, BREAK)) == "drifted"
    assert verdict(recompiles=(again,)) == "drifted"
    assert verdict(ops_captured=50) == "drifted"
    assert verdict(operators_run=twice) == "drifted"
    assert verdict(limits=(OVER,)) == "drifted"
    assert verdict(numerics=WORSE["numerics"][1].measurement.numerics) == "drifted"  # type: ignore[union-attr]


def test_two_breaks_are_two_waivers_that_go_one_by_one(file: Path) -> None:
    both = replace(HOLDING, graph_breaks=(BREAK, OTHER_BREAK))

    waivers = waivers_of(compared(worse(both)), file)
    mended = waived(compared(worse(replace(both, graph_breaks=(OTHER_BREAK,)))), waivers, TODAY)

    assert len(waivers) == 2
    assert waived(compared(worse(both)), waivers, TODAY).lanes[0].verdict == "waived"
    assert mended.lanes[0].verdict == "waived"
    (said,) = stale(mended, waivers, TODAY, whole=True)
    assert "mask = copy.deepcopy(self.mask) is no longer needed: delete it" in said


def test_lanes_that_show_something_else_have_a_waiver_of_their_own() -> None:
    fewer = replace(ONE_BREAK, ops_captured=50)

    found = made_of(compared(*(worse(ONE_BREAK, lane) for lane in LANES), worse(fewer, "train")))

    assert [each.lanes for each in found] == [LANES, ("train",)]


def test_a_lane_that_is_mended_is_to_be_taken_out_of_its_waiver(file: Path) -> None:
    waivers = waivers_of(compared(*(worse(ONE_BREAK, lane) for lane in LANES)), file)

    comparison = waived(compared(worse(ONE_BREAK), worse(HOLDING, "capture")), waivers, TODAY)

    (said,) = stale(comparison, waivers, TODAY, whole=False)
    assert said.startswith(f"{file}:1: the waiver of tests/test_block.py::test_block [aot, capture] ")
    assert said.endswith(" is no longer needed in capture: take out capture")


def test_a_limit_of_something_else_is_a_cause_of_its_own(file: Path) -> None:
    entry = worse(replace(HOLDING, graph_breaks=(BREAK,)), verdict="violated", violations=(OVER, SLOW))

    found = made_of(compared(entry))
    waivers = waivers_of(compared(entry), file)

    assert [each.facts for each in found] == [
        ("model.py:* in forward: mask = copy.deepcopy(self.mask)",),
        ("min_speedup=2.0",),
    ]
    assert waived(compared(entry), waivers, TODAY).lanes[0].verdict == "waived"
    assert waived(compared(entry), waivers[:1], TODAY).lanes[0].verdict == "drifted"


def test_a_limit_on_numbers_goes_with_them(file: Path) -> None:
    entry = worse(
        replace(HOLDING, numerics=replace(HOLDING.numerics, differences=(DIFFERENCE,))),  # type: ignore[type-var]
        verdict="violated",
        violations=(Violation(limit="numerics='fp64'", measured="1 difference"), VIOLATION),
    )

    found = made_of(compared(entry))

    assert [(each.facts, dict(each.worst)) for each in found] == [
        (("output[0]: value: *", "numerics='fp64'"), {"numerics": 1, "limits": 2}),
        (("max_graphs=1",), {"limits": 2}),
    ]
    assert waived(compared(entry), waivers_of(compared(entry), file), TODAY).lanes[0].verdict == "waived"


def test_many_keys_are_named_by_what_they_have_in_common(file: Path) -> None:
    keys = tuple(f"block._orig_mod.{number}.weight" for number in range(50))
    entry = worse(replace(HOLDING, state_change=StateChange(keys_added=keys)))
    one_more = worse(replace(HOLDING, state_change=StateChange(keys_added=(*keys, "other"))))

    (found,) = made_of(compared(entry))
    waivers = waivers_of(compared(entry), file)

    assert found.facts == ("block._orig_mod.*: key added",)
    assert waived(compared(entry), waivers, TODAY).lanes[0].verdict == "waived"
    assert waived(compared(one_more), waivers, TODAY).lanes[0].verdict == "drifted"


@pytest.mark.parametrize(("worst", "verdict"), [("capture", "waived"), ("aot", "drifted"), ("*", "waived")])
def test_a_rung_is_tolerated_by_its_name(worst: str, verdict: str, file: Path) -> None:
    was, now = WORSE["frontier"]
    comparison = compare(before(was), after(now))
    (found,) = made_of(comparison)
    file.write_text(replace(found, facts=(), worst=(("frontier", worst),)).as_toml(REST))

    assert dict(found.worst)["frontier"] == "capture"
    assert waived(comparison, read_waivers(file), TODAY).lanes[0].verdict == verdict


def test_a_star_in_a_line_stands_for_itself(file: Path) -> None:
    def broken_at(source: str) -> Comparison:
        place = replace(COPY, source=source)
        return compared(worse(replace(HOLDING, graph_breaks=(replace(BREAK, location=place, stacks=((place,),)),))))

    waivers = waivers_of(broken_at("y = f(*a)[0] * 2"), file)

    assert waived(broken_at("y = f(*a)[0] * 2"), waivers, TODAY).lanes[0].verdict == "waived"
    assert waived(broken_at("y = f(b, *a)[0] * 2"), waivers, TODAY).lanes[0].verdict == "drifted"


def test_a_lane_that_broke_is_waived_for_this_error_alone(file: Path) -> None:
    def raising(kind: str) -> Comparison:
        broken = worse(Measurement(raised=replace(RAISED, type=kind)), verdict="broken", reason="raised")
        return compared(broken)

    waivers = waivers_of(raising(RAISED.type), file)

    assert waived(raising(RAISED.type), waivers, TODAY).lanes[0].verdict == "waived"


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("{graph_breaks = true}", "metric.graph_breaks: expected its worst value, or '*' for any, got True"),
        ("{graph_breaks = nan}", "metric.graph_breaks: expected its worst value, or '*' for any, got nan"),
        ("{graph_breaks = -1}", "metric.graph_breaks: expected its worst value, or '*' for any, got -1"),
        (f"{{graph_breaks = 1{'0' * 400}}}", "metric.graph_breaks: expected its worst value, or '*' for any, got 1000"),
        ("{graph_break = 1}", "metric: unknown metric 'graph_break', did you mean 'graph_breaks'?"),
        ("{}", "metric: expected a string, a list of strings, a table, or '*', got {}"),
    ],
)
def test_a_worst_value_that_cannot_be_meant_is_refused(metric: str, message: str, file: Path) -> None:
    text = made_of(compared(worse(ONE_BREAK)))[0].as_toml(REST)
    file.write_text("".join(f"metric = {metric}\n" if "metric" in each else f"{each}\n" for each in text.splitlines()))

    with pytest.raises(Exception, match="metric") as caught:
        read_waivers(file)

    assert str(caught.value).startswith(f"{file}:1: {message}")
