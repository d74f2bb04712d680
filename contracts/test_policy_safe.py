"""Policy: a model is compiled only where a short trial can trust it; else it stays as it was, and the log says why."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import aot_eager

from contracts.devices import POLICY
from contracts.policies.regional import Block, Stack
from contracts.policies.safe import CompileConfig, CompileError, maybe_compile, pad_tokens
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

WIDTH = 16


def a_stack() -> Stack:
    return Stack([Block(WIDTH) for _ in range(2)], WIDTH)


def in_mid_run(model: nn.Module) -> torch.optim.Optimizer:
    """Train a model a step, so that its optimizer has state, and leave gradients, a part in eval mode and a hook."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.step()
        for each in model.parameters():
            each.grad = torch.full_like(each, 0.5)
    next(model.children()).eval()
    model.register_forward_hook(lambda _module, _inputs, _output: None)
    optimizer.step()
    return optimizer


def batch() -> tuple[Tensor]:
    return (torch.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH),)


def config(compile_lane: CompileLane, **changes: Any) -> CompileConfig:
    """The lane's own backend and mode, and these changes."""
    given: dict[str, object] = {"enabled": True, "backend": {"aot": "aot_eager"}.get(compile_lane.name, "inductor")}
    if compile_lane.name == "cudagraphs":
        given["mode"] = "reduce-overhead"
    return CompileConfig(**{**given, **changes})


def all_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """What a failed trial must not have touched."""
    return {
        "identity": id(model),
        "training": [each.training for each in model.modules()],
        "forward": [vars(each).get("forward") for each in model.modules()],
        "compiled": [each._compiled_call_impl for each in model.modules()],
        "values": [each.clone() for each in (*model.parameters(), *model.buffers())],
        "parameters": [id(each) for each in (*model.parameters(), *model.buffers())],
        "gradients": [None if each.grad is None else each.grad.clone() for each in model.parameters()],
        "hooks": [list(each._forward_hooks.items()) for each in model.modules()],
        "momentum": [each["momentum_buffer"].clone() for each in optimizer.state.values()],
        "random": torch.get_rng_state(),
    }


def same(one: dict[str, object], other: dict[str, object]) -> bool:
    return all(_same(one[name], other[name]) for name in one)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return all(map(_same, one, other)) if isinstance(one, list) else one is other or one == other


class Unlike(nn.Module):
    """A model that is wrong when compiled in one of the places that are easily overlooked, and right in all others."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros(()))
        self.wrong = wrong

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        here = self.wrong if torch.compiler.is_compiling() else None
        self.calls.add_(2 if here == "buffer" else 1)
        second = self.second(x)
        if here == "gradient":
            second = second.detach()
        return self.first(x) + second, {"aside": x.sum() * (2 if here == "output" else 1)}


class Writes(nn.Module):
    """A model that writes into its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mul_(2))


class Drops(nn.Module):
    """A model that draws random numbers when it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.linear(x), training=self.training)


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


def draws_otherwise(graph: Any, _inputs: Any) -> Any:
    """A compiler whose code takes a random number more than eager does."""

    def drawing(*inputs: Any) -> Any:
        torch.rand(1)
        return graph.forward(*inputs)

    return drawing


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, check_state_dict=True, lanes=POLICY)
def test_what_can_be_trusted_is_compiled_in_place(compile_lane: CompileLane) -> None:
    """Forward and backward are one graph each, of the trial and of the model alike, and the model stays itself."""
    model = a_stack()

    def compiled(each: nn.Module) -> nn.Module:
        return maybe_compile(each, config(compile_lane), tuple(x.to(compile_lane.device) for x in batch()))

    compile_lane.train(model, [batch(), batch()], compile_with=compiled)


@compile_contract(max_graphs=0, min_ops_captured=0, lanes=["aot"])
def test_off_is_off(compile_lane: CompileLane) -> None:
    """It is opt-in: unless switched on, the model is given back before anything is tried."""
    model = a_stack()
    optimizer = in_mid_run(model)
    before = all_of(model, optimizer)

    with compile_lane.observe():
        given = maybe_compile(model, CompileConfig(), batch())
        given(*batch())

    assert given is model
    assert same(all_of(model, optimizer), before)


class Words(nn.Module):
    """Tokens in, and the mean loss of the next ones out, as transformers' models take and give them."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(32, WIDTH)
        self.head = nn.Linear(WIDTH, 32)

    def forward(self, *, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        hidden = self.words(input_ids) * attention_mask.unsqueeze(-1)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())


