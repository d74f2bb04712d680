"""Policy: one fragile function stays opaque, and the block around it stays whole."""

from __future__ import annotations

import pytest
import torch

from contracts.devices import ANYWHERE
from contracts.policies.opaque import Around, smooth_allowed, smooth_disabled, smooth_nonstrict, smooth_op
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

# Not under CUDA graphs: the fragile function waits for the device, which no recording allows.
LANES = [*ANYWHERE, "bf16"]
X = torch.linspace(-1, 1, 32).reshape(4, 8)


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=LANES)
@pytest.mark.parametrize(
    ("middle", "operations"),
    [(smooth_op, 5), (smooth_allowed, 5), (smooth_nonstrict, 6)],
    ids=["custom_op", "allowed", "nonstrict"],
)
def test_the_block_stays_whole(compile_lane: CompileLane, middle: object, operations: int) -> None:
    """As a custom op, allowed in the graph or traced without Dynamo, the function costs no break and no graph.

    It is one operation among the block's four, or two where its inputs are packed for it.
    """
    with torch.no_grad():
        seen = compile_lane.run(Around(middle).eval(), (X,), (X,))  # type: ignore[arg-type]

    assert seen.ops_captured == operations


@compile_contract(max_graphs=2, max_graph_breaks=1, max_recompiles=0, lanes=LANES)
def test_disabled_it_costs_a_break_and_a_graph(compile_lane: CompileLane) -> None:
    """`torch.compiler.disable` runs anything, at the price of one break: two graphs, the function between them."""
    with torch.no_grad():
        seen = compile_lane.run(Around(smooth_disabled).eval(), (X,), (X,))

    assert (seen.graphs, len(seen.graph_breaks or ())) == (2, 1)
