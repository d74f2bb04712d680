"""Shards, uneven or empty, and the helpers that ask for one: `to_local`, `full_tensor`, clipping by global norm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from contracts.distributed import (
    IN_BOTH,
    LANES,
    Compile,
    Part,
    compile_blocks,
    fsdp,
    held,
    mesh,
    two,
    whole,
)
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

MOST = 0.01


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that is on this rank."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def clipped(model: nn.Module) -> Tensor:
    """Clip all gradients by their global norm, which is returned."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MOST)
    return whole(norm)


@pytest.mark.parametrize("ranks", IN_BOTH)
@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=LANES)
@compile_contract(same_collectives=True, same_placements=True, check_state_dict=True)
def test_fsdp_with_shards_that_are_uneven_and_empty(compile_lane: CompileLane, ranks: int) -> None:
    """Three rows on two ranks are two and one, and one row leaves the second with nothing: no graph for either.

    Gradients are clipped by the norm of all shards, which is that of one process.
    """

    def wrap(stack: nn.Module, compile: Compile) -> nn.Module:
        compile_blocks(stack, compile)
        return fsdp(stack)

    model: Any = held(compile_lane, wrap, width=1, inner=3, after_backward=clipped)

    if ranks == 2:
        block = model.blocks[0]
        here = local(block.up.weight).shape[0], local(block.down.weight).shape[0]
        assert here == ((2, 1), (1, 0))[dist.get_rank()]


class Scaled(nn.Module):
    """Scales what comes in by what is local of its parameter, and by all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(1, 2, 5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        every = self.scale.full_tensor() if isinstance(self.scale, DTensor) else self.scale
        return local(self.scale).square().sum(), (x * every).sum()


def asks(compile: Compile) -> tuple[list[Tensor], nn.Module]:
    model = Scaled()
    model.scale = nn.Parameter(distribute_tensor(model.scale.detach(), mesh(), [Shard(0)]))
    run, found = compile(model), []
    for step in range(2):
        here, every = run(torch.full((5,), 1.0 + step, device=mesh().device_type))
        (here + every).backward()
        assert isinstance(model.scale.grad, DTensor)
        found += [here.detach(), every.detach(), whole(model.scale.grad)]
    return found, model


@two
@compile_contract(max_graphs=2, max_recompiles=0, fullgraph=True, lanes=LANES)
@compile_contract(same_collectives=True, same_placements=True)
def test_tensor_parallel_with_uneven_shards(compile_lane: CompileLane) -> None:
    """Five columns on two ranks: one graph on each. Between the products stays a DTensor, which knows its size.

    In a graph of its own a parameter is asked for its shard, `to_local`, and for all of it, `full_tensor`.
    """
    plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}

    def wrap(stack: Any, compile: Compile) -> nn.Module:
        for block in stack.blocks:
            parallelize_module(block, mesh(), plan)
        return compile(stack)

    held(compile_lane, wrap, lambda: Part(0, 1), width=4, inner=5)
    compile_lane.compare(asks)
