"""Policy: who needs a local tensor asks for it. The same code then serves plain, DTensor and FSDP2 parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from contracts.devices import POLICY
from contracts.distributed import one_rank  # noqa: F401 - a fixture
from contracts.policies.local_views import Scaled, clip_, whole_view
from contracts.policies.regional import compile_regions
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

Made = Callable[[DeviceMesh], nn.Module]
X = torch.linspace(-1, 1, 32).reshape(4, 8)


def plain(_mesh: DeviceMesh) -> Scaled:
    return Scaled()


def spread(mesh: DeviceMesh) -> Scaled:
    """Parameters that are DTensors: the product split by its columns, the scale by its channels."""
    model = Scaled()
    parallelize_module(model.linear, mesh, ColwiseParallel())
    model.scale = torch.nn.Parameter(distribute_tensor(model.scale.detach(), mesh, [Shard(0)]))
    return model


def sharded(mesh: DeviceMesh) -> nn.Module:
    """FSDP2 around the block: outside of a forward its parameters are DTensors, within it they are plain."""
    return fully_shard(nn.Sequential(Scaled()).to(mesh.device_type), mesh=mesh)


def compiled_inside(compile_lane: CompileLane) -> Callable[[Any], Any]:
    """Compiles the block where it is, within what FSDP2 does before and after."""
    return lambda model: compile_regions(model, Scaled, functools.partial(compile_lane.compile, in_place=True))


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["capture", *POLICY])
@pytest.mark.parametrize("made", [plain, spread], ids=["plain", "dtensor"])
def test_the_same_code_is_one_graph(compile_lane: CompileLane, one_rank: DeviceMesh, made: Made) -> None:  # noqa: F811
    """What asks for a local view costs no break, whether the parameters are plain or DTensors."""
    compile_lane.run(made(one_rank), (X,), (X + 1,))


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["aot"])
@pytest.mark.parametrize("made", [plain, spread], ids=["plain", "dtensor"])
def test_the_gradient_reaches_the_parameter(compile_lane: CompileLane, one_rank: DeviceMesh, made: Made) -> None:  # noqa: F811
    """Trained through the local view, the parameter has the gradient, and is what it was: plain or a DTensor."""
    model = made(one_rank)

    compile_lane.train(model, [(X,), (X + 1,)])

    assert isinstance(model.scale, DTensor) == (made is spread)


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["aot"])
def test_under_fsdp_the_block_sees_plain_parameters(compile_lane: CompileLane, one_rank: DeviceMesh) -> None:  # noqa: F811
    """The same block, compiled within FSDP2, is the same graph, and its parameters are shards again afterwards."""
    model, x = sharded(one_rank), X.to(one_rank.device_type)

    compile_lane.train(model, [(x,), (x + 1,)], compile_with=compiled_inside(compile_lane))

    assert all(isinstance(each, DTensor) for each in model.parameters())


@compile_contract(max_graphs=1, lanes=["aot"])
@pytest.mark.parametrize("made", [plain, spread, sharded], ids=["plain", "dtensor", "fsdp"])
def test_what_is_written_into_a_view_is_in_the_parameter(
    compile_lane: CompileLane,
    one_rank: DeviceMesh,  # noqa: F811
    made: Made,
) -> None:
    """Every parameter has its gradient, and clipping it shard by shard, between compiled steps, is clipping it."""
    model = made(one_rank)

    with compile_lane.observe():
        compiled_inside(compile_lane)(model)
        model(X).sum().backward()
        gradients = [each.grad for each in model.parameters()]
        clip_(model, 0.25)
        model(X)

    assert all(each is not None and whole_view(each).abs().sum() > 0 for each in gradients)
    largest = max(float(whole_view(each).abs().max()) for each in model.parameters())
    assert largest <= 0.25
