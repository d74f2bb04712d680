"""A selective scan as a Triton kernel, inside a Mamba-style layer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.devices import GPU, STEADY, need_gpu
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane


def mixer() -> nn.Module:
    return pytest.importorskip("contracts.models.hybrid", exc_type=ImportError).ScanMixer()


def tokens(length: int = 37) -> Tensor:
    """Two sequences of 48 channels, longer than two of the kernel's chunks of 16 and ending inside the third."""
    return torch.randn(2, length, 48)


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, **STEADY, lanes=["float32", "bf16", "cudagraphs"])
def test_infers_in_one_graph(compile_lane: CompileLane) -> None:
    """The layer infers in one graph: its loop over time is the kernel's, and none of Dynamo's."""
    need_gpu(compile_lane)

    with torch.no_grad():
        seen = compile_lane.run(mixer().eval(), *((tokens(),) for _ in range(4)))

    # The plain scan would unroll: eight operations or so for each of the 37 steps.
    assert seen.ops_captured is not None
    assert seen.ops_captured < 30


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, **STEADY, lanes=GPU)
def test_trains_in_one_graph(compile_lane: CompileLane) -> None:
    """The layer trains in one graph and one backward graph; six gradients come out of one kernel."""
    need_gpu(compile_lane)
    batches = [(tokens(), tokens()) for _ in range(4)]

    seen = compile_lane.train(mixer(), batches, loss=F.mse_loss)

    assert seen.backward_graphs == 1


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, **STEADY, lanes=["dynamic"])
def test_a_free_length(compile_lane: CompileLane) -> None:
    """With dynamic=True one graph serves every length of at least two chunks, which no loop of Python's could.

    One chunk has a graph of its own: torch compiles anew where a size becomes 1, and there the number of chunks does.
    """
    need_gpu(compile_lane)
    batches = [(tokens(length), tokens(length)) for length in (37, 18, 50)]

    seen = compile_lane.train(mixer(), batches, loss=F.mse_loss)

    assert seen.backward_graphs == 1


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["float32", "cudagraphs"])
def test_each_kernel_runs_once_a_step(compile_lane: CompileLane) -> None:
    """A training step launches the forward kernel once and the backward kernel once, from a CUDA graph too."""
    need_gpu(compile_lane)
    from contracts.kernels.launches import launched_by_training

    found = launched_by_training(compile_lane, mixer(), tokens())

    assert (found["scan_forward_kernel"], found["scan_backward_kernel"]) == (1, 1)
