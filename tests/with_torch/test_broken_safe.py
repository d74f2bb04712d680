"""What the contracts of safe compile catch: each test plants the fault that one of them is there for."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from holding import hold_contract, kept_limits
from torch import nn

from contracts import test_policy_safe as contracts
from contracts.policies import safe
from contracts.policies.safe import CompileConfig

pytestmark = pytest.mark.insides

fails = contracts.test_what_fails_leaves_the_model_as_it_was


def test_the_policy_as_it_is_holds() -> None:
    assert hold_contract(contracts.test_what_can_be_trusted_is_compiled_in_place).verdict == "held"


def test_a_trial_on_the_model_itself_is_caught(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(safe, "copy", SimpleNamespace(deepcopy=lambda model: model))
    changes = {"backend": contracts.forward_only}

    with pytest.raises(AssertionError, match="same"):
        hold_contract(fails, caplog=caplog, made=contracts.a_stack, changes=changes, why="step 1, backward: ")


def test_a_trial_without_a_backward_trusts_what_cannot_be_trained(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(AssertionError):
        hold_contract(fails, caplog=caplog, made=contracts.OneWay, changes={"train": False}, why="step 1, backward")


def test_a_trial_that_compares_nothing_is_caught(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(safe.torch, "allclose", lambda *_args, **_kwargs: True)

    with pytest.raises(AssertionError):
        hold_contract(
            fails,
            caplog=caplog,
            made=contracts.a_stack,
            changes={"backend": contracts.off_by_a_little, "train": False},
            why="numerics: step 1: output",
        )


def test_a_wrapper_instead_of_the_model_itself_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrapped(model: nn.Module, _config: CompileConfig, _batch: Any) -> nn.Module:
        return torch.compile(model, backend="aot_eager")  # type: ignore[return-value]

    monkeypatch.setattr(contracts, "maybe_compile", wrapped)

    verdict, broken = kept_limits(hold_contract(contracts.test_what_can_be_trusted_is_compiled_in_place))

    assert verdict == "violated"
    assert "check_state_dict" in " ".join(broken)


@pytest.mark.parametrize("wrong", ["gradient", "output", "buffer"])
def test_a_trial_that_reads_the_first_output_alone_is_caught(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    steps = safe._steps

    def first_alone(*arguments: Any, **named: Any) -> Any:
        for seen in steps(*arguments, **named):
            yield {"output[0]": seen["output[0]"]}

    monkeypatch.setattr(safe, "_steps", first_alone)

    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        hold_contract(contracts.test_what_is_easily_overlooked_is_compared, wrong=wrong, why="numerics: step 1")


@pytest.mark.parametrize("made", [contracts.Writes, contracts.a_stack], ids=["written", "gradient"])
def test_a_trial_on_the_callers_batch_is_caught(monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    monkeypatch.setattr(safe, "_fresh", lambda batch: batch)

    with pytest.raises((AssertionError, safe.CompileError)):
        hold_contract(contracts.test_the_batch_is_the_callers, made=made)


def test_random_streams_that_are_not_put_back_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe.torch.random, "fork_rng", contextlib.nullcontext)

    with pytest.raises((AssertionError, safe.CompileError)):
        hold_contract(contracts.test_dropout_under_the_same_random_streams_is_trusted)


def test_labels_that_are_padded_as_if_they_counted_are_caught(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(safe.PADDING, "labels", 0)

    with pytest.raises(AssertionError, match="not close"):
        hold_contract(contracts.test_padded_tokens_are_as_many_graphs_as_lengths, caplog=caplog)


def test_tokens_that_stay_as_long_as_they_are_compile_each_length(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(contracts, "pad_tokens", lambda batch, _multiple_of: batch)

    entry = hold_contract(contracts.test_padded_tokens_are_as_many_graphs_as_lengths, caplog=caplog)

    assert entry.verdict == "violated"
