"""Lanes of XLA in comparisons: they have a torch of their own, which no upgrade of the suite's torch is blamed for."""

from __future__ import annotations

from dataclasses import replace

from support.receipts import HOLDING, NEW, OLD, RECOMPILE, a_receipt, an_entry

from pytest_compilecontract.compare.comparison import compare
from pytest_compilecontract.compare.matrix import matrix
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.receipt import Entry, Environment, Receipt, environment_key
from pytest_compilecontract.report.matrix import markdown

LAZY = replace(OLD, torch="2.9.0", libraries={"torch_xla": "2.9.0", "pjrt": "cpu"})
TORCHAX = replace(OLD, torch="2.13.0", libraries={"torchax": "0.0.14", "jax": "0.10.2", "pjrt": "cpu"})
RECOMPILES = replace(HOLDING, recompiles=(RECOMPILE,))


def in_lane(lane: str, measurement: Measurement = HOLDING) -> Entry:
    return an_entry(measurement, lane=lane, environment=lane, lane_settings={"backend": lane})


def a_run(torch: Environment, *lanes: Entry, **others: Environment) -> Receipt:
    environments = {"here": torch, **{f"xla-{name}": each for name, each in others.items()}}
    return replace(a_receipt(an_entry(), *lanes, environment=torch), environments=environments)


def test_a_column_of_xla_has_its_own_torch_and_pjrt() -> None:
    runs = [
        a_run(torch, in_lane("xla-lazy"), in_lane("xla-torchax"), lazy=LAZY, torchax=TORCHAX) for torch in (OLD, NEW)
    ]

    found = matrix(runs, runs=["old", "new"])

    assert [each.name for each in found.columns] == [
        "torch 2.11.0",
        "torch 2.15.0",
        "torch 2.9.0 torch_xla 2.9.0 pjrt=cpu (old)",
        "torch 2.9.0 torch_xla 2.9.0 pjrt=cpu (new)",
        "torch 2.13.0 torchax 0.0.14 pjrt=cpu (old)",
        "torch 2.13.0 torchax 0.0.14 pjrt=cpu (new)",
    ]
    assert {row.lane: [cell.verdict for cell in row.cells] for row in found.rows} == {
        "aot": ["held", "held", None, None, None, None],
        "xla-lazy": [None, None, "held", "held", None, None],
        "xla-torchax": [None, None, None, None, "held", "held"],
    }
    assert "pjrt=cpu" in markdown(found)


def test_an_upgrade_of_torch_is_judged_without_lanes_of_xla() -> None:
    one = a_run(OLD, in_lane("xla-lazy"), lazy=LAZY)
    two = a_run(NEW, in_lane("xla-lazy", RECOMPILES), lazy=LAZY)

    found = matrix([one, two])

    assert [lane.lane for lane in found.comparisons[-1].lanes] == ["aot"]
    assert [cell.verdict for row in found.rows if row.lane == "xla-lazy" for cell in row.cells][2:] == [
        "held",
        "drifted",
    ]


def test_a_drift_of_xla_is_not_blamed_on_the_suite_s_torch() -> None:
    one = a_run(OLD, in_lane("xla-lazy"), lazy=LAZY)
    two = a_run(NEW, in_lane("xla-lazy", RECOMPILES), lazy=LAZY)

    lane = next(each for each in compare(one, two).lanes if each.lane == "xla-lazy")

    assert lane.verdict == "drifted"
    assert [drift.attribution.torch for drift in lane.drifts] == [()]


def test_a_run_with_lanes_of_xla_is_not_of_mixed_torches() -> None:
    run = a_run(NEW, in_lane("xla-lazy"), lazy=LAZY)

    assert compare(run, run).mixed == ()


def test_a_run_of_xla_alone_has_no_column_without_lanes() -> None:
    run = replace(a_receipt(in_lane("xla-lazy")), environments={"xla-lazy": LAZY})

    assert [each.name for each in matrix([run]).columns] == ["torch 2.9.0 torch_xla 2.9.0 pjrt=cpu"]


def test_baselines_of_xla_are_kept_apart() -> None:
    assert [environment_key(each) for each in (LAZY, TORCHAX)] == ["torch2.9-pjrt-cpu", "torch2.13-pjrt-cpu"]
