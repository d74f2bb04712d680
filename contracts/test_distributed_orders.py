"""Wrapper orders of DDP, FSDP2 and tensor parallel in ranks: what each costs in breaks, recompiles, collectives, keys.

Each trains a stack of blocks for a few steps, a batch of its own on each rank, eager and compiled. What the orders of
FSDP2 and tensor parallel do to compiling shows on 8 ranks of the fake process group as well, which moves no data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from pytest_compilecontract import compile_contract
from pytest_compilecontract.facts.collectives import by_kind
from pytest_compilecontract.lane import CompileLane

WIDTH = 16
STEPS = 3
Compile = Callable[..., Any]
Wrap = Callable[[nn.Module, Compile], nn.Module]

# NCCL on GPUs, gloo on a CPU.
two = compile_contract(ranks=2)
fake = compile_contract(ranks=8, process_group="fake")
IN_BOTH = [pytest.param(2, marks=two, id="two"), pytest.param(8, marks=fake, id="fake")]
# With Inductor on GPUs alone: on a CPU it would take minutes, and changes none of the counts.
LANES = ["aot", "float32"]


class Block(nn.Module):
    """Two products with what lies between, and what came in added."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    """Blocks, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def device() -> str:
    """The type of device of this rank; the fake group moves nothing, and so needs none."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def mesh() -> DeviceMesh:
    return init_device_mesh(device(), (dist.get_world_size(),))


def trained(model: nn.Module, *, shared: bool = False) -> list[Tensor]:
    """The losses of some steps, on batches of this rank's own if they are not `shared`, and the parameters after."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        # What comes in requires grad, as what a block hands to the next does: another answer is another graph.
        batch = torch.full((4, WIDTH), 0.1 * (step + 1), device=device()).requires_grad_()
        loss = model(batch * (1 if shared else 1 + dist.get_rank())).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    kept = [each.to_local() if isinstance(each, DTensor) else each for each in model.parameters()]
    return [*losses, *(each.detach().clone() for each in kept)]


def held(compile_lane: CompileLane, wrap: Wrap, *, shared: bool = False) -> nn.Module:
    """Train the stack in an order of wrappers, eager against compiled, and give one in that order back."""

    def body(compile: Compile) -> list[Tensor]:
        torch.manual_seed(0)
        return trained(wrap(Stack().to(device()), compile), shared=shared)

    compile_lane.compare(body)
    return wrap(Stack().to(device()), compile_lane.compile)


def first_key(model: nn.Module) -> str:
    return next(iter(model.state_dict()))


def sharded(model: nn.Module) -> tuple[int, int]:
    """How many of the parameters are DTensors, and how many there are."""
    parameters = [*model.parameters()]
    return sum(isinstance(each, DTensor) for each in parameters), len(parameters)


# DDP: the order changes breaks and keys, not numbers and not collectives. It does not run on the fake group.


@two
@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, same_collectives=True, lanes=LANES)
def test_ddp_around_a_compiled_model_is_whole(compile_lane: CompileLane) -> None:
    """The default: one graph, one all-reduce a step as in eager; the keys have both prefixes."""
    model = held(compile_lane, lambda stack, compile: DistributedDataParallel(compile(stack)))

    assert first_key(model) == "module._orig_mod.blocks.0.up.weight"


@two
@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, same_collectives=True, lanes=LANES)
def test_ddp_around_a_model_compiled_in_place_keeps_the_keys(compile_lane: CompileLane) -> None:
    """As good, and the keys are those of DDP alone."""

    def wrap(stack: nn.Module, compile: Compile) -> nn.Module:
        compile(stack, in_place=True)
        return DistributedDataParallel(stack)

    assert first_key(held(compile_lane, wrap)) == "module.blocks.0.up.weight"


# Three breaks on each release, though where torch counts them has moved.
@two
@compile_contract(max_graphs=1, max_graph_breaks=3, max_recompiles=0, same_collectives=True, lanes=LANES)
def test_compile_around_ddp_breaks_on_ddps_own_code(compile_lane: CompileLane) -> None:
    """The same numbers and collectives, at three graph breaks in DDP's own forward."""
    model = held(compile_lane, lambda stack, compile: compile(DistributedDataParallel(stack)))

    assert first_key(model) == "_orig_mod.module.blocks.0.up.weight"


