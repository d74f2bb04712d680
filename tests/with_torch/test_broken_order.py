"""What the contracts of wrapper order catch: each test plants the fault that one of them is there for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from holding import hold, hold_contract, kept_limits
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from contracts import test_policy_order as contracts
from contracts.policies import order
from contracts.policies.order import OrderError
from pytest_compilecontract.measure.compile_lane import CompileLane

pytestmark = pytest.mark.insides


def test_the_policy_as_it_is_holds(mesh: DeviceMesh) -> None:
    assert hold_contract(contracts.test_distribute_around_compile_is_whole, one_rank=mesh).verdict == "held"


def test_the_wrong_order_breaks_the_contract_of_the_right_one(mesh: DeviceMesh) -> None:
    def body(compile_lane: CompileLane) -> None:
        contracts.wrapped(compile_lane, contracts.compile_around_ddp, mesh)

    verdict, broken = kept_limits(hold(body, max_graphs=1, max_graph_breaks=0, max_recompiles=0))

    assert (verdict, broken["max_graph_breaks=0"]) in [("violated", 2), ("violated", 3)]


def test_the_wrong_order_is_named_where_the_right_one_is_declared(
    monkeypatch: pytest.MonkeyPatch, mesh: DeviceMesh
) -> None:
    monkeypatch.setattr(contracts, "DistributedDataParallel", lambda model: model)

    with pytest.raises(OrderError, match=r"declared distribute around compile, found compile \(torch\.compile\)"):
        hold_contract(contracts.test_distribute_around_compile_is_whole, one_rank=mesh)


def test_an_order_read_on_the_longest_way_alone_is_caught(monkeypatch: pytest.MonkeyPatch, mesh: DeviceMesh) -> None:
    def longest(model: nn.Module, declared: Sequence[str]) -> None:
        found = order.layers(model)
        if tuple(dict.fromkeys(each.kind for each in found)) != tuple(declared):
            raise OrderError("not as declared")

    monkeypatch.setattr(contracts, "check_order", longest)

    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        hold_contract(contracts.test_one_branch_that_is_wrong_is_named, one_rank=mesh)


def test_kinds_that_are_counted_once_hide_what_is_within(monkeypatch: pytest.MonkeyPatch, mesh: DeviceMesh) -> None:
    monkeypatch.setattr(order, "kinds", lambda found: tuple(dict.fromkeys(each.kind for each in found)))

    with pytest.raises(OrderError):
        hold_contract(contracts.test_a_kind_that_comes_again_is_declared_again, one_rank=mesh)
