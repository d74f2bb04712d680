"""A fused cross-entropy: an autograd.Function of our own that Dynamo takes whole, loops and all."""

from __future__ import annotations

import pytest
import torch

from contracts.devices import ANYWHERE
from contracts.models.cross_entropy import Head
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

pytestmark = pytest.mark.compile_contract(lanes=ANYWHERE)


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0)
def test_trains_in_one_graph(compile_lane: CompileLane) -> None:
    """Linear layer and cross-entropy in four chunks train in one graph and one backward graph.

    The gradients are those that the forward made. Lane capture compiles no backward, so there the backward graphs are
    not measured.
    """
    batches = [(torch.randn(24, 32), torch.randint(50, (24,))) for _ in range(4)]

    seen = compile_lane.train(Head(), batches)

    assert seen.backward_graphs == (None if compile_lane.name == "capture" else 1)
