"""A hybrid stack on kernels of our own, words to loss: attention, a selective scan and experts in one graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contracts.devices import STEADY, need_gpu
from contracts.models.routing import DECIDED, decide, smallest_margin
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

WORDS = 32
ROUTER = "layers.2.layer.router"


def stack() -> Any:
    """A stack whose router has decided, so that no rounding moves a token to another expert."""
    hybrid = pytest.importorskip("contracts.models.hybrid", exc_type=ImportError)
    model = hybrid.HybridStack(WORDS)
    decide(model.get_submodule(ROUTER).weight, model.embedding.weight, times=4)
    return model


def batch(length: int = 21) -> tuple[Tensor, Tensor]:
    """Two texts and the next word of each of their words."""
    words = torch.randint(WORDS, (2, length + 1))
    return words[:, :-1], words[:, 1:]


def trained(batches: list[tuple[Tensor, Tensor]]) -> Any:
    """The steps that compile_lane.train makes, in float64 on the CPU, which the kernels' references compute."""

    def steps(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.double().parameters(), lr=0.01)
        for each in batches:
            model(*each).backward()
            optimizer.step()
            optimizer.zero_grad()

    return steps


def padded(words: Tensor, bucket: int) -> Tensor:
    """The text filled up with word 0 to the length of its bucket."""
    return words.new_zeros((words.shape[0], bucket)).index_copy(1, torch.arange(words.shape[1]), words)


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, **STEADY, lanes=["cudagraphs"])
def test_infers_in_one_graph(compile_lane: CompileLane) -> None:
    """All four kernels are in one graph, and calls of one length never compile again."""
    need_gpu(compile_lane)
    model, batches = stack().eval(), [batch() for _ in range(4)]
    assert smallest_margin(model, [ROUTER], trained(batches)) > DECIDED

    with torch.no_grad():
        compile_lane.run(model, *batches)


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, **STEADY, lanes=["bf16"])
def test_trains_in_one_graph(compile_lane: CompileLane) -> None:
    """The stack trains in one graph and one backward graph."""
    need_gpu(compile_lane)
    model, batches = stack(), [batch() for _ in range(4)]
    assert smallest_margin(model, [ROUTER], trained(batches)) > DECIDED

    seen = compile_lane.train(model, batches)

    assert seen.backward_graphs == 1


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, **STEADY, lanes=["dynamic"])
def test_a_free_length(compile_lane: CompileLane) -> None:
    """With dynamic=True one graph and one backward graph serve every length of at least two of the scan's chunks."""
    need_gpu(compile_lane)
    model, batches = stack(), [batch(length) for length in (21, 40, 18)]
    assert smallest_margin(model, [ROUTER], trained(batches)) > DECIDED

    seen = compile_lane.train(model, batches)

    assert seen.backward_graphs == 1


@compile_contract(fullgraph=True, max_graphs=2, max_recompiles=1, lanes=["static"])
def test_lengths_in_buckets(compile_lane: CompileLane) -> None:
    """With static shapes, lengths filled up to 24 or 32 need a graph a bucket, whatever lengths there are."""
    need_gpu(compile_lane)
    buckets = [(19, 24), (31, 32), (24, 24), (26, 32)]

    with torch.no_grad():
        compile_lane.run(stack().eval(), *(tuple(padded(each, to) for each in batch(length)) for length, to in buckets))


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["cudagraphs"])
def test_every_kernel_is_in_every_step(compile_lane: CompileLane) -> None:
    """A training step launches four norms, one scan, one loss and their backwards, replayed from a CUDA graph."""
    need_gpu(compile_lane)
    from contracts.kernels.launches import launched_by_training

    found = launched_by_training(compile_lane, stack(), *batch())

    expected = {"rms_norm": 4, "scan": 1, "cross_entropy": 1}
    for kernel, times in expected.items():
        assert found[f"{kernel}_forward_kernel"] == times
        assert found[f"{kernel}_backward_kernel"] == times
    assert (found["grouped_product_kernel"], found["grouped_weight_gradient_kernel"]) == (4, 2)
