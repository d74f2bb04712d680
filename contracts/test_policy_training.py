"""Policy: a training loop around a compiled model, and activations that are made again inside of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contracts.policies import training as policy
from contracts.policies.training import Batch, Recomputed
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

WIDTH = 16
ROWS = 4
Compile = Callable[..., Any]


class Block(nn.Module):
    """A residual feed-forward layer with dropout."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(nn.functional.gelu(self.up(x))))


def batch(number: int, rows: int = ROWS) -> Batch:
    """A batch of its own for each number."""
    x = torch.linspace(-1, 1 + 0.1 * number, rows * WIDTH).reshape(rows, WIDTH)
    return x, x.sin()


def micro_batches(number: int) -> list[Batch]:
    """The four micro-batches of a step."""
    return [batch(4 * number + index) for index in range(4)]


def loop_of(
    compile: Compile,
    *,
    model: nn.Module | None = None,
    dropout: float = 0.5,
    scaled: bool = False,
    autocast: torch.dtype = torch.bfloat16,
) -> policy.Loop:
    """A loop over one block, unless said otherwise, with AdamW."""
    model = model or Block(dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1, enabled=scaled)
    return policy.Loop(model, optimizer, compile_model=compile, scaler=scaler, autocast=autocast)


def learned(loop: policy.Loop) -> list[Tensor]:
    """The parameters as they are now."""
    return [each.detach().clone() for each in loop.model.parameters()]


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, lanes=["aot"])
def test_steps_under_autocast_are_one_graph(compile_lane: CompileLane) -> None:
    """Under autocast the block computes in bfloat16 and learns in float32, all micro-batches in one graph."""

    def body(compile: Compile) -> object:
        dtypes: set[torch.dtype] = set()

        def noting(model: nn.Module) -> Callable[[Tensor], Tensor]:
            run = compile(model)

            def noted(x: Tensor) -> Tensor:
                output: Tensor = run(x)
                dtypes.add(output.dtype)
                return output

            return noted

        loop = loop_of(noting, model=nn.Sequential(Block(0.5), nn.Linear(WIDTH, WIDTH)))
        losses = [loop.train_step(micro_batches(number)) for number in range(3)]
        assert dtypes == {torch.bfloat16}
        assert {each.dtype for each in (*learned(loop), *loop.optimizer.state_dict()["state"][0].values())} == {
            torch.float32
        }
        return losses, learned(loop)

    compile_lane.compare(body)


@compile_contract(max_graphs=2, max_recompiles=1, max_graph_breaks=0, lanes=["aot"])
def test_autocast_switched_on_costs_a_recompile(compile_lane: CompileLane) -> None:
    """A model that has run in float32 is compiled again for autocast, and serves both from then on."""

    def body(compile: Compile) -> object:
        run = compile(Block())
        outputs = []
        for enabled in (False, True, False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                outputs.append(run(batch(0)[0]))
        return outputs

    compile_lane.compare(body)


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, lanes=["aot"])
def test_accumulated_gradients_are_those_of_the_whole_batch(compile_lane: CompileLane) -> None:
    """Four micro-batches, one graph, make the step that one batch of all their rows makes."""

    def body(compile: Compile) -> object:
        parts = micro_batches(0)
        loop = loop_of(compile, dropout=0.0, autocast=torch.float32)
        alone = copy.deepcopy(loop.model)
        loss = loop.train_step(parts)
        x, target = (torch.cat(each) for each in zip(*parts, strict=True))
        whole = nn.functional.mse_loss(alone(x), target)
        whole.backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
        torch.optim.AdamW(alone.parameters(), lr=0.01).step()
        torch.testing.assert_close(loss, whole.detach())
        torch.testing.assert_close(learned(loop), [each.detach() for each in alone.parameters()], rtol=1e-4, atol=1e-5)
        return loss, learned(loop)

    compile_lane.compare(body)


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, lanes=["aot"])
def test_a_scaler_around_the_region_costs_nothing(compile_lane: CompileLane) -> None:
    """An overflow skips the step and halves the scale; neither that nor the scale's growth reaches the graph."""

    def body(compile: Compile) -> object:
        loop = loop_of(compile, scaled=True)
        loop.train_step(micro_batches(0))
        before = learned(loop)
        loop.train_step([(x, target * torch.inf) for x, target in micro_batches(1)])
        torch.testing.assert_close(learned(loop), before, rtol=0, atol=0)
        assert loop.scaler.get_scale() == 1024.0
        loop.train_step(micro_batches(2))
        assert not torch.equal(learned(loop)[0], before[0])
        return learned(loop)

    compile_lane.compare(body)


