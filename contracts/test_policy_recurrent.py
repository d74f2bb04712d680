"""Policy: a recurrent state goes in and out of the region as a value, and no Python number counts inside of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contracts.policies import recurrent as policy
from contracts.policies.recurrent import Recurrent, Streaming
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

BATCH, LENGTH, CHANNELS = 2, 5, 8
# More than Dynamo's recompile limit of 8.
CALLS = 10
Compile = Callable[..., Any]


def chunk(number: int) -> Tensor:
    """The chunk of a text of so many chunks before it."""
    times = torch.arange(BATCH * LENGTH * CHANNELS).reshape(BATCH, LENGTH, CHANNELS)
    return torch.sin(0.1 * times + number)


def gradients(model: nn.Module) -> list[Tensor | None]:
    """What the model's parameters have gathered."""
    return [each.grad for each in model.parameters()]


def trained(attached: int, device: torch.device | None = None) -> Callable[[Compile], object]:
    """A body that trains over CALLS chunks, with one backward for each `attached` of them."""

    def body(compile: Compile) -> object:
        model = Recurrent(CHANNELS).to(device)
        carried = policy.Carried(compile(model), model.start(BATCH), attached=attached)
        outputs = []
        for first in range(0, CALLS, attached):
            part = [carried(chunk(number).to(device)) for number in range(first, first + attached)]
            torch.stack(part).square().mean().backward()
            outputs += [each.detach() for each in part]
        return outputs, gradients(model), carried.state.detach()

    return body


# Not under CUDA graphs: torch refuses to read a state that the next replay has overwritten.
@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["capture", "aot", "inductor"])
def test_a_carried_state_is_one_graph(compile_lane: CompileLane) -> None:
    """Detached between the chunks, the state goes through one graph from the first chunk to the last."""
    compile_lane.compare(trained(1, compile_lane.device))


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["aot"])
def test_a_state_attached_for_two_chunks_is_one_graph(compile_lane: CompileLane) -> None:
    """A backward through two chunks, and the next two attached anew: the state always requires a gradient."""
    compile_lane.compare(trained(2))


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["aot"])
def test_a_carried_state_is_the_whole_text(compile_lane: CompileLane) -> None:
    """Chunk by chunk with all of them attached, outputs and gradients are those of the text in one piece."""

    def body(compile: Compile) -> object:
        model = Recurrent(CHANNELS)
        carried = policy.Carried(compile(model), model.start(BATCH), attached=4)
        text = [chunk(number) for number in range(4)]
        parts = torch.cat([carried(each) for each in text], dim=1)
        parts.square().mean().backward()
        in_parts = [each.grad.clone() for each in model.parameters() if each.grad is not None]
        model.zero_grad()
        whole, _ = model(torch.cat(text, dim=1), model.start(BATCH))
        whole.square().mean().backward()
        torch.testing.assert_close(parts, whole)
        torch.testing.assert_close(in_parts, gradients(model))
        return parts, in_parts

    compile_lane.compare(body)


@compile_contract(fullgraph=True, max_graphs=2, max_recompiles=1, lanes=["aot"])
def test_a_state_that_is_attached_later_costs_a_recompile(compile_lane: CompileLane) -> None:
    """What `Carried` spares: a first state without a gradient, and a second with one, are two graphs."""

    def body(compile: Compile) -> object:
        model = Recurrent(CHANNELS)
        run, state = compile(model), model.start(BATCH)
        outputs = []
        for number in range(3):
            y, state = run(chunk(number), state)
            outputs.append(y)
        torch.stack(outputs).square().mean().backward()
        return gradients(model)

    seen = compile_lane.compare(body)

    assert "requires_grad" in (seen.recompiles or ())[0].guard


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, check_grads=True, lanes=["capture", "aot"])
def test_a_backward_of_ones_own_is_compiled(compile_lane: CompileLane) -> None:
    """The scan's own backward is in the graph, and gives what autograd makes of the same loop."""
    taken = chunk(0).requires_grad_()
    decay = torch.linspace(0.1, 0.9, CHANNELS, requires_grad=True)
    start = chunk(1)[:, 0].clone().requires_grad_()

    def loop(decay: Tensor, taken: Tensor, start: Tensor) -> Tensor:
        states, state = [], start
        for time in range(LENGTH):
            state = decay * state + taken[:, time]
            states.append(state)
        return torch.stack(states, dim=1)

    def scan(decay: Tensor, taken: Tensor, start: Tensor) -> Tensor:
        return policy.Scan.apply(decay, taken, start)  # type: ignore[no-any-return]

    compile_lane.run(scan, (decay, taken, start), (decay, taken, start))

    ours = torch.autograd.grad(scan(decay, taken, start).sin().sum(), [decay, taken, start])
    theirs = torch.autograd.grad(loop(decay, taken, start).sin().sum(), [decay, taken, start])
    torch.testing.assert_close(ours, theirs)


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["capture", "aot"])
def test_a_state_written_in_place_without_gradients(compile_lane: CompileLane) -> None:
    """Streaming writes the state in place: one graph, the same memory, and the outputs and state of eager."""

    def body(compile: Compile) -> object:
        streaming = policy.Streaming(Recurrent(CHANNELS), BATCH)
        run = compile(streaming)
        where = streaming.state.data_ptr()
        with torch.no_grad():
            outputs = [run(chunk(number)) for number in range(CALLS)]
        assert streaming.state.data_ptr() == where
        return outputs, streaming.state

    compile_lane.compare(body)


