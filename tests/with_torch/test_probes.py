"""What the probes for a GPU make of what torch hands them: messages, stacks, snapshots. Needs no GPU."""

from __future__ import annotations

import inspect
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from holding import ROOT, hold, measured
from torch import nn
from torch._dynamo.utils import counters

from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.measurement import NO_CUDA, GraphSkip, GraphStep, Location
from pytest_compilecontract.facts.metrics import STEADY
from pytest_compilecontract.measure import goodput
from pytest_compilecontract.measure.probes import cuda_graphs, device, memory, speed, syncs
from pytest_compilecontract.measure.probes.source import Paths

pytestmark = pytest.mark.insides

HERE = Path(__file__)
PATHS = Paths(ROOT)
STACK = f"""   File "{HERE}", line 10, in forward
    y = self.inner(x)
  File "{torch.__path__[0]}/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
"""


# ---------------------------------------------------------------------------------------------------------------------
# CUDA graphs


@pytest.mark.parametrize(
    ("message", "reason", "line"),
    [
        pytest.param(
            f"skipping cudagraphs due to mutated inputs (2 instances). Found from : \n {STACK}",
            "mutated inputs",
            10,
            id="with a stack",
        ),
        pytest.param(
            "skipping cudagraphs due to skipping cudagraphs due to cpu device (primals_1)",
            "cpu device (primals_1)",
            None,
            id="said twice",
        ),
        pytest.param(
            "skipping cudagraph due to function 1 exceeding max re-recording limit (=128)",
            "skipping cudagraph due to function 1 exceeding max re-recording limit (=128)",
            None,
            id="worded otherwise",
        ),
        pytest.param("", "", None, id="nothing"),
    ],
)
def test_a_skip_is_torchs_reason_and_the_users_line(message: str, reason: str, line: int | None) -> None:
    found = cuda_graphs.read_skip(message, PATHS)

    assert found.reason == reason
    assert (found.location and found.location.line) == line
    assert found.split is False


def test_a_stack_without_a_line_of_the_users_keeps_the_innermost() -> None:
    stack = f'File "{torch.__path__[0]}/nn/functional.py", line 7, in relu\n'

    found = cuda_graphs.last_line(stack, PATHS)

    assert found is not None
    assert (found.file, found.line, found.function) == ("torch/nn/functional.py", 7, "relu")


class Manager:
    """As torch's manager of graph trees calls its own methods (torch/_inductor/cudagraph_trees.py, `_run`)."""

    def __init__(self, *script: str) -> None:
        self._script = list(script)

    def run(self, new_inputs: Any, function_id: Any) -> str:
        what = self._script.pop(0)
        if what == "again":
            return self.run(new_inputs, function_id)
        if what == "model":
            return "model"
        return str(getattr(self, what)(new_inputs, function_id))

    def run_eager(self, new_inputs: Any, function_id: Any) -> str:
        return "warmed up"

    def record_function(self, new_inputs: Any, function_id: Any) -> str:
        return "recorded"

    def execute_node(self, new_inputs: Any, function_id: Any) -> str:
        return "replayed"


@pytest.fixture
def taps(monkeypatch: pytest.MonkeyPatch) -> cuda_graphs.GraphTaps:
    from torch._inductor import cudagraph_trees

    monkeypatch.setattr(cudagraph_trees, "CUDAGraphTreeManager", Manager)
    return cuda_graphs.GraphTaps(PATHS)


@pytest.mark.parametrize(
    ("script", "step"),
    [
        pytest.param(("run_eager",), GraphStep(warmed_up=1), id="warm-up"),
        pytest.param(("record_function",), GraphStep(recorded=1), id="recording"),
        pytest.param(("execute_node", "execute_node"), GraphStep(replayed=2), id="forward and backward"),
        pytest.param(("again", "execute_node"), GraphStep(replayed=1), id="again as a root"),
        pytest.param(("model",), GraphStep(ran_eager=1), id="without a graph"),
    ],
)
def test_what_a_step_did_under_cuda_graphs(
    taps: cuda_graphs.GraphTaps, script: tuple[str, ...], step: GraphStep
) -> None:
    with taps:
        manager = Manager(*script)
        while manager._script:
            manager.run([], 0)

        assert taps.take() == step
        assert taps.take() == GraphStep()
    assert "run_eager" in vars(Manager)
    assert Manager.run.__qualname__ == "Manager.run"
    assert not hasattr(Manager.run, "__wrapped__")


def test_skips_that_torch_logs_and_skips_that_it_only_counts(taps: cuda_graphs.GraphTaps) -> None:
    with taps:
        logging.getLogger(cuda_graphs.SKIPS).warning("skipping cudagraphs due to bisector")
        counters["inductor"]["cudagraph_skips"] += 2

        found = taps.skips()

    assert found == (
        GraphSkip(reason="bisector"),
        GraphSkip(reason="torch skipped CUDA graphs and gives no reason"),
    )