@compile_contract(max_graph_breaks=6, max_graphs=2, max_recompiles=0, lanes=["aot"])
def test_a_whole_step_compiled_with_its_scaler_breaks(compile_lane: CompileLane) -> None:
    """Compiled as a whole, the step breaks in each of its lines: what the loop keeps outside of the region."""

    def body(compile: Compile) -> object:
        model = Block()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

        def step(x: Tensor) -> None:
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        compiled = compile(step)
        for number in range(3):
            compiled(batch(number)[0])
        return [each.detach() for each in model.parameters()]

    seen = compile_lane.compare(body)

    lines = {each.location.line for each in seen.graph_breaks or () if each.location.function == "step"}
    assert len(lines) == 4


@compile_contract(max_graphs=2, max_recompiles=1, max_graph_breaks=0, lanes=["aot"])
def test_evaluation_between_steps_is_one_graph_more(compile_lane: CompileLane) -> None:
    """Without gradients and dropout the model is compiled once more; however often the loop goes to and fro, no more.

    The steps are those of a run that is never evaluated.
    """

    def body(compile: Compile) -> object:
        loop, undisturbed = loop_of(compile), loop_of(lambda model: model)
        undisturbed.model.load_state_dict(loop.model.state_dict())
        undisturbed.optimizer = torch.optim.AdamW(undisturbed.model.parameters(), lr=0.01)
        losses = []
        for number in range(4):
            loop.train_step(micro_batches(number))
            undisturbed.train_step(micro_batches(number))
            losses.append(loop.evaluate(micro_batches(number)))
        torch.testing.assert_close(learned(loop), learned(undisturbed), rtol=1e-3, atol=1e-3)
        return losses, learned(loop)

    compile_lane.compare(body)


@compile_contract(max_graphs=4, max_recompiles=3, max_graph_breaks=0, lanes=["aot"])
def test_each_pair_of_modes_is_a_graph(compile_lane: CompileLane) -> None:
    """Train or eval, with gradients or without: each of the four that a loop uses is code of its own, once."""

    def body(compile: Compile) -> object:
        model = Block(0.5)
        run = compile(model)
        outputs = []
        for _ in range(2):
            for training in (True, False):
                for gradients in (True, False):
                    model.train(training)
                    with torch.set_grad_enabled(gradients):
                        outputs.append(run(batch(0)[0]))
        return outputs

    seen = compile_lane.compare(body)

    assert len(seen.recompiles or ()) == 3


def masks(run: Callable[[Tensor], Tensor], ones: Tensor, *, disturb: bool) -> list[Tensor]:
    """Where three calls drop of ones, with numbers drawn by others in between or not."""
    random, found = policy.OwnedRandom(3), []
    for _ in range(3):
        if disturb:
            torch.rand_like(ones)
        with random.drawing():
            found.append(run(ones) == 0)
    return found


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, lanes=["aot", "inductor"])
def test_owned_random_state_draws_the_same_masks(compile_lane: CompileLane) -> None:
    """From one seed the same masks, whoever draws in between, and nobody else's numbers move.

    Under AOTAutograd alone they are eager's. Inductor draws its own, unless `fallback_random` says to draw as eager.
    """
    ones = torch.ones(256, device=compile_lane.device)
    eager = masks(nn.functional.dropout, ones, disturb=False)

    with compile_lane.observe():
        run = compile_lane.compile(nn.functional.dropout)
        before = torch.get_rng_state()
        first = masks(run, ones, disturb=False)
        assert torch.equal(torch.get_rng_state(), before)
        again = masks(run, ones, disturb=True)

    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert torch.equal(first[0], eager[0]) == (compile_lane.name == "aot")


def addmms_and_bytes(model: Callable[[Tensor], Tensor]) -> tuple[int, int]:
    """How many `addmm`, the forward's product, the backward runs, and how many bytes the forward saves for it."""
    saved: dict[int, int] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, nn.Parameter):
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        loss = model(batch(0)[0].requires_grad_()).square().mean()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        loss.backward()
    return sum(each.count for each in profiled.key_averages() if each.key == "aten::addmm"), sum(saved.values())


