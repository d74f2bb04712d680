"""What the contracts of local views catch: each test plants the fault that one of them is there for."""

from __future__ import annotations

import pytest
import torch
from holding import hold_contract
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from contracts import test_policy_local_views as contracts
from contracts.policies import local_views
from contracts.policies.local_views import local_view

pytestmark = pytest.mark.insides


def test_the_policy_as_it_is_holds(mesh: DeviceMesh) -> None:
    entry = hold_contract(contracts.test_the_same_code_is_one_graph, one_rank=mesh, made=contracts.spread)

    assert entry.verdict == "held"


def test_a_view_that_is_a_copy_is_caught(monkeypatch: pytest.MonkeyPatch, mesh: DeviceMesh) -> None:
    monkeypatch.setattr(local_views, "local_view", lambda tensor: local_view(tensor).clone())

    with pytest.raises(AssertionError, match=r"0\.25"):
        hold_contract(
            contracts.test_what_is_written_into_a_view_is_in_the_parameter, one_rank=mesh, made=contracts.spread
        )


def test_a_view_that_loses_the_gradient_is_caught(monkeypatch: pytest.MonkeyPatch, mesh: DeviceMesh) -> None:
    monkeypatch.setattr(local_views, "local_view", lambda tensor: local_view(tensor).detach())

    with pytest.raises((AssertionError, RuntimeError)):
        hold_contract(
            contracts.test_what_is_written_into_a_view_is_in_the_parameter, one_rank=mesh, made=contracts.spread
        )


def test_a_view_that_is_asked_for_outside_of_the_graph_is_caught(
    monkeypatch: pytest.MonkeyPatch, mesh: DeviceMesh
) -> None:
    @torch.compiler.disable
    def outside(tensor: Tensor) -> Tensor:
        return local_view(tensor)

    monkeypatch.setattr(local_views, "local_view", outside)

    entry = hold_contract(contracts.test_the_same_code_is_one_graph, one_rank=mesh, made=contracts.spread)

    assert entry.verdict == "violated"
    assert "fullgraph=True" in [each.limit for each in entry.violations]
