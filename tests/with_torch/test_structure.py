"""Placements, keys, saved bytes and recomputed graphs: what each is on a small model, and the faults that they show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from with_torch.holding import hold, kept_limits, measured

from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.metrics import count_of
from pytest_compilecontract.measure.probes.fake_group import no_fake_group
from pytest_compilecontract.measure.saved import saving
from pytest_compilecontract.measure.structure import Structure, placed_in, structure_of

pytestmark = pytest.mark.insides

Compile = Callable[..., Any]
PLAN: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


@pytest.fixture
def ranks() -> Iterator[int]:
    """A group of two ranks that moves no data."""
    assert no_fake_group() is None
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
    yield 2
    dist.destroy_process_group()
    torch.compiler.reset()


# Placements


def words(found: Structure) -> dict[str, str]:
    return found.placements(found)


@pytest.mark.usefixtures("ranks")
def test_a_placement_names_each_dimension_of_the_mesh_and_its_shape() -> None:
    mesh = init_device_mesh("cpu", (2, 1))
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(distribute_tensor(model.weight, mesh, [Shard(0), Replicate()]))

    assert words(placed_in(model)) == {"weight": "Shard(0), Replicate on 2 x 1", "bias": "a plain tensor"}


@pytest.mark.usefixtures("ranks")
def test_a_strided_shard_is_a_shard() -> None:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    model = Block()
    parallelize_module(model, mesh["tensor"], PLAN)
    fully_shard(model, mesh=mesh["data"])

    assert words(placed_in(model))["up.weight"] == "Shard(0), Shard(0) on 1 x 2"


def test_without_ranks_nothing_is_placed() -> None:
    assert words(placed_in(Block())) == {}


def test_modules_in_what_a_body_returns_are_found_and_numbered() -> None:
    found = structure_of([torch.ones(2), {"one": nn.Linear(2, 2), "other": (nn.ReLU(), nn.Linear(2, 2, bias=False))}])

    assert found.types == ("Linear", "ReLU", "Linear")
    assert found.keys == ("0.weight", "0.bias", "2.weight")


class Unsaved(nn.Linear):
    """A module that has no state dict."""

    def state_dict(self, *_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("nothing to save")


@pytest.mark.parametrize("asked", [True, False])
def test_a_module_without_a_state_dict_may_be_returned_and_has_no_keys_to_hold(asked: bool) -> None:
    limits = {"check_state_dict": True} if asked else {}

    entry = hold(
        lambda lane: lane.compare(lambda compile: (Unsaved(2, 2), compile(torch.sin)(torch.ones(2)))), **limits
    )

    why = "Unsaved.state_dict() raises RuntimeError: nothing to save"
    assert measured(entry).unmeasured["state_change"] == why
    assert [each.name for each in entry.violations] == ["check_state_dict"] * asked


@pytest.mark.usefixtures("ranks")
def test_a_dtensor_that_is_returned_alone_is_placed() -> None:
    mesh = init_device_mesh("cpu", (2,))

    found = structure_of((torch.ones(2), DTensor.from_local(torch.ones(2), mesh, [Shard(0)])))

    assert words(found) == {"output[1]": "Shard(0) on 2"}


@pytest.fixture
def four_ranks() -> Iterator[int]:
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=4)
    yield 4
    dist.destroy_process_group()


@pytest.mark.usefixtures("four_ranks")
def test_two_meshes_of_one_shape_are_told_apart_by_their_ranks() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    data, tensor = (
        structure_of(DTensor.from_local(torch.ones(2), mesh[name], [Shard(0)])) for name in ("data", "tensor")
    )

    assert data.placements(tensor) == {"output": "Shard(0) on 2 of ranks 0, 2"}
    assert tensor.placements(data) == {"output": "Shard(0) on 2 of ranks 0, 1"}
    assert data.placements(data) == {"output": "Shard(0) on 2"}


@pytest.mark.usefixtures("ranks")
def test_sums_that_are_still_to_be_made_are_told_by_how() -> None:
    mesh = init_device_mesh("cpu", (2,))
    summed, averaged = (structure_of(DTensor.from_local(torch.ones(2), mesh, [Partial(by)])) for by in ("sum", "avg"))

    assert words(summed) == {"output": "Partial(sum) on 2"}
    assert words(averaged) == {"output": "Partial(avg) on 2"}


class Gathered(nn.Linear):
    """A module whose state dict is made of what other ranks have, as that of FSDP1 is."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        dist.all_reduce(torch.ones(1))
        return super().state_dict(*args, **kwargs)