def test_a_torch_without_the_manager_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cudagraph_trees

    monkeypatch.delattr(cudagraph_trees, "CUDAGraphTreeManager")

    with cuda_graphs.GraphTaps(PATHS) as taps:
        assert taps.missing == "torch has no such module.run"


@pytest.mark.parametrize("method", ["run", "run_eager", "record_function", "execute_node"])
def test_this_torch_has_what_is_tapped(method: str) -> None:
    from torch._inductor.cudagraph_trees import CUDAGraphTreeManager
    from torch._inductor.scheduler import Scheduler

    assert callable(vars(CUDAGraphTreeManager)[method])
    assert "node" in inspect.signature(vars(Scheduler)["should_partition"]).parameters


def test_a_cpu_graph_under_reduce_overhead_is_split_around_its_lines() -> None:
    lane = Lane(name="on-cpu", mode="reduce-overhead", device="cpu")
    with cuda_graphs.GraphTaps(PATHS) as taps:
        hold(lambda it: it.run(torch.sin, (torch.ones(4),)), lane=lane, numerics=None)
        counted = taps.skips()

    assert counted, "torch counts a skip for a graph on the CPU, or says what it was split around"


# ---------------------------------------------------------------------------------------------------------------------
# Host syncs


def test_a_sync_is_at_the_innermost_line_of_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def step() -> None:
        for _ in range(2):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("another matter", stacklevel=1)

    found = syncs.host_syncs(step, PATHS)

    assert [each.count for each in found] == [2]
    location = found[0].location
    assert location is not None
    assert (location.function, location.line) == ("step", step.__code__.co_firstlineno + 2)


def test_no_frame_of_the_project_is_no_line() -> None:
    assert PATHS.innermost(None) is None


# ---------------------------------------------------------------------------------------------------------------------
# Memory


def segment(pool: tuple[int, int], *, total: int, used: int, on: int = 0) -> dict[str, Any]:
    return {"segment_pool_id": pool, "device": on, "total_size": total, "allocated_size": used}


def test_pools_of_cuda_graphs_are_all_but_the_default_one_and_those_known_before() -> None:
    segments = [
        segment((0, 0), total=100, used=50),
        segment((0, 1), total=20, used=5),
        segment((0, 1), total=10, used=0),
        segment((0, 2), total=7, used=7),
        segment((0, 3), total=1000, used=1, on=1),
    ]

    assert memory.read_pools(segments, 0) == memory.Pools(reserved=37, active=12)
    assert memory.read_pools(segments, 0, frozenset({(0, 2)})) == memory.Pools(reserved=30, active=5)


@pytest.mark.parametrize(
    ("samples", "grown"),
    [
        pytest.param([10, 10, 10, 10, 10], 0, id="level"),
        pytest.param([10, 20, 30, 40, 50], 10, id="every step"),
        pytest.param([10, 500, 500, 500, 500], 0, id="once"),
        pytest.param([10, 10, 10, 10, 500], 0, id="late, once"),
        pytest.param([10, 30, 20, 40, 30], 5, id="up and down, and up"),
        pytest.param([50, 40, 30, 20, 10], 0, id="down"),
        pytest.param([10, 20], 0, id="too few to tell"),
    ],
)
def test_growth_is_what_goes_on(samples: list[int], grown: int) -> None:
    assert memory.growth(samples) == grown


def test_out_of_memory_is_known_behind_another_exception() -> None:
    error = RuntimeError("the backend failed")
    error.__cause__ = torch.OutOfMemoryError("CUDA out of memory")

    assert memory.is_out_of_memory(error)
    assert not memory.is_out_of_memory(RuntimeError("CUDA out of memory"))
    assert not memory.is_out_of_memory(None)


def test_what_an_exceptions_frames_hold_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    gone: list[bool] = []

    class Held:
        def __del__(self) -> None:
            gone.append(True)

    def fails() -> None:
        held = Held()
        raise RuntimeError(type(held).__name__)

    try:
        fails()
    except RuntimeError as error:
        memory.let_go(error)

    assert gone == [True]


