"""What the contracts of wrapper order catch: each test plants the fault that one of them is there for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from holding import hold, hold_contract, kept_limits
from torch.distributed.device_mesh import DeviceMesh

from contracts import test_policy_order as contracts
from contracts.distributed import alone
from contracts.policies.order import OrderError
from pytest_compilecontract.lane import CompileLane


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with alone("cpu") as found:
        yield found


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
