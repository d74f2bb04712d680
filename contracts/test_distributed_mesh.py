"""A mesh of two dimensions: FSDP2 over one, tensor parallel over the other, on four ranks and eight of the fake group.

Each half of the tensor dimension has the same data; what both halves of the data dimension learn is one process's.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

from contracts.distributed import LANES, PLAN, Compile, Part, compile_blocks, device, fake, four, fsdp, held
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

IN_BOTH = [pytest.param(4, marks=four, id="four"), pytest.param(8, marks=fake, id="fake")]


def plane() -> DeviceMesh:
    """Half of the ranks along the data, two along the tensors."""
    return init_device_mesh(device(), (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))


def half() -> Part:
    return Part(dist.get_rank() // 2, dist.get_world_size() // 2)


@pytest.mark.parametrize("ranks", IN_BOTH)
@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, max_recomputed_graphs=0, lanes=LANES)
@compile_contract(same_collectives=True, same_placements=True, check_state_dict=True)
def test_blocks_parallelized_compiled_and_sharded(compile_lane: CompileLane, ranks: int) -> None:
    """The default for a plane: one graph for all blocks, every parameter on both dimensions, plain keys."""

    def wrap(stack: Any, compile: Compile) -> nn.Module:
        over = plane()
        for block in stack.blocks:
            parallelize_module(block, over["tensor"], PLAN)
        compile_blocks(stack, compile)
        return fsdp(stack, over["data"])

    held(compile_lane, wrap, half)

    found = compile_lane.measurements[-1].placements
    assert found is not None
    shape = f"on {ranks // 2} x 2"
    assert {found.compiled[f"blocks.0.{name}"] for name in ("up.weight", "down.weight")} == {
        f"Shard(0), Shard(0) {shape}",
        f"Shard(0), Shard(1) {shape}",
    }
