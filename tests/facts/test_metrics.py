"""The records of metrics: what they name is there, so that none is left out in silence."""

from __future__ import annotations

from dataclasses import fields

from pytest_compilecontract.compare.tell import READERS
from pytest_compilecontract.facts.joins import added
from pytest_compilecontract.facts.limits import LIMITS
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.metrics import BANDED, GATEABLE, KNOWN, REPEATED, STEADY

FIELDS = {each.name for each in fields(Measurement)}
# What a pair compares by rules of its own, for it is of more than one field.
OF_A_PAIR = {"errors", "limits", "frontier", "capture", "fullgraph"}


def test_every_metric_that_can_gate_is_compared_by_something() -> None:
    assert {*GATEABLE} == {*READERS, *BANDED, *OF_A_PAIR}


def test_what_is_joined_or_left_out_of_a_baseline_is_a_field() -> None:
    named = {each.at for each in KNOWN.values() if each.join is not added or not each.kept}

    assert named - FIELDS == set()


def test_no_two_metrics_are_as_near_to_the_cause() -> None:
    causes = [each.cause for each in KNOWN.values() if each.cause]

    assert sorted(causes) == [*range(1, len(causes) + 1)]


def test_what_a_limit_is_held_against_is_a_field() -> None:
    assert {each.metric for each in LIMITS.values() if each.metric} - FIELDS == set()


def test_what_is_the_same_each_time_are_exact_counts_of_dynamo() -> None:
    assert REPEATED == ("graphs", "graph_breaks", "recompiles", "eager_frames", "limit_hits")


def test_what_steady_steps_measure_are_fields_of_a_measurement() -> None:
    assert set(STEADY) == {"kernels", "host_syncs", "memory", "overwritten", "cuda_graphs", "speed"}
    assert set(STEADY) <= FIELDS
