"""A test that compiles by itself: the marker checks what its body compiles, and needs no fixture."""

import torch

from pytest_compilecontract import compile_contract


@compile_contract(max_graph_breaks=0, max_recompiles=0)
def test_compiled_scaling_is_scaling():
    scale = torch.compile(lambda x: x * 2 + 1, backend="aot_eager")

    for _ in range(2):
        assert torch.equal(scale(torch.ones(3)), torch.full((3,), 3.0))