def sentences(length: int) -> dict[str, Tensor]:
    """A batch of two sentences, as a tokenizer gives it."""
    ids = torch.arange(2 * length).reshape(2, length) % 31 + 1
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.roll(-1, 1)}


@compile_contract(max_graphs=2, max_graph_breaks=0, max_recompiles=1, lanes=["aot"])
def test_padded_tokens_are_as_many_graphs_as_lengths(
    compile_lane: CompileLane, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch by name, six lengths padded to two: two graphs, the loss without padding, and a line in the log."""
    settings = config(compile_lane, pad_to_multiple_of=8, dynamic=False, fail_policy="raise")
    torch.manual_seed(0)
    model = Words()
    eager = copy.deepcopy(model)

    with compile_lane.observe(), caplog.at_level(logging.INFO):
        maybe_compile(model, settings, sentences(5), loss=lambda loss: loss)
        losses = [model(**pad_tokens(sentences(length), 8)) for length in (1, 7, 8, 9, 15, 16)]

    for length, loss in zip((1, 7, 8, 9, 15, 16), losses, strict=True):
        torch.testing.assert_close(loss, eager(**sentences(length)))
    (line,) = [each.getMessage() for each in caplog.records if each.name == "contracts.policies.safe"]
    assert re.fullmatch(r"Words is compiled \(backend='aot_eager'\): a trial of 2 steps took \d+\.\d s", line)


# Of these the test brings the backend, so that no lane speaks for it: they compile by themselves.
@compile_contract(max_graphs=2, min_ops_captured=0, max_eager_frames=1, max_graph_breaks=1)
@pytest.mark.parametrize(
    ("made", "changes", "why"),
    [
        pytest.param(OneWay, {}, "step 1, backward: NotImplementedError: no way back", id="the-model's"),
        pytest.param(a_stack, {"backend": forward_only}, "step 1, backward: ", id="the-compiler's"),
        pytest.param(a_stack, {"backend": off_by_a_little, "train": False}, "numerics: step 1: output", id="numbers"),
        pytest.param(a_stack, {"allow": ("layers.*",)}, "compile: no module is named 'layers.*'", id="no-such-module"),
        pytest.param(
            a_stack,
            {"allow": ("head",), "block": ("*",)},
            "compile: block leaves nothing to compile",
            id="nothing-left",
        ),
    ],
)
def test_what_fails_leaves_the_model_as_it_was(
    caplog: pytest.LogCaptureFixture, made: Any, changes: dict[str, Any], why: str
) -> None:
    """A backward that fails alone, numbers that are off: the same model, untouched, and one line in the log."""
    model = made()
    optimizer = in_mid_run(model)
    before = all_of(model, optimizer)
    assert before["momentum"]

    with caplog.at_level(logging.WARNING):
        given = maybe_compile(model, CompileConfig(**{"enabled": True, "backend": "aot_eager", **changes}), batch())

    assert given is model
    assert same(all_of(model, optimizer), before)
    assert len(caplog.messages) == 1
    assert why in caplog.messages[0]
    assert caplog.records[0].exc_info is not None


@compile_contract(max_graphs=2, min_ops_captured=0, max_eager_frames=1, max_graph_breaks=1)
def test_who_asks_for_it_is_told_by_an_exception() -> None:
    """With `fail_policy="raise"` the failure is raised."""
    with pytest.raises(CompileError, match="step 1, backward"):
        maybe_compile(a_stack(), CompileConfig(enabled=True, backend=forward_only, fail_policy="raise"), batch())


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

    assert model._compiled_call_impl is not None, "the policy gave the model back as it was"


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, numerics=None, lanes=["aot"])
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("gradient", "numerics: step 1: gradient of second.bias is there only when eager"),
        ("output", "numerics: step 1: output[1]['aside'] is off by "),
        ("buffer", "numerics: step 1: buffer calls is off by 1"),
    ],
    ids=["lost-gradient", "second-output", "buffer"],
)
def test_what_is_easily_overlooked_is_compared(compile_lane: CompileLane, wrong: str, why: str) -> None:
    """One step shows a gradient that is lost, an output that the loss does not read, a buffer that differs."""
    settings = config(compile_lane, fail_policy="raise", steps=1)
    x = torch.ones(2, WIDTH)

    with compile_lane.observe(), pytest.raises(CompileError, match=f"^{re.escape(why)}"):
        maybe_compile(Unlike(wrong), settings, (x,), loss=lambda output: output[0].sum())


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=["aot"])
@pytest.mark.parametrize("made", [Writes, a_stack], ids=["written", "gradient"])
def test_the_batch_is_the_callers(compile_lane: CompileLane, made: Callable[[], nn.Module]) -> None:
    """What the trial writes into the batch, and the gradient that it gives to it, reach no tensor of the caller."""
    x = torch.ones(2, WIDTH, requires_grad=made is a_stack)

    with compile_lane.observe():
        given = maybe_compile(made(), config(compile_lane, fail_policy="raise"), (x,))

    assert given._compiled_call_impl is not None
    assert x.grad is None
    assert torch.equal(x, torch.ones(2, WIDTH))


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0)
def test_dropout_under_other_masks_is_trusted_only_uncompared() -> None:
    """Code that draws otherwise than eager, as Inductor's does, stays unused while it is compared."""
    settings = CompileConfig(enabled=True, backend=draws_otherwise, fail_policy="raise", train=False)
    x = torch.ones(8, WIDTH)

    with pytest.raises(CompileError, match=r"^numerics: step 1: output is off by "):
        maybe_compile(Drops(), settings, (x,))
    given = maybe_compile(Drops(), replace(settings, numerics=False), (x,))

    assert given._compiled_call_impl is not None


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=["aot"])
def test_dropout_under_the_same_random_streams_is_trusted(compile_lane: CompileLane) -> None:
    """Where compiled code draws as eager does, the trial gives both the same masks, and uses up no random number."""
    with compile_lane.observe():
        model = Drops()
        state = torch.get_rng_state()
        given = maybe_compile(model, config(compile_lane, fail_policy="raise"), (torch.ones(8, WIDTH),))

    assert given._compiled_call_impl is not None
    assert torch.equal(torch.get_rng_state(), state)


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0)
def test_options_reach_torch_compile() -> None:
    """Options are torch.compile's: a backend of the test's is given them."""
    given: list[object] = []

    def noting(graph: Any, inputs: Any, *, options: object) -> Any:
        given.append(options)
        return aot_eager(graph, inputs)

    settings = CompileConfig(enabled=True, backend=noting, options={"a": 1}, fail_policy="raise", train=False)
    maybe_compile(a_stack(), settings, batch())

    assert given == [{"a": 1}]


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
        pytest.param({"rtol": -1.0}, "rtol and atol are at least 0, got -1.0 and 0.0001", id="tolerance"),
        pytest.param({"enabled": False, "allow": ("a",)}, "enabled=False compiles nothing", id="off"),
        pytest.param(
            {"mode": "default", "options": {}}, "torch.compile takes a mode or options, not both", id="mode-and-options"
        ),
        pytest.param({"pad_to_multiple_of": 0}, "pad_to_multiple_of is at least 1, got 0", id="padding"),
    ],
)
def test_flags_that_contradict_one_another_are_refused(flags: dict[str, Any], message: str) -> None:
    """An ordinary test."""
    with pytest.raises(ValueError, match=message):
        CompileConfig(**{"enabled": True, **flags})
