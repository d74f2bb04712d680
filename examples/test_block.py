"""A block of a model: one graph, and changing lengths do not recompile it again and again."""

import torch
from torch import nn

from pytest_compilecontract import compile_contract


class Block(nn.Module):
    """A feed-forward block with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


@compile_contract(fullgraph=True, max_recompiles=0)
def test_one_length_is_one_graph(compile_lane):
    """Calls of one length run one graph, compiled once."""
    x = torch.randn(4, 16, 32)

    compile_lane.run(Block(32), (x,), (x,), (x,))


@compile_contract(fullgraph=True, max_recompiles=1)
def test_other_lengths_compile_once_more(compile_lane):
    """The second length makes the code dynamic, and all later lengths run that code."""
    lengths = [torch.randn(4, length, 32) for length in (16, 17, 18, 30)]

    compile_lane.run(Block(32), *lengths)
