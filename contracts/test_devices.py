"""One contract on several devices: Inductor, and XLA beside it, hold a model to the same keys and the same numbers.

Each lane of XLA runs in a process of its own, with its own torch. `ci/xla` makes the environments; without them these
lanes are unmeasured, with the command that installs what is absent.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

XLA = ("xla-torchax", "xla-lazy", "xla-openxla")

pytestmark = pytest.mark.compile_contract(lanes=("aot", "inductor", *XLA), same_as="inductor")


class Block(nn.Module):
    """A feed-forward block with a norm and a residual."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return y


@compile_contract(max_recompiles=0, max_graph_breaks=0, max_graphs=1)
def test_calls_of_one_shape_are_one_program_on_each_device(compile_lane: CompileLane) -> None:
    """Three batches of one shape are one graph of Inductor's, and one program of XLA's."""
    torch.manual_seed(0)

    seen = compile_lane.run(Block(), *[torch.randn(8, 16) for _ in range(3)])

    assert [each.phase for each in seen.calls or ()] == ["cold", "steady", "steady"]


@compile_contract(max_recompiles=0, max_graph_breaks=0)
def test_steps_of_training_learn_the_same_on_each_device(compile_lane: CompileLane) -> None:
    """Three steps: forward and backward are compiled once each, and every gradient is that of eager."""
    torch.manual_seed(0)

    seen = compile_lane.train(Block(), [torch.randn(8, 16) for _ in range(3)])

    assert seen.backward_graphs == 1
