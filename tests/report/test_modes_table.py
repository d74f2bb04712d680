"""The table of `compilecontract modes`: each lane with what it costs and gains, and never a number nobody measured."""

from __future__ import annotations

from dataclasses import replace

from support.receipts import FORWARD, HOLDING, an_entry

from pytest_compilecontract.facts.measurement import (
    NO_CACHES,
    NO_CUDA,
    FrameGuards,
    Kernels,
    Memory,
    Speed,
    StepKernels,
    Timing,
    WarmStart,
)
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.report.modes import NOT_MEASURED, ROWS, mode_lines

UNKNOWN = dict.fromkeys(("speed", "kernels", "memory"), NO_CUDA)
ON_A_CPU = replace(
    HOLDING,
    cold_seconds=3.0,
    steady_seconds=0.5,
    stage_seconds={"dynamo": 0.5, "inductor": 2.0},
    guards=(FrameGuards(frame=FORWARD, kinds={"TENSOR_MATCH": 9}),),
    unmeasured={**UNKNOWN, "warm": NO_CACHES},
)


def timing(seconds: float) -> Timing:
    return Timing(median=seconds, low=seconds, high=seconds)


def speed(eager: float, compiled: float) -> Speed:
    return Speed(eager=timing(eager), compiled=timing(compiled), samples=9, compile_seconds=10.0)


def on_a_gpu(eager: float, compiled: float) -> Entry:
    seen = replace(
        ON_A_CPU,
        warm=WarmStart(stage_seconds={"dynamo": 0.25}),
        speed=speed(eager, compiled),
        kernels=StepKernels(compiled=Kernels(total=7, attention=("flash",)), eager=Kernels(total=9)),
        memory=Memory(peak_bytes=3 * 2**20, eager_peak_bytes=2**20),
        unmeasured={},
    )
    return an_entry(seen, lane="inductor")


def rows(*entries: Entry) -> dict[str, list[str]]:
    table, _, _ = "\n".join(mode_lines(entries, None)).partition(f"\n\n{NOT_MEASURED}:")
    names = max(map(len, ROWS))
    return {line[:names].strip(): line[names:].split() for line in table.splitlines()}


def test_lanes_are_side_by_side_with_what_each_costs_and_gains() -> None:
    found = rows(on_a_gpu(eager=2.0, compiled=1.0), on_a_gpu(eager=1.0, compiled=2.0))

    assert found[""] == ["inductor", "inductor"]
    assert found["compiling"] == ["2.5", "s"] * 2
    assert found["compiling, caches warm"] == ["0.25", "s"] * 2
    assert found["steady step on the device"] == ["1", "s", "2", "s"]
    assert found["pays off after"] == ["10", "steps", "never"]
    assert found["guards per call"] == ["9", "9"]
    assert found["kernels per step"] == ["7", "7"]
    assert found["peak memory"] == ["3.0", "MiB"] * 2
    assert found["attention"] == ["flash", "flash"]


def test_what_is_not_measured_has_no_number_and_a_reason() -> None:
    cannot = an_entry(None, lane="cudagraphs", verdict="unmeasured", reason="no CUDA device here")

    lines = mode_lines([an_entry(ON_A_CPU), cannot], None)

    found = rows(an_entry(ON_A_CPU), on_a_gpu(eager=2.0, compiled=1.0))
    assert found["compiling, caches warm"] == ["not", "measured", "0.25", "s"]
    assert found["pays off after"] == ["not", "measured", "10", "steps"]
    assert not any("0 steps" in line for line in lines)
    assert sorted(lines[-3:]) == [
        "  aot: compiling, caches warm: only Inductor's graphs are in torch's compile caches",
        "  aot: steady step on the device, speedup over eager, pays off after, kernels per step, peak memory, "
        "attention: no CUDA device",
        "  cudagraphs: all of it: no CUDA device here",
    ]


def test_lanes_and_rows_without_any_number_are_named_only_with_their_reason() -> None:
    cannot = an_entry(None, lane="cudagraphs", verdict="unmeasured", reason="no CUDA device here")

    lines = mode_lines([an_entry(ON_A_CPU), cannot], None)

    assert [line.split("  ")[0] for line in lines[1:6]] == [
        *("verdict", "compiling", "first call", "steady call", "guards per call"),
    ]
    assert lines[0].split() == ["aot"]
    assert lines[6:8] == ["", f"{NOT_MEASURED}:"]
    assert [line.split() for line in mode_lines([cannot], None)[:2]] == [["cudagraphs"], ["verdict", "unmeasured"]]
