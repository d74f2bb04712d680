"""A checkpoint that some ranks save and others resume, model and optimizer, into a compiled model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from contracts.distributed import LANES, Compile, Part, Stack, compile_blocks, device, fsdp, trained, two
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

BEFORE, AFTER = range(2), range(2, 4)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@contextmanager
def folder() -> Iterator[str]:
    """A folder that all ranks know, and that is gone once all of them are done with it."""
    told = [tempfile.mkdtemp(prefix="checkpoint") if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(told, src=0, device=torch.device(device()))
    try:
        yield told[0]
    finally:
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(told[0])


def stack() -> Stack:
    torch.manual_seed(0)
    return Stack().to(device())


def saved(model: nn.Module, optimizer: torch.optim.Optimizer, where: str, *, by_all: bool) -> None:
    weights, states = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": states}
    if by_all:
        dcp.save(state, checkpoint_id=where)
    elif dist.get_rank() == 0:
        dcp.save(state, checkpoint_id=where, no_dist=True)
    dist.barrier()


def loaded(model: nn.Module, optimizer: torch.optim.Optimizer, where: str, *, by_all: bool) -> None:
    weights, states = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": states}
    dcp.load(state, checkpoint_id=where, no_dist=not by_all)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def in_ranks(compile: Compile) -> nn.Module:
    model = stack()
    compile_blocks(model, compile)
    return fsdp(model)


def in_one(compile: Compile) -> nn.Module:
    model = stack()
    compile_blocks(model, compile)
    return model


def alone() -> list[Tensor]:
    """The same steps in one process, without a checkpoint between them."""
    model = stack()
    optimizer = adamw(model)
    trained(model, Part.of_rank(), alone=True, optimizer=optimizer, steps=BEFORE)
    return trained(model, Part.of_rank(), alone=True, optimizer=optimizer, steps=AFTER)


def blank(model: nn.Module) -> nn.Module:
    """The model with parameters that have learned nothing: what is not loaded shows."""
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    return model


def from_two_to_one(compile: Compile) -> tuple[list[Tensor], nn.Module]:
    """Saved by FSDP2 on two ranks, resumed by a plain compiled model in one process."""
    first = in_ranks(compile)
    optimizer = adamw(first)
    trained(first, Part.of_rank(), optimizer=optimizer, steps=BEFORE)
    second = blank(in_one(compile))
    again = adamw(second)
    with folder() as where:
        saved(first, optimizer, where, by_all=True)
        loaded(second, again, where, by_all=False)
    return trained(second, Part.of_rank(), alone=True, optimizer=again, steps=AFTER), first


def from_one_to_two(compile: Compile) -> tuple[list[Tensor], nn.Module]:
    """Saved by a plain model, resumed by FSDP2 on two ranks, each of which has its shard of the optimizer's state."""
    first = in_one(compile)
    optimizer = adamw(first)
    trained(first, Part.of_rank(), alone=True, optimizer=optimizer, steps=BEFORE)
    second = blank(in_ranks(compile))
    again = adamw(second)
    with folder() as where:
        saved(first, optimizer, where, by_all=False)
        loaded(second, again, where, by_all=True)
    return trained(second, Part.of_rank(), optimizer=again, steps=AFTER), second


# FSDP2 gives a block another class: in each direction the model that resumes has a graph of its own, a recompile.
@two
@compile_contract(max_graphs=4, max_graph_breaks=0, max_recompiles=2, lanes=LANES)
@compile_contract(same_collectives=True, same_placements=True)
def test_what_some_ranks_save_others_resume(compile_lane: CompileLane) -> None:
    """From two ranks to one process, and from one to two: each learns on as if it had never stopped."""
    for direction in (from_two_to_one, from_one_to_two):
        compile_lane.compare(direction, alone=lambda: (alone(), None))
