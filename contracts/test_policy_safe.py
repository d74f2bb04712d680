"""Policy: a model is compiled only where a short trial can trust it; else it stays as it was, and the log says why."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

from contracts.policies.regional import Block, Stack
from contracts.policies.safe import CompileConfig, CompileError, maybe_compile
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

WIDTH = 16


def a_stack() -> Stack:
    return Stack([Block(WIDTH) for _ in range(2)], WIDTH)


def batch() -> tuple[Tensor]:
    return (torch.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH),)


def config(compile_lane: CompileLane, **changes: Any) -> CompileConfig:
    """The lane's own backend, and these changes."""
    return CompileConfig(**{"backend": {"aot": "aot_eager"}.get(compile_lane.name, "inductor"), **changes})


def all_of(model: nn.Module) -> dict[str, object]:
    """What a failed trial must not have touched."""
    return {
        "identity": id(model),
        "training": [each.training for each in model.modules()],
        "forward": [vars(each).get("forward") for each in model.modules()],
        "compiled": [each._compiled_call_impl for each in model.modules()],
        "values": [each.clone() for each in (*model.parameters(), *model.buffers())],
        "gradients": [each.grad for each in model.parameters()],
        "random": torch.get_rng_state(),
    }


def same(one: dict[str, object], other: dict[str, object]) -> bool:
    return all(_same(one[name], other[name]) for name in one)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return all(map(_same, one, other)) if isinstance(one, list) else one is other or one == other


class BackwardFails(torch.autograd.Function):
    """The identity, with no way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        raise NotImplementedError("no way back")


class OneWay(nn.Module):
    """A model that infers, and cannot be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return BackwardFails.apply(self.linear(x))


def _no_backward(_graph: Any, _inputs: Any) -> Any:
    raise NotImplementedError("no kernel for the backward graph")


# A compiler of which the backward alone fails.
forward_only = aot_autograd(fw_compiler=lambda graph, _inputs: graph, bw_compiler=_no_backward)


def off_by_a_little(graph: Any, _inputs: Any) -> Any:
    """A compiler that compiles wrong: one percent too much."""
    return lambda *inputs: tuple(each * 1.01 for each in graph.forward(*inputs))


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, check_state_dict=True, lanes=["aot"])
def test_what_can_be_trusted_is_compiled_in_place(compile_lane: CompileLane) -> None:
    """Forward and backward are one graph each, of the trial and of the model alike, and the model stays itself."""
    model = a_stack()

    compile_lane.train(
        model, [batch(), batch()], compile_with=lambda each: maybe_compile(each, config(compile_lane), batch())
    )


@compile_contract(max_graphs=0, min_ops_captured=0, lanes=["aot"])
def test_off_is_off(compile_lane: CompileLane) -> None:
    """Switched off, the model is given back before anything is tried."""
    model = a_stack()
    before = all_of(model)

    with compile_lane.observe():
        given = maybe_compile(model, config(compile_lane, enabled=False), batch())
        given(*batch())

    assert given is model
    assert same(all_of(model), before)


@compile_contract(
    max_graphs=2, min_ops_captured=0, max_eager_frames=1, max_graph_breaks=1, numerics=None, lanes=["aot"]
)
@pytest.mark.parametrize(
    ("made", "changes", "why"),
    [
        pytest.param(OneWay, {}, "step 1, backward: NotImplementedError: no way back", id="the-model's"),
        pytest.param(a_stack, {"backend": forward_only}, "step 1, backward: ", id="the-compiler's"),
        pytest.param(a_stack, {"backend": off_by_a_little, "train": False}, "numerics: step 1: output", id="numbers"),
        pytest.param(a_stack, {"allow": ("layers.*",)}, "compile: no module is named 'layers.*'", id="no-such-module"),
    ],
)
def test_what_fails_leaves_the_model_as_it_was(
    compile_lane: CompileLane, caplog: pytest.LogCaptureFixture, made: Any, changes: dict[str, Any], why: str
) -> None:
    """A backward that fails alone, numbers that are off: the same model, untouched, and one line in the log."""
    model = made()
    before = all_of(model)

    with compile_lane.observe(), caplog.at_level(logging.WARNING):
        given = maybe_compile(model, config(compile_lane, **changes), batch())

    assert given is model
    assert same(all_of(model), before)
    assert len(caplog.messages) == 1
    assert why in caplog.messages[0]


@compile_contract(
    max_graphs=2, min_ops_captured=0, max_eager_frames=1, max_graph_breaks=1, numerics=None, lanes=["aot"]
)
def test_who_asks_for_it_is_told_by_an_exception(compile_lane: CompileLane) -> None:
    """With `fail_policy="raise"` the failure is raised."""
    with compile_lane.observe(), pytest.raises(CompileError, match="step 1, backward"):
        maybe_compile(a_stack(), config(compile_lane, backend=forward_only, fail_policy="raise"), batch())


@compile_contract(max_graphs=1, max_recompiles=0, lanes=["aot"])
def test_only_what_is_allowed_is_compiled(compile_lane: CompileLane) -> None:
    """The blocks that `allow` names share a graph; what is around them stays eager."""
    model = a_stack()

    with compile_lane.observe():
        maybe_compile(model, config(compile_lane, allow=("blocks.0", "blocks.1")), batch())
        model(*batch())

    assert [name for name, each in model.named_modules() if each._compiled_call_impl] == ["blocks.0", "blocks.1"]


@compile_contract(max_graphs=1, max_graph_breaks=1, max_recompiles=0, lanes=["aot"])
def test_what_is_blocked_stays_eager(compile_lane: CompileLane) -> None:
    """A head kept eager costs one break. Inside the loop over the blocks it would cost the whole frame."""
    model = a_stack()

    with compile_lane.observe():
        maybe_compile(model, config(compile_lane, block=("head",), train=False), batch())
        model(*batch())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param({"fail_policy": "stop"}, "fail_policy is 'eager' or 'raise', got 'stop'", id="fail-policy"),
        pytest.param({"steps": 0}, "steps is 1 to 3, got 0", id="steps"),
        pytest.param(
            {"backend": "aot_eager", "mode": "max-autotune"},
            "mode='max-autotune' is Inductor's, and backend='aot_eager' knows none",
            id="mode",
        ),
        pytest.param({"fullgraph": True, "block": ("a",)}, "fullgraph=True allows no graph break", id="fullgraph"),
        pytest.param({"allow": ("a",), "block": ("a",)}, "'a' is in allow and in block", id="allow-and-block"),
        pytest.param({"enabled": False, "allow": ("a",)}, "enabled=False compiles nothing", id="off"),
    ],
)
def test_flags_that_contradict_one_another_are_refused(flags: dict[str, Any], message: str) -> None:
    """An ordinary test."""
    with pytest.raises(ValueError, match=message):
        CompileConfig(**flags)
