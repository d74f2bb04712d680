"""Policy: what is said to be fused is counted as it runs: kernels and bytes of a call, from cold and warm caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.policies.fusion import MARKED, Projected, Ran, energy, gated, normalised, ran
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

ROWS, WIDTH = 32, 64
FUSED: list[Callable[[Tensor, Tensor], Tensor]] = [gated, energy, normalised]


def two(compile_lane: CompileLane) -> tuple[Tensor, Tensor]:
    """Two tensors of 8 KiB."""
    return (
        torch.randn(ROWS, WIDTH, device=compile_lane.device),
        torch.randn(ROWS, WIDTH, device=compile_lane.device),
    )


def ran_compiled(compile_lane: CompileLane, target: Callable[..., Tensor], *inputs: Tensor) -> tuple[Ran, Tensor]:
    """What a call of the compiled target runs, and its output; the call that compiles is another."""
    if compile_lane.device.type != "cpu":
        pytest.skip("counts Inductor's kernels on the CPU; on a GPU max_kernels does")
    compiled: Any = compile_lane.compile(target, options=MARKED)
    output = compiled(*inputs)
    return ran(lambda: compiled(*inputs)), output


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, lanes=["inductor"])
@pytest.mark.parametrize("fused", FUSED, ids=["pointwise chain", "reduction", "normalisation"])
def test_it_is_one_kernel_and_no_memory_but_its_output(
    compile_lane: CompileLane, fused: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """One kernel of Inductor's, nothing of a library, and no byte allocated that the caller does not get."""
    inputs = two(compile_lane)
    eager = ran(lambda: fused(*inputs))

    with compile_lane.observe(), torch.no_grad():
        seen, output = ran_compiled(compile_lane, fused, *inputs)

    torch.testing.assert_close(output, fused(*inputs))
    assert (len(seen.kernels), seen.operators) == (1, ())
    assert seen.allocated_bytes == output.nbytes
    assert len(eager.operators) > 1
    assert eager.allocated_bytes > output.nbytes


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, lanes=["inductor"])
def test_a_product_and_its_epilogue_are_two(compile_lane: CompileLane) -> None:
    """On the CPU the product is the library's, which takes the bias; activation and scale are one kernel, in place."""
    x, _ = two(compile_lane)
    model = Projected(WIDTH)

    with compile_lane.observe(), torch.no_grad():
        seen, output = ran_compiled(compile_lane, model, x)

    torch.testing.assert_close(output, model(x))
    assert seen.operators == ("aten::addmm",)
    assert len(seen.kernels) == 1
    assert seen.allocated_bytes == output.nbytes


@compile_contract(max_graphs=2, max_recompiles=0, max_graph_breaks=0, lanes=["inductor"])
def test_the_count_is_the_same_from_a_warm_cache(compile_lane: CompileLane) -> None:
    """Compiled a second time out of the cache, the same kernels run: what is counted is no by-product of generating."""
    inputs = two(compile_lane)

    with compile_lane.observe() as seen, torch.no_grad():
        cold, _ = ran_compiled(compile_lane, normalised, *inputs)
        torch.compiler.reset()
        warm, _ = ran_compiled(compile_lane, normalised, *inputs)

    caches = seen.measurement.caches or {}
    assert (caches["fx_graph_miss"], caches["fx_graph_hit"]) == (1, 1)
    assert len(cold.kernels) == 1
    assert warm.kernels == cold.kernels
    assert warm.allocated_bytes == cold.allocated_bytes


@compile_contract(
    max_graphs=1, max_recompiles=0, max_graph_breaks=0, max_kernels=1, max_memory_ratio=1.0, lanes=["inductor"]
)
@pytest.mark.parametrize("fused", FUSED, ids=["pointwise chain", "reduction", "normalisation"])
def test_on_a_card_it_is_one_kernel(compile_lane: CompileLane, fused: Callable[[Tensor, Tensor], Tensor]) -> None:
    """The same on a GPU, where a lane counts kernels by itself."""
    if compile_lane.device.type != "cuda":
        pytest.skip("counts the kernels of a GPU; on the CPU see test_it_is_one_kernel_and_no_memory_but_its_output")

    compile_lane.run(fused, *[two(compile_lane)] * 4)
