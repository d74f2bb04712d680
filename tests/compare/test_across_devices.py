"""A lane on two types of device: compared by what does not depend on the device, if asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.receipts import BREAK, HOLDING, OLD, WORSE_ON_A_GPU, a_receipt, an_entry

from pytest_compilecontract.cli.main import main
from pytest_compilecontract.compare.comparison import compare
from pytest_compilecontract.compare.drift import LaneComparison
from pytest_compilecontract.compare.policy import Policy
from pytest_compilecontract.facts.metrics import METRICS, OF_DEVICE
from pytest_compilecontract.facts.receipt import Entry, Environment
from pytest_compilecontract.facts.verdict import Violation
from pytest_compilecontract.files.receipt import write_receipt

GPU = replace(OLD, device="NVIDIA H200", capability="9.0")
ACROSS = Policy(across_devices=True)


def across(cpu: Entry, gpu: Entry, there: Environment = GPU) -> LaneComparison:
    return compare(a_receipt(cpu, environment=OLD), a_receipt(gpu, environment=there), ACROSS).lanes[0]


def test_the_same_facts_on_a_gpu_are_held() -> None:
    lane = across(an_entry(), an_entry())

    assert (lane.verdict, lane.reason) == ("held", "")


def test_a_break_that_the_gpu_alone_has_is_drift() -> None:
    lane = across(an_entry(), an_entry(replace(HOLDING, graph_breaks=(BREAK,))))

    assert lane.verdict == "drifted"
    assert "graph_breaks" in {drift.metric for drift in lane.drifts}
    assert "device A processor -> NVIDIA H200" in lane.attribution.hardware


@pytest.mark.parametrize("metric", WORSE_ON_A_GPU)
def test_what_only_a_gpu_has_is_neither_drift_nor_unknown(metric: str) -> None:
    """A CPU has none of it; and what both have is no better comparable."""
    was, now = WORSE_ON_A_GPU[metric]

    for cpu in (an_entry(), was):
        lane = across(cpu, now)

        assert lane.verdict == "held", lane.reason
        assert f"{METRICS[metric].label} (depends on the device)" in lane.excused


def test_on_one_type_of_device_the_option_leaves_nothing_out() -> None:
    for was, now in WORSE_ON_A_GPU.values():
        assert across(was, now, there=OLD).verdict == "drifted"


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [
        ("max_kernels", "held"),
        ("max_cold_seconds", "held"),
        ("max_warm_seconds", "held"),
        ("max_graph_breaks", "drifted"),
        # Beside the seconds of a warm start in one field, and no matter of the device.
        ("max_warm_misses", "drifted"),
    ],
)
def test_a_limit_on_what_depends_on_the_device_is_left_out_and_named(limit: str, verdict: str) -> None:
    exceeded = Violation(name=limit, limit=f"{limit}=0", measured="1")
    gpu = replace(an_entry(), verdict="violated", violations=(exceeded,))

    lane = across(an_entry(), gpu)

    assert lane.verdict == verdict
    named = f"{METRICS['limits'].label}: {limit} (depends on the device)"
    assert lane.excused == ((named,) if verdict == "held" else ())
    assert not across(an_entry(), gpu, there=OLD).excused


def test_what_was_not_measured_on_the_gpu_is_unknown() -> None:
    lane = across(an_entry(), an_entry(replace(HOLDING, graph_breaks=None)))

    assert lane.verdict == "unverified"


def test_a_lane_that_broke_on_the_gpu_is_broken() -> None:
    assert across(an_entry(), replace(an_entry(), verdict="broken", reason="it raised")).verdict == "broken"


def test_seconds_and_memory_are_of_the_device() -> None:
    assert {"steady_seconds", "peak_bytes", "device_seconds", "bytes_saved", "kernels_a_step"} <= OF_DEVICE
    assert not {"graphs", "graph_breaks", "recompiles", "numerics", "ops_captured", "collectives"} & OF_DEVICE


@pytest.mark.parametrize(
    ("command", "plain", "asked"),
    [("compare", 3, 0), ("gate", 3, 0), ("matrix", 3, 0)],
)
def test_the_commands_compare_two_devices_if_asked_to(
    command: str, plain: int, asked: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("cpu.json", "gpu.json")]
    for file, where in zip(files, (OLD, GPU), strict=True):
        write_receipt(file, a_receipt(an_entry(), environment=where))
    both: list[Any] = [command, *map(str, files)]

    assert main(both) == plain
    if command == "compare":
        assert "--across-devices` compares what does not depend on them" in capsys.readouterr().out
    assert main([*both, "--across-devices"]) == asked
