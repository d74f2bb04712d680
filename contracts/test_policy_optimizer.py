"""Policy: the optimizer is a region of its own, its learning rate a tensor, its state there before the first step."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

from contracts.devices import POLICY
from contracts.policies import optimizer as policy
from contracts.policies.optimizer import Muon, decay_groups, make_momentum, step_of
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

# More than Dynamo's recompile limit of 8: an optimizer that compiles at each step runs in eager before the end.
STEPS = 12
MAX_NORM = 0.5
Compile = Callable[..., Any]
Make = Callable[[nn.Module], torch.optim.Optimizer]


def learning_rate() -> Tensor:
    """What every optimizer here is given; without dimensions."""
    return torch.tensor(0.01)


def rate_on(model: nn.Module) -> Any:
    """The learning rate, where the model is."""
    rate = learning_rate()
    return rate.to(next(model.parameters()).device) if isinstance(rate, Tensor) else rate


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    # Compiled, it counts its steps on the device, and leaves `capturable` on: eager is to do the same.
    on_cuda = next(model.parameters()).is_cuda
    return torch.optim.AdamW(decay_groups(model, weight_decay=0.1), lr=rate_on(model), capturable=on_cuda)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    groups = decay_groups(model, weight_decay=0.1)
    return make_momentum(torch.optim.SGD(groups, lr=rate_on(model), momentum=0.9))


def muon(model: nn.Module) -> torch.optim.Optimizer:
    return Muon([each for each in model.parameters() if each.dim() == 2], lr=rate_on(model), weight_decay=0.1)


def network() -> nn.Sequential:
    """Two matrices, two biases, and the scale and shift of a norm."""
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


def backward(model: nn.Module, number: int) -> None:
    """The gradients of a step: each step has its own."""
    x = torch.linspace(-1.0, 1.0 + 0.1 * number, 32).reshape(4, 8).to(next(model.parameters()).device)
    model(x).square().mean().backward()


def steps(
    make: Make,
    *,
    scheduler: Callable[[torch.optim.Optimizer], LRScheduler] | None = None,
    set_to_none: bool = True,
    between: Callable[[nn.Sequential, torch.optim.Optimizer, int], None] = lambda *_: None,
    device: torch.device | None = None,
) -> Callable[[Compile], object]:
    """A body of STEPS steps, under a cosine unless said: the parameters after each, and the state at the end."""

    def body(compile: Compile) -> object:
        model = network().to(device)
        optimizer = make(model)
        schedule = (scheduler or (lambda each: CosineAnnealingLR(each, STEPS)))(optimizer)
        step = compile(step_of(optimizer))
        after: list[object] = []
        for number in range(STEPS):
            between(model, optimizer, number)
            backward(model, number)
            step()
            optimizer.zero_grad(set_to_none=set_to_none)
            schedule.step()
            after.append([each.detach().clone() for each in model.parameters()])
        return after, optimizer.state_dict()

    return body


OPTIMIZERS = pytest.mark.parametrize("make", [adamw, sgd, muon], ids=["adamw", "sgd", "muon"])


# torch breaks twice itself: at a step that a scheduler has wrapped, and inside of its own optimizers.
@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=2, lanes=POLICY)
@OPTIMIZERS
def test_a_scheduled_step_is_compiled_once(compile_lane: CompileLane, make: Make) -> None:
    """Under a scheduler, a step with a tensor as its learning rate is one graph, from the first step to the last."""
    compile_lane.compare(steps(make, device=compile_lane.device))


@compile_contract(max_graphs=2, max_recompiles=0, max_graph_breaks=2, lanes=["aot"])
@pytest.mark.parametrize("make", [adamw, muon], ids=["adamw", "muon"])
def test_clipping_is_compiled_with_the_step(compile_lane: CompileLane, make: Make) -> None:
    """Clipping in the region is one graph more, none of its steps compiles again, and what it is to clip is clipped."""

    def body(compile: Compile) -> object:
        model = network()
        optimizer = make(model)
        step = compile(step_of(optimizer, max_norm=MAX_NORM))
        norms = []
        for number in range(STEPS):
            backward(model, number)
            for each in model.parameters():
                each.grad = 100 * each.grad if each.grad is not None else None
            norm = step()
            norms.append(norm)
            held = [each.grad.norm() for group in optimizer.param_groups for each in group["params"]]
            assert norm is not None
            assert norm > MAX_NORM
            torch.testing.assert_close(torch.stack(held).norm(), torch.tensor(MAX_NORM), rtol=1e-4, atol=0)
            optimizer.zero_grad()
        return norms, [each.detach() for each in model.parameters()]

    compile_lane.compare(body)


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=1, lanes=["aot"])
@pytest.mark.parametrize("make", [adamw, sgd], ids=["adamw", "sgd"])
def test_only_matrices_decay(compile_lane: CompileLane, make: Make) -> None:
    """With gradients of zero, compiled steps shrink every matrix by lr times decay and leave every vector alone."""

    def body(compile: Compile) -> object:
        model = network()
        optimizer = make(model)
        step = compile(step_of(optimizer))
        for each in model.parameters():
            each.grad = torch.zeros_like(each)
        before = [each.detach().clone() for each in model.parameters()]
        step()
        for was, now in zip(before, model.parameters(), strict=True):
            kept = 1 - 0.01 * 0.1 if was.dim() == 2 else 1.0
            torch.testing.assert_close(now.detach(), kept * was)
        return [each.detach() for each in model.parameters()], optimizer.state_dict()

    compile_lane.compare(body)


@compile_contract(max_graphs=2, max_recompiles=1, max_graph_breaks=2, lanes=["aot"])
def test_momentum_that_the_first_step_makes_costs_a_recompile(compile_lane: CompileLane) -> None:
    """SGD as torch makes it has no momentum before its first step: the second is compiled again, and no other."""

    def unmade(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(decay_groups(model, weight_decay=0.1), lr=learning_rate(), momentum=0.9)

    seen = compile_lane.compare(steps(unmade))

    assert len(seen.recompiles or ()) == 1


@compile_contract(max_graphs=2, max_recompiles=1, max_graph_breaks=2, lanes=["aot"])
def test_a_number_as_adamws_learning_rate_costs_a_recompile(compile_lane: CompileLane) -> None:
    """When it first moves, AdamW is compiled again with the number left free; no other value compiles."""
    seen = compile_lane.compare(steps(lambda model: torch.optim.AdamW(list(model.parameters())[:1], lr=0.01)))

    assert len(seen.recompiles or ()) == 1


@compile_contract(allow_recompile_limit=True, max_recompiles=7, max_graph_breaks=2, lanes=["aot"])
@pytest.mark.parametrize("what", ["sgd's learning rate", "adamw's betas"])
def test_a_number_that_moves_ends_in_eager(compile_lane: CompileLane, what: str) -> None:
    """SGD compiles for every value of a learning rate that is a number; so does AdamW when OneCycleLR moves its betas.

    At Dynamo's limit the step is given back to eager, in silence: the numbers stay right.
    """
    body = (
        steps(lambda model: make_momentum(torch.optim.SGD(list(model.parameters())[:1], lr=0.01, momentum=0.9)))
        if what == "sgd's learning rate"
        else steps(
            lambda model: torch.optim.AdamW(list(model.parameters())[:1], lr=learning_rate()),
            scheduler=lambda each: OneCycleLR(each, 0.01, STEPS + 1),
        )
    )

    seen = compile_lane.compare(body)

    assert (len(seen.limit_hits or ()), len(seen.recompiles or ())) == (1, 7)
    assert (seen.graphs_executed or 0) < STEPS


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=2, lanes=["aot"])
def test_one_cycle_that_leaves_the_betas_alone(compile_lane: CompileLane) -> None:
    """The mend: with cycle_momentum=False OneCycleLR only fills the tensor, and nothing compiles again."""
    compile_lane.compare(steps(adamw, scheduler=lambda each: OneCycleLR(each, 0.01, STEPS + 1, cycle_momentum=False)))


@compile_contract(max_graphs=2, max_recompiles=1, max_graph_breaks=2, lanes=["aot"])
@pytest.mark.parametrize("make", [sgd, muon], ids=["sgd", "muon"])
def test_freezing_costs_a_recompile_and_unfreezing_none(compile_lane: CompileLane, make: Make) -> None:
    """A frozen matrix does not move, nor decay, nor does its state; trained again, the first code serves again.

    Its gradient is zeroed and not taken away, but by the policy.
    """

    def between(model: nn.Sequential, optimizer: torch.optim.Optimizer, number: int) -> None:
        weight = model[0].weight
        now = (weight.detach(), optimizer.state[weight])
        if number == 4:
            held.append(copy.deepcopy(now))
        if number == 7:
            torch.testing.assert_close(now, held.pop(), rtol=0, atol=0)
        if number in (4, 7):
            policy.freeze(weight, frozen=number == 4)  # type: ignore[arg-type]

    held: list[object] = []
    seen = compile_lane.compare(steps(make, set_to_none=False, between=between))

    assert len(seen.recompiles or ()) == 1


def saved_and_loaded(load: Callable[[torch.optim.Optimizer, dict[str, Any]], None], make: Make) -> Any:
    """A body that takes the steps from the fourth to the eighth twice, from one checkpoint."""

    def body(compile: Compile) -> object:
        model = network()
        optimizer = make(model)
        scheduler = CosineAnnealingLR(optimizer, STEPS)
        step = compile(step_of(optimizer))

        def to(first: int, end: int) -> list[Tensor]:
            for number in range(first, end):
                backward(model, number)
                step()
                optimizer.zero_grad()
                scheduler.step()
            return [each.detach().clone() for each in model.parameters()]

        to(0, 4)
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), scheduler.state_dict()))
        keys = list(saved[1]["state"][0])
        once = to(4, 8)
        model.load_state_dict(saved[0])
        load(optimizer, saved[1])
        scheduler.load_state_dict(saved[2])
        again = to(4, 8)
        torch.testing.assert_close(again, once, rtol=0, atol=0)
        assert list(optimizer.state_dict()["state"][0]) == keys
        return once, again, optimizer.state_dict()

    return body


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=2, lanes=["aot"])
@OPTIMIZERS
def test_state_loaded_in_place_compiles_nothing(compile_lane: CompileLane, make: Make) -> None:
    """State out between compiled steps and in again, into the same tensors: the same steps again, in the same code."""
    compile_lane.compare(saved_and_loaded(policy.load_in_place, make))


@compile_contract(max_graphs=2, max_recompiles=1, max_graph_breaks=2, lanes=["aot"])
@pytest.mark.parametrize("make", [adamw, sgd], ids=["adamw", "sgd"])
def test_state_loaded_by_torch_costs_a_recompile(compile_lane: CompileLane, make: Make) -> None:
    """`load_state_dict` puts new tensors in place of those that the step was compiled for: compiled again."""
    seen = compile_lane.compare(saved_and_loaded(lambda each, saved: each.load_state_dict(saved), make))

    assert len(seen.recompiles or ()) == 1


@compile_contract(max_eager_frames=1, min_ops_captured=0, lanes=["aot"])
def test_a_fused_step_is_not_compiled(compile_lane: CompileLane) -> None:
    """With fused=True torch leaves the step to its own kernel: no operation of it is captured."""
    seen = compile_lane.compare(steps(lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)))

    assert seen.ops_captured == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda p: make_momentum(torch.optim.SGD([p], momentum=0.9, dampening=0.5)),
            "dampening=0.5 makes a first step ",
        ),
        (lambda p: Muon([p], lr=0.01), "lr is a tensor, got 0.01: a number is compiled again when it moves"),
        (lambda p: Muon([p], lr=learning_rate()), "Muon is for matrices, got a parameter of shape [3]"),
        (
            lambda p: policy.load_in_place(torch.optim.SGD([p]), torch.optim.SGD([p, nn.Parameter(p)]).state_dict()),
            "the optimizer has groups of [1] parameters, the saved state of [2]",
        ),
    ],
    ids=["dampening", "number", "vector", "another optimizer"],
)
def test_what_the_policy_does_not_take_is_refused(make: Callable[[nn.Parameter], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        make(nn.Parameter(torch.ones(3)))
