"""Limits that only a GPU can feed: what they make of a measurement, and of one that has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_compilecontract.facts.lanes import BUILT_IN, Lane
from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import (
    NO_CUDA,
    NOT_ASKED,
    CaptureTargets,
    CudaGraphs,
    GraphSkip,
    GraphStep,
    HostSync,
    Kernels,
    Location,
    Measurement,
    Memory,
    Speed,
    StepKernels,
    Timing,
)
from pytest_compilecontract.facts.metrics import combined
from pytest_compilecontract.facts.verdict import Violation
from pytest_compilecontract.judge.device import undecided
from pytest_compilecontract.judge.limits import judge
from pytest_compilecontract.judge.verdicts import doubts

ADD = Location(file="model.py", line=12, function="forward", source="x.add_(1)")
ITEM = Location(file="model.py", line=14, function="forward", source="x.sum().item()")
REPLAYED = CudaGraphs(
    calls=(GraphStep(warmed_up=1), GraphStep(recorded=1), GraphStep(replayed=1)),
    steady=GraphStep(replayed=20),
    steady_steps=20,
    step=GraphStep(replayed=1),
    launches=1,
)
KERNELS = StepKernels(
    compiled=Kernels(total=3, triton=2, library=1, copies=1, names={"nvjet": 1, "triton_a": 2}),
    eager=Kernels(total=12),
)
SPEED = Speed(
    eager=Timing(median=2e-3, low=1.9e-3, high=2.1e-3),
    compiled=Timing(median=1e-3, low=0.9e-3, high=1.1e-3),
    samples=60,
    compile_seconds=10.0,
)
WHOLE = Measurement(
    graphs=1,
    ops_captured=3,
    graph_breaks=(),
    recompiles=(),
    eager_frames=(),
    limit_hits=(),
    capture_targets=CaptureTargets(requested=("Block",), compiled=("Block",)),
    overwritten=(),
    cuda_graphs=REPLAYED,
    kernels=KERNELS,
    host_syncs=(),
    memory=Memory(peak_bytes=3 * 1024**2, eager_peak_bytes=4 * 1024**2, pool_bytes=1024**2),
    speed=SPEED,
)


def judged(limits: Limits, measurement: Measurement) -> tuple[Violation, ...]:
    return judge(limits, measurement, torch_version="2.16.0")


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"capture_targets": ("Block",)}, id="targets"),
        pytest.param({"keeps_outputs": True}, id="outputs"),
        pytest.param({"cudagraphs": "required"}, id="graphs"),
        pytest.param({"max_kernels": 3, "max_kernels_ratio": 0.25}, id="kernels"),
        pytest.param({"max_host_syncs": 0}, id="syncs"),
        pytest.param({"max_memory_ratio": 0.75, "max_memory_growth": 0}, id="memory"),
        pytest.param({"min_speedup": 1.7}, id="speed"),
    ],
)
def test_limits_that_are_kept(limits: dict[str, Any]) -> None:
    assert judged(Limits(**limits), WHOLE) == ()
    assert doubts(Limits(**limits), WHOLE) == ()


@pytest.mark.parametrize(
    ("limits", "change", "violation"),
    [
        pytest.param(
            {"capture_targets": ("Block", "Head")},
            {"capture_targets": CaptureTargets(requested=("Block", "Head"), compiled=("Block",), missing=("Head",))},
            Violation(
                limit="capture_targets=['Block', 'Head']",
                measured="1 compiled, 1 missing",
                details=("compiled: Block", "missing: Head"),
            ),
            id="a-target-missing",
        ),
        pytest.param(
            {"keeps_outputs": True},
            {"overwritten": ("output tensor 0",)},
            Violation(
                limit="keeps_outputs=True", measured="1 output changed by a later call", details=("output tensor 0",)
            ),
            id="an-output-overwritten",
        ),
        pytest.param(
            {"cudagraphs": "required"},
            {
                "cuda_graphs": replace(
                    REPLAYED,
                    skips=(GraphSkip(reason="mutated inputs", location=ADD),),
                    steady=GraphStep(ran_eager=20),
                )
            },
            Violation(
                limit="cudagraphs='required'",
                measured="1 recorded, 1 replayed, 1 skip",
                details=(
                    "model.py:12 in forward: x.add_(1)",
                    "  mutated inputs",
                    "no CUDA graph was replayed in 21 steady steps",
                    "ran without a CUDA graph: 20 times in 21 steady steps",
                ),
            ),
            id="a-skip-and-a-fall-through",
        ),
        pytest.param(
            {"cudagraphs": "required"},
            {"cuda_graphs": replace(REPLAYED, steady=GraphStep(replayed=10, recorded=10))},
            Violation(
                limit="cudagraphs='required'",
                measured="1 recorded, 1 replayed, 0 skips",
                details=("recorded again after warm-up: 10 times in 21 steady steps",),
            ),
            id="recorded-again",
        ),
        pytest.param(
            {"cudagraphs": "required"},
            {"cuda_graphs": replace(REPLAYED, skips=(GraphSkip(reason="DeviceCopy ops", split=True),))},
            Violation(
                limit="cudagraphs='required'", measured="1 recorded, 1 replayed, 1 skip", details=("DeviceCopy ops",)
            ),
            id="split",
        ),
        pytest.param(
            {"max_kernels": 2},
            {},
            Violation(
                limit="max_kernels=2",
                measured=3,
                details=("2 Triton, 1 library, 1 copies; eager 12", "2 x triton_a", "1 x nvjet"),
            ),
            id="kernels",
        ),
        pytest.param(
            {"max_kernels_ratio": 0.2},
            {},
            Violation(
                limit="max_kernels_ratio=0.2",
                measured="0.25 (3 compiled, 12 eager)",
                details=("2 Triton, 1 library, 1 copies; eager 12", "2 x triton_a", "1 x nvjet"),
            ),
            id="kernels-by-eager",
        ),
        pytest.param(
            {"max_host_syncs": 1},
            {"host_syncs": (HostSync(location=ITEM, count=2), HostSync(location=None))},
            Violation(
                limit="max_host_syncs=1",
                measured=3,
                details=(
                    "model.py:14 in forward: x.sum().item() (2 per step)",
                    "outside the project's code (1 per step)",
                ),
            ),
            id="syncs",
        ),
        pytest.param(
            {"max_memory_ratio": 0.5},
            {},
            Violation(
                limit="max_memory_ratio=0.5",
                measured="0.75 (3.0 MiB compiled, 4.0 MiB eager, 1.0 MiB of it in CUDA graphs)",
            ),
            id="memory",
        ),
        pytest.param(
            {},
            {"memory": Memory(peak_bytes=1, eager_peak_bytes=1, growth_bytes=512)},
            Violation(limit="max_memory_growth=0 (default)", measured="each steady step leaves 512 B behind"),
            id="growth-by-default",
        ),
        pytest.param(
            {"max_memory_ratio": 0.5},
            {"memory": Memory(peak_bytes=3 * 1024**3, eager_peak_bytes=5 * 1024)},
            Violation(limit="max_memory_ratio=0.5", measured="629145.60 (3.0 GiB compiled, 5.0 KiB eager)"),
            id="memory-without-pools",
        ),
        pytest.param(
            {},
            {
                "memory": Memory(peak_bytes=1, eager_peak_bytes=1, growth_bytes=1024),
                "cuda_graphs": replace(REPLAYED, steady=GraphStep(replayed=10, recorded=10)),
            },
            Violation(
                limit="max_memory_growth=0 (default)",
                measured="each steady step leaves 1.0 KiB behind, and CUDA graphs are recorded again",
            ),
            id="growth-with-recordings",
        ),
        pytest.param(
            {"min_speedup": 3.0},
            {"speed": replace(SPEED, compiled=SPEED.eager)},
            Violation(
                limit="min_speedup=3.0",
                measured="1.00 (0.90 to 1.11 in 60 pairs)",
                details=("eager 2000.0 us, compiled 2000.0 us per step", "compiling took 10.0 s and never pays off"),
            ),
            id="no-speed",
        ),
        pytest.param(
            {"min_speedup": 3.0},
            {},
            Violation(
                limit="min_speedup=3.0",
                measured="2.00 (1.73 to 2.33 in 60 pairs)",
                details=(
                    "eager 2000.0 us, compiled 1000.0 us per step",
                    "compiling took 10.0 s and pays off after 10000 steps",
                ),
            ),
            id="speed",
        ),
    ],
)
def test_limits_that_are_not_kept(limits: dict[str, Any], change: dict[str, Any], violation: Violation) -> None:
    assert judged(Limits(**limits), replace(WHOLE, **change)) == (violation,)


def test_split_graphs_are_allowed_where_parts_are_enough() -> None:
    split = replace(REPLAYED, skips=(GraphSkip(reason="DeviceCopy ops", split=True),))

    assert judged(Limits(cudagraphs="partitioned"), replace(WHOLE, cuda_graphs=split)) == ()


def test_a_speed_within_the_spread_is_neither_held_nor_violated() -> None:
    limits = Limits(min_speedup=2.1)

    assert judged(limits, WHOLE) == ()
    assert doubts(limits, WHOLE) == (
        "unstable: min_speedup=2.1 lies within the spread: 2.00 (1.73 to 2.33 in 60 pairs)",
    )


def test_a_speed_at_an_end_of_the_spread_is_a_doubt_only_where_the_faster_end_just_meets_it() -> None:
    eager, compiled = Timing(median=2.0, low=2.0, high=2.0), Timing(median=1.5, low=1.0, high=2.0)
    seen = replace(WHOLE, speed=Speed(eager=eager, compiled=compiled, samples=60, compile_seconds=1.0))

    found = {least: bool(doubts(Limits(min_speedup=least), seen)) for least in (0.9, 1.0, 1.1, 2.0, 2.1)}

    assert found == {0.9: False, 1.0: False, 1.1: True, 2.0: True, 2.1: False}


DEVICE_LIMITS: dict[str, Any] = {
    "cudagraphs": "required",
    "max_kernels": 1,
    "max_kernels_ratio": 1.0,
    "max_host_syncs": 0,
    "max_memory_ratio": 1.0,
    "max_memory_growth": 0,
    "min_speedup": 1.0,
    "keeps_outputs": True,
}
NOTHING = replace(WHOLE, overwritten=None, cuda_graphs=None, kernels=None, host_syncs=None, memory=None, speed=None)
METRICS = ("overwritten", "cuda_graphs", "kernels", "host_syncs", "memory", "speed")


def test_without_a_gpu_they_hold_nothing_and_say_so() -> None:
    seen = replace(NOTHING, unmeasured=dict.fromkeys(METRICS, NO_CUDA))
    limits = Limits(**DEVICE_LIMITS)

    assert judged(limits, seen) == ()
    assert undecided(limits, seen) == tuple(f"{name} is not judged: no CUDA device" for name in DEVICE_LIMITS)


def test_on_a_gpu_what_is_not_known_is_not_kept() -> None:
    seen = replace(NOTHING, unmeasured=dict.fromkeys(METRICS, "a repeated call compiles again"))

    found = judged(Limits(**DEVICE_LIMITS), seen)

    assert {each.limit.partition("=")[0] for each in found} == set(DEVICE_LIMITS)
    assert {each.measured for each in found} == {"cannot be measured on torch 2.16.0: a repeated call compiles again"}


def test_graphs_without_a_steady_step_are_not_known_to_be_replayed() -> None:
    seen = replace(
        WHOLE,
        cuda_graphs=replace(REPLAYED, steady=None),
        unmeasured={"cuda_graphs.steady": "a repeated call compiles again"},
    )

    assert [each.measured for each in judged(Limits(cudagraphs="required"), seen)] == [
        "cannot be measured on torch 2.16.0: a repeated call compiles again"
    ]


def test_a_lane_that_asks_for_no_cuda_graphs_is_not_held_to_them() -> None:
    seen = replace(NOTHING, unmeasured={"cuda_graphs": NOT_ASKED})
    limits = Limits(cudagraphs="required")

    assert judged(limits, seen) == ()
    assert undecided(limits, seen) == ("cudagraphs is not judged: the lane asks for no CUDA graphs",)


@pytest.mark.parametrize(
    ("lane", "asks"),
    [
        pytest.param(BUILT_IN["cudagraphs"], True, id="by mode"),
        pytest.param(BUILT_IN["inductor"], False, id="not at all"),
        pytest.param(BUILT_IN["autotune"], False, id="a mode without them"),
        pytest.param(Lane(name="a", options={"triton.cudagraphs": True}), True, id="by option"),
        pytest.param(Lane(name="a", inductor={"triton.cudagraphs": True}), True, id="by setting"),
        pytest.param(Lane(name="a", mode="max-autotune"), True, id="autotuned, with them"),
        pytest.param(Lane(name="a", backend="cudagraphs"), True, id="by backend"),
    ],
)
def test_lanes_that_ask_for_cuda_graphs(lane: Lane, asks: bool) -> None:
    assert lane.asks_for_cuda_graphs is asks


def test_what_compiling_costs_and_when_it_has_paid() -> None:
    assert SPEED.speedup == 2.0
    assert SPEED.break_even == 10_000
    assert round(SPEED.share_compiling(1000), 3) == 0.909
    assert replace(SPEED, compiled=SPEED.eager).break_even is None


def test_several_measurements_of_one_test_keep_the_worst() -> None:
    worse = replace(
        WHOLE,
        kernels=replace(KERNELS, compiled=Kernels(total=9)),
        memory=Memory(peak_bytes=2, eager_peak_bytes=1),
        cuda_graphs=replace(REPLAYED, steady=GraphStep(ran_eager=20)),
        host_syncs=(HostSync(location=ITEM),),
        overwritten=("output tensor 1",),
    )

    both = combined((WHOLE, worse))

    assert both.kernels == worse.kernels
    assert both.memory == worse.memory
    assert both.cuda_graphs is not None
    assert both.cuda_graphs.steady == GraphStep(ran_eager=20)
    assert both.cuda_graphs.recorded == 2
    assert both.host_syncs == worse.host_syncs
    assert both.overwritten == ("output tensor 1",)


def test_one_that_was_not_measured_leaves_the_whole_unknown() -> None:
    both = combined((WHOLE, replace(NOTHING, unmeasured={"kernels": "the run raised"})))

    assert both.kernels is None
    assert both.unmeasured["kernels"] == "the run raised"


def test_what_is_not_asked_for_or_is_there_is_judged_and_what_other_processes_did_is_told() -> None:
    nothing = replace(NOTHING, unmeasured=dict.fromkeys(METRICS, NO_CUDA), processes=("fork",))

    assert nothing.elsewhere
    assert undecided(Limits(), nothing) == (nothing.elsewhere,)
    assert undecided(Limits(max_kernels=1), WHOLE) == ()
