"""A mixture of experts by a grouped GEMM of our own, a custom operator: opaque to Inductor too, and it runs anywhere.

Numerics: a token that rounding moves to another expert is no rounding error. Each contract here says how it makes sure
that none is moved (see contracts/models/routing.py).
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.devices import GPU, STEADY, need_gpu
from contracts.models.routing import DECIDED, decide, smallest_margin
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

WIDTH = 48
EXPERTS = 4


def layer():  # type: ignore[no-untyped-def]
    """An expert layer; without a GPU Triton interprets its kernels, which a custom operator can run compiled."""
    pytest.importorskip("triton", reason="Triton is not installed")
    hybrid = pytest.importorskip("contracts.models.hybrid", exc_type=ImportError)
    return hybrid.ExpertLayer(WIDTH, EXPERTS)


def routed(tokens: int = 19) -> tuple[Tensor, Tensor]:
    """Tokens, and the two experts that each is to go to; one expert gets none."""
    first = torch.randint(2, (tokens,))
    return torch.randn(tokens, WIDTH), torch.stack([first, (first + 1) % 3], dim=1)


@compile_contract(
    fullgraph=True,
    max_graphs=1,
    max_recompiles=0,
    cudagraphs="required",
    lanes=["capture", "aot", "float32", "bf16", "cudagraphs"],
)
def test_infers_with_the_routing_given(compile_lane: CompileLane) -> None:
    """Eager and compiled are given the same routing: what is compared is sorting, both products and the gates."""
    with torch.no_grad():
        compile_lane.run(layer().eval(), *(routed() for _ in range(4)))


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, cudagraphs="required", lanes=["aot", *GPU])
def test_trains_with_a_router_that_has_decided(compile_lane: CompileLane) -> None:
    """The router chooses, and is trained: at every step its choice is farther from a tie than rounding reaches."""
    model = layer()
    embedding = torch.empty(32, WIDTH)
    decide(model.router.weight, embedding)
    batches = [(embedding[torch.randint(32, (2, 9))], torch.randn(2, 9, WIDTH)) for _ in range(4)]

    def steps(twin: torch.nn.Module) -> None:
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.01)
        for x, target in batches:
            F.mse_loss(twin.double()(x.double()), target.double()).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert smallest_margin(model, ["router"], steps) > DECIDED
    seen = compile_lane.train(model, batches, loss=F.mse_loss)

    assert seen.backward_graphs == 1


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, **STEADY, lanes=["dynamic"])
def test_a_free_number_of_tokens(compile_lane: CompileLane) -> None:
    """With dynamic=True one graph serves every number of tokens, and however many each expert gets."""
    with torch.no_grad():
        compile_lane.run(layer().eval(), *(routed(tokens) for tokens in (19, 5, 40, 64)))


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["float32", "cudagraphs"])
def test_each_kernel_runs_as_often_as_eager_runs_it(compile_lane: CompileLane) -> None:
    """A training step has two products forward, two back, and two gradients of weights; from a CUDA graph too."""
    need_gpu(compile_lane)
    from contracts.kernels.launches import launched_by_training

    found = launched_by_training(compile_lane, layer(), *routed())

    assert (found["grouped_product_kernel"], found["grouped_weight_gradient_kernel"]) == (4, 2)
