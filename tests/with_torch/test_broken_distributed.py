"""What the contracts of ranks catch, in a group of one: each test plants the fault that one of them is there for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from with_torch.holding import hold_contract, measured

from contracts import distributed
from contracts import test_distributed_checkpoint as checkpoints
from contracts import test_distributed_recompute as recompute
from contracts import test_distributed_shards as shards

pytestmark = [pytest.mark.insides, pytest.mark.usefixtures("mesh")]


def missed(contract: Any, **arguments: Any) -> dict[str, object]:
    """What was measured by each limit that is not kept. Collectives are recorded in lanes of several ranks."""
    entry = hold_contract(contract, **arguments)
    return {each.name: each.measured for each in entry.violations if each.name != "same_collectives"}


def test_a_checkpoint_as_it_is_holds(mesh: DeviceMesh) -> None:
    assert mesh.size() == 1
    assert missed(checkpoints.test_what_some_ranks_save_others_resume) == {}


def test_an_optimizer_whose_state_is_not_resumed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = checkpoints.dcp.load

    def of_weights(state: dict[str, Any], **how: Any) -> None:
        whole({"model": state["model"]}, **how)

    monkeypatch.setattr(checkpoints.dcp, "load", of_weights)

    assert [*missed(checkpoints.test_what_some_ranks_save_others_resume)] == ["numerics"]


def test_a_model_that_is_not_resumed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "loaded", lambda *_args, **_how: None)

    assert [*missed(checkpoints.test_what_some_ranks_save_others_resume)] == ["numerics"]


def test_a_checkpoint_around_what_is_compiled_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "checkpoint_inside", recompute.checkpoint_outside)

    found = missed(recompute.test_a_checkpoint_that_is_compiled_recomputes_within_its_graph)

    assert found == {"max_recomputed_graphs": 9}


def test_a_checkpoint_that_is_left_out_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out in the compiled run alone: with it in neither, nothing differs from eager."""
    inside = recompute.checkpoint_inside

    def forgetful(stack: Any, compile: Any) -> nn.Module:
        if compile.__name__ == "uncompiled":
            return inside(stack, compile)
        distributed.compile_blocks(stack, compile)
        return distributed.fsdp(stack)

    monkeypatch.setattr(recompute, "checkpoint_inside", forgetful)

    assert "max_saved_ratio" in missed(recompute.test_a_checkpoint_that_is_compiled_recomputes_within_its_graph)


def test_blocks_that_are_not_compiled_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "compile_blocks", lambda *_args: None)

    assert missed(shards.test_fsdp_with_shards_that_are_uneven_and_empty, ranks=1) == {"min_ops_captured": 0}


def test_sharding_that_the_compiled_run_leaves_out_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []

    def sometimes(stack: nn.Module) -> nn.Module:
        runs.append(1)
        compiled = any(getattr(each, "_compiled_call_impl", None) is not None for each in stack.modules())
        return stack if compiled else distributed.fsdp(stack)

    monkeypatch.setattr(shards, "fsdp", sometimes)

    entry = hold_contract(shards.test_fsdp_with_shards_that_are_uneven_and_empty, ranks=1)

    found = measured(entry).placements
    assert found is not None
    assert (found.total, found.in_eager) == (0, 12)
    assert "same_placements" in {each.name for each in entry.violations}
    assert runs


def test_gradients_that_are_not_clipped_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clipped in one process and not in the ranks: only what one process learns tells."""
    whole = shards.clipped

    def never(model: nn.Module) -> Any:
        is_alone = not any(isinstance(each, torch.distributed.tensor.DTensor) for each in model.parameters())
        return whole(model) if is_alone else distributed.whole(torch.nn.utils.get_total_norm(
            [each.grad for each in model.parameters() if each.grad is not None]
        ))  # fmt: skip

    monkeypatch.setattr(shards, "clipped", never)

    assert [*missed(shards.test_fsdp_with_shards_that_are_uneven_and_empty, ranks=1)] == ["numerics"]
