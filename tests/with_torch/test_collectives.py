"""The probe of collectives on small functions: each by its kind, in order, eager and in compiled graphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from pytest_compilecontract.facts.collectives import Collective, Collectives, by_kind, told, told_by_kind
from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.judge.limits import judge
from pytest_compilecontract.measure.numerics.snapshot import TensorLeaf, snapshot
from pytest_compilecontract.measure.probes.collectives import kind_of, left_out, recorded
from pytest_compilecontract.measure.probes.tensors import waited

pytestmark = pytest.mark.insides


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.compiler.reset()


@pytest.mark.usefixtures("group")
def test_what_a_collective_fills_is_the_tensor_that_compiled_code_gives() -> None:
    def reduce(x: Tensor) -> Tensor:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD)

    eager = reduce(torch.ones(4))
    compiled = torch.compile(reduce, backend="aot_eager", fullgraph=True)(torch.ones(4))

    assert type(eager) is not Tensor
    assert type(waited(eager)) is type(compiled) is Tensor
    assert torch.equal(waited(eager), torch.full((4,), 2.0))
    assert waited(compiled) is compiled
    (leaf,) = snapshot(reduce(torch.ones(4)), at="output").nodes.values()
    assert isinstance(leaf, TensorLeaf)
    assert leaf.type == "Tensor"


def reduced(x: Tensor) -> Tensor:
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


@pytest.mark.usefixtures("group")
def test_collectives_are_told_by_kind_in_order() -> None:
    x = torch.ones(4)

    with recorded() as found:
        dist.all_reduce(x)
        dist.all_reduce(x)
        dist.all_gather([torch.empty(4)], x)
        dist.all_gather_into_tensor(torch.empty(4), x)
        dist.reduce_scatter_tensor(torch.empty(4), x)
        dist.broadcast(x, 0)
        dist.all_to_all_single(torch.empty(4), x)
        dist.barrier()

    assert found.collectives is not None
    assert told(found.collectives) == (
        "2 all_reduce, 2 all_gather, 1 reduce_scatter, 1 broadcast, 1 all_to_all, 1 barrier"
    )


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_those_of_a_compiled_graph_are_told_as_those_of_eager(backend: str) -> None:
    compiled = torch.compile(reduced, backend=backend, fullgraph=True)

    with recorded() as eager:
        reduced(torch.ones(4))
    with recorded() as found:
        compiled(torch.ones(4))
        compiled(torch.ones(4))

    assert eager.collectives == (Collective(kind="all_reduce"),)
    assert found.collectives == (Collective(kind="all_reduce", times=2),)


@pytest.mark.usefixtures("group")
def test_those_that_the_test_has_not_called_are_left_out() -> None:
    x = torch.ones(4)

    with recorded() as found:
        dist.all_reduce(x)
        with left_out():
            dist.all_gather([torch.empty(4)], x)
        dist.broadcast(x, 0)

    assert found.collectives is not None
    assert told(found.collectives) == "1 all_reduce, 1 broadcast"


@pytest.mark.usefixtures("group")
def test_those_of_a_backward_are_among_them() -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))

    with recorded() as found:
        model(torch.ones(2, 4)).sum().backward()

    assert found.collectives == (Collective(kind="all_reduce"),)


def test_none_are_none_and_not_unknown() -> None:
    with recorded() as found:
        torch.ones(4).sum()

    assert (found.collectives, found.why) == ((), "")


def test_beside_another_profiler_nothing_is_known() -> None:
    with profile(activities=[ProfilerActivity.CPU]), recorded() as found:
        torch.ones(4).sum()

    assert (found.collectives, found.why) == (None, "torch's profiler is already running")


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("c10d::allreduce_", "all_reduce"),
        ("c10d::allreduce_coalesced_", "all_reduce"),
        ("c10d::_allgather_base_", "all_gather"),
        ("c10d::allgather_into_tensor_coalesced_", "all_gather"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("c10d::recv_any_source_", "recv"),
        ("c10d::of_a_later_torch_", "of_a_later_torch"),
    ],
)
def test_forms_of_an_operator_are_one_kind(operator: str, kind: str) -> None:
    assert kind_of(operator) == kind


def made(*kinds: str) -> tuple[Collective, ...]:
    return tuple(Collective(kind=kind) for kind in kinds)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(max_collectives=3), []),
        (Limits(max_collectives=1), [("max_collectives=1", 3)]),
        (Limits(same_collectives=True), [("same_collectives=True", "not the same as in eager")]),
    ],
)
def test_limits_hold_the_compiled_ones(limits: Limits, said: list[tuple[str, object]]) -> None:
    found = Collectives(compiled=made("all_reduce", "all_gather", "all_reduce"), eager=made("all_reduce", "all_gather"))
    seen = Measurement(graphs=1, ops_captured=1, eager_frames=(), limit_hits=(), collectives=found)

    violations = [each for each in judge(limits, seen, torch_version="2.15.0") if "collectives" in each.name]

    assert [(each.limit, each.measured) for each in violations] == said
    for each in violations:
        assert each.facts == (("compiled: 1 all_gather, 2 all_reduce", "eager: 1 all_gather, 1 all_reduce"),)


def test_another_order_of_the_same_is_no_violation() -> None:
    found = Collectives(compiled=made("all_gather", "all_reduce"), eager=made("all_reduce", "all_gather"))
    seen = Measurement(graphs=1, ops_captured=1, eager_frames=(), limit_hits=(), collectives=found)

    assert judge(Limits(same_collectives=True), seen, torch_version="2.15.0") == ()
    assert by_kind(found.compiled) == {"all_gather": 1, "all_reduce": 1}
    assert told_by_kind(()) == "none"


def test_a_limit_on_what_nothing_recorded_is_a_violation() -> None:
    seen = Measurement(graphs=1, ops_captured=1, eager_frames=(), limit_hits=())

    (violation,) = judge(Limits(same_collectives=True), seen, torch_version="2.15.0")

    assert violation.measured == "cannot be measured on torch 2.15.0: nothing measured it"