@pytest.mark.usefixtures("ranks")
def test_collectives_of_a_state_dict_that_the_test_has_not_asked_for_are_not_its_own() -> None:
    fake = Lane(name="fake", backend="aot_eager", ranks=2, process_group="fake")

    def returns(compile: Compile) -> Any:
        y = compile(torch.sin)(torch.ones(2))
        dist.all_gather([torch.empty(2), torch.empty(2)], y)
        return Gathered(2, 2), y

    entry = hold(lambda lane: lane.compare(returns), lane=fake, numerics=None, max_collectives=1)

    assert kept_limits(entry) == ("held", {})
    assert measured(entry).collectives_made == 1


def planned(compile: Compile, *, wrapped: bool) -> nn.Module:
    """A tensor-parallel model whose plan names blocks by their paths, which wrapped blocks have lost."""
    model = nn.Sequential(Block(), Block())
    if wrapped:
        for number in range(2):
            model[number] = compile(model[number])
    plan = {f"{number}.{name}": style for number in range(2) for name, style in PLAN.items()}
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    if not wrapped:
        for block in model:
            compile(block, in_place=True)
    model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    return model


@pytest.mark.usefixtures("ranks")
def test_a_plan_that_finds_its_blocks_holds() -> None:
    entry = hold(
        lambda lane: lane.compare(partial(planned, wrapped=False)), same_placements=True, check_state_dict=True,
        numerics=None,
    )  # fmt: skip

    assert kept_limits(entry) == ("held", {})
    found = measured(entry).placements
    assert found is not None
    assert found.compiled == found.eager
    assert found.compiled["0.up.weight"] == "Shard(0) on 2"
    assert (found.total, found.in_eager) == (8, 8)


@pytest.mark.usefixtures("ranks")
@pytest.mark.filterwarnings("ignore:.*could not be resolved")
def test_a_plan_that_loses_its_blocks_is_named_by_parameter() -> None:
    entry = hold(
        lambda lane: lane.compare(partial(planned, wrapped=True)), same_placements=True, check_state_dict=True,
        numerics=None,
    )  # fmt: skip

    said = {each.limit: each for each in entry.violations}
    assert said["same_placements=True"].measured == "8 parameters not placed as in eager"
    assert said["same_placements=True"].facts[0] == ("0.up.weight: Shard(0) on 2 in eager, a plain tensor compiled",)
    assert said["check_state_dict=True"].measured == "changed by compiling"


@pytest.mark.usefixtures("ranks")
@pytest.mark.filterwarnings("ignore:.*could not be resolved")
def test_a_plan_that_finds_nothing_in_eager_either_does_not_hold() -> None:
    def body(compile: Compile) -> nn.Module:
        model = nn.Sequential(Block())
        parallelize_module(model, init_device_mesh("cpu", (2,)), {"renamed.up": ColwiseParallel()})
        compile(model)(torch.ones(2, 4))
        return model

    entry = hold(lambda lane: lane.compare(body), same_placements=True, numerics=None)

    assert kept_limits(entry) == (
        "violated", {"same_placements=True": "no parameter is a DTensor, in eager either"},
    )  # fmt: skip


@pytest.mark.usefixtures("ranks")
def test_a_body_that_returns_no_module_says_so() -> None:
    def body(compile: Compile) -> Tensor:
        return compile(Block())(torch.ones(2, 4)).detach()  # type: ignore[no-any-return]

    entry = hold(lambda lane: lane.compare(body), same_placements=True, check_state_dict=True, numerics=None)

    assert kept_limits(entry)[1] == {
        "same_placements=True": (
            f"cannot be measured on torch {torch.__version__}: the body returns no module and no DTensor"
        ),
        "check_state_dict=True": f"cannot be measured on torch {torch.__version__}: the body returns no module",
    }


# Bytes saved for the backward


def test_a_storage_is_counted_once_while_it_is_saved() -> None:
    x = torch.ones(8, requires_grad=True)

    with saving() as found:
        y = x * 2
        (y.sin() + y.cos()).sum().backward()
        (y.detach().requires_grad_() * 1).sin().sum().backward()

    assert found.without(frozenset()) == 2 * 8 * 4  # y for two operators, and the copy of it after the first backward


@pytest.mark.usefixtures("ranks")
def test_of_a_dtensor_the_local_shard_is_counted() -> None:
    mesh = init_device_mesh("cpu", (2,))
    x = DTensor.from_local(torch.ones(4), mesh, [Shard(0)]).requires_grad_()

    with saving() as found:
        loss = (x * 1).sin().sin().sum()

    assert loss.shape == ()
    assert found.without(frozenset()) == 2 * 4 * 4