def test_out_of_memory_is_the_reason_of_a_broken_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def too_much(value: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            _out_of_memory()
        return value + 1

    entry = hold(
        lambda it: it.run(too_much, (torch.ones(4),)), lane=Lane(name="aot", backend="aot_eager", device="cpu")
    )

    assert entry.verdict == "broken"
    assert entry.reason.startswith("no exception (default): out of memory")


@torch._dynamo.disable
def _out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")


# ---------------------------------------------------------------------------------------------------------------------
# Speed, GPUs, and lanes without a GPU


def test_quartiles_of_the_samples() -> None:
    found = speed.timing([3.0, 1.0, 2.0, 5.0, 4.0])

    assert (found.low, found.median, found.high) == (2.0, 3.0, 4.0)


def test_a_process_without_cuda_has_not_lost_it() -> None:
    assert device.lost(RuntimeError("CUDA error: an illegal memory access was encountered")) == ""


@pytest.mark.parametrize(
    ("worker", "count", "gpu"),
    [
        pytest.param("gw0", 4, 0, id="the first"),
        pytest.param("gw5", 4, 1, id="more workers than GPUs"),
        pytest.param("gw3", 1, None, id="one GPU"),
        pytest.param("", 4, None, id="no worker"),
        pytest.param("gw1", 0, None, id="no GPU"),
    ],
)
def test_workers_share_the_cards_out(monkeypatch: pytest.MonkeyPatch, worker: str, count: int, gpu: int | None) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)

    device.take_gpu(worker)

    assert taken == ([] if gpu is None else [gpu])


@pytest.mark.parametrize(
    ("started", "contexts", "expected"),
    [
        pytest.param(False, {0, 1}, (), id="cuda was not started"),
        pytest.param(True, {0, 3}, (0, 3), id="two of four"),
        pytest.param(True, None, (2,), id="torch does not say"),
    ],
)
def test_only_devices_that_this_process_uses_are_waited_for(
    started: bool, contexts: set[int] | None, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: started)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    if contexts is None:
        monkeypatch.delattr(torch._C, "_cuda_hasPrimaryContext", raising=False)
    else:
        monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", contexts.__contains__, raising=False)

    goodput.synchronized()

    assert (device.used(), tuple(waited)) == (expected, expected)


def test_a_process_that_uses_cuda_keeps_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: pytest.fail("moved"))

    device.take_gpu("gw1")


def test_a_cpu_lane_says_that_it_has_no_gpu_and_holds_what_needs_none() -> None:
    lane = Lane(name="on-cpu", backend="aot_eager", device="cpu")

    entry = hold(lambda it: it.run(torch.sin, (torch.ones(4),)), lane=lane, max_kernels=1, cudagraphs="required")

    seen = measured(entry)
    assert {name: seen.unmeasured[name] for name in STEADY} == dict.fromkeys(STEADY, NO_CUDA)
    assert entry.verdict == "held"
    assert entry.reason == "cudagraphs is not judged: no CUDA device; max_kernels is not judged: no CUDA device"


# ---------------------------------------------------------------------------------------------------------------------
# Capture targets


class Inner(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value.sin() + 1


class Shy(nn.Module):
    """Refuses to be captured."""

    @torch._dynamo.disable
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value * 2


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.shy = Shy()
        self.idle = nn.ReLU()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.shy(self.inner(value)) + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_classes_that_a_contract_names_are_found_in_graphs_or_missing(backend: str) -> None:
    names = ["Inner", "Outer", "Shy", "torch.nn.modules.activation.ReLU", "Elsewhere"]
    lane = Lane(name="on-cpu", backend=backend, device="cpu")

    entry = hold(lambda it: it.run(Outer(), (torch.ones(4),)), lane=lane, capture_targets=names, max_eager_frames=9)

    found = measured(entry).capture_targets
    assert found is not None
    assert found.compiled == ("Inner", "Outer")
    assert found.missing == ("Shy", "torch.nn.modules.activation.ReLU", "Elsewhere")
    assert entry.verdict == "violated"


def test_a_class_is_named_by_the_end_of_its_name() -> None:
    from pytest_compilecontract.measure.probes.targets import capture_targets

    found = capture_targets(["Block", "model.Block", "lock"], ["my.model.Block"])

    assert found.compiled == ("Block", "model.Block")
    assert found.missing == ("lock",)


def test_a_class_may_be_given_and_a_name_as_it_is_imported() -> None:
    targets: list[Any] = [nn.Linear, "torch.nn.ReLU", Holding, "torch.nn.Tanh"]

    entry = hold(
        lambda it: it.run(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), *[(torch.ones(4),)] * 2),
        lane="capture",
        capture_targets=targets,
    )

    found = measured(entry).capture_targets
    assert found is not None
    assert found.compiled == ("torch.nn.modules.linear.Linear", "torch.nn.ReLU")
    assert found.missing == (f"{__name__}.Holding", "torch.nn.Tanh")
    assert entry.verdict == "violated"


class Holding(nn.Module):
    """A class that no graph has."""


def test_a_location_is_in_the_project(tmp_path: Path) -> None:
    found = cuda_graphs.last_line(f'File "{tmp_path}/model.py", line 3, in forward', Paths(tmp_path))

    assert found == Location(file="model.py", line=3, function="forward")
