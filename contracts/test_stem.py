"""A convolution stem with batch normalisation: buffers that move in training and stay in inference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from contracts.devices import ANYWHERE
from contracts.models.stem import ConvStem
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

pytestmark = pytest.mark.compile_contract(lanes=ANYWHERE)


def images() -> tuple[Tensor]:
    """Two small images, as the arguments of a call."""
    return (torch.randn(2, 3, 32, 32),)


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0)
def test_trains_in_one_graph(compile_lane: CompileLane) -> None:
    """A stem trains in one graph; its running means, variances and batch counts move as eager's do.

    Lane capture compiles no backward, so there the backward graphs are not measured.
    """
    seen = compile_lane.train(ConvStem(), [images() for _ in range(4)])

    assert seen.backward_graphs == (None if compile_lane.name == "capture" else 1)


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0)
def test_infers_in_one_graph(compile_lane: CompileLane) -> None:
    """A stem infers in one graph, and no buffer moves."""
    with torch.no_grad():
        compile_lane.run(ConvStem().eval(), *(images() for _ in range(4)))
