"""A model of `timm`: a vision transformer of one block, from a small config with random weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0)
def test_trains_in_one_graph(compile_lane: CompileLane) -> None:
    """A vision transformer trains in one graph and one backward graph.

    Lane capture compiles no backward, so there the backward graphs are not measured.
    """
    # timm imports torchvision, which some builds of torch have no matching build of.
    timm = pytest.importorskip("timm", exc_type=ImportError)
    model = timm.models.VisionTransformer(img_size=32, patch_size=8, num_classes=10, embed_dim=32, depth=1, num_heads=2)
    batches = [(torch.randn(2, 3, 32, 32), torch.randint(10, (2,))) for _ in range(4)]

    seen = compile_lane.train(model, batches, loss=F.cross_entropy)

    assert seen.backward_graphs == (None if compile_lane.name == "capture" else 1)
