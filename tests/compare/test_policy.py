"""Policies: what a file may say, and one line for what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_compilecontract.compare.policy import DEFAULT_POLICY, Policy, read_policy
from pytest_compilecontract.errors import UsageError


def policy(tmp_path: Path, text: str) -> Policy:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    return read_policy(file)


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    assert policy(tmp_path, "") == DEFAULT_POLICY


def test_by_default_no_count_of_graphs_and_no_time_gates() -> None:
    assert DEFAULT_POLICY.gate == {
        "bytes_saved",
        "capture",
        "collectives",
        "cuda_graphs",
        "eager_frames",
        "eager_ops",
        "errors",
        "frontier",
        "fullgraph",
        "graph_breaks",
        "host_syncs",
        "kernels_a_step",
        "limit_hits",
        "limits",
        "numerics",
        "ops_captured",
        "placements",
        "recompiles",
        "recomputed_graphs",
        "state_dict",
    }
    assert DEFAULT_POLICY.allow == frozenset()


WIDTHS = {
    "ops_captured": 0.05,
    "bytes_saved": 0.05,
    "guards_a_call": 0.25,
    "kernels_a_step": 0.1,
    "compile_seconds": 1.0,
    "warm_seconds": 1.0,
}


def test_a_time_gates_by_the_spread_that_was_measured(tmp_path: Path) -> None:
    found = policy(tmp_path, 'gate = ["steady_seconds"]')

    assert (found.gate, found.band) == ({"steady_seconds"}, WIDTHS)


def test_a_file_says_what_gates_how_far_and_what_may_be_open(tmp_path: Path) -> None:
    text = 'gate = ["graph_breaks", "steady_seconds"]\nallow = ["new"]\n[band]\nsteady_seconds = 0.25\n'

    found = policy(tmp_path, text)

    assert found.gate == {"graph_breaks", "steady_seconds"}
    assert found.allow == {"new"}
    assert found.band == {**WIDTHS, "steady_seconds": 0.25}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("gates = []", "unknown key 'gates' (known keys: allow, band, gate)", id="unknown-key"),
        pytest.param("gate = 1", "gate: expected a list of names, got 1", id="no-list"),
        pytest.param('gate = [["graphs"]]', "gate: expected a list of names, got [['graphs']]", id="list-of-lists"),
        pytest.param("band = 0.1", "band: expected a table, got 0.1", id="no-table"),
        pytest.param(
            "band.ops_captured = true",
            "band.ops_captured: expected a finite number of at least 0, got True",
            id="a-bool-as-width",
        ),
        pytest.param(
            "band.ops_captured = -0.1",
            "band.ops_captured: expected a finite number of at least 0, got -0.1",
            id="a-negative-width",
        ),
        pytest.param(
            "band.ops_captured = nan",
            "band.ops_captured: expected a finite number of at least 0, got nan",
            id="not-a-number",
        ),
        pytest.param(
            "band.graph_breaks = 0.1",
            "band: not a banded metric: 'graph_breaks' (known: bytes_saved, cold_seconds, compile_seconds, "
            "device_seconds, guards_a_call, kernels_a_step, ops_captured, overhead_seconds, peak_bytes, "
            "steady_seconds, warm_seconds, warmup_seconds)",
            id="a-band-for-an-exact-metric",
        ),
        pytest.param(
            'allow = ["drifted"]',
            "allow: not a verdict that can be allowed: 'drifted' (known: missing, new, unmeasured)",
            id="drift-cannot-be-allowed",
        ),
    ],
)
def test_what_cannot_mean_anything_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        policy(tmp_path, text)

    assert str(caught.value) == f"{tmp_path / 'policy.toml'}: {message}"


def test_a_misspelt_metric_is_refused_with_the_one_meant(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        policy(tmp_path, 'gate = ["graph_brakes"]')

    assert ": gate: not a metric that can gate: 'graph_brakes', did you mean 'graph_breaks'? (known: " in str(
        caught.value
    )


@pytest.mark.parametrize("text", ["gate = [", "[" * 5000, "a = 1\na = 2"], ids=["cut-off", "nested", "twice"])
def test_what_is_no_toml_is_one_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        policy(tmp_path, text)

    assert str(caught.value).startswith(f"{tmp_path / 'policy.toml'}: cannot be read (")


@pytest.mark.parametrize("data", [b"\xff", None], ids=["not-utf-8", "no-file"])
def test_what_cannot_be_read_is_one_error(tmp_path: Path, data: bytes | None) -> None:
    file = tmp_path / "policy.toml"
    if data is not None:
        file.write_bytes(data)

    with pytest.raises(UsageError) as caught:
        read_policy(file)

    assert str(caught.value).startswith(f"{file}: cannot be read (")
