"""What only a GPU can show: each probe on a GPU, with a fault planted for it."""

from __future__ import annotations

import errno
import json
import os
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from holding import hold, kept_limits, lane_of, measured
from torch import nn

from contracts.models.decoder import DecoderBlock
from pytest_compilecontract.cli.selftest import on_device
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.measurement import CudaGraphs, Memory, Speed, StepKernels
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.measure.numerics import apart
from pytest_compilecontract.measure.numerics.judging import Runs, judged
from pytest_compilecontract.measure.numerics.rule import Tolerance
from pytest_compilecontract.measure.numerics.snapshot import Run, snapshot
from pytest_compilecontract.measure.numerics.together import kth
from pytest_compilecontract.measure.probes import memory as device_memory

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

CALLS = 5
GRAPHS = "cudagraphs"


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (256, 256)), device="cuda")


def pointwise(value: torch.Tensor) -> torch.Tensor:
    return (value.sin() + 1).relu() * 2


def ran(target: Any, *args: torch.Tensor, lane: str | Lane = "inductor", calls: int = CALLS, **limits: Any) -> Entry:
    arguments = args or (x(),)
    return hold(lambda it: it.run(target, *[arguments] * calls), lane=lane, **limits)


def graphs_of(entry: Entry) -> CudaGraphs:
    found = measured(entry).cuda_graphs
    assert found is not None, measured(entry).unmeasured
    return found


def kernels_of(entry: Entry) -> StepKernels:
    found = measured(entry).kernels
    assert found is not None, measured(entry).unmeasured
    return found


def memory_of(entry: Entry) -> Memory:
    found = measured(entry).memory
    assert found is not None, measured(entry).unmeasured
    return found


# ---------------------------------------------------------------------------------------------------------------------
# CUDA graphs


def test_inference_under_cuda_graphs_warms_up_records_and_replays() -> None:
    entry = ran(pointwise, lane=GRAPHS, cudagraphs="required")

    found = graphs_of(entry)
    steps = [(each.warmed_up, each.recorded, each.replayed, each.ran_eager) for each in found.calls]
    assert steps == [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 1, 0), (0, 0, 1, 0)]
    assert (found.recorded, found.replayed, found.partitions, found.skips) == (1, 3, 0, ())
    assert found.steady is not None
    assert (found.steady.replayed, found.steady.recorded, found.steady.ran_eager) == (found.steady_steps, 0, 0)
    assert found.launches == 1
    assert (entry.verdict, entry.reason) == ("held", "")


def test_training_replays_forward_and_backward() -> None:
    batches = [(x(16, 64),)] * CALLS

    entry = hold(lambda it: it.train(nn.Linear(64, 64).cuda(), batches), lane=GRAPHS, cudagraphs="required")

    found = graphs_of(entry)
    assert found.step is not None
    assert (found.recorded, found.replayed, found.step.replayed, found.launches) == (2, 6, 2, 2)
    assert entry.verdict == "held", entry.reason


def through_the_cpu(value: torch.Tensor) -> torch.Tensor:
    half = value.sin().cpu() + 1
    return half.cuda().cos()


def test_a_cpu_tensor_in_the_graph_is_no_whole_cuda_graph() -> None:
    entry = ran(through_the_cpu, lane=GRAPHS, cudagraphs="required")

    found = graphs_of(entry)
    assert found.partitions > 1
    assert found.replayed > 0
    lines = {each.location.line for each in found.skips if each.location is not None}
    first = through_the_cpu.__code__.co_firstlineno
    assert lines & {first + 1, first + 2}
    assert all(each.split for each in found.skips)
    assert "cudagraphs='required'" in kept_limits(entry)[1]


def test_parts_are_enough_where_the_contract_says_so() -> None:
    entry = ran(through_the_cpu, lane=GRAPHS, cudagraphs="partitioned")

    assert entry.verdict == "held", entry.reason


def mutating(value: torch.Tensor) -> torch.Tensor:
    value.add_(1)
    return value.sin()


def test_a_mutated_input_is_a_skip_with_its_line() -> None:
    entry = ran(mutating, lane=GRAPHS, cudagraphs="required")

    found = graphs_of(entry)
    assert (found.recorded, found.replayed) == (0, 0)
    assert [each.reason for each in found.skips] == ["mutated inputs"]
    location = found.skips[0].location
    assert location is not None
    assert location.line == mutating.__code__.co_firstlineno + 1
    assert found.steady is not None
    assert found.steady.ran_eager == found.steady_steps
    assert "cudagraphs='required'" in kept_limits(entry)[1]


