"""A decoder block: one graph, forward and backward, while the length stays."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.devices import ANYWHERE
from contracts.models.decoder import DecoderBlock, RMSNorm, Rotary
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane


def tokens(length: int = 16) -> Tensor:
    """Two sequences of 32 channels."""
    return torch.randn(2, length, 32)


@compile_contract(
    fullgraph=True,
    max_graphs=1,
    max_recompiles=0,
    cudagraphs="required",
    lanes=[*ANYWHERE, "bf16", "cudagraphs", "autotune"],
)
def test_infers_in_one_graph(compile_lane: CompileLane) -> None:
    """A decoder block infers in one graph, and calls of one shape never compile again."""
    with torch.no_grad():
        compile_lane.run(DecoderBlock().eval(), *((tokens(),) for _ in range(4)))


@compile_contract(fullgraph=True, max_graphs=2, max_recompiles=1, lanes=ANYWHERE)
def test_another_length(compile_lane: CompileLane) -> None:
    """The second length that a decoder block meets compiles once more; after that every length has its graph."""
    with torch.no_grad():
        compile_lane.run(DecoderBlock().eval(), *((tokens(length),) for length in (16, 24, 9, 33)))


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["dynamic"])
def test_a_free_length(compile_lane: CompileLane) -> None:
    """With dynamic=True one graph serves a decoder block at every length, from the first call on."""
    with torch.no_grad():
        compile_lane.run(DecoderBlock().eval(), *((tokens(length),) for length in (16, 24, 9, 33)))


@compile_contract(
    fullgraph=True, max_graphs=1, max_recompiles=0, cudagraphs="required", lanes=[*ANYWHERE, "autocast", "cudagraphs"]
)
def test_trains_in_one_graph(compile_lane: CompileLane) -> None:
    """A decoder block trains with AdamW in one graph and one backward graph.

    Lane capture compiles no backward, so there the backward graphs are not measured.
    """
    batches = [(tokens(), tokens()) for _ in range(4)]

    seen = compile_lane.train(DecoderBlock(), batches, loss=F.mse_loss, optimizer=torch.optim.AdamW)

    assert seen.backward_graphs == (None if compile_lane.name == "capture" else 1)


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, frontier=["capture", "aot", "train", "dynamic"])
def test_climbs_to_training_at_any_length(compile_lane: CompileLane) -> None:
    """Each rung adds something: a backend, a backward and an optimizer, dynamic shapes."""
    compile_lane.run(DecoderBlock(), *((tokens(),) for _ in range(2)))


@compile_contract(capture_targets=[RMSNorm, Rotary], max_graph_breaks=0, lanes=["aot"])
def test_every_part_is_in_a_graph(compile_lane: CompileLane) -> None:
    """No norm and no rotary embedding is left to eager, which the number of graphs would not show."""
    compile_lane.run(DecoderBlock(), (tokens(),))


@compile_contract(keeps_outputs=True, min_speedup=1.0, max_memory_ratio=1.0, lanes=["float32"])
def test_compiling_pays_off_on_a_gpu(compile_lane: CompileLane) -> None:
    """Faster than eager, in no more memory, and a result that is kept over the next step stays as it is."""
    with torch.no_grad():
        x = torch.randn(8, 64, 32, device=compile_lane.device)
        compile_lane.run(DecoderBlock().eval().to(compile_lane.device), *((x,) for _ in range(4)))
