"""Policy: what depends on the data has shapes that do not, or is asked outside of the region."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from torch import Tensor, nn

from contracts.devices import POLICY
from contracts.policies.conditional import Branching, Either, Experts, LoopedExperts, Outside, compile_paths
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

WIDTH = 8


def tokens(count: int = 12) -> Tensor:
    """Tokens of 8 channels."""
    return torch.randn(count, WIDTH)


def two_moods() -> list[tuple[Tensor]]:
    """Batches for both paths, in turn."""
    return [(tokens() * scale,) for scale in (0.1, 10.0, 0.2, 20.0)]


def experts(*, top_k: int = 2, capacity_factor: float = 1.0) -> Experts:
    """Four experts, of which each token has the two likeliest."""
    return Experts(WIDTH, experts=4, top_k=top_k, capacity_factor=capacity_factor)


def looped(model: Experts) -> LoopedExperts:
    """The model by a loop, which drops nothing and leaves no place empty, with the same parameters."""
    loop = LoopedExperts(WIDTH, experts=model.experts, top_k=model.top_k, capacity_factor=1.0)
    loop.load_state_dict(model.state_dict())
    return loop


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=["capture", *POLICY])
def test_a_router_with_capacity_is_one_graph(compile_lane: CompileLane) -> None:
    """Trained, whatever the tokens choose: one graph, no break, no recompile, and gradients as in eager."""
    compile_lane.train(experts(), [(tokens(),) for _ in range(3)], loss=lambda output: output[0].square().mean())


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=["aot"])
def test_an_expert_with_no_tokens_is_no_case_of_its_own(compile_lane: CompileLane) -> None:
    """All tokens to one expert, and three with none: the graph is the same, and its numbers are finite."""
    model = experts(top_k=1)
    crowded = torch.ones(12, WIDTH)

    with compile_lane.observe(), torch.no_grad():
        model.router.weight.copy_(torch.eye(4, WIDTH))
        compiled = compile_lane.compile(model)
        _, spread = compiled(tokens())
        one = torch.zeros_like(crowded)
        one[:, 2] = 5.0
        output, load = compiled(one)

    assert int((spread > 0).sum()) > 1
    assert load.tolist() == [0, 0, 3, 0]
    assert output.isfinite().all()


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=["aot"])
def test_an_expert_with_no_tokens_gets_a_gradient_of_zero(compile_lane: CompileLane) -> None:
    """Not `None` and not NaN: an optimizer steps all experts alike."""
    model = experts(top_k=1)

    with compile_lane.observe():
        with torch.no_grad():
            model.router.weight.zero_()
            model.router.weight[2].fill_(1.0)
        output, load = compile_lane.compile(model)(torch.ones(12, WIDTH))
        output.square().sum().backward()

    assert load.tolist() == [0, 0, 3, 0]
    assert model.up.grad is not None
    assert model.up.grad[2].abs().sum() > 0
    assert not model.up.grad[[0, 1, 3]].any()


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=["aot"])
def test_with_room_for_all_nothing_is_dropped(compile_lane: CompileLane) -> None:
    """With a capacity that takes every token, the output is that of a loop over the experts."""
    model = experts(capacity_factor=4.0)
    x = tokens()

    with compile_lane.observe(), torch.no_grad():
        output, load = compile_lane.compile(model)(x)
        expected, expected_load = looped(model)(x)

    torch.testing.assert_close(output, expected)
    assert load.tolist() == expected_load.tolist()


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=["aot"])
def test_a_full_expert_drops_the_last_and_no_others(compile_lane: CompileLane) -> None:
    """Three places for twelve tokens of one expert: the first three are computed, the others add nothing."""
    model = experts(top_k=1)
    x = tokens().abs()

    with compile_lane.observe(), torch.no_grad():
        model.router.weight.zero_()
        model.router.weight[1].fill_(1.0)
        output, load = compile_lane.compile(model)(x)
        expected, _ = looped(model)(x)

    assert load.tolist() == [0, 3, 0, 0]
    torch.testing.assert_close(output[:3], expected[:3])
    assert not output[3:].any()


@compile_contract(max_graphs=0, min_ops_captured=0, max_graph_breaks=1, max_eager_frames=1, lanes=["aot"])
def test_a_loop_over_the_tokens_of_each_expert_compiles_nothing(compile_lane: CompileLane) -> None:
    """Why not so: how many tokens an expert has is known from the data alone, and a break in a loop loses the frame."""
    seen = compile_lane.run(looped(experts()), (tokens(),), (tokens(),))

    assert len(seen.eager_frames or ()) == 1


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=["capture", "aot"])
def test_cond_is_one_graph_for_both_paths(compile_lane: CompileLane) -> None:
    """`torch.cond`: both paths trained in turn, one graph, and the path not taken has a gradient of zero."""
    compile_lane.train(Either(WIDTH), two_moods())


@compile_contract(max_graphs=3, max_graph_breaks=1, max_recompiles=0, lanes=["aot"])
def test_a_branch_inside_breaks_the_region(compile_lane: CompileLane) -> None:
    """Why not so: an `if` on a tensor costs a break, and a graph more for each path."""
    seen = compile_lane.run(Branching(WIDTH), *two_moods())

    assert (seen.graphs, len(seen.graph_breaks or ())) == (3, 1)


@compile_contract(max_graphs=1, max_graph_breaks=0, max_recompiles=0, lanes=["capture", "aot"])
def test_a_branch_outside_is_no_break(compile_lane: CompileLane) -> None:
    """Asked outside, each path is whole; two paths of equal layers even share their graph."""
    in_place = functools.partial(compile_paths, compile_path=functools.partial(compile_lane.compile, in_place=True))

    compile_lane.run(Outside(WIDTH), *two_moods(), compile_with=in_place)


@compile_contract(max_graphs=1, min_ops_captured=0, lanes=["aot"])
def test_a_layer_of_torchs_own_in_place_is_compiled_since_2_14(compile_lane: CompileLane) -> None:
    """Why a path is a class of its own: till 2.13 `nn.Linear.compile()` does nothing, for Dynamo skips torch.nn."""
    linear = compile_lane.compile(nn.Linear(WIDTH, WIDTH), in_place=True)

    with compile_lane.observe() as seen:
        linear(tokens())

    assert seen.measurement.graphs == (1 if torch.__version__ >= "2.14" else 0)


@pytest.mark.parametrize(
    ("top_k", "capacity_factor", "message"),
    [
        (5, 1.0, "a token goes to 1 to 4 of 4 experts, not to 5"),
        (0, 1.0, "a token goes to 1 to 4 of 4 experts, not to 0"),
        (2, 0.0, "a capacity factor is more than 0, got 0.0"),
    ],
    ids=["more than there are", "none", "no places"],
)
def test_a_router_that_cannot_be_is_refused(top_k: int, capacity_factor: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        experts(top_k=top_k, capacity_factor=capacity_factor)