def test_a_new_shape_in_each_step_is_recorded_again_and_shown_by_call() -> None:
    lengths = (8, 16, 32, 64)
    calls = [(x(length, 64),) for length in lengths for _ in range(3)]
    dynamic = Lane(name="dynamic-graphs", mode="reduce-overhead", dynamic=True, device="cuda")

    entry = hold(lambda it: it.run(pointwise, *calls), lane=dynamic)

    assert graphs_of(entry).recorded == len(lengths)


CACHES: list[torch.Tensor] = []


@torch._dynamo.disable
def new_cache() -> torch.Tensor:
    """A cache that is promised to stay where it is, and never does: the ones before are still there."""
    CACHES.append(torch.ones(64, 64, device="cuda"))
    torch._dynamo.mark_static_address(CACHES[-1], guard=False)
    return CACHES[-1]


def with_new_cache(value: torch.Tensor) -> torch.Tensor:
    cache = new_cache()
    return value.sin() * cache


def test_recording_again_in_steady_steps_is_a_violation() -> None:
    try:
        entry = ran(with_new_cache, x(64, 64), lane=GRAPHS, cudagraphs="required", max_eager_frames=9, numerics=None)
    finally:
        CACHES.clear()

    found = graphs_of(entry)
    assert any(each.kind == "recorded again" for each in found.failures(whole=True)), found
    assert "cudagraphs='required'" in kept_limits(entry)[1]


def test_inference_with_gradients_on_is_recorded_again_and_again() -> None:
    block = DecoderBlock().eval().cuda()

    with_gradients = ran(block, x(2, 16, 32), lane=GRAPHS, cudagraphs="required", max_memory_growth=4096)
    without = hold(
        lambda it: torch.no_grad()(it.run)(block, *[(x(2, 16, 32),)] * CALLS), lane=GRAPHS, cudagraphs="required"
    )

    assert any(each.kind == "recorded again" for each in graphs_of(with_gradients).failures(whole=True))
    assert "cudagraphs='required'" in kept_limits(with_gradients)[1]
    assert without.verdict == "held", without.reason


def test_steady_steps_that_only_warm_up_ran_without_a_cuda_graph() -> None:
    warming = Lane(
        name="warming", mode="reduce-overhead", device="cuda", inductor={"triton.force_cudagraphs_warmup": True}
    )

    entry = ran(pointwise, lane=warming, cudagraphs="required")

    found = graphs_of(entry)
    assert (found.recorded, found.replayed, found.launches) == (0, 0, 0)
    assert found.steady is not None
    assert found.steady.warmed_up == found.steady_steps
    assert "cudagraphs='required'" in kept_limits(entry)[1]


def test_cuda_graphs_are_not_judged_where_the_lane_asks_for_none() -> None:
    entry = ran(pointwise, cudagraphs="required")

    assert entry.verdict == "held"
    assert entry.reason == "cudagraphs is not judged: the lane asks for no CUDA graphs"


def test_an_output_overwritten_by_a_replay_is_found() -> None:
    entry = ran(pointwise, lane=GRAPHS, keeps_outputs=True)

    assert measured(entry).overwritten == ("output tensor 0",)
    assert kept_limits(entry) == ("violated", {"keeps_outputs=True": "1 output changed by a later call"})


def test_outputs_without_cuda_graphs_are_kept() -> None:
    entry = ran(pointwise, keeps_outputs=True)

    assert measured(entry).overwritten == ()
    assert entry.verdict == "held", entry.reason


# ---------------------------------------------------------------------------------------------------------------------
# Kernels


def test_a_chain_of_pointwise_operations_is_one_triton_kernel() -> None:
    entry = ran(pointwise, max_kernels=1, max_kernels_ratio=0.25)

    found = kernels_of(entry)
    assert (found.compiled.total, found.compiled.triton, found.eager.total) == (1, 1, 4)
    assert [name.startswith("triton_") for name in found.compiled.names] == [True]
    assert entry.verdict == "held", entry.reason


def test_more_kernels_than_the_contract_allows() -> None:
    entry = ran(pointwise, lane="aot", max_kernels=1, max_kernels_ratio=0.5)

    assert kept_limits(entry)[1] == {"max_kernels=1": 4, "max_kernels_ratio=0.5": "1.00 (4 compiled, 4 eager)"}