def test_neither_a_parameter_nor_a_view_of_it_is_counted() -> None:
    linear = nn.Linear(4, 8)

    with saving() as found:
        loss = linear(torch.ones(2, 4)).sum()

    assert loss.requires_grad
    assert found.without(frozenset()) == 2 * 4 * 4  # what came in


@pytest.mark.usefixtures("ranks")
def test_compiled_code_saves_the_shard_of_a_parameter_and_that_is_not_counted() -> None:
    def body(compile: Compile) -> nn.Module:
        model = nn.Sequential(Block(), Block())
        for block in model:
            parallelize_module(block, init_device_mesh("cpu", (2,)), PLAN)
        compile(model)(torch.ones(2, 4)).sum().backward()
        return model

    entry = hold(lambda lane: lane.compare(body), max_saved_ratio=1.0, numerics=None)

    found = measured(entry).saved_bytes
    assert found is not None
    assert (entry.verdict, found.compiled <= found.eager) == ("held", True)


def several(compile: Compile, policy: Callable[[Compile], Callable[..., Any]]) -> list[Tensor]:
    torch.manual_seed(0)
    x = torch.linspace(0, 1, 64).reshape(16, 4).requires_grad_()
    step = policy(compile)
    step(x).square().mean().backward()
    assert x.grad is not None
    return [x.grad]


def kept_whole(compile: Compile) -> Callable[..., Any]:
    return compile(nn.Sequential(Block(), Block(), Block()))  # type: ignore[no-any-return]


def checkpointed(block: Callable[..., Any], context: Callable[..., Any] | None = None) -> Callable[[Tensor], Any]:
    told = {"context_fn": context} if context is not None else {}

    def run(x: Tensor) -> Any:
        return checkpoint(block, x, use_reentrant=False, **told)  # type: ignore[no-untyped-call]

    return run


def checkpoint_inside(compile: Compile) -> Callable[..., Any]:
    blocks = [checkpointed(Block()) for _ in range(3)]

    def run(x: Tensor) -> Tensor:
        for block in blocks:
            x = block(x)
        return x

    return compile(run)  # type: ignore[no-any-return]


def dropped_once_compiled(compile: Compile) -> Callable[..., Any]:
    """A checkpoint that the code leaves out while it is compiled."""
    block = Block()
    whole = checkpointed(block)
    return compile(lambda x: block(x) if torch.compiler.is_compiling() else whole(x))  # type: ignore[no-any-return]


def test_a_checkpoint_within_compiled_code_saves_as_little() -> None:
    entry = hold(lambda lane: lane.compare(partial(several, policy=checkpoint_inside)), max_saved_ratio=1.0)

    assert kept_limits(entry) == ("held", {})
    assert measured(entry).recomputed_graphs == 0


def test_a_checkpoint_that_is_lost_saves_more() -> None:
    entry = hold(lambda lane: lane.compare(partial(several, policy=dropped_once_compiled)), max_saved_ratio=1.0)

    found = measured(entry).saved_bytes
    assert found is not None
    assert found.compiled > found.eager > 0
    assert kept_limits(entry) == (
        "violated",
        {
            "max_saved_ratio=1.0": (
                f"{found.ratio:.3g} ({found.compiled} bytes compiled, {found.eager} bytes eager)"
            )
        },
    )  # fmt: skip


def test_a_run_without_a_backward_keeps_no_limit_on_what_is_saved() -> None:
    entry = hold(lambda lane: lane.run(torch.relu, torch.ones(3)), max_saved_ratio=1.0)

    assert kept_limits(entry) == ("violated", {"max_saved_ratio=1.0": "eager saves nothing for a backward"})


def test_code_that_refuses_hooks_on_saved_tensors_says_so() -> None:
    def gradient(x: Tensor) -> Tensor:
        return torch.func.grad(lambda y: y.sin().sum())(x)  # type: ignore[no-any-return]

    entry = hold(lambda lane: lane.run(gradient, torch.ones(3)), max_saved_ratio=1.0)

    assert "with hooks on saved tensors the run raises RuntimeError" in measured(entry).unmeasured["saved_bytes"]
    assert entry.verdict == "violated"


@pytest.mark.parametrize("where", ["eager", "compiled", "both"])
def test_what_other_hooks_take_is_not_counted_and_so_not_held(where: str) -> None:
    def offloads(compile: Compile) -> Any:
        here = where == "both" or (where == "compiled") == (compile(torch.tanh) is not torch.tanh)
        x = torch.ones(3, requires_grad=True)
        y = compile(torch.exp)(x)
        with save_on_cpu() if here else nullcontext():
            torch.exp(y).sum().backward()
        return x.grad

    entry = hold(lambda lane: lane.compare(offloads), max_saved_ratio=1.0)

    why = "the run has hooks of its own on saved tensors (save_on_cpu), and what they take is not counted"
    assert measured(entry).unmeasured["saved_bytes"] == why
    assert [each.name for each in entry.violations] == ["max_saved_ratio"]


