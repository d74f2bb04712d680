"""Seconds of compiling by stage: out of torch's metrics of each compile, and not told where these are not known."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch
from holding import hold, measured
from torch import nn

from pytest_compilecontract.facts.metrics import STAGES as LABELS
from pytest_compilecontract.measure.probes import stages
from pytest_compilecontract.measure.probes.stages import AOT, BACKWARD, CODE, DYNAMO, INDUCTOR, STAGES, seconds_of

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def as_torch_keeps_them() -> Iterator[None]:
    yield
    torch._dynamo.utils.set_compilation_metrics_limit(64)


X = torch.ones(2, 4)


class Slow:
    """A backend that takes so many seconds for a graph."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, graph: Any, _inputs: object) -> Any:
        time.sleep(self.seconds)
        return graph.forward


def test_each_stage_has_a_name_for_people() -> None:
    assert [*STAGES] == [*LABELS]


def test_a_stage_is_told_without_the_stage_within_it() -> None:
    forward = {DYNAMO: 10e6, AOT: 7e6, INDUCTOR: 4e6, CODE: 3e6}
    backward = {BACKWARD: 2e6, INDUCTOR: 1.5e6, CODE: 1e6}

    found = seconds_of([forward, backward])

    assert found == {"dynamo": 3.0, "aot_autograd": 3.5, "inductor": 1.5, "code_generation": 4.0}
    assert sum(found.values()) == 12.0


def test_what_a_backend_takes_is_not_dynamos() -> None:
    read = stages.Stages()
    torch.compiler.reset()

    torch.compile(lambda x: x + 1, backend=Slow(0.5))(X)

    found, reason = read.read()
    assert found is not None, reason
    assert 0.5 <= found["aot_autograd"] < found["aot_autograd"] + found["dynamo"]
    assert found["inductor"] == found["code_generation"] == 0.0


def test_only_what_is_compiled_since_is_counted() -> None:
    torch.compiler.reset()
    torch.compile(lambda x: x + 1, backend=Slow(0.2))(X)

    found, _ = stages.Stages().read()

    assert found == dict.fromkeys(STAGES, 0.0)


def test_a_lane_has_the_seconds_of_its_own_compiling() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    seen = measured(hold(lambda lane: lane.train(model, [(X,)] * 2, loss=lambda y: y.sum()), lane="aot"))

    assert seen.stage_seconds is not None
    assert seen.cold_seconds is not None
    assert 0 < sum(seen.stage_seconds.values()) <= seen.cold_seconds
    assert min(seen.stage_seconds["dynamo"], seen.stage_seconds["aot_autograd"]) > 0


@pytest.mark.parametrize("times", [64, 66])
def test_more_compiles_than_torch_keeps_by_itself_are_told(times: int) -> None:
    torch.compiler.reset()
    before = torch._dynamo.utils._compilation_metrics.maxlen
    read = stages.Stages()
    functions = [_adding(number) for number in range(times)]
    for each in functions:
        torch.compile(each, backend="eager")(X)
    read.stop()

    found, reason = read.read()

    assert found is not None, reason
    kept = torch._dynamo.utils.get_compilation_metrics()
    assert (before, len(kept), torch._dynamo.utils._compilation_metrics.maxlen) == (64, 64, 64)
    # All of them, and not the last ones alone.
    last = seconds_of([{name: getattr(each, name) or 0 for name in (DYNAMO, AOT)} for each in kept[1:]])
    assert found["dynamo"] > last["dynamo"] > 0


def _add(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _adding(number: int) -> FunctionType:
    """A function with code of its own, which torch compiles by itself."""
    return FunctionType(_add.__code__.replace(co_name=f"add_{number}"), globals())


def test_as_many_compiles_as_torch_keeps_may_be_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "MOST", 2)
    torch._dynamo.utils.set_compilation_metrics_limit(3)
    read = stages.Stages()
    many = [SimpleNamespace(**{DYNAMO: 1}) for _ in range(3)]
    monkeypatch.setattr(torch._dynamo.utils, "get_compilation_metrics", lambda: many)

    found, reason = read.read()

    assert (found, reason) == (None, "torch keeps the metrics of 3 compilations, and there may have been more")


def test_a_limit_that_the_test_sets_is_left() -> None:
    read = stages.Stages()
    torch._dynamo.utils.set_compilation_metrics_limit(7)

    read.stop()

    assert torch._dynamo.utils._compilation_metrics.maxlen == 7


@pytest.mark.parametrize(
    ("metrics", "why"), [(None, "keeps no compilation metrics"), ([SimpleNamespace(took=1)], "have other names")]
)
def test_a_torch_that_keeps_them_otherwise_is_said_not_to(
    metrics: list[object] | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if metrics is None:
        monkeypatch.delattr(torch._dynamo.utils, "get_compilation_metrics")
        read = stages.Stages()
    else:
        read = stages.Stages()
        monkeypatch.setattr(torch._dynamo.utils, "get_compilation_metrics", lambda: metrics)

    found, reason = read.read()

    assert found is None
    assert why in reason


def test_what_torch_does_at_run_time_is_no_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where kernels are tuned and CUDA graphs are recorded then: such metrics have no stage."""
    monkeypatch.setattr(torch._dynamo.utils, "get_compilation_metrics", list)
    read = stages.Stages()
    compiled = SimpleNamespace(**{DYNAMO: 2e6}, is_runtime=False)
    tuned = SimpleNamespace(**{DYNAMO: None}, is_runtime=True, runtime_triton_autotune_time_us=1e6)
    monkeypatch.setattr(torch._dynamo.utils, "get_compilation_metrics", lambda: [compiled, tuned])

    found, reason = read.read()

    assert reason == ""
    assert found == {**dict.fromkeys(STAGES, 0.0), "dynamo": 2.0}


def test_metrics_that_a_test_clears_are_not_known() -> None:
    torch.compiler.reset()
    torch.compile(lambda x: x + 1, backend="eager")(X)
    read = stages.Stages()
    torch.compile(lambda x: x + 2, backend=Slow(0.2))(X)
    torch._dynamo.utils.clear_compilation_metrics()
    torch.compile(lambda x: x + 3, backend="eager")(X)
    read.stop()

    assert read.read() == (None, "the test cleared torch's compilation metrics")
