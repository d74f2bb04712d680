"""A mesh of one rank, on which distributed wrappers do all but talk to others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pytest_compilecontract.lane import CompileLane


@contextlib.contextmanager
def alone(device: str) -> Iterator[DeviceMesh]:
    """A process group of this process alone, without a port; taken down afterwards."""
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh(device, (1,))
    finally:
        dist.destroy_process_group()


@pytest.fixture
def one_rank(compile_lane: CompileLane) -> Iterator[DeviceMesh]:
    """The mesh of this process alone, on the lane's device."""
    with alone(compile_lane.device.type) as mesh:
        yield mesh