def two_blocks(wrap: Callable[[nn.Module], nn.Module]) -> nn.Sequential:
    """Two blocks of two products each."""
    torch.manual_seed(0)
    return nn.Sequential(*(wrap(Block()) for _ in range(2)))


def recomputes(module: nn.Module, run: Callable[[Tensor], Tensor]) -> tuple[int, int]:
    """What its backward runs again and its forward saves; its gradients are held to those of plain blocks."""
    run(batch(0)[0].requires_grad_()).square().mean().backward()
    plain = two_blocks(lambda block: block)
    plain(batch(0)[0].requires_grad_()).square().mean().backward()
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    return addmms_and_bytes(run)


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, lanes=["aot"])
@pytest.mark.parametrize(("save_products", "again"), [(False, 2), (True, 0)], ids=["all", "all but products"])
def test_recompute_inside_the_region(compile_lane: CompileLane, save_products: bool, again: int) -> None:
    """Inside, a block's backward runs the one product again that it needs, or with `save_products` none: less is saved.

    The second product of a block is needed by nobody: compiled, it is not made again.
    """
    model = two_blocks(lambda block: policy.Recomputed(block, save_products=save_products))
    plain = two_blocks(lambda block: block)

    with compile_lane.observe():
        products, saved = recomputes(model, compile_lane.compile(model))
    _, kept = addmms_and_bytes(plain)

    assert products == again
    assert saved < kept


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, lanes=["aot"])
@pytest.mark.parametrize("save_products", [False, True], ids=["all", "all but products"])
def test_recompute_around_the_region_runs_all_of_it_again(compile_lane: CompileLane, save_products: bool) -> None:
    """Around compiled blocks both products of each run again, also those that were to be saved; gradients are right."""
    model = two_blocks(lambda block: Recomputed(compile_lane.compile(block), save_products=save_products))

    with compile_lane.observe():
        products, _ = recomputes(model, model)

    assert products == 4


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, lanes=["aot"])
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "around"])
def test_recompute_draws_the_same_mask(compile_lane: CompileLane, inside: bool) -> None:
    """What dropout dropped in the forward has no gradient, though other numbers were drawn before the backward."""

    def body(compile: Compile) -> object:
        module = nn.Sequential(nn.Sigmoid(), nn.Dropout(0.5), nn.Tanh())
        run = compile(policy.Recomputed(module)) if inside else policy.Recomputed(compile(module))
        x = torch.linspace(-1, 1, 256, requires_grad=True)
        y = run(x)
        torch.rand(7)
        y.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad == 0, y == 0)
        return x, y, x.grad

    compile_lane.compare(body)


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, lanes=["aot"])
def test_a_checkpoint_resumes_into_the_compiled_model(compile_lane: CompileLane) -> None:
    """Loaded in mid-run, a checkpoint gives the same steps again, bit by bit, and nothing compiles."""

    def body(compile: Compile) -> object:
        loop = loop_of(compile, scaled=True)
        for number in range(2):
            loop.train_step(micro_batches(number))
        saved = copy.deepcopy(loop.state_dict())

        def rest() -> tuple[object, ...]:
            losses = [loop.train_step(micro_batches(number)) for number in (2, 3)]
            return losses, learned(loop), loop.scaler.get_scale()

        once = rest()
        torch.rand(7)
        loop.load_state_dict(saved)
        again = rest()
        torch.testing.assert_close(again, once, rtol=0, atol=0)
        assert set(saved["model"]) == {"up.weight", "up.bias", "down.weight", "down.bias"}
        return once

    compile_lane.compare(body)


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, lanes=["aot"])
def test_a_new_model_resumes_after_it_is_compiled(compile_lane: CompileLane) -> None:
    """A new model, compiled before its checkpoint is loaded, goes on where the first would have gone."""

    def body(compile: Compile) -> object:
        first, second = loop_of(compile), loop_of(compile)
        # The second is somewhere else when the checkpoint comes.
        second.train_step(micro_batches(3))
        first.train_step(micro_batches(0))
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        for loop in (first, second):
            loop.train_step(micro_batches(1))
        torch.testing.assert_close(learned(second), learned(first), rtol=0, atol=0)
        return learned(second)

    compile_lane.compare(body)
