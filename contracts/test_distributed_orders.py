"""Wrapper orders of DDP, FSDP2 and tensor parallel in ranks: what each costs in breaks, recompiles, collectives, keys.

Each trains a stack of blocks for a few steps, a batch of its own on each rank, eager and compiled. What the orders of
FSDP2 and tensor parallel do to compiling shows on 8 ranks of the fake process group as well, which moves no data.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

from contracts.distributed import IN_BOTH, LANES, PLAN, STEPS, Compile, Part, compile_blocks, fsdp, held, mesh, two
from pytest_compilecontract import compile_contract
from pytest_compilecontract.facts.collectives import by_kind
from pytest_compilecontract.lane import CompileLane


def shared() -> Part:
    """The same data on all ranks."""
    return Part(0, 1)


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

    def wrap(stack: nn.Module, compile: Compile) -> nn.Module:
        compile_blocks(stack, compile)
        return DistributedDataParallel(stack)

    assert first_key(held(compile_lane, wrap)) == "module.blocks.0.up.weight"


# FSDP2: blocks before or after makes no difference; the whole model does.


@pytest.mark.parametrize("ranks", IN_BOTH)
@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=LANES)
@compile_contract(same_collectives=True, same_placements=True, check_state_dict=True)
def test_blocks_sharded_then_compiled(compile_lane: CompileLane, ranks: int) -> None:
    """The default for FSDP2: every gather and scatter of eager, every parameter a DTensor, plain keys."""

    def wrap(stack: nn.Module, compile: Compile) -> nn.Module:
        model = fsdp(stack)
        compile_blocks(model, compile)
        return model

    model = held(compile_lane, wrap)

    assert (sharded(model), first_key(model)) == ((12, 12), "blocks.0.up.weight")


@pytest.mark.parametrize("ranks", IN_BOTH)
@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=LANES)
@compile_contract(same_collectives=True, same_placements=True, check_state_dict=True)
def test_blocks_compiled_then_sharded(compile_lane: CompileLane, ranks: int) -> None:
    """The same in every count."""

    def wrap(stack: nn.Module, compile: Compile) -> nn.Module:
        compile_blocks(stack, compile)
        return fsdp(stack)

    model = held(compile_lane, wrap)

    assert (sharded(model), first_key(model)) == ((12, 12), "blocks.0.up.weight")


# Tensor parallel


@pytest.mark.parametrize("ranks", IN_BOTH)
@compile_contract(max_graphs=1, max_recompiles=0, fullgraph=True, lanes=LANES)
@compile_contract(same_collectives=True, same_placements=True)
def test_parallelized_then_compiled_is_whole(compile_lane: CompileLane, ranks: int) -> None:
    """The default for tensor parallel: one graph with the collectives of eager in it."""

    def wrap(stack: Any, compile: Compile) -> nn.Module:
        for block in stack.blocks:
            parallelize_module(block, mesh(), PLAN)
        return compile(stack)

    model = held(compile_lane, wrap, shared)

    assert (sharded(model), first_key(model)) == ((12, 12), "_orig_mod.blocks.0.up.weight")


@pytest.mark.parametrize("ranks", IN_BOTH)
@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, numerics=None, lanes=LANES)
def test_wrapped_blocks_are_not_found_by_a_plan(compile_lane: CompileLane, ranks: int) -> None:
    """A plan names blocks by their paths, which wrapped blocks have lost: it runs, and nothing is parallel.

    `same_collectives=True` would notice, and so would `same_placements=True`: none of them is required here.
    """

    def wrap(stack: Any, compile: Compile) -> nn.Module:
        for number, block in enumerate(stack.blocks):
            stack.blocks[number] = compile(block)
        plan = {f"blocks.{number}.{name}": style for number in range(3) for name, style in PLAN.items()}
        return parallelize_module(stack, mesh(), plan)

    with pytest.warns(UserWarning, match="could not be resolved"):
        model = held(compile_lane, wrap, shared, compares=False)

    assert sharded(model) == (0, 12)
    made = compile_lane.measurements[-1].collectives
    assert made is not None
    assert made.eager is not None
    assert (by_kind(made.compiled), by_kind(made.eager)["all_reduce"]) == ({}, 6 * STEPS)
    placed = compile_lane.measurements[-1].placements
    assert placed is not None
    assert (placed.total, placed.in_eager, len(placed.changed)) == (0, 12, 12)
