"""What ran: which backend Dynamo hands a graph to, and what torch.compile was given; no lane is held by others'."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from holding import hold, measured
from torch import nn

from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.measure.compile_lane import CompileLane

pytestmark = pytest.mark.insides

X = torch.ones(3)


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + 1


class Layer(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return f(x)


def aot_eager(graph: Any, _inputs: Any) -> Any:
    """A backend of the test's own that calls itself as torch's."""
    return graph.forward


def backend_of(name: str) -> Any:
    return torch._dynamo.lookup_backend(name)


def in_place(**options: Any) -> Callable[..., Any]:
    layer = Layer()
    layer.compile(**options)
    return layer


def observed(compiled: Callable[[CompileLane], Callable[..., Any]]) -> Callable[[CompileLane], None]:
    def body(lane: CompileLane) -> None:
        with lane.observe():
            compiled(lane)(X)

    return body


def doubts(entry: Entry) -> tuple[str, ...]:
    return tuple(each.partition(" (compiled at ")[0] for each in measured(entry).doubts)


NOT_AOT = "1 graph not compiled as the lane says: backend {!r}, the lane's is 'aot_eager'"


@pytest.mark.parametrize(
    ("compiled", "ran"),
    [
        pytest.param(lambda lane: lane.compile(f, backend="eager"), "eager", id="an override"),
        pytest.param(lambda _: torch.compile(f, backend="eager", dynamic=True), "eager", id="torch.compile"),
        pytest.param(lambda _: in_place(backend="eager"), "eager", id="module.compile"),
        pytest.param(lambda _: torch._dynamo.optimize("eager")(f), "eager", id="torch._dynamo.optimize"),
        pytest.param(lambda _: torch.compile(f, backend=backend_of("eager")), "eager", id="torch's function"),
        pytest.param(
            lambda _: torch.compile(f, backend=aot_eager), f"{__name__}.aot_eager", id="a function of the lane's name"
        ),
        pytest.param(
            lambda _: torch.compile(f, backend=functools.partial(aot_eager)),
            f"functools.partial of {__name__}.aot_eager",
            id="a partial",
        ),
        pytest.param(
            lambda _: torch.compile(f, backend=mock.Mock(side_effect=aot_eager)), "unittest.mock.Mock", id="a mock"
        ),
        pytest.param(lambda _: torch.compile(f), "inductor", id="Inductor"),
    ],
)
def test_a_graph_handed_to_another_backend_is_not_held_in_the_lane(compiled: Any, ran: str) -> None:
    entry = hold(observed(compiled), lane="aot")

    assert (entry.verdict, measured(entry).backend, doubts(entry)) == ("unverified", ran, (NOT_AOT.format(ran),))


def test_it_is_told_with_the_line_that_compiled_it() -> None:
    entry = hold(observed(lambda lane: lane.compile(f, backend="eager", dynamic=True)), lane="aot")

    (compiled,) = measured(entry).compiles or ()
    assert compiled.location is not None
    assert compiled.location.source == (
        'entry = hold(observed(lambda lane: lane.compile(f, backend="eager", dynamic=True)), lane="aot")'
    )
    assert (compiled.backend, compiled.dynamic, compiled.fullgraph, compiled.graphs) == ("eager", True, False, 1)
    assert entry.reason.endswith(f"(compiled at {compiled.location})")


@pytest.mark.parametrize(
    ("lane", "compiled"),
    [
        pytest.param("aot", lambda lane: lane.compile(f), id="the lane"),
        pytest.param("aot", lambda lane: lane.compile(f, dynamic=True), id="dynamic, which the lane leaves open"),
        pytest.param("aot", lambda lane: lane.compile(f, fullgraph=True), id="fullgraph"),
        pytest.param("aot", lambda lane: lane.compile(f, mode="default"), id="the default mode"),
        pytest.param("aot", lambda lane: lane.compile(Layer(), in_place=True), id="in place"),
        pytest.param("aot", lambda _: torch.compile(f, backend=backend_of("aot_eager")), id="the lane's own function"),
        pytest.param("aot", lambda _: torch._dynamo.optimize("aot_eager")(f), id="torch._dynamo.optimize"),
        pytest.param("inductor", lambda lane: lane.compile(f, options={"epilogue_fusion": False}), id="an option"),
        pytest.param("dynamic", lambda lane: lane.compile(f), id="a lane that says dynamic"),
    ],
)
def test_what_the_lane_leaves_open_is_the_tests_to_say(lane: str, compiled: Any) -> None:
    entry = hold(observed(compiled), lane=lane)

    assert (entry.verdict, doubts(entry)) == ("held", ())


@pytest.mark.parametrize(
    ("lane", "compiled", "contrary"),
    [
        pytest.param(
            "dynamic", lambda lane: lane.compile(f, dynamic=False), "dynamic=False, the lane's is True", id="dynamic"
        ),
        pytest.param("dynamic", lambda _: torch.compile(f), "dynamic=None, the lane's is True", id="dynamic left out"),
        pytest.param(
            "inductor",
            lambda lane: lane.compile(f, mode="max-autotune-no-cudagraphs"),
            "mode 'max-autotune-no-cudagraphs', the lane's is None",
            id="mode",
        ),
    ],
)
def test_what_contradicts_the_lane_is_not_held_in_its_name(lane: str, compiled: Any, contrary: str) -> None:
    entry = hold(observed(compiled), lane=lane)

    assert (entry.verdict, doubts(entry)) == (
        "unverified",
        (f"1 graph not compiled as the lane says: {contrary}",),
    )


def test_a_mode_is_known_of_what_was_compiled_before() -> None:
    compiled = torch.compile(f, mode="max-autotune-no-cudagraphs", dynamic=False)

    entry = hold(observed(lambda _: compiled), lane="inductor")

    (told,) = measured(entry).compiles or ()
    assert (entry.verdict, told.mode, told.dynamic) == ("unverified", "max-autotune-no-cudagraphs", False)


def test_what_is_compiled_inside_of_a_target_is_told_too() -> None:
    inner = torch.compile(f, backend="eager")

    def target(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return inner(x) * 2

    entry = hold(lambda lane: lane.run(target, (X,), compile_with=lambda each: each), lane="aot")

    assert (entry.verdict, measured(entry).backend) == ("unverified", "eager")


def test_what_torch_compiles_for_itself_is_told_and_not_blamed() -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    def body(lane: CompileLane) -> None:
        with lane.observe():
            both(X)
            lane.compile(f)(X)

    entry = hold(body, lane="aot")

    assert (entry.verdict, measured(entry).backend) == ("held", "aot_eager")
    assert [each.by_torch for each in measured(entry).compiles or ()] == [True, False]
