"""Policy: compile the block that repeats, in place. N equal blocks are one graph, and the model stays what it was."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contracts.devices import ANYWHERE
from contracts.policies.regional import Block, ScaledBlock, Stack, compile_regions
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

WIDTH = 16


def tokens() -> Tensor:
    """Five rows of 16 channels: what moves them by one in each of four blocks does not bring them back."""
    return torch.randn(5, WIDTH)


def in_place(compile_lane: CompileLane) -> Callable[[Any], Any]:
    """Compiles the blocks of a stack where they are."""
    compile_region = functools.partial(compile_lane.compile, in_place=True)
    return functools.partial(compile_regions, region=Block, compile_region=compile_region)


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, check_state_dict=True, lanes=ANYWHERE)
def test_equal_blocks_are_compiled_once(compile_lane: CompileLane) -> None:
    """Four equal blocks share one graph; the model is the same object with the same keys."""
    stack = Stack([Block(WIDTH) for _ in range(4)], WIDTH)

    seen = compile_lane.run(stack, (tokens(),), (tokens(),), compile_with=in_place(compile_lane))

    assert seen.graphs_executed == 8


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, check_state_dict=True, lanes=ANYWHERE)
def test_equal_blocks_train_in_one_graph(compile_lane: CompileLane) -> None:
    """Trained, the four blocks share a forward and a backward graph."""
    stack = Stack([Block(WIDTH) for _ in range(4)], WIDTH)

    compile_lane.train(stack, [(tokens(),), (tokens(),)], compile_with=in_place(compile_lane))


@compile_contract(max_graphs=2, max_recompiles=1, max_graph_breaks=0, lanes=["aot"])
def test_a_first_input_without_a_gradient_costs_a_graph(compile_lane: CompileLane) -> None:
    """With no stem before it, the first block alone is given a tensor that needs no gradient: code of its own."""
    stack = Stack([Block(WIDTH) for _ in range(4)], WIDTH)
    stack.stem = nn.Identity()

    seen = compile_lane.run(stack, (tokens(),), (tokens(),), compile_with=in_place(compile_lane))

    assert [each.kind for each in seen.recompiles or ()] == ["instance"]


@compile_contract(max_graphs=4, max_recompiles=3, max_graph_breaks=0, lanes=["aot"])
@pytest.mark.parametrize("differ", ["scale", "layer_idx"])
def test_an_attribute_that_differs_compiles_each_block(compile_lane: CompileLane, differ: str) -> None:
    """An int that differs from block to block is a constant of each: no two blocks share their code."""
    stack = Stack([Block(WIDTH, **{differ: index + 1}) for index in range(4)], WIDTH)

    seen = compile_lane.run(stack, (tokens(),), (tokens(),), compile_with=in_place(compile_lane))

    assert len(seen.recompiles or ()) == 3


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, check_state_dict=True, lanes=["aot"])
def test_what_differs_as_a_buffer_shares_the_code(compile_lane: CompileLane) -> None:
    """The mend: the number as a buffer is data, and four blocks of different depth are one graph again."""
    stack = Stack([ScaledBlock(WIDTH, layer_idx=index) for index in range(4)], WIDTH)

    compile_lane.run(stack, (tokens(),), (tokens(),), compile_with=in_place(compile_lane))


@compile_contract(max_graphs=1, max_recompiles=0, lanes=["aot"])
def test_identity_hooks_checkpoints_and_optimizer_outlive_compiling(compile_lane: CompileLane) -> None:
    """Compiled in place, a hook still fires, a checkpoint loads, and an optimizer made before steps the parameters."""
    stack = Stack([Block(WIDTH) for _ in range(2)], WIDTH)
    optimizer = torch.optim.SGD(stack.parameters(), lr=0.1)
    saved = {name: each.clone() for name, each in stack.state_dict().items()}
    fired: list[nn.Module] = []
    stack.blocks[0].register_forward_hook(lambda module, _inputs, _output: fired.append(module))
    before = (id(stack), [id(each) for each in stack.parameters()])

    with compile_lane.observe():
        compile_regions(stack, Block, functools.partial(compile_lane.compile, in_place=True))
        stack(tokens()).square().mean().backward()
        optimizer.step()

    assert (id(stack), [id(each) for each in stack.parameters()]) == before
    assert isinstance(stack.blocks[0], Block)
    assert fired == [stack.blocks[0]]
    assert list(stack.state_dict()) == list(saved)
    assert not torch.equal(stack.head.weight, saved["head.weight"])
    stack.load_state_dict(saved)
    assert torch.equal(stack.head.weight, saved["head.weight"])
