"""Serving: a decoder that is called step by step, and writes to its cache in place."""

import torch
from torch import nn

from pytest_compilecontract import compile_contract


class Decoder(nn.Module):
    """One layer of attention over a cache of fixed length."""

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.register_buffer("keys", torch.zeros(longest, width))
        self.register_buffer("values", torch.zeros(longest, width))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        self.keys.index_copy_(0, at, key)
        self.values.index_copy_(0, at, value)
        scores = query @ self.keys.T
        seen = torch.arange(len(self.keys), device=x.device) <= at
        return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ self.values


@compile_contract(fullgraph=True, max_recompiles=0)
def test_each_step_runs_the_same_code(compile_lane):
    """The position is a tensor: with a Python int each step would be compiled again."""
    steps = [(torch.randn(1, 16), torch.tensor([at])) for at in range(5)]

    with torch.no_grad():
        compile_lane.run(Decoder(16, longest=8), *steps)