def test_without_a_limit_no_pass_is_made_for_it() -> None:
    entry = hold(lambda lane: lane.run(torch.relu, torch.ones(3)))

    assert measured(entry).unmeasured["saved_bytes"] == "no limit asks for it"


# Graphs that run again in a backward


def saves_products(_context: object, operator: object, *_args: object, **_kwargs: object) -> CheckpointPolicy:
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if operator in products else CheckpointPolicy.PREFER_RECOMPUTE


SELECTIVE = partial(create_selective_checkpoint_contexts, saves_products)


def ignored(compile: Compile) -> Callable[..., Any]:
    """A policy around a compiled block: it sees no operator of the block, and all of it is recomputed."""
    return checkpointed(compile(Block()), SELECTIVE)


def applied(compile: Compile) -> Callable[..., Any]:
    return compile(checkpointed(Block(), SELECTIVE))  # type: ignore[no-any-return]


def test_a_policy_that_a_compiled_block_ignores_is_seen() -> None:
    entry = hold(lambda lane: lane.compare(partial(several, policy=ignored)), max_recomputed_graphs=0)

    assert kept_limits(entry) == ("violated", {"max_recomputed_graphs=0": 1})


def test_a_policy_within_compiled_code_recomputes_no_graph() -> None:
    entry = hold(lambda lane: lane.compare(partial(several, policy=applied)), max_recomputed_graphs=0)

    assert kept_limits(entry) == ("held", {})


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recompute_that_has_a_graph_of_its_own_is_one(reentrant: bool) -> None:
    """Reentrant, the forward runs without gradients, so the graph that recomputes is another one of the frame."""

    def body(compile: Compile) -> Tensor:
        x = torch.ones(2, 4, requires_grad=True)
        checkpoint(compile(nn.Linear(4, 4)), x, use_reentrant=reentrant).sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        return x.grad

    entry = hold(lambda lane: lane.compare(body))

    assert measured(entry).recomputed_graphs == 1


def test_what_only_a_backward_runs_is_not_recomputed() -> None:
    def body(compile: Compile) -> Tensor:
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        scaled = compile(lambda gradient: gradient * 3)
        y.register_hook(lambda gradient: scaled(gradient))
        y.sum().backward()
        assert x.grad is not None
        return x.grad

    seen = measured(hold(lambda lane: lane.compare(body)))

    assert (seen.graphs_executed, seen.recomputed_graphs) == (1, 0)


@pytest.mark.parametrize("policy", [kept_whole, checkpoint_inside, applied])
def test_nothing_compiled_has_no_graph_to_recompute_and_is_noticed(policy: Callable[..., Any]) -> None:
    def body(compile: Compile) -> list[Tensor]:
        return several(lambda target: target, policy)

    entry = hold(lambda lane: lane.compare(body), max_recomputed_graphs=0, max_saved_ratio=1.0)

    assert kept_limits(entry) == ("violated", {"min_ops_captured=1 (default)": 0})


def test_a_module_that_is_returned_may_be_wrapped_and_kept_and_is_no_result() -> None:
    kept = []

    def body(compile: Compile) -> tuple[Tensor, nn.Module]:
        model = compile(Block())
        kept.append(model)
        return model(torch.ones(2, 4)).detach(), model

    entry = hold(lambda lane: lane.compare(body), check_state_dict=True)
    found = measured(entry).numerics

    assert found is not None
    assert found.differences == ()
    assert kept_limits(entry) == ("violated", {"check_state_dict=True": "changed by compiling"})


# Graphs for the backend


def test_ddp_splits_a_graph_by_its_buckets(mesh: DeviceMesh) -> None:
    """One graph of Dynamo, handed to the backend in pieces, so that the gradients of one travel early."""

    def body(compile: Compile) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
        wrapped = nn.parallel.DistributedDataParallel(compile(model), bucket_cap_mb=1)
        wrapped(torch.ones(2, 512)).square().mean().backward()
        return [each.grad for each in model.parameters() if each.grad is not None]

    seen = measured(hold(lambda lane: lane.compare(body)))

    assert mesh.size() == 1
    assert (seen.graphs, seen.backend_calls) == (1, 4)
    assert count_of("backend_calls", seen) == 4
    assert count_of("backend_calls", replace(seen, backend_calls=1)) is None
