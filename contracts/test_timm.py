"""Models of `timm`, each of a few blocks, from small configs with random weights and nothing dropped at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.devices import STEADY
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

CLASSES = 10


def vit(of: Any) -> nn.Module:
    """A vision transformer of one block."""
    return of.VisionTransformer(img_size=64, patch_size=16, num_classes=CLASSES, embed_dim=32, depth=1, num_heads=2)


def resnet(of: Any) -> nn.Module:
    """A residual network of four stages, with batch normalisation."""
    channels = (8, 16, 24, 32)
    return of.ResNet(of.resnet.BasicBlock, layers=(1, 1, 1, 1), channels=channels, num_classes=CLASSES)


def convnext(of: Any) -> nn.Module:
    """Large depthwise convolutions and layer normalisation."""
    return of.ConvNeXt(num_classes=CLASSES, depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))


def swin(of: Any) -> nn.Module:
    """Attention in windows of four by four, the second block's moved by half a window."""
    sizes = {"img_size": 64, "patch_size": 4, "window_size": 4, "embed_dim": 16, "depths": (2,), "num_heads": (2,)}
    return of.SwinTransformer(num_classes=CLASSES, drop_path_rate=0.0, **sizes)


each_family = pytest.mark.parametrize("family", [resnet, convnext, swin], ids=["resnet", "convnext", "swin"])


def made(family: Callable[[Any], nn.Module]) -> nn.Module:
    # timm imports torchvision, which some builds of torch have no matching build of.
    return family(pytest.importorskip("timm", exc_type=ImportError).models)


def images(number: int = 4) -> list[tuple[Tensor, Tensor]]:
    """Batches of four small images and their classes."""
    return [(torch.randn(4, 3, 64, 64), torch.randint(CLASSES, (4,))) for _ in range(number)]


@compile_contract(
    fullgraph=True,
    max_graphs=1,
    max_recompiles=0,
    cudagraphs="required",
    lanes=["capture", "aot", "inductor", "autocast", "cudagraphs"],
)
def test_vit_trains_in_one_graph(compile_lane: CompileLane) -> None:
    """A vision transformer trains in one graph and one backward graph.

    Lane capture compiles no backward, so there the backward graphs are not measured.
    """
    seen = compile_lane.train(made(vit), images(), loss=F.cross_entropy)

    assert seen.backward_graphs == (None if compile_lane.name == "capture" else 1)


@each_family
@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, **STEADY, lanes=["cudagraphs"])
def test_infers_in_one_graph(compile_lane: CompileLane, family: Callable[[Any], nn.Module]) -> None:
    """Each family infers in one graph, under CUDA graphs too."""
    with torch.no_grad():
        compile_lane.run(made(family).eval(), *((image,) for image, _ in images()))


@each_family
@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["aot", "float32"])
def test_trains_in_one_graph(compile_lane: CompileLane, family: Callable[[Any], nn.Module]) -> None:
    """Each family trains in one graph and one backward graph."""
    seen = compile_lane.train(made(family), images(3), loss=F.cross_entropy)

    assert seen.backward_graphs == 1
