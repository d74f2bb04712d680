"""Policy: what watches a compiled region stands around it. Inside it costs breaks, recompiles, waits; outside none."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import profile

from contracts.policies.instrumentation import (
    Counts,
    Draws,
    Layer,
    Reads,
    Region,
    Timed,
    Watched,
    compile_region,
    logs,
    waits,
)
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

STEPS = 4


def rows(compile_lane: CompileLane) -> Tensor:
    """Four rows of 8 channels, on the lane's device."""
    return torch.randn(4, 8, device=compile_lane.device)


def in_place(compile_lane: CompileLane) -> Callable[[Any], Any]:
    """Compiles the region inside of what watches it."""
    return functools.partial(compile_region, compile_model=functools.partial(compile_lane.compile, in_place=True))


def nobody(_step: int, _readings: Sequence[float] = ()) -> None:
    """Whom progress is told to, where nobody listens."""


def numbers_read(steps: Callable[[], object]) -> int:
    """How often a number was read out of a tensor: each is a wait for the device, where there is one."""
    with profile() as taken:
        steps()
    return sum(each.count for each in taken.key_averages() if each.key == "aten::_local_scalar_dense")


@compile_contract(max_graphs=2, max_graph_breaks=1, max_recompiles=0, lanes=["aot"])
def test_a_line_of_the_log_inside_costs_a_break(compile_lane: CompileLane) -> None:
    """A logger called inside the region splits it in two."""
    x = rows(compile_lane)

    seen = compile_lane.run(Layer(logs).to(x.device).eval(), *[(x,)] * STEPS)

    assert (seen.graphs, len(seen.graph_breaks or ())) == (2, 1)


@compile_contract(max_graphs=3, max_graph_breaks=1, max_recompiles=0, lanes=["aot"])
def test_a_number_read_inside_costs_a_break_and_a_wait_a_step(compile_lane: CompileLane) -> None:
    """`.item()` splits the region in three, and each step waits for the number, whoever wants it."""
    x = rows(compile_lane)
    layer = Layer(Reads()).to(x.device).eval()

    with compile_lane.observe() as seen:
        compiled = compile_lane.compile(layer)
        read = numbers_read(lambda: [compiled(x) for _ in range(STEPS)])

    assert read == STEPS
    assert (seen.measurement.graphs, len(seen.measurement.graph_breaks or ())) == (3, 1)


@compile_contract(max_graphs=3, max_graph_breaks=1, max_recompiles=0, max_host_syncs=1, lanes=["float32"])
def test_a_number_read_inside_holds_the_cpu(compile_lane: CompileLane) -> None:
    """On a GPU the wait is seen as one: once a step, at the line that reads."""
    seen = compile_lane.run(Layer(Reads()).eval().to(compile_lane.device), *[(rows(compile_lane),)] * STEPS)

    assert [each.count for each in seen.host_syncs or ()] == [1]


@compile_contract(max_graphs=STEPS, max_graph_breaks=0, max_recompiles=STEPS - 1, lanes=["aot"])
def test_a_step_counted_inside_costs_a_recompile_a_step(compile_lane: CompileLane) -> None:
    """A callback that Dynamo can follow is no break, but the step that it is told is a constant: each compiles anew."""
    x = rows(compile_lane)

    with compile_lane.observe() as seen, torch.no_grad():
        compiled = compile_lane.compile(Layer(Counts(nobody)).to(x.device).eval())
        for _ in range(STEPS):
            compiled(x)

    assert len(seen.measurement.recompiles or ()) == STEPS - 1


@compile_contract(max_graphs=3, max_graph_breaks=1, max_recompiles=0, lanes=["aot"])
def test_a_generator_inside_costs_a_break(compile_lane: CompileLane) -> None:
    """Noise out of a `torch.Generator` splits the region in three: no graph takes a generator."""
    x = rows(compile_lane)

    with compile_lane.observe() as seen, torch.no_grad():
        compiled = compile_lane.compile(Layer(Draws(torch.Generator(x.device))).to(x.device).eval())
        for _ in range(STEPS):
            compiled(x)

    assert (seen.measurement.graphs, len(seen.measurement.graph_breaks or ())) == (3, 1)


