"""An exception that eager and compiled both raise has to be the same one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from holding import hold
from torch import nn

from pytest_compilecontract.measure.compile_lane import CompileLane
from pytest_compilecontract.measure.probes.backend_errors import same_kind
from pytest_compilecontract.measure.said import said

pytestmark = pytest.mark.insides

X = torch.linspace(-1, 1, 8)
TIMES: list[int] = []


class RefusedError(Exception):
    def __init__(self, message: str, code: object) -> None:
        super().__init__(message)
        self.code = code


class DerivedError(ValueError):
    pass


RAISED: dict[str, tuple[Callable[[], BaseException], Callable[[], BaseException]]] = {
    "message": (lambda: ValueError("a"), lambda: ValueError("b")),
    "type": (lambda: ValueError("a"), lambda: KeyError("a")),
    "derived": (lambda: ValueError("a"), lambda: DerivedError("a")),
    "second-argument": (lambda: ValueError("n", 1), lambda: ValueError("n", 2)),
    "attribute": (lambda: RefusedError("a", 1), lambda: RefusedError("a", 2)),
    "group": (lambda: ExceptionGroup("g", [ValueError(1)]), lambda: ExceptionGroup("g", [KeyError(1)])),
    "whole-number": (lambda: ValueError("4 rows"), lambda: ValueError("5 rows")),
    "shape": (lambda: ValueError(torch.ones(2)), lambda: ValueError(torch.ones(3))),
}

HELD: dict[str, tuple[Callable[[], BaseException], Callable[[], BaseException]]] = {
    "float": (lambda: ValueError("a", 0.5), lambda: ValueError("a", 0.75)),
    "tensor": (lambda: ValueError(torch.ones(2)), lambda: ValueError(torch.ones(2) * 1.5)),
    "nan": (lambda: ValueError(torch.ones(2)), lambda: ValueError(torch.full((2,), torch.nan))),
    "attribute-dict": (lambda: RefusedError("a", {"n": 1}), lambda: RefusedError("a", {"n": 2})),
    "attribute-tensor": (lambda: RefusedError("a", torch.ones(2)), lambda: RefusedError("a", torch.zeros(2))),
    "nested": (lambda: ValueError(KeyError([torch.ones(2)])), lambda: ValueError(KeyError([torch.zeros(2)]))),
}


def raising(in_eager: Callable[[], BaseException], compiled: Callable[[], BaseException]) -> Callable[..., Any]:
    @torch.compiler.disable
    def ends(is_compiled: bool) -> None:
        raise compiled() if is_compiled else in_eager()

    def target(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        ends(torch.compiler.is_compiling())
        return y

    return target


def outcome(target: Any, kind: type[BaseException] = Exception, **limits: Any) -> tuple[str, str]:
    """The verdict, and the facts of what does not hold."""

    def body(lane: CompileLane) -> None:
        with contextlib.suppress(kind):
            lane.run(target, (X,))

    entry = hold(body, lane="capture", max_eager_frames=3, max_graph_breaks=3, min_ops_captured=0, **limits)
    return entry.verdict, "\n".join(line for each in entry.violations for line in each.details)


@pytest.mark.parametrize("name", RAISED)
def test_another_exception_than_eager_raises_is_not_held(name: str) -> None:
    eager, compiled = RAISED[name]

    assert outcome(raising(eager, eager))[0] == "held"
    verdict, facts = outcome(raising(eager, compiled))
    assert verdict == "broken"
    assert "eager raises" in facts


@pytest.mark.parametrize("name", HELD)
def test_what_an_exception_holds_is_judged_as_outputs_are(name: str) -> None:
    eager, compiled = HELD[name]

    assert outcome(raising(eager, eager))[0] == "held"
    verdict, facts = outcome(raising(eager, compiled))
    assert verdict == "violated"
    assert "call 0 exception['args[" in facts or "call 0 exception['code']" in facts


def test_a_number_that_an_exception_holds_may_be_rounded_otherwise() -> None:
    def off(by: float) -> Callable[[], BaseException]:
        return lambda: ValueError("a", 0.5 + by, torch.ones(2) + by)

    assert outcome(raising(off(0.0), off(2e-7)))[0] == "held"


def test_both_messages_are_told() -> None:
    _, facts = outcome(raising(*RAISED["message"]))

    assert "ValueError: b (in call 0; eager raises ValueError in call 0: a)" in facts


def test_a_message_that_is_another_in_each_eager_run_is_not_compared() -> None:
    def numbered() -> BaseException:
        TIMES.append(1)
        return ValueError(f"run {id(TIMES)} {len(TIMES)}")

    assert outcome(raising(numbered, numbered))[0] == "held"


def test_a_computed_number_in_a_message_may_be_rounded_otherwise() -> None:
    def off(by: float) -> Callable[[], BaseException]:
        return lambda: ValueError(f"loss is {0.1 + by}, in {torch.tensor([1.0, 2.0 + by])}")

    assert outcome(raising(off(0.0), off(1e-7)))[0] == "held"


def test_what_a_failed_assertion_found_is_not_compared() -> None:
    def off(by: float) -> Callable[[], BaseException]:
        return lambda: AssertionError(f"assert {by} == 0")

    assert outcome(raising(off(1), off(2)))[0] == "held"


def test_a_message_that_names_a_random_number_is_not_compared() -> None:
    @torch.compiler.disable
    def ends(number: int) -> None:
        raise ValueError(f"drew {number}")

    def target(x: torch.Tensor) -> torch.Tensor:
        ends(int(torch.randint(0, 1 << 30, (1,))) + torch.compiler.is_compiling())
        return x

    assert outcome(target)[0] == "held"


def test_an_operator_that_refuses_its_shapes_raises_in_both() -> None:
    verdict, facts = outcome(nn.Linear(3, 3))

    assert (verdict, facts) == ("held", "")


def test_an_exception_of_compiling_is_no_runtime_error_of_eagers() -> None:
    from torch._dynamo.exc import BackendCompilerFailed, TorchRuntimeError

    failed = BackendCompilerFailed.__new__(BackendCompilerFailed)
    shapes = TorchRuntimeError.__new__(TorchRuntimeError)

    assert not same_kind(failed, RuntimeError("a"))
    assert same_kind(shapes, RuntimeError("a"))
    assert not same_kind(shapes, ValueError("a"))


def test_what_an_exception_says_leaves_out_what_dynamo_adds() -> None:
    added = ValueError('a\n\nfrom user code:\n   File "net.py", line 3, in forward\n    raise ValueError')

    assert said(added) == said(ValueError("a"))
    assert said(ValueError("1 of 2")) != said(ValueError("1 of 3"))


def test_what_an_exception_holds_that_leads_back_to_it_ends() -> None:
    first, second = ValueError("a"), ValueError("a")
    for each in (first, second):
        each.args = ("a", [each])

    assert said(first) == said(second)
