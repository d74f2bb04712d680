"""What a baseline keeps of a lane: what is the same on the next machine, and why a lane may not be recorded."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from support.receipts import BREAK, COPY, HOLDING, LIMIT_HIT, an_entry

from pytest_compilecontract.baselines.kept import kept_entry, kept_measurement, kept_spread, refusal
from pytest_compilecontract.facts.measurement import NO_CUDA, NOT_ASKED, Hunted, Measurement, Numerics, StepOperators
from pytest_compilecontract.facts.receipt import Entry

NOTHING = replace(HOLDING, graphs=0)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        pytest.param(an_entry(), "", id="a lane that holds"),
        pytest.param(an_entry(None, verdict="broken", reason="killed"), "nothing was measured (killed)", id="killed"),
        pytest.param(an_entry(None, verdict="broken"), "nothing was measured (broken)", id="no reason"),
        pytest.param(an_entry(verdict="violated", reason="2"), "violated: 2", id="violated"),
        pytest.param(an_entry(verdict="violated"), "violated", id="violated, no reason"),
        pytest.param(
            an_entry(replace(HOLDING, hunted=Hunted(sequences=1, calls=1))),
            "hunted: each run draws different calls",
            id="hunted",
        ),
        pytest.param(
            an_entry(replace(HOLDING, disagreements=("1, 2",))), "two independent counts disagree: 1, 2", id="one"
        ),
        pytest.param(
            an_entry(replace(HOLDING, disagreements=("1, 2", "3, 4"))),
            "two independent counts disagree: 1, 2",
            id="the first of two",
        ),
        pytest.param(an_entry(NOTHING), "nothing was captured", id="nothing captured"),
        pytest.param(an_entry(NOTHING, limits={"max_graphs": 0}), "", id="no graph is asked for"),
        pytest.param(an_entry(NOTHING, limits={"min_ops_captured": 0}), "", id="no operation is asked for"),
        pytest.param(an_entry(NOTHING, limits={"max_graphs": 1}), "nothing was captured", id="one graph is allowed"),
        pytest.param(
            an_entry(NOTHING, limits={"min_ops_captured": 1}), "nothing was captured", id="one operation is asked for"
        ),
        pytest.param(
            an_entry(replace(HOLDING, limit_hits=(LIMIT_HIT,))), "the recompile limit was reached", id="limit"
        ),
        pytest.param(
            an_entry(replace(HOLDING, limit_hits=(LIMIT_HIT,)), limits={"allow_recompile_limit": True}),
            "",
            id="a limit that is allowed",
        ),
    ],
)
def test_a_lane_that_says_nothing_of_the_next_run_is_refused(entry: Entry, why: str) -> None:
    assert refusal(entry) == why


def test_an_entry_keeps_its_measurement_reduced_and_its_bands() -> None:
    entry = an_entry(replace(HOLDING, cold_seconds=1.0), repeats=3, spread={"ops_captured": (100.0, 102.0)})

    kept = kept_entry(entry)

    assert kept == replace(entry, measurement=kept_measurement(HOLDING))
    assert kept.measurement != entry.measurement
    assert kept_entry(an_entry(None)) == an_entry(None)


@pytest.mark.parametrize(
    ("band", "kept"),
    [
        pytest.param((1.2345, 1.2345), (1.23, 1.24), id="outward"),
        pytest.param((-1.2345, -1.2345), (-1.24, -1.23), id="below zero"),
        pytest.param((0.00012345, 98765.4), (0.000123, 98800.0), id="small and large"),
        pytest.param((1234.0, 5678.0), (1234.0, 5678.0), id="whole numbers"),
        pytest.param((-math.inf, math.inf), (-math.inf, math.inf), id="no end"),
    ],
)
def test_a_band_has_three_digits_and_is_never_narrower(band: tuple[float, float], kept: tuple[float, float]) -> None:
    assert kept_spread(an_entry(spread={"steady_seconds": band})) == {"steady_seconds": kept}


def test_what_differs_from_machine_to_machine_is_not_kept() -> None:
    numerics = Numerics(method="fp64", compared=1, worst_error=1.2345e-7, eager_error=6.789e-8)
    operators = StepOperators(compiled=3, eager=1, modules={"a": (1, 0)}, lines={"b": (2, 1)})
    found = replace(BREAK, explanation="why", hints=("do",), stacks=((BREAK.location,), (COPY, BREAK.location)))
    seen = replace(
        HOLDING,
        graph_breaks=(found,),
        operators_run=operators,
        numerics=numerics,
        unmeasured={"kernels": NO_CUDA, "speed": NOT_ASKED, "cold_seconds": "no clock", "graphs": "its tap is gone"},
    )

    kept = kept_measurement(seen)

    assert kept.graph_breaks == (replace(found, explanation="", hints=(), stacks=((COPY, BREAK.location),)),)
    assert kept.operators_run == StepOperators(compiled=3, eager=1)
    assert kept.numerics == replace(numerics, worst_error=1.2e-7, eager_error=6.8e-8)
    assert kept.unmeasured == {"graphs": "its tap is gone"}
    assert (kept.cold_seconds, kept.steady_seconds, kept.graphs) == (None, None, HOLDING.graphs)


def test_what_was_not_measured_stays_so() -> None:
    bare: dict[str, Any] = {"graph_breaks": None, "operators_run": None, "numerics": None}

    kept = kept_measurement(replace(HOLDING, **bare))

    assert {name: getattr(kept, name) for name in bare} == bare
    assert kept_measurement(replace(HOLDING, numerics=Numerics(method="fp64"))).numerics == Numerics(method="fp64")
    assert kept_measurement(Measurement()) == Measurement()
