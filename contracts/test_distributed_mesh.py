"""A mesh of two dimensions: FSDP2 over one, tensor parallel over the other, on four ranks and eight of the fake group.

Each half of the tensor dimension has the same data; what both halves of the data dimension learn is one process's.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

from contracts.distributed import LANES, PLAN, Compile, Part, compile_blocks, device, fake, fsdp, held
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane


def plane() -> DeviceMesh:
    """Half of the ranks along the data, two along the tensors."""
    return init_device_mesh(device(), (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))


def half() -> Part:
    return Part(dist.get_rank() // 2, dist.get_world_size() // 2)


def held_on_a_plane(compile_lane: CompileLane) -> set[str]:
    """The placements of the first block's weights."""

    def wrap(stack: Any, compile: Compile) -> nn.Module:
        over = plane()
        for block in stack.blocks:
            parallelize_module(block, over["tensor"], PLAN)
        compile_blocks(stack, compile)
        return fsdp(stack, over["data"])

    held(compile_lane, wrap, half)

    found = compile_lane.measurements[-1].placements
    assert found is not None
    return {found.compiled[f"blocks.0.{name}"] for name in ("up.weight", "down.weight")}


# On a CPU a command of its own: ci/contracts --contract-lanes=four
@compile_contract(ranks=4, lanes=["four", "float32"])
@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, max_recomputed_graphs=0)
@compile_contract(same_collectives=True, same_placements=True, check_state_dict=True)
def test_blocks_parallelized_compiled_and_sharded(compile_lane: CompileLane) -> None:
    """The default for a plane: one graph for all blocks, every parameter on both dimensions, plain keys."""
    assert held_on_a_plane(compile_lane) == {"Shard(0), Shard(0) on 2 x 2", "Shard(0), Shard(1) on 2 x 2"}


@fake
@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, max_recomputed_graphs=0, lanes=LANES)
@compile_contract(same_collectives=True, same_placements=True, check_state_dict=True)
def test_blocks_on_a_larger_plane(compile_lane: CompileLane) -> None:
    """The same on eight ranks."""
    assert held_on_a_plane(compile_lane) == {"Shard(0), Shard(0) on 4 x 2", "Shard(0), Shard(1) on 4 x 2"}
