"""RMSNorm as a Triton kernel, inside a feed-forward layer: an opaque region that leaves the layer around it whole."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.devices import GPU, STEADY, need_gpu
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane


def block() -> nn.Module:
    return pytest.importorskip("contracts.models.hybrid", exc_type=ImportError).NormBlock()


def tokens(length: int = 17) -> Tensor:
    """Two sequences of 48 channels, neither of them a power of two."""
    return torch.randn(2, length, 48)


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, **STEADY, lanes=["bf16", "autotune"])
def test_infers_in_one_graph(compile_lane: CompileLane) -> None:
    """The layer infers in one graph with the kernel in it, and agrees with plain PyTorch in float64."""
    need_gpu(compile_lane)

    with torch.no_grad():
        compile_lane.run(block().eval(), *((tokens(),) for _ in range(4)))


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, **STEADY, lanes=GPU)
def test_trains_in_one_graph(compile_lane: CompileLane) -> None:
    """The layer trains in one graph and one backward graph; the weight's gradient is the kernel's own."""
    need_gpu(compile_lane)
    batches = [(tokens(), tokens()) for _ in range(4)]

    seen = compile_lane.train(block(), batches, loss=F.mse_loss, optimizer=torch.optim.AdamW)

    assert seen.backward_graphs == 1


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, **STEADY, lanes=["dynamic"])
def test_a_free_length(compile_lane: CompileLane) -> None:
    """With dynamic=True one graph serves every length: the kernel's grid follows the rows."""
    need_gpu(compile_lane)

    with torch.no_grad():
        compile_lane.run(block().eval(), *((tokens(length),) for length in (17, 9, 33, 128)))


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["float32", "cudagraphs"])
def test_each_kernel_runs_once_a_step(compile_lane: CompileLane) -> None:
    """A training step launches the forward kernel once and the backward kernel once, from a CUDA graph too."""
    need_gpu(compile_lane)
    from contracts.kernels.launches import launched_by_training

    found = launched_by_training(compile_lane, block(), tokens())

    assert (found["rms_norm_forward_kernel"], found["rms_norm_backward_kernel"]) == (1, 1)
