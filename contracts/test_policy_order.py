"""Policy: one declared order of wrappers, checked on the model itself. A wrong one runs, and is found by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from contracts.devices import POLICY
from contracts.distributed import one_rank  # noqa: F401 - a fixture
from contracts.policies.order import OrderError, check_order, layers
from contracts.policies.regional import Block, Stack
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

WIDTH = 16
ORDER = ("distribute", "compile")
Compile = Callable[..., Any]
Wrap = Callable[[nn.Module, Compile, DeviceMesh], nn.Module]


def a_stack(mesh: DeviceMesh) -> Stack:
    return Stack([Block(WIDTH) for _ in range(2)], WIDTH).to(mesh.device_type)


def ddp_around_compile(model: nn.Module, compile: Compile, _mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(compile(model))


def compile_around_ddp(model: nn.Module, compile: Compile, _mesh: DeviceMesh) -> nn.Module:
    return compile(DistributedDataParallel(model))


def trained(model: nn.Module, steps: int = 3) -> list[Tensor]:
    """The losses of some steps, and the parameters after them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    device = next(model.parameters()).device
    batches = torch.linspace(-1, 1, steps * 4 * WIDTH, device=device).reshape(steps, 4, WIDTH)
    losses = []
    for batch in batches:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *(each.detach().clone() for each in model.parameters())]


def wrapped(compile_lane: CompileLane, wrap: Wrap, mesh: DeviceMesh) -> nn.Module:
    """Train the stack in this order of wrappers, eager against compiled, and give such a stack back."""

    def body(compile: Compile) -> list[Tensor]:
        torch.manual_seed(0)
        return trained(wrap(a_stack(mesh), compile, mesh))

    compile_lane.compare(body)
    return wrap(a_stack(mesh), compile_lane.compile, mesh)


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=POLICY)
def test_distribute_around_compile_is_whole(compile_lane: CompileLane, one_rank: DeviceMesh) -> None:  # noqa: F811
    """The declared order: what DDP does is around the graph, and breaks nothing."""
    model = wrapped(compile_lane, ddp_around_compile, one_rank)

    found = check_order(model, ORDER)

    assert [each.how for each in found] == ["DistributedDataParallel", "torch.compile"]


# Three breaks on each release, though from torch 2.12 on one of them lies in another file of Python's or torch's.
@compile_contract(max_graphs=1, max_graph_breaks=3, max_recompiles=0, lanes=["aot"])
def test_compile_around_distribute_runs_and_is_named(compile_lane: CompileLane, one_rank: DeviceMesh) -> None:  # noqa: F811
    """The wrong order runs, with the same numbers, and breaks on DDP's own code: it is found by its name."""
    model = wrapped(compile_lane, compile_around_ddp, one_rank)

    with pytest.raises(OrderError) as caught:
        check_order(model, ORDER)

    assert str(caught.value) == (
        "declared distribute around compile, found compile (torch.compile) at the model "
        "around distribute (DistributedDataParallel) at _orig_mod"
    )


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=POLICY)
def test_a_block_within_fsdp_is_in_order(compile_lane: CompileLane, one_rank: DeviceMesh) -> None:  # noqa: F811
    """Blocks compiled in place within FSDP2: distribute around compile, one graph for all of them."""

    def wrap(model: nn.Module, compile: Compile, mesh: DeviceMesh) -> nn.Module:
        for each in model.blocks:  # type: ignore[union-attr]
            compile(each, in_place=True)
        return fully_shard(model, mesh=mesh)

    model = wrapped(compile_lane, wrap, one_rank)

    assert [each.path for each in check_order(model, ORDER)] == ["", "blocks.0"]


@compile_contract(max_graphs=1, lanes=["aot"])
def test_parallelize_that_finds_no_wrapped_block_is_named(compile_lane: CompileLane, one_rank: DeviceMesh) -> None:  # noqa: F811
    """A plan that names blocks by their path does nothing to blocks that are wrapped: exact numbers, no DTensor."""
    model = a_stack(one_rank)
    with compile_lane.observe():
        model.blocks[0] = compile_lane.compile(model.blocks[0])
        parallelize_module(model, one_rank, {"blocks.0.linear": ColwiseParallel()})
        model(torch.ones(4, WIDTH, device=one_rank.device_type))

    assert not any(isinstance(each, DTensor) for each in model.parameters())
    with pytest.raises(OrderError, match=r"found compile \(torch\.compile\) at blocks\.0$"):
        check_order(model, ORDER)


@compile_contract(lanes=["aot"])
def test_one_branch_that_is_wrong_is_named(compile_lane: CompileLane, one_rank: DeviceMesh) -> None:  # noqa: F811
    """A first block in order does not excuse the second, in which FSDP2 came inside what is compiled."""
    model = a_stack(one_rank)

    with compile_lane.observe():
        first, second = (compile_lane.compile(each) for each in model.blocks)
        model.blocks[0] = fully_shard(nn.Sequential(first), mesh=one_rank)
        fully_shard(second._orig_mod.linear, mesh=one_rank)
        model.blocks[1] = second
        model(torch.ones(4, WIDTH, device=one_rank.device_type))

    with pytest.raises(OrderError) as caught:
        check_order(model, ORDER)
    assert str(caught.value) == (
        "declared distribute around compile, found compile (torch.compile) at blocks.1 "
        "around distribute (fully_shard) at blocks.1._orig_mod.linear"
    )


@compile_contract(max_graphs=2, max_recompiles=1, lanes=["aot"])
def test_a_kind_that_comes_again_is_declared_again(compile_lane: CompileLane, one_rank: DeviceMesh) -> None:  # noqa: F811
    """Blocks sharded by themselves within the sharded model: FSDP2 is around what is compiled, and within it."""

    def wrap(model: nn.Module, compile: Compile, mesh: DeviceMesh) -> nn.Module:
        for each in model.blocks:  # type: ignore[union-attr]
            compile(each, in_place=True)
            fully_shard(each, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    model = wrapped(compile_lane, wrap, one_rank)

    assert [each.path for each in check_order(model, (*ORDER, "distribute"))] == ["", "blocks.0", "blocks.0"]
    with pytest.raises(OrderError, match=r"at blocks\.0 around distribute \(fully_shard\) at blocks\.0$"):
        check_order(model, ORDER)


def test_what_was_captured_is_within_what_compiles_it() -> None:
    """The forward that `torch.cuda.make_graphed_callables` puts in a module's place is known by where it is from.

    An ordinary test.
    """

    def graphed(x: Tensor) -> Tensor:
        return x

    graphed.__module__ = "torch.cuda.graphs"
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].forward = graphed  # type: ignore[method-assign]

    assert [str(each) for each in layers(model)] == ["capture (make_graphed_callables) at 0"]