class Overwritten(nn.Module):
    """Its backward reads the state that its forward overwrites; eager keeps the copy that was asked for."""

    state: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("state", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        state = self.weight * self.state.clone() + x
        self.state.copy_(state.detach())
        return state


class Rebound(Overwritten):
    """The mend inside of a module: another tensor in the buffer's place."""

    def forward(self, x: Tensor) -> Tensor:
        state = self.weight * self.state + x
        self.state = state.detach()
        return state


def third_gradient(model: nn.Module, run: Callable[[Tensor], Tensor]) -> Tensor:
    """The weight's gradient of a third step: with ones as inputs, the state before it, which is 2."""
    for _ in range(3):
        model.zero_grad()
        run(torch.ones(3)).sum().backward()
    weight = model.weight
    assert isinstance(weight, Tensor)
    assert weight.grad is not None
    return weight.grad


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["aot"])
def test_a_state_that_the_backward_reads_is_overwritten(compile_lane: CompileLane) -> None:
    """torch's fault on 2.11 to 2.15: written in place, the state is read by the backward as it is after the step.

    The gradient is wrong and nobody says so (pytorch/pytorch#197039). When this fails, torch has mended it.
    """
    model = Overwritten()

    with compile_lane.observe():
        found = third_gradient(model, compile_lane.compile(model))

    eager = Overwritten()
    assert third_gradient(eager, eager).tolist() == [2.0] * 3
    assert found.tolist() == [3.0] * 3


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["aot"])
def test_a_state_in_another_tensor_has_the_right_gradient(compile_lane: CompileLane) -> None:
    """The mend: a new tensor each step, in the buffer's place, and the gradient is right."""
    model = Rebound()

    with compile_lane.observe():
        found = third_gradient(model, compile_lane.compile(model))

    assert found.tolist() == [2.0] * 3


class Counting(nn.Module):
    """Counts its calls in a Python number, which nothing depends on."""

    def __init__(self, model: Recurrent) -> None:
        super().__init__()
        self.model = model
        self.calls = 0

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return self.model(x, state)  # type: ignore[no-any-return]


@compile_contract(allow_recompile_limit=True, max_graphs=8, max_recompiles=7, lanes=["aot"])
def test_a_python_counter_compiles_at_each_step(compile_lane: CompileLane) -> None:
    """A number that the region counts up is a guard of each graph: compiled at each call, and eager from the ninth on.

    The mend is `Carried`, which counts outside.
    """

    def body(compile: Compile) -> object:
        model = Counting(Recurrent(CHANNELS))
        carried = policy.Carried(compile(model), model.model.start(BATCH))
        return [carried(chunk(number)).detach() for number in range(CALLS)], carried.calls, model.calls

    seen = compile_lane.compare(body)

    assert (len(seen.recompiles or ()), len(seen.limit_hits or ())) == (7, 1)


def stepped(number: Callable[[int], object]) -> Callable[[Compile], object]:
    """A body that calls code which computes with its step, for CALLS steps from the second on."""

    def warmed(x: Tensor, step: Any) -> Tensor:
        return x / (1 + 0.1 * step)

    def body(compile: Compile) -> object:
        run = compile(warmed)
        return [run(chunk(0), number(step)) for step in range(2, 2 + CALLS)]

    return body


@compile_contract(fullgraph=True, max_graphs=2, max_recompiles=1, lanes=["aot"])
@pytest.mark.parametrize(("number", "graphs"), [(torch.tensor, 1), (int, 2)], ids=["tensor", "int"])
def test_a_step_that_the_region_needs(compile_lane: CompileLane, number: Callable[[int], object], graphs: int) -> None:
    """A step that the region computes with is one graph as a tensor; of an int, the second value makes it free."""
    seen = compile_lane.compare(stepped(number))

    assert seen.graphs == graphs


@compile_contract(allow_recompile_limit=True, max_graphs=8, max_recompiles=7, lanes=["aot"])
def test_a_step_that_is_a_float(compile_lane: CompileLane) -> None:
    """A float that a tensor is divided by: free from its second value on in torch 2.13 and later.

    torch 2.11 and 2.12 compile for each value, up to the limit.
    """
    seen = compile_lane.compare(stepped(float))

    older = torch.__version__.startswith(("2.11.", "2.12."))
    assert (seen.graphs, len(seen.limit_hits or ())) == ((8, 1) if older else (2, 0))


def test_the_own_backward_passes_gradcheck() -> None:
    sizes = [(3,), (2, 4, 3), (2, 3)]
    decay, taken, start = (torch.rand(size, dtype=torch.float64, requires_grad=True) for size in sizes)

    assert torch.autograd.gradcheck(policy.Scan.apply, (decay, taken, start))


def test_streaming_is_what_carrying_is() -> None:
    model = Recurrent(CHANNELS)
    streaming, carried = Streaming(model, BATCH), policy.Carried(model, model.start(BATCH))

    with torch.no_grad():
        for number in range(3):
            torch.testing.assert_close(streaming(chunk(number)), carried(chunk(number)))
