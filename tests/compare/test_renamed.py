"""Tests that were renamed: said where exactly one new contract shows what exactly one missing one did."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.receipts import BREAK, HOLDING, a_receipt, an_entry

from pytest_compilecontract.compare.comparison import compare
from pytest_compilecontract.compare.gate import answer
from pytest_compilecontract.facts.measurement import Kernels, Measurement, StepKernels
from pytest_compilecontract.facts.receipt import Entry

SHOWN = replace(HOLDING, operations={"linear": 2, "relu": 1})
OTHERWISE = replace(SHOWN, operations={"linear": 2, "gelu": 1})


def named(contract: str, measurement: Measurement | None = SHOWN, lane: str = "aot") -> Entry:
    return replace(an_entry(measurement, lane=lane), contract=contract, test=f"{contract}[{lane}]")


def reasons(old: list[Entry], new: list[Entry]) -> dict[str, str]:
    return {f"{lane.contract} [{lane.lane}]": lane.reason for lane in compare(a_receipt(*old), a_receipt(*new)).lanes}


def test_the_one_that_shows_the_same_is_named_on_both_sides() -> None:
    lanes = ("aot", "capture")

    found = reasons([named("t::old", lane=each) for each in lanes], [named("t::new", lane=each) for each in lanes])

    before = "it measured the same as t::old, which is missing: renamed?"
    after = "not in the newer run; t::new, which is new, measured the same: renamed?"
    assert found == {f"t::{name} [{lane}]": said for name, said in (("new", before), ("old", after)) for lane in lanes}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param([named("t::old")], [named("u::new", OTHERWISE)], id="other operations"),
        pytest.param([named("t::old")], [named("u::new", replace(SHOWN, graph_breaks=(BREAK,)))], id="a break more"),
        pytest.param([named("t::old")], [named("t::new"), named("t::too")], id="two that are new"),
        pytest.param([named("t::old"), named("t::too")], [named("t::new")], id="two that are missing"),
        pytest.param([named("t::old")], [named("t::new"), named("t::new", lane="capture")], id="a lane more"),
        pytest.param([named("t::old", HOLDING)], [named("t::new", HOLDING)], id="nothing known of operations"),
        pytest.param([named("t::old", None)], [named("t::new", None)], id="not measured"),
    ],
)
def test_what_may_be_another_is_not(old: list[Entry], new: list[Entry]) -> None:
    assert not any("renamed" in reason for reason in reasons(old, new).values())


def tuned(contract: str, kernels: int) -> Entry:
    """A lane that chooses its kernels by timing them, so that their number is compared and gates nothing."""
    counted = StepKernels(compiled=Kernels(total=kernels), eager=Kernels(total=9))
    settings = {"backend": "inductor", "mode": "max-autotune"}
    return replace(named(contract, replace(SHOWN, kernels=counted)), lane_settings=settings)


def test_a_change_that_is_held_is_a_change() -> None:
    same, other = (reasons([tuned("t::old", 5)], [tuned("u::new", kernels)]) for kernels in (5, 6))

    assert all("renamed" in reason for reason in same.values())
    assert not any("renamed" in reason for reason in other.values())


FEW_OF_THEM = replace(SHOWN, operations={"linear": 1, "mm": 4})
BROKEN = replace(SHOWN, graph_breaks=(BREAK,), operations={"linear": 2, "relu": 1, "sum": 1})


def test_one_that_has_changed_as_well_is_told_with_what_differs() -> None:
    found = reasons([named("t::old")], [named("t::new", BROKEN)])

    differs = "graph breaks 0 -> 1, fullgraph yes -> no"
    assert found == {
        "t::new [aot]": f"perhaps old, which is missing, renamed: {differs}",
        "t::old [aot]": f"not in the newer run; perhaps renamed to new: {differs}",
    }


def test_one_that_moved_to_another_file_and_changed_keeps_its_name() -> None:
    old = [named("a::test_x"), named("a::test_y", OTHERWISE)]
    new = [named("b::test_x", BROKEN), named("b::test_z", OTHERWISE)]

    found = reasons(old, new)

    assert "renamed to b::test_x" in found["a::test_x [aot]"]
    # It measured the same, whatever its name.
    assert found["b::test_z [aot]"] == "it measured the same as a::test_y, which is missing: renamed?"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param([named("t::old")], [named("u::new", BROKEN)], id="another file and another name"),
        pytest.param([named("t::old"), named("t::too", OTHERWISE)], [named("t::new", BROKEN)], id="two are missing"),
        pytest.param([named("t::old")], [named("t::new", BROKEN), named("t::too", OTHERWISE)], id="two are new"),
        pytest.param([named("t::x")], [named("t::new", BROKEN), named("u::x", BROKEN)], id="its name is elsewhere"),
        pytest.param([named("t::old")], [named("t::new", BROKEN, lane="capture")], id="other lanes"),
        pytest.param([named("t::old")], [named("t::new", replace(SHOWN, operations={"mm": 3}))], id="other operations"),
        pytest.param([named("t::old")], [named("t::new", FEW_OF_THEM)], id="mostly other operations"),
        pytest.param([named("t::old")], [named("t::new", HOLDING)], id="operations not known"),
        pytest.param(
            [named("t::old")], [replace(named("t::new", BROKEN), limits={"max_graph_breaks": 1})], id="other limits"
        ),
    ],
)
def test_what_may_well_be_another_is_not_paired(old: list[Entry], new: list[Entry]) -> None:
    assert not any("renamed" in reason for reason in reasons(old, new).values())


@pytest.mark.parametrize("changed", [SHOWN, BROKEN, replace(BROKEN, operations={"linear": 2})])
@pytest.mark.parametrize("worse", [False, True])
def test_what_is_told_of_names_answers_nothing(changed: Measurement, worse: bool) -> None:
    kept = named("u::kept", BROKEN if worse else SHOWN)
    comparison = compare(a_receipt(named("u::kept"), named("t::old")), a_receipt(kept, named("t::new", changed)))

    assert [lane.verdict for lane in comparison.lanes if lane.contract != "u::kept"] == ["new", "missing"]
    assert answer(comparison).outcome == ("no" if worse else "not known")


def test_a_contract_that_both_runs_have_is_no_candidate() -> None:
    found = reasons([named("t::old"), named("t::kept")], [named("t::kept"), named("t::kept", lane="capture")])

    assert found["t::old [aot]"] == "not in the newer run"


def test_a_file_of_many_small_tests_that_was_moved_is_compared_in_no_time() -> None:
    old, new = ([named(f"{file}::test_{number}") for number in range(500)] for file in ("a", "b"))

    found = reasons(old, new)

    assert found["b::test_7 [aot]"] == "perhaps a::test_7, which is missing, renamed: no difference in this lane"
    assert sum("perhaps" in reason for reason in found.values()) == 1000
