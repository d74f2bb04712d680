"""FSDP2 with recompute and with a compiled optimizer: which order keeps a policy, and what each costs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from contracts.distributed import (
    LANES,
    Compile,
    Part,
    Stack,
    compile_blocks,
    device,
    fake,
    fsdp,
    held,
    trained,
    two,
)
from contracts.policies.optimizer import step_of
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane


def recomputed(stack: Any) -> None:
    """Put a checkpoint around each block."""
    for number, block in enumerate(stack.blocks):
        stack.blocks[number] = checkpoint_wrapper(block)


def checkpoint_inside(stack: Any, compile: Compile) -> nn.Module:
    """A checkpoint around each block, that compiled, and FSDP2 around it."""
    recomputed(stack)
    compile_blocks(stack, compile)
    return fsdp(stack)


def checkpoint_outside(stack: Any, compile: Compile) -> nn.Module:
    """Each block compiled, and a checkpoint around what is compiled."""
    compile_blocks(stack, compile)
    recomputed(stack)
    return fsdp(stack)


@fake
@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, max_recomputed_graphs=0, lanes=LANES)
@compile_contract(same_collectives=True, same_placements=True, max_saved_ratio=1.0)
def test_a_checkpoint_that_is_compiled_recomputes_within_its_graph(compile_lane: CompileLane) -> None:
    """The default: no more is saved than in eager, and no graph runs twice."""
    held(compile_lane, checkpoint_inside)


@fake
@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, max_recomputed_graphs=9, lanes=LANES)
@compile_contract(same_collectives=True, same_placements=True)
def test_a_checkpoint_around_compiled_blocks_runs_each_graph_again(compile_lane: CompileLane) -> None:
    """As few breaks, and three blocks run again in each of three steps, whatever a policy says."""
    held(compile_lane, checkpoint_outside)

    assert compile_lane.measurements[-1].recomputed_graphs == 9


def learned(model: nn.Module, compile: Compile, *, alone: bool = False) -> list[Tensor]:
    """Some steps of AdamW, its learning rate a tensor and its step a region of its own."""
    rate = torch.tensor(0.01, device=device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=rate.is_cuda)
    return trained(model, Part.of_rank(), alone=alone, optimizer=optimizer, step_with=compile(step_of(optimizer)))


# The breaks are torch's own, around every step of an optimizer.
@two
@compile_contract(max_graphs=2, max_graph_breaks=2, max_recompiles=0, max_recomputed_graphs=0, lanes=LANES)
@compile_contract(same_collectives=True, same_placements=True)
def test_a_compiled_optimizer_steps_on_shards(compile_lane: CompileLane) -> None:
    """With recompute: a graph for the blocks and one for the step, in which each rank updates its own shards."""

    def stack() -> Stack:
        torch.manual_seed(0)
        return Stack().to(device())

    def body(compile: Compile) -> tuple[list[Tensor], nn.Module]:
        model = checkpoint_inside(stack(), compile)
        return learned(model, compile), model

    compile_lane.compare(body, alone=lambda: (learned(stack(), lambda step: step, alone=True), None))