@two
@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, same_collectives=True, lanes=LANES)
def test_blocks_compiled_within_ddp_share_a_graph(compile_lane: CompileLane) -> None:
    """Regions within DDP: one graph for three blocks, where what comes in requires grad as what is handed on does."""

    def wrap(stack: Any, compile: Compile) -> nn.Module:
        for block in stack.blocks:
            compile(block, in_place=True)
        return DistributedDataParallel(stack)

    assert first_key(held(compile_lane, wrap)) == "module.blocks.0.up.weight"


# FSDP2: blocks before or after makes no difference; the whole model does.


def fsdp(stack: Any) -> nn.Module:
    for block in stack.blocks:
        fully_shard(block, mesh=mesh())
    return fully_shard(stack, mesh=mesh())


@pytest.mark.parametrize("ranks", IN_BOTH)
@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, same_collectives=True, lanes=LANES)
def test_blocks_sharded_then_compiled(compile_lane: CompileLane, ranks: int) -> None:
    """The default for FSDP2: every gather and scatter of eager, every parameter a DTensor, plain keys."""

    def wrap(stack: Any, compile: Compile) -> nn.Module:
        model = fsdp(stack)
        for block in stack.blocks:
            compile(block, in_place=True)
        return model

    model = held(compile_lane, wrap)

    assert (sharded(model), first_key(model)) == ((12, 12), "blocks.0.up.weight")


@pytest.mark.parametrize("ranks", IN_BOTH)
@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, same_collectives=True, lanes=LANES)
def test_blocks_compiled_then_sharded(compile_lane: CompileLane, ranks: int) -> None:
    """The same in every count."""

    def wrap(stack: Any, compile: Compile) -> nn.Module:
        for block in stack.blocks:
            compile(block, in_place=True)
        return fsdp(stack)

    model = held(compile_lane, wrap)

    assert (sharded(model), first_key(model)) == ((12, 12), "blocks.0.up.weight")


# Tensor parallel


PLAN: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}


@pytest.mark.parametrize("ranks", IN_BOTH)
@compile_contract(max_graphs=1, max_recompiles=0, same_collectives=True, fullgraph=True, lanes=LANES)
def test_parallelized_then_compiled_is_whole(compile_lane: CompileLane, ranks: int) -> None:
    """The default for tensor parallel: one graph with the collectives of eager in it."""

    def wrap(stack: Any, compile: Compile) -> nn.Module:
        for block in stack.blocks:
            parallelize_module(block, mesh(), PLAN)
        return compile(stack)

    model = held(compile_lane, wrap, shared=True)

    assert (sharded(model), first_key(model)) == ((12, 12), "_orig_mod.blocks.0.up.weight")


@pytest.mark.parametrize("ranks", IN_BOTH)
@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, numerics=None, lanes=LANES)
def test_wrapped_blocks_are_not_found_by_a_plan(compile_lane: CompileLane, ranks: int) -> None:
    """A plan names blocks by their paths, which wrapped blocks have lost: it runs, and nothing is parallel.

    `same_collectives=True` would notice, and so would the shapes of the parameters, which are not compared here.
    """

    def wrap(stack: Any, compile: Compile) -> nn.Module:
        for number, block in enumerate(stack.blocks):
            stack.blocks[number] = compile(block)
        plan = {f"blocks.{number}.{name}": style for number in range(3) for name, style in PLAN.items()}
        return parallelize_module(stack, mesh(), plan)

    with pytest.warns(UserWarning, match="could not be resolved"):
        model = held(compile_lane, wrap, shared=True)

    assert sharded(model) == (0, 12)
    made = compile_lane.measurements[-1].collectives
    assert made is not None
    assert made.eager is not None
    assert (by_kind(made.compiled), by_kind(made.eager)["all_reduce"]) == ({}, 6 * STEPS)
