"""Policy: where the wall time of a run goes is known, in parts that add up to the whole, and what compiles is seen."""

from __future__ import annotations

import io
import math
import time

import torch
from torch import nn

from contracts.devices import POLICY
from contracts.policies.goodput import Goodput
from contracts.policies.regional import Block, Stack
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

WIDTH = 64
STEPS = 20


def trained(compile_lane: CompileLane, rows: list[int]) -> tuple[Goodput, float]:
    """Steps of so many rows each with a checkpoint halfway, and the seconds of all by a clock of its own."""
    model = Stack([Block(WIDTH) for _ in range(2)], WIDTH).to(compile_lane.device)
    compiled = compile_lane.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    started = time.perf_counter()
    with Goodput() as run:
        for number, each in enumerate(rows, start=1):
            with run.step():
                loss = compiled(torch.randn(each, WIDTH, device=compile_lane.device)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if number == len(rows) // 2:
                with run.checkpoint():
                    torch.save(model.state_dict(), io.BytesIO())
    return run, time.perf_counter() - started


def adds_up(run: Goodput, whole: float) -> bool:
    """Whether the parts are within 1 % of the whole."""
    return abs(run.whole - whole) <= 0.01 * whole


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=POLICY)
def test_the_parts_add_up_to_the_whole(compile_lane: CompileLane) -> None:
    """Compiling, the rest of the step that compiled, a checkpoint and steady steps are all of the run."""
    with compile_lane.observe():
        run, whole = trained(compile_lane, [256] * STEPS)

    assert adds_up(run, whole)
    assert all(seconds > 0 for seconds in run.seconds.values())
    # A CUDA graph is recorded in a step after the one that compiled.
    warmed_up = 2 if compile_lane.name == "cudagraphs" else 1
    assert (run.warmed_up, run.steady) == (warmed_up, STEPS - warmed_up)


@compile_contract(fullgraph=True, max_graphs=2, max_recompiles=1, lanes=["aot"])
def test_a_step_that_compiles_again_is_no_steady_step(compile_lane: CompileLane) -> None:
    """Another batch size in mid-run compiles once more, and that step is told as warm-up."""
    with compile_lane.observe():
        run, whole = trained(compile_lane, [256] * 6 + [128] * 6)

    assert adds_up(run, whole)
    assert (run.warmed_up, run.steady) == (2, 10)


@compile_contract(max_graphs=0, min_ops_captured=0, lanes=["aot"])
def test_what_compiles_nothing_is_all_steady(compile_lane: CompileLane) -> None:
    """An eager model has no warm-up, and its goodput is all of it."""
    model = nn.Linear(WIDTH, WIDTH)

    with compile_lane.observe(), Goodput() as run:
        for _ in range(3):
            with run.step():
                model(torch.randn(256, WIDTH))

    assert (run.warmed_up, run.steady, run.share) == (0, 3, 1.0)


def test_what_compiled_behind_a_reset_is_not_told_as_a_steady_step() -> None:
    """`torch._dynamo.reset()` takes away what times compiling: there is no goodput then. An ordinary test."""
    with Goodput() as run, run.step():
        torch._dynamo.reset()
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))

    assert math.isnan(run.share)
    assert "not known" in run.told()


def test_the_parts_by_a_clock_that_is_known() -> None:
    """Each second is in one part, what lies between two steps in the later one. An ordinary test."""
    ticks = iter([0.0, 1.0, 4.0, 6.0, 9.0, 11.0])
    run = Goodput(clock=lambda: next(ticks))

    with run:
        with run.step():
            run._start(None)  # type: ignore[arg-type]
            run._end(None)  # type: ignore[arg-type]
        with run.checkpoint():
            pass
        with run.step():
            pass

    assert run.seconds == {"compile": 3.0, "warm-up": 3.0, "checkpoint": 3.0, "steady": 2.0}
    assert run.told() == "compile 3 s, warm-up 3 s, checkpoint 3 s, steady 2 s: goodput 18% in 2 steps"