@compile_contract(
    max_graphs=1,
    max_graph_breaks=0,
    max_recompiles=0,
    max_host_syncs=0,
    max_memory_growth=512,
    lanes=["capture", "aot", "float32"],
)
def test_watched_from_around_the_region_costs_nothing(compile_lane: CompileLane) -> None:
    """Log, reading, progress and noise around the region: one graph, no break, no recompile, no wait in a step.

    A reading is kept until it is told of: on a GPU one more block of 512 B a step.
    """
    watched = Watched(Region().eval().to(compile_lane.device), every=100, tell=nobody)

    compile_lane.run(watched, *[(rows(compile_lane),)] * STEPS, compile_with=in_place(compile_lane))


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=["aot"])
def test_readings_are_told_together_and_in_order(compile_lane: CompileLane) -> None:
    """Eight steps are told of in two portions, each reading is what its step computed, and none is read one by one."""
    x = [rows(compile_lane) * scale for scale in range(1, 9)]
    told: list[tuple[int, Sequence[float]]] = []
    watched = Watched(Region().to(compile_lane.device), every=4, tell=lambda *each: told.append(each))
    expected = [torch.relu(watched.region.first(each)).mean().item() for each in x]  # type: ignore[operator, union-attr]

    with compile_lane.observe(), torch.no_grad():
        in_place(compile_lane)(watched)
        read = numbers_read(lambda: [watched(each) for each in x])

    assert read == 0
    assert [step for step, _ in told] == [4, 8]
    assert [*told[0][1], *told[1][1]] == pytest.approx(expected, rel=1e-5)


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=["inductor"])
def test_numbers_drawn_outside_are_those_of_eager(compile_lane: CompileLane) -> None:
    """Handed in, the noise is that of eager, of any generator: Inductor, which draws otherwise, draws none."""
    x = rows(compile_lane)
    outputs: list[Tensor] = []

    with compile_lane.observe(), torch.no_grad():
        region = Region().to(x.device)
        for compiled in (False, True):
            generator = torch.Generator(x.device).manual_seed(3)
            watched = Watched(region, every=100, tell=nobody, generator=generator)
            if compiled:
                in_place(compile_lane)(watched)
            outputs.extend(watched(x) for _ in range(2))

    torch.testing.assert_close(outputs[:2], outputs[2:])
    assert not torch.equal(outputs[0], outputs[1])


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=["inductor"])
def test_numbers_drawn_inside_are_not_those_of_eager(compile_lane: CompileLane) -> None:
    """The same seed, and other noise: Inductor's own generator, unless `fallback_random` is set."""
    x = rows(compile_lane)
    layer = Layer(lambda x: x + torch.randn_like(x)).to(x.device)
    outputs: list[Tensor] = []

    with compile_lane.observe(), torch.no_grad():
        for call in (layer, compile_lane.compile(layer)):
            torch.manual_seed(3)
            outputs.append(call(x))

    assert not torch.allclose(outputs[0], outputs[1], atol=1e-3)


@compile_contract(max_recompiles=0, lanes=["float32"])
def test_an_event_waited_for_inside_holds_the_cpu(compile_lane: CompileLane) -> None:
    """An event that the region itself waits for: a break, or a wait in the graph; either way no overlap is left."""
    x = rows(compile_lane)

    compile_lane.run(Layer(waits).to(x.device).eval(), *[(x,)] * STEPS)


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=["float32"])
def test_events_around_the_region_cost_nothing(compile_lane: CompileLane) -> None:
    """Two events around the region time it on its stream: no break, and no wait in a step, which would raise here."""
    x = rows(compile_lane)
    timed = Timed(Layer(torch.sigmoid).to(x.device).eval())

    with compile_lane.observe(), torch.no_grad():
        in_place(compile_lane)(timed)
        timed(x)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(STEPS - 1):
                timed(x)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    assert len([each for each in timed.milliseconds() if each > 0]) == STEPS
