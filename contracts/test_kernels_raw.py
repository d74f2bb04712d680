"""The same kernels without registration: what a graph makes of a bare Triton launch, and what the operator adds.

A bare launch costs no graph break: Dynamo takes the kernel into the graph. What is missing is the gradient. The launch
writes into a fresh tensor that no autograd node is behind, so whatever comes before the kernel never learns, in eager
and compiled alike, and no comparison of the two can tell.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from contracts.devices import need_gpu
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane


class Around(nn.Module):
    """A linear layer, a kernel, and another linear layer."""

    def __init__(self, kernel: Callable[[Tensor], Tensor], width: int = 48) -> None:
        super().__init__()
        self.kernel = kernel
        self.before = nn.Linear(width, width)
        self.after = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.kernel(self.before(x)))


def bare_rms_norm(x: Tensor) -> Tensor:
    from contracts.kernels.rms_norm import rms_norm_forward_kernel

    y, scale = torch.empty_like(x), torch.empty(x.shape[:-1], device=x.device)
    rms_norm_forward_kernel[(scale.numel(),)](x, torch.ones_like(x[0, 0]), y, scale, x.shape[-1], 1e-6, BLOCK=64)
    return y


def registered_rms_norm(x: Tensor) -> Tensor:
    from contracts.kernels.rms_norm import rms_norm

    return rms_norm(x, torch.ones_like(x[0, 0]))


def bare_cross_entropy(x: Tensor) -> Tensor:
    from contracts.kernels.cross_entropy import BLOCK, IGNORED, cross_entropy_forward_kernel

    rows = x.flatten(0, 1)
    loss = torch.empty(rows.shape[0], device=x.device)
    cross_entropy_forward_kernel[(rows.shape[0],)](
        rows, targets(rows), loss, torch.empty_like(loss), rows.shape[1], IGNORED=IGNORED, BLOCK=BLOCK
    )
    return loss.view(*x.shape[:2], 1).expand_as(x)


def registered_cross_entropy(x: Tensor) -> Tensor:
    from contracts.kernels.cross_entropy import cross_entropy_op

    rows = x.flatten(0, 1)
    return cross_entropy_op(rows, targets(rows))[0].view(*x.shape[:2], 1).expand_as(x)


def targets(rows: Tensor) -> Tensor:
    return torch.arange(rows.shape[0], device=rows.device) % rows.shape[1]


def bare_scan(x: Tensor) -> Tensor:
    from contracts.kernels.scan import CHANNELS, CHUNK, scan_forward_kernel

    (batch, length, channels), states = x.shape, 8
    a, b, d = rates(x, states)
    y = torch.empty_like(x)
    starts = torch.empty((batch, -(-length // CHUNK), channels, states), device=x.device)
    scan_forward_kernel[(batch, -(-channels // CHANNELS))](
        x, torch.ones_like(x), a, b, b, d, y, starts, length, channels, states,
        CHUNK=CHUNK, CHANNELS=CHANNELS, STATES=states,
    )  # fmt: skip
    return y


def registered_scan(x: Tensor) -> Tensor:
    from contracts.kernels.scan import scan

    a, b, d = rates(x, 8)
    return scan(x, torch.ones_like(x), a, b, b, d)


def rates(x: Tensor, states: int) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, channels = x.shape
    a = -torch.ones((channels, states), device=x.device)
    return a, torch.ones((batch, length, states), device=x.device), torch.ones(channels, device=x.device)


def bare_experts(x: Tensor) -> Tensor:
    from contracts.kernels.experts import COLUMNS, INNER, ROWS, grouped_product_kernel

    rows, width = x.flatten(0, 1), x.shape[-1]
    weight, ends = halves(rows)
    y = torch.empty_like(rows)
    grouped_product_kernel[(-(-rows.shape[0] // ROWS) + 2, -(-width // COLUMNS))](
        rows, weight, ends, y, 2, width, width, width * width, width, 1,
        EXPERTS=2, ROWS=ROWS, INNER=INNER, COLUMNS=COLUMNS, PRECISION="ieee",
    )  # fmt: skip
    return y.view_as(x)


def registered_experts(x: Tensor) -> Tensor:
    from contracts.kernels.experts import grouped_product_op

    rows = x.flatten(0, 1)
    return grouped_product_op(rows, *halves(rows)).view_as(x)


def halves(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Two experts, one of which turns its rows around, and the half of the rows that each gets."""
    one = torch.eye(rows.shape[1], device=rows.device)
    return torch.stack([one, -one]), torch.arange(1, 3, device=rows.device) * (rows.shape[0] // 2)


KERNELS = {
    "rms_norm": (bare_rms_norm, registered_rms_norm),
    "cross_entropy": (bare_cross_entropy, registered_cross_entropy),
    "scan": (bare_scan, registered_scan),
    "experts": (bare_experts, registered_experts),
}


@pytest.mark.parametrize("name", KERNELS)
@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, numerics="allclose", lanes=["float32"])
def test_a_bare_launch_is_captured_and_has_no_gradient(compile_lane: CompileLane, name: str) -> None:
    """One graph either way, and right numbers; the layer before a bare launch gets no gradient from it.

    Not held against float64, which a bare kernel would compute in float32 all the same.
    """
    need_gpu(compile_lane)
    bare, registered = (Around(kernel).to(compile_lane.device) for kernel in KERNELS[name])
    registered.load_state_dict(bare.state_dict())
    x = torch.randn(2, 18, 48, device=compile_lane.device)

    compile_lane.run(bare, (x,), (x,))

    torch.testing.assert_close(bare(x), registered(x))
    compiled = compile_lane.compile(bare)
    assert not learns(bare, bare, x)
    assert not learns(compiled, bare, x)
    assert learns(registered, registered, x)


def learns(run: Callable[[Tensor], Tensor], model: Around, x: Tensor) -> bool:
    """Whether a gradient reaches the layer before the kernel."""
    model.zero_grad()
    run(x).square().mean().backward()
    gradient = model.before.weight.grad
    return gradient is not None and bool(gradient.any())
