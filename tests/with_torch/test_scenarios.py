"""The probes count every scenario of the ground truth exactly, and the second channel agrees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scenarios import SCENARIOS, Scenario

from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.measure.isolation import isolated
from pytest_compilecontract.measure.probes.source import Paths
from pytest_compilecontract.measure.recorder import Measuring

pytestmark = pytest.mark.insides


def measured(scenario: Scenario) -> Measuring:
    with isolated(None), torch._dynamo.config.patch(scenario.config):
        measuring = Measuring(Paths(Path(__file__).parent), lane=Lane(name="capture", backend="eager"))
        with measuring:
            scenario.run()
        return measuring


@pytest.mark.parametrize("name", SCENARIOS)
def test_counts_are_exact(name: str) -> None:
    scenario = SCENARIOS[name]

    measuring = measured(scenario)

    seen = measuring.measurement()
    assert {
        "graphs": seen.graphs,
        "backend": seen.backend_calls,
        "first": seen.first_compiles,
        "resume": seen.continuations,
        "recompiles": len(seen.recompiles),
        "limit": len(seen.limit_hits),
        "eager": len(seen.eager_frames),
        "events": seen.break_events,
        "sites": len(seen.graph_breaks),
    } == scenario.counts
    assert tuple(sorted(each.kind for each in seen.recompiles)) == scenario.kinds
    assert seen.break_events == sum(each.events for each in seen.graph_breaks)
    assert seen.disagreements == ()
    if scenario.executed is not None:
        assert seen.graphs_executed == scenario.executed


@pytest.mark.parametrize("name", [name for name, each in SCENARIOS.items() if each.first_reasons or each.breaks])
def test_reasons_are_torchs_own(name: str) -> None:
    scenario = SCENARIOS[name]

    measuring = measured(scenario)

    seen = measuring.measurement()
    reasons = [each.reasons for each in measuring.ledger.attempts if each.recompiles]
    for expected, given in zip(scenario.first_reasons, reasons, strict=False):
        assert expected in given[0]
    for expected in scenario.any_reasons:
        assert any(expected in reason for given in reasons for reason in given)
    if scenario.leads:
        assert tuple(each.guard for each in seen.recompiles) == scenario.leads
    for kind in scenario.breaks:
        assert any(kind in each.kind for each in seen.graph_breaks)
        assert all(each.location.file == "scenarios.py" and each.registry_id for each in seen.graph_breaks)


def test_counts_do_not_depend_on_what_ran_before() -> None:
    names = ["recompile_limit", "break_in_a_callee", "automatic_dynamic", "unequal_blocks"]

    forwards, backwards = (
        {name: replace(measured(SCENARIOS[name]).measurement(), stage_seconds=None) for name in order}
        for order in (names, reversed(names))
    )

    assert forwards == backwards