def test_kernels_are_the_same_from_a_warm_cache() -> None:
    shared = Lane(name="shared", cache="shared")

    cold = kernels_of(ran(pointwise, lane=shared))
    warm = kernels_of(ran(pointwise, lane=shared))

    assert warm == cold


def test_library_kernels_are_told_from_tritons() -> None:
    weight = x()

    found = kernels_of(ran(lambda value: (value @ weight).relu(), x()))

    assert (found.compiled.library >= 1, found.compiled.triton) == (True, 1), found.compiled.names


@pytest.mark.parametrize("backend", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"])
def test_the_backend_of_attention_is_named(backend: str) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    query = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16)

    def attend(value: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return nn.functional.scaled_dot_product_attention(value, value, value)

    found = kernels_of(ran(attend, query, lane="aot", numerics=None))

    assert found.eager.attention == (backend.partition("_")[0].lower(),), found.eager.names


def test_a_registered_kernel_is_in_the_step_and_an_unregistered_one_breaks_the_graph() -> None:
    triton_add, raw_add = _triton_kernels()

    held = ran(triton_add, x(), x(), max_graph_breaks=0)
    raw = ran(raw_add, x(), x(), fullgraph=True, numerics=None)

    assert held.verdict == "held", held.reason
    assert any(name.startswith("_add_kernel") for name in kernels_of(held).compiled.names)
    assert kernels_of(held).compiled.triton == kernels_of(held).compiled.total
    assert "fullgraph=True" in kept_limits(raw)[1]


def _triton_kernels() -> tuple[Any, Any]:
    """An addition in Triton, registered with torch; and one that is called through Python that Dynamo cannot see."""
    from kernels_of_tests import add_kernel, launched_add

    @torch.library.triton_op("compilecontract_tests::add", mutates_args={})
    def add(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(one)
        torch.library.wrap_triton(add_kernel)[(one.numel() // 256,)](one, other, out, one.numel(), BLOCK=256)
        return out

    def registered(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return add(one.sin(), other).cos()

    def raw(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return launched_add(one.sin(), other).cos()

    return registered, raw


# ---------------------------------------------------------------------------------------------------------------------
# Host syncs


def with_item(value: torch.Tensor) -> torch.Tensor:
    if value.sum().item() > -1e30:
        return value + 1
    return value - 1


def test_an_item_in_the_step_is_a_sync_at_its_line() -> None:
    entry = ran(with_item, max_host_syncs=0)

    found = measured(entry).host_syncs
    assert found is not None
    assert [each.count for each in found] == [1]
    location = found[0].location
    assert location is not None
    assert location.line == with_item.__code__.co_firstlineno + 1
    assert kept_limits(entry) == ("violated", {"max_host_syncs=0": 1})


def test_a_step_without_a_sync_has_none() -> None:
    entry = ran(pointwise, max_host_syncs=0)

    assert measured(entry).host_syncs == ()
    assert entry.verdict == "held", entry.reason


# ---------------------------------------------------------------------------------------------------------------------
# Memory


def test_a_fused_chain_holds_less_than_eager_does() -> None:
    big = x(4096, 4096)

    entry = ran(lambda value: ((value.sin() + 1).relu() * 2).sum(0), big, max_memory_ratio=0.6)

    found = memory_of(entry)
    assert found.eager_peak_bytes >= 3 * big.nbytes
    assert found.peak_bytes < 1.2 * big.nbytes
    assert found.pool_bytes == 0
    assert entry.verdict == "held", entry.reason


def test_the_pools_of_cuda_graphs_are_part_of_the_peak() -> None:
    big = x(2048, 2048)

    found = memory_of(ran(pointwise, big, lane=GRAPHS))

    assert found.pool_bytes >= big.nbytes
    assert found.peak_bytes >= found.pool_bytes


def test_more_memory_than_the_contract_allows() -> None:
    entry = ran(pointwise, x(2048, 2048), lane=GRAPHS, max_memory_ratio=0.1)

    limit, said = next(iter(kept_limits(entry)[1].items()))
    assert limit == "max_memory_ratio=0.1"
    assert str(said).endswith("in CUDA graphs)")


LEAKED: list[torch.Tensor] = []


@torch._dynamo.disable
def leak(value: torch.Tensor) -> None:
    LEAKED.append(value.clone())


def leaking(value: torch.Tensor) -> torch.Tensor:
    leak(value)
    return value.sin()


def test_memory_that_every_step_leaves_behind_is_a_violation() -> None:
    value = x()
    try:
        entry = ran(leaking, value, numerics=None)
    finally:
        LEAKED.clear()

    assert memory_of(entry).growth_bytes == value.nbytes
    assert kept_limits(entry) == (
        "violated",
        {"max_memory_growth=0 (default)": "each steady step leaves 256.0 KiB behind"},
    )


def test_a_workspace_made_once_is_no_leak() -> None:
    weight = x()

    assert memory_of(ran(lambda value: value @ weight, x())).growth_bytes == 0


def test_running_out_of_memory_breaks_one_lane_and_is_given_back() -> None:
    # Eager sums a slice at a time; compiled in lane aot the whole is there at once.
    free, _ = torch.cuda.mem_get_info()
    rows = free // 4 // 1024 * 2

    def too_much(value: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return value.expand(rows, 1024).contiguous().sum()
        return value.sum() * rows

    entry = ran(too_much, x(1, 1024), lane="aot", calls=1)

    assert entry.verdict == "broken"
    assert entry.reason.startswith("no exception (default): out of memory")
    assert torch.cuda.memory_reserved() < free // 8
    assert ran(pointwise).verdict == "held"


# ---------------------------------------------------------------------------------------------------------------------
# Speed


def test_a_fused_chain_is_faster_and_the_limit_is_judged() -> None:
    def chain(value: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            value = (value.sin() + 1).relu() * 2
        return value

    entry = ran(chain, x(4096, 4096), min_speedup=1.2)  # eight times by itself, less beside other work

    found = measured(entry).speed
    assert isinstance(found, Speed)
    assert found.samples >= 50
    assert found.spread[0] > 1.2
    assert found.compile_seconds > 0
    assert entry.verdict == "held", entry.reason


def test_a_speedup_that_is_not_there_is_a_violation() -> None:
    entry = ran(lambda value: value @ value, x(2048, 2048), min_speedup=3.0)

    assert "min_speedup=3.0" in kept_limits(entry)[1]


def test_speed_is_not_measured_unless_asked_for() -> None:
    found = measured(ran(pointwise))

    assert found.speed is None
    assert found.unmeasured["speed"] == "not requested (min_speedup or --contract-speed)"


# ---------------------------------------------------------------------------------------------------------------------
# The counts, and what is left behind


def test_steady_steps_change_no_count_and_no_number() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64)).cuda()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    with lane_of("inductor") as lane:
        found = lane.train(model, [(x(8, 64),)] * 3)

    assert (found.graphs, found.recompiles, found.backward_graphs) == (1, (), 1)
    assert len(found.calls or ()) == 3
    assert found.numerics is not None
    assert found.numerics.differences == ()
    assert all(torch.equal(value.cpu(), before[name].cpu()) for name, value in model.state_dict().items())


def test_random_numbers_go_on_as_without_the_steady_steps() -> None:
    with lane_of("inductor") as lane:
        lane.run(nn.Dropout(0.5), (x(),), (x(),))
        after = torch.rand(4, device="cuda")
    with lane_of("inductor") as lane:
        lane.run(nn.Dropout(0.5), (x(),), (x(),))
        again = torch.rand(4, device="cuda")

    assert torch.equal(after, again)


def test_a_call_that_compiles_each_time_has_no_steady_step() -> None:
    entry = ran(_counting(), lane="aot", allow_recompile_limit=True, numerics=None, max_kernels=5)

    assert measured(entry).kernels is None
    assert measured(entry).unmeasured["kernels"] == "a repeated call compiles again"
    assert "max_kernels=5" in kept_limits(entry)[1]


def _counting() -> Any:
    # A text, since torch would make a number dynamic.
    state = {"calls": ""}

    def counting(value: torch.Tensor) -> torch.Tensor:
        state["calls"] += "x"
        return value + len(state["calls"])

    return counting


def test_a_graph_pool_of_an_earlier_lane_is_not_counted_again() -> None:
    alone = memory_of(ran(pointwise, x(64, 64), lane=GRAPHS))
    big = memory_of(ran(pointwise, x(2048, 2048), lane=GRAPHS))

    after = memory_of(ran(pointwise, x(64, 64), lane=GRAPHS))

    assert after.pool_bytes == alone.pool_bytes < big.pool_bytes


def test_pools_are_known_by_their_ids() -> None:
    assert device_memory.DEFAULT_POOL not in device_memory.pool_ids()


# ---------------------------------------------------------------------------------------------------------------------
# A lost device: whole sessions

LOSING = """
    import pytest
    import torch
    import triton
    import triton.language as tl


    @triton.jit
    def wild(out, BLOCK: tl.constexpr):
        where = tl.arange(0, BLOCK).to(tl.int64) + (1 << 44)
        tl.store(out + where, where.to(tl.float32))


    @torch.library.custom_op("losing::wild", mutates_args={"out"})
    def write_wild(out: torch.Tensor) -> None:
        wild[(1,)](out, BLOCK=128)


    @write_wild.register_fake
    def _(out):
        return None


    def fine(x):
        return x.sin() + 1


    def out_of_bounds(x):
        y = x.clone()
        if torch.compiler.is_compiling():
            write_wild(y)
        return y + 1


    def test_before(compile_lane):
        compile_lane.run(fine, (torch.ones(64),), (torch.ones(64),))


    def test_writes_out_of_bounds(compile_lane):
        compile_lane.run(out_of_bounds, (torch.ones(64),))


    @pytest.mark.parametrize("size", [8, 16])
    def test_after(compile_lane, size):
        compile_lane.run(fine, (torch.ones(size),), (torch.ones(size),))


    def test_ordinary():
        assert True
"""


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))))
    pytester.makepyfile(test_losing=textwrap.dedent(LOSING))
    return pytester


def verdicts(folder: Path) -> dict[str, str]:
    entries = json.loads((folder / "report" / "receipt.json").read_text())["entries"]
    return {each["test"].partition("::")[2]: each["verdict"] for each in entries}


EXPECTED = {
    "test_before[aot]": "held",
    "test_writes_out_of_bounds[aot]": "broken",
    "test_after[aot-8]": "held",
    "test_after[aot-16]": "held",
}


LADDERS = """
    import torch
    from torch import nn

    from pytest_compilecontract import compile_contract

    X = torch.linspace(-1, 1, 512).reshape(8, 64)


    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(64, 64)

        def forward(self, x):
            return torch.relu(self.inner(x))


    class Mutating(Block):
        def forward(self, x):
            x.mul_(0.5)
            return torch.relu(self.inner(x))


    RUNGS = ["capture", "aot", "inductor", "autocast", "cudagraphs"]


    @compile_contract(frontier=[*RUNGS[:3], "train", *RUNGS[3:]], cudagraphs="required", capture_targets=["Linear"])
    def test_climbs(compile_lane):
        compile_lane.run(Block(), *[(X,)] * 5)


    @compile_contract(frontier=RUNGS, cudagraphs="required")
    def test_stops(compile_lane):
        with torch.no_grad():
            compile_lane.run(Mutating(), *[(X,)] * 5)


    @compile_contract(capture_targets=["Linear", "LayerNorm"], lanes=["inductor"])
    def test_names_what_is_missing(compile_lane):
        compile_lane.run(Block(), *[(X,)] * 5)
"""


def plugin() -> list[str]:
    try:
        from importlib.metadata import entry_points

        if any(each.name == "compilecontract" for each in entry_points(group="pytest11")):
            return []
    except ImportError:
        pass
    return ["-p", "pytest_compilecontract.plugin"]


class Watch(nn.Module):
    """A layer that breaks the graph: it reads a value on the CPU."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.mean = value.abs().mean().item()
        return value * 2


def container(*, broken: bool = True) -> nn.Module:
    middle = Watch() if broken else nn.ReLU()
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), middle, nn.Linear(64, 64), nn.ReLU()).cuda()


def ran_eager(entry: Entry) -> dict[str, int]:
    found = measured(entry).operators_run
    assert found is not None, measured(entry).unmeasured
    return {name: count for each in found.skipped for name, count in each.operators.items()}


@pytest.mark.parametrize("lane", ["capture", "aot", "inductor", "cudagraphs"])
def test_a_container_that_breaks_runs_eager_on_a_card_too(lane: str) -> None:
    entry = ran(container(), x(8, 64), lane=lane, max_graph_breaks=1)

    assert kept_limits(entry)[1]["max_eager_frames=0 (default)"] == 1
    assert ran_eager(entry) == {"linear": 2, "relu": 2}


@pytest.mark.parametrize("lane", ["aot", "inductor", "cudagraphs"])
def test_a_training_step_on_a_card_is_told_apart_the_same_way(lane: str) -> None:
    def trains(model: nn.Module) -> Entry:
        batches = [(torch.randn(8, 64, device="cuda"),)] * CALLS
        return hold(lambda it: it.train(model, batches), lane=lane, max_graph_breaks=1)

    whole, broken = trains(container(broken=False)), trains(container())

    assert ran_eager(whole) == {}
    assert measured(whole).eager_ops == 0
    assert ran_eager(broken) == {"linear": 2, "relu": 2}


@triton.jit
def double(source, target, size, BLOCK: tl.constexpr):  # noqa: N803 - a kernel
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < size, other=0) * 2.0, mask=at < size)


def launches(value: torch.Tensor) -> torch.Tensor:
    doubled = torch.empty_like(value)
    double[(triton.cdiv(value.numel(), 128),)](value, doubled, value.numel(), 128)
    return doubled.sin()


@pytest.mark.parametrize("lane", ["capture", "aot", "inductor"])
def test_a_triton_kernel_that_eager_has_launched_is_walked_by_nobody(lane: str) -> None:
    launches(x(1000))

    entry = ran(launches, x(1000), lane=lane, max_graph_breaks=0)

    assert entry.verdict == "held", entry.reason


def test_a_kernel_that_writes_out_of_bounds_breaks_its_lane_alone(session: pytest.Pytester) -> None:
    result = session.runpytest_subprocess(
        *plugin(), "--compile-contracts", "--contract-lanes=aot", "--contract-report=report"
    )

    assert verdicts(session.path) == EXPECTED
    result.assert_outcomes(passed=4, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*raised CUDA error*", "*illegal memory access*can no longer use CUDA*"])


def test_a_worker_that_lost_its_device_is_replaced(session: pytest.Pytester) -> None:
    pytest.importorskip("xdist")

    result = session.runpytest_subprocess(
        *plugin(), "--compile-contracts", "--contract-lanes=aot", "--contract-report=report", "-n1"
    )

    assert verdicts(session.path) == EXPECTED
    result.stdout.fnmatch_lines(["*1 failed, 4 passed, *1 worker replaced*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_an_entry_names_its_gpu(session: pytest.Pytester) -> None:
    session.runpytest_subprocess(
        *plugin(), "--compile-contracts", "--contract-lanes=aot", "--contract-report=report", "-k", "before"
    )

    entries = json.loads((session.path / "report" / "receipt.json").read_text())["entries"]
    assert [each["card"].partition(" ")[0] for each in entries] == ["0"]
    assert all("GPU-" in each["card"] for each in entries)


def test_a_ladder_climbs_to_cuda_graphs_and_stops_there_with_torchs_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_ladders=textwrap.dedent(LADDERS))

    pytester.runpytest_subprocess(*plugin(), "--compile-contracts", "--contract-report=report")

    document = json.loads((pytester.path / "report" / "receipt.json").read_text())
    entries = {each["contract"].partition("::")[2]: each for each in document["entries"]}
    steps = {
        name: [(each["name"], each["verdict"]) for each in entries[name]["frontier"]["steps"]]
        for name in ("test_climbs", "test_stops")
    }
    assert [verdict for _, verdict in steps["test_climbs"]] == ["held"] * 6, entries["test_climbs"]["frontier"]
    assert entries["test_climbs"]["measurement"]["cuda_graphs"]["steady"]["replayed"] > 0
    assert steps["test_stops"][-1] == ("cudagraphs", "failed")
    stopped = entries["test_stops"]["frontier"]["steps"][-1]
    assert any("mutated inputs" in line for line in stopped["details"]), stopped
    assert entries["test_names_what_is_missing"]["verdict"] == "violated"
    assert "LayerNorm" in json.dumps(entries["test_names_what_is_missing"]["violations"])


@pytest.mark.parametrize("lane", ["aot", "inductor", GRAPHS])
def test_gradients_of_calls_are_each_calls_own(lane: str) -> None:
    """Added up, those of the second call would go to memory that CUDA graphs hold for those of the first."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).cuda()

    entry = ran(model, x(4, 8), lane=lane, check_grads=True)

    assert (entry.verdict, entry.reason) == ("held", "")


def test_every_fault_of_a_device_is_noticed() -> None:
    entries = [entry for receipt in on_device() for entry in receipt.entries]

    assert [(each.verdict, each.reason) for each in entries] == [("held", "")] * 3
    planted = [each for entry in entries for each in entry.planted]
    assert {(each.outcome, each.why) for each in planted} == {("noticed", "")}
    assert {each.fault for each in planted} == {"host-sync", "kernel", "memory-kept", "cuda-graph-skipped"}


LANES = """
    import torch
    from torch import nn

    from pytest_compilecontract import compile_contract
    from test_losing import out_of_bounds


    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(64, 64)
            self.drop = nn.Dropout()

        def forward(self, x):
            return self.drop(torch.relu(self.inner(x)))


    def calls():
        return [(torch.randn(8, 64),) for _ in range(4)]


    @compile_contract(lanes=["inductor", "cudagraphs", "cpu"], same_as="inductor")
    def test_agrees(compile_lane):
        compile_lane.run(Block().eval(), *calls())
        compile_lane.train(Block().eval(), calls())


    @compile_contract(lanes=["cudagraphs", "cpu"], same_as="inductor")
    def test_one_device_is_off(compile_lane):
        factor = 1.0 if compile_lane.name == "inductor" else 1.01
        compile_lane.run(lambda x: x.sin() * factor, *calls())


    @compile_contract(lanes=["cudagraphs", "cpu"], same_as="inductor")
    def test_drops(compile_lane):
        compile_lane.run(Block(), *calls())


    @compile_contract(lanes=["aot"], same_as="capture")
    def test_loses_the_device_in_the_other_lane(compile_lane):
        if compile_lane.name == "capture":
            compile_lane.run(out_of_bounds, (torch.ones(64),))
        compile_lane.run(torch.sin, *calls())
"""
CPU_LANE = """
    [tool.compilecontract.lanes.cpu]
    device = "cpu"
"""


def test_lanes_on_two_devices_are_compared(session: pytest.Pytester) -> None:
    session.makepyfile(test_lanes=textwrap.dedent(LANES))
    session.makepyprojecttoml(textwrap.dedent(CPU_LANE))

    options = ("--compile-contracts", "--contract-lanes=all", "--contract-report=report", "test_lanes.py")
    session.runpytest_subprocess(*plugin(), *options)

    entries = json.loads((session.path / "report" / "receipt.json").read_text())["entries"]
    found = {each["test"].partition("::test_")[2]: each for each in entries}
    said = {name: [each["measured"] for each in entry["violations"]] for name, entry in found.items()}
    held = {name: entry["verdict"] for name, entry in found.items() if name.startswith("agrees")}
    assert held == dict.fromkeys(("agrees[inductor]", "agrees[cudagraphs]", "agrees[cpu]"), "held"), said
    assert said["one_device_is_off[cpu]"] == said["one_device_is_off[cudagraphs]"] == ["results differ"]
    assert found["drops[cudagraphs]"]["verdict"] == "held"
    assert found["drops[cpu]"]["violations"][0]["facts"] == [
        ["results not compared", "random numbers are drawn differently on cpu and cuda"]
    ]
    lost = found["loses_the_device_in_the_other_lane[aot]"]
    assert (lost["verdict"], "raised CUDA error" in lost["reason"]) == ("broken", True)
    assert lost["lane"] == "aot"


# Judging on the GPU.

MANY = apart.LEAST_LAID


def _judged_runs(name: str, generator: torch.Generator) -> Runs:
    """Three runs of one large output, with this fault in compiled's."""
    gold = torch.randn(MANY // 64, 64, dtype=torch.float64, device="cuda", generator=generator)
    eager, compiled = gold.to(torch.bfloat16), (gold + 1e-4 * gold.abs()).to(torch.bfloat16)
    if name == "factor":
        compiled = (gold * 1.01).to(torch.bfloat16)
    elif name == "element":
        compiled[-1, -1] += 100
    elif name == "nan":
        compiled[5, 3] = float("nan")
    elif name == "row":
        compiled[7] = 0
    elif name == "complex":
        eager, compiled = (torch.complex(each.float(), each.float()) for each in (eager, compiled))
        compiled[1, 1] *= 1.1
    elif name == "choices":
        eager, compiled = ((each * 10).to(torch.int32) for each in (eager, compiled))
    elif name == "expanded":
        eager, compiled = eager[:1].expand(MANY // 64, 64), eager[:1].repeat(MANY // 64, 1)
        compiled[9, 9] += 100
    like = snapshot(eager, at="output")
    wide = snapshot(gold.expand_as(eager), at="output", like=like.nodes, reference=True)
    shaken = [gold * (1 + 2**-9 * torch.randn(gold.shape, device="cuda", generator=generator)) for _ in range(3)]
    moved = [snapshot(each.to(eager.dtype), at="output") for each in shaken]
    return Runs(
        eager=Run(groups={"output": like}),
        compiled=Run(groups={"output": snapshot(compiled, at="output")}),
        gold=Run(groups={"output": wide}) if name not in ("choices", "complex", "expanded") else None,
        moved=[Run(groups={"output": each}) for each in moved] if name not in ("complex", "expanded") else (),
    )


FAULTS = ("none", "factor", "element", "nan", "row", "complex", "choices", "expanded")


@pytest.mark.parametrize(("name", "deterministic"), [*((each, False) for each in FAULTS), ("row", True)])
def test_a_gpu_judges_as_the_cpu_does(name: str, deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same places and notes; and where all algorithms are to be deterministic, too."""
    runs = _judged_runs(name, torch.Generator("cuda").manual_seed(0))
    tolerance = Tolerance(method="fp64", rtol=None, atol=None, precision=None)
    laid: list[torch.Tensor] = []
    lay = apart._Desk.lay
    monkeypatch.setattr(apart._Desk, "lay", lambda self, copy: laid.append(lay(self, copy)) or laid[-1])

    torch.use_deterministic_algorithms(deterministic)
    try:
        there = judged(replace(runs, desk=torch.device("cuda")), tolerance)
    finally:
        torch.use_deterministic_algorithms(False)
    here = judged(runs, tolerance)

    assert {each.device.type for each in laid} == {"cuda"}
    assert [(each.at, each.kind) for each in there.numerics.differences] == [
        (each.at, each.kind) for each in here.numerics.differences
    ]
    assert (there.open, there.values, there.numerics.note) == (here.open, here.values, here.numerics.note)
    assert bool(here.numerics.differences) == (name != "none")


@pytest.mark.parametrize("in_file", [True, False], ids=["file", "memory"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int16, torch.bool, torch.complex64], ids=str)
def test_a_large_tensor_of_a_gpu_is_copied_bit_by_bit(
    dtype: torch.dtype, in_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than passes at a time, and not in the order of memory."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(apart, "LEFT", 0)
    if not in_file:
        monkeypatch.setattr(os, "pwrite", full)
    size = 3 * apart.PASSED // 2 // 64 // dtype.itemsize
    made = torch.randint(0, 2, (size, 64), device="cuda").to(dtype).t()

    kept = apart.Apart(made)

    assert (kept._tensor is None) == in_file
    assert torch.equal(kept.tensor(), made.cpu())
    assert kept.holds(made) == in_file
    made[-1, -1] = made[-1, -1] == 0
    assert not kept.holds(made)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("elements", [1, 1 << 20, 3 * (1 << 20) + 1], ids=["one", "the least", "parts of parts"])
def test_what_is_brought_to_the_gpu_is_what_was_kept(
    elements: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "PASSED", 1 << 18)
    values = torch.randn(elements, device="cuda").to(dtype)
    kept = apart.Apart(values)

    with apart.laid_on(torch.device("cuda")):
        brought = kept.tensor()

    assert torch.equal(brought.cpu(), values.cpu())
    assert brought.dtype == dtype
    assert brought.is_cuda == (elements >= apart.LEAST_LAID)


@pytest.mark.parametrize("shape", [(1000,), (300, 7), (3, 5000)])
def test_the_kth_is_that_of_the_cpu(shape: tuple[int, ...]) -> None:
    values = torch.randn(shape, dtype=torch.float64, device="cuda").round(decimals=2)

    for k in (1, shape[-1] // 2, shape[-1]):
        assert torch.equal(kth(values, k).cpu(), kth(values.cpu(), k))


def test_recording_a_cuda_graph_is_compiling_in_goodput() -> None:
    """It waits for nothing that a later step would compute, and torch's callbacks are around it."""
    with lane_of("cudagraphs") as compile_lane:
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).cuda()
        compiled = compile_lane.compile(model)
        with torch.no_grad(), compile_lane.observe() as seen, seen.goodput() as run:
            for _ in range(6):
                with run.step():
                    compiled(torch.ones(8, 64, device="cuda"))
        found = seen.measurement.goodput

    assert found is not None
    # The first compiles and warms up, the second records.
    assert (found.warmed_up, found.steady) == (2, 4)
    assert found.seconds["compile"] > found.seconds["steady"]
