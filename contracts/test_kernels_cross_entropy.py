"""Cross-entropy over 50 257 words as a Triton kernel, behind the layer that makes the logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from contracts.devices import GPU, STEADY, need_gpu
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

WORDS = 50_257


def head() -> nn.Module:
    return pytest.importorskip("contracts.models.hybrid", exc_type=ImportError).LossHead(words=WORDS)


def batch(tokens: int = 21) -> tuple[Tensor, Tensor]:
    """Hidden states and their next words, the first of them ignored."""
    target = torch.randint(WORDS, (tokens,))
    target[0] = -100
    return torch.randn(tokens, 48), target


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, **STEADY, lanes=["float32", "cudagraphs"])
def test_infers_in_one_graph(compile_lane: CompileLane) -> None:
    """The loss of a batch is one graph, and agrees with plain PyTorch in float64."""
    need_gpu(compile_lane)

    with torch.no_grad():
        compile_lane.run(head().eval(), *(batch() for _ in range(4)))


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, **STEADY, lanes=GPU)
def test_trains_in_one_graph(compile_lane: CompileLane) -> None:
    """The head trains in one graph and one backward graph, and no softmax of the logits is saved for it."""
    need_gpu(compile_lane)

    seen = compile_lane.train(head(), [batch() for _ in range(4)])

    assert seen.backward_graphs == 1


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, **STEADY, lanes=["dynamic"])
def test_a_free_number_of_tokens(compile_lane: CompileLane) -> None:
    """With dynamic=True one graph and one backward graph serve every number of tokens."""
    need_gpu(compile_lane)

    seen = compile_lane.train(head(), [batch(tokens) for tokens in (21, 8, 40)])

    assert seen.backward_graphs == 1


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["float32", "cudagraphs"])
def test_each_kernel_runs_once_a_step(compile_lane: CompileLane) -> None:
    """A training step launches the forward kernel once and the backward kernel once, from a CUDA graph too."""
    need_gpu(compile_lane)
    from contracts.kernels.launches import launched_by_training

    found = launched_by_training(compile_lane, head(), *batch())

    assert (found["cross_entropy_forward_kernel"], found["cross_entropy_backward_kernel"]) == (1, 1)
