"""What the contracts of regional compile catch: each test plants the fault that one of them is there for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from holding import hold_contract, kept_limits
from torch import nn

from contracts import test_policy_regional as contracts
from contracts.policies.regional import Block

pytestmark = pytest.mark.insides


def test_the_policy_as_it_is_holds() -> None:
    assert hold_contract(contracts.test_equal_blocks_are_compiled_once).verdict == "held"


def test_the_whole_model_compiled_is_not_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(model: nn.Module, region: type[nn.Module], compile_region: Callable[..., Any]) -> nn.Module:
        compile_region(model)
        return model

    monkeypatch.setattr(contracts, "compile_regions", whole)

    with pytest.raises(AssertionError, match="assert 2 == 8"):
        hold_contract(contracts.test_equal_blocks_are_compiled_once)


def test_a_wrapper_in_the_place_of_the_block_renames_the_state_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrapped(model: nn.Module, region: type[nn.Module], compile_region: Callable[..., Any]) -> nn.Module:
        for index, each in enumerate(model.blocks):  # type: ignore[arg-type]
            model.blocks[index] = torch.compile(each, backend="aot_eager")  # type: ignore[index, operator]
        return model

    monkeypatch.setattr(contracts, "compile_regions", wrapped)

    verdict, broken = kept_limits(hold_contract(contracts.test_equal_blocks_train_in_one_graph))

    assert verdict == "violated"
    assert "check_state_dict" in " ".join(broken)


def test_a_number_that_differs_from_block_to_block_compiles_each(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(4))

    class Numbered(Block):
        def __init__(self, width: int) -> None:
            super().__init__(width, scale=next(numbers))

    monkeypatch.setattr(contracts, "Block", Numbered)

    verdict, broken = kept_limits(hold_contract(contracts.test_equal_blocks_are_compiled_once))

    assert verdict == "violated"
    assert broken["max_recompiles=0"] == 3
