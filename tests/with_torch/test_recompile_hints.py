"""Hints for recompiles: each program compiles again and gets its hint; changed as the hint says, it does not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx.experimental._config
from torch import nn

from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.measure.isolation import isolated
from pytest_compilecontract.measure.probes.hints import RULES, hint_of
from pytest_compilecontract.measure.probes.reasons import guard_text
from pytest_compilecontract.measure.probes.source import Paths
from pytest_compilecontract.measure.recorder import Measuring

pytestmark = pytest.mark.insides

MARK = torch._dynamo.mark_dynamic
UNBACKED = torch._dynamo.decorators.mark_unbacked
SCALE: Any = 2
Program = Callable[[], object]


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    global SCALE
    with isolated(None):
        yield
    SCALE = 2


def measured(program: Program) -> Measurement:
    with Measuring(Paths(Path(__file__).parent)) as measuring:
        program()
    return measuring.measurement()


def calls(function: Any, *arguments: tuple[Any, ...], **options: Any) -> Program:
    """A program that compiles a function and calls it with each of these arguments."""

    def program() -> None:
        run = torch.compile(function, **{"backend": "eager", **options})
        for each in arguments:
            run(*(value() if isinstance(value, functools.partial) else value for value in each))

    return program


def ones(*sizes: int, **options: Any) -> functools.partial[torch.Tensor]:
    """A tensor that is made anew for each program: a mark stays on it."""
    return functools.partial(torch.ones, *sizes, **options)


def of(make: Callable[..., Any], change: Callable[..., Any], *arguments: Any) -> functools.partial[Any]:
    """What `make` makes, after it was changed."""

    def made() -> Any:
        value = make()
        changed = change(value, *arguments)
        return value if changed is None else changed

    return functools.partial(made)


def add(x: torch.Tensor, n: Any = 1) -> torch.Tensor:
    return x + n


def by_global(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.sum(0) + y.sum(0)


def under(enter: Callable[[], Any], function: Any = add, *, always: bool = False, inside: bool = False) -> Program:
    """Two calls, the second of them, or both, under a context; or a context that is part of what is compiled."""

    def within(x: torch.Tensor) -> torch.Tensor:
        with enter():
            return function(x)

    def program() -> None:
        run = torch.compile(within if inside else function, backend="eager")
        x = torch.ones(3, 3)
        if always:
            with enter():
                run(x)
        else:
            run(x)
        if inside:
            run(x)
        else:
            with enter():
                run(x)

    return program


def autocast() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def threads(*, between: bool) -> Program:
    def program() -> None:
        run, before = torch.compile(add, backend="eager"), torch.get_num_threads()
        try:
            torch.set_num_threads(before if between else before + 1)
            run(torch.ones(3))
            torch.set_num_threads(before + 1)
            run(torch.ones(3))
        finally:
            torch.set_num_threads(before)

    return program


def backends(*, once: bool) -> Program:
    def program() -> None:
        run = None
        for _ in range(3):
            if run is None or not once:
                run = torch.compile(add, backend=lambda graph, _: graph.forward)
            run(torch.ones(3))

    return program


def inferred(*, cloned: bool) -> torch.Tensor:
    with torch.inference_mode():
        made = torch.ones(3)
    return made.clone() if cloned else made


class Steps(nn.Module):
    def __init__(self, steps: Any) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps = self.steps + 1
        return x * self.steps


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale: Any = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def scaled(*, tensor: bool = False, **options: Any) -> Program:
    def program() -> None:
        model = Scaled()
        run = torch.compile(model, backend="eager", **options)
        for number in range(3):
            model.scale = torch.tensor(number + 0.5) if tensor else number + 0.5
            run(torch.ones(3))

    return program


def globals_of(values: list[Any]) -> Program:
    def program() -> None:
        global SCALE
        run = torch.compile(by_global, backend="eager")
        for SCALE in values:  # noqa: B007 - it is what the function reads
            run(torch.ones(3))

    return program


def learning(*, tensor: bool) -> Program:
    def program() -> None:
        parameter = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([parameter], lr=torch.tensor(0.1) if tensor else 0.1)
        step = torch.compile(optimizer.step, backend="eager")
        for number in range(1, 4):
            parameter.grad = torch.ones(3)
            if tensor:
                optimizer.param_groups[0]["lr"].fill_(0.1 * number)
            else:
                optimizer.param_groups[0]["lr"] = 0.1 * number
            step()

    return program


def steps(*, setting: bool = False, buffer: bool = False) -> Program:
    def program() -> None:
        with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=setting):
            run = torch.compile(Steps(torch.tensor(2) if buffer else 2), backend="eager")
            for _ in range(5):
                run(torch.ones(3))

    return program


ALIASED = torch.ones(3)
CONJUGATE = of(ones(3, dtype=torch.cfloat), torch.conj)
NEGATIVE = of(CONJUGATE, lambda x: x.imag)
MARKED = of(ones(4, 3), MARK, 0)
WHAT = {
    "a grad mode": (
        under(torch.no_grad),
        "make every call in the same grad mode",
        [under(torch.no_grad, always=True)],
    ),
    "autocast": (
        under(autocast, product),
        "make every call under the same torch.autocast, or enter it inside what is compiled",
        [under(autocast, product, always=True), under(autocast, product, inside=True)],
    ),
    "the number of threads": (
        threads(between=True),
        "set num_threads before the first call, and not between calls",
        [threads(between=False)],
    ),
    "a mode": (
        under(lambda: torch.device("meta")),
        "make every call under the same modes (torch.device(...) and torch.set_default_device are modes)",
        [under(lambda: torch.device("meta"), always=True)],
    ),
    "a backend of each call's own": (
        backends(once=False),
        "call torch.compile once, with one backend, and keep what it returns",
        [backends(once=True)],
    ),
    "a size of 1 that grows": (
        calls(add, (ones(1, 3),), (ones(5, 3),)),
        "torch specializes a size of 0 or 1: try torch._dynamo.decorators.mark_unbacked(x, 0) before the first call",
        [calls(add, (of(ones(1, 3), UNBACKED, 0),), (ones(5, 3),))],
    ),
    "a size": (
        calls(add, (ones(4, 3),), (ones(5, 3),)),
        "torch._dynamo.mark_dynamic(x, 0) before the first call, or torch.compile(dynamic=True)",
        [calls(add, (MARKED,), (ones(5, 3),)), calls(add, (ones(4, 3),), (ones(5, 3),), dynamic=True)],
    ),
    "a size of what a graph break left": (
        calls(lambda x: x[x > 0] * 2, (torch.tensor([1.0, 2, -1]),), (torch.tensor([1.0, 2, 3]),)),
        "torch.compile(dynamic=True)",
        [calls(lambda x: x[x > 0] * 2, (torch.tensor([1.0, 2, -1]),), (torch.tensor([1.0, 2, 3]),), dynamic=True)],
    ),
    "a size with dynamic=False": (
        calls(add, (ones(4, 3),), (ones(5, 3),), (ones(6, 3),), (ones(7, 3),), dynamic=False),
        "compiled with dynamic=False: without it, torch makes a size dynamic that changes, where the code allows",
        [],
    ),
    "sizes that were equal": (
        calls(sums, (ones(4, 3), ones(4, 3)), (ones(5, 3), ones(6, 3)), dynamic=True),
        "make the first call with sizes that differ",
        [calls(sums, (ones(4, 3), ones(7, 3)), (ones(5, 3), ones(6, 3)), (ones(5, 3), ones(5, 3)), dynamic=True)],
    ),
    "a mark that came later": (
        calls(add, (ones(4, 3),), (MARKED,)),
        "mark the tensor before the first call too",
        [calls(add, (MARKED,), (MARKED,))],
    ),
    "strides": (
        calls(add, (ones(4, 4),), (of(ones(4, 4), torch.t),)),
        "pass x.contiguous() in every call",
        [calls(add, (ones(4, 4),), (of(of(ones(4, 4), torch.t), torch.Tensor.contiguous),))],
    ),
    "a dtype": (
        calls(add, (ones(3),), (ones(3, dtype=torch.double),)),
        "pass x with the same dtype in every call",
        [calls(add, (ones(3),), (of(ones(3, dtype=torch.double), torch.Tensor.float),))],
    ),
    "requires_grad": (
        calls(add, (ones(3),), (ones(3, requires_grad=True),)),
        "pass x with the same requires_grad in every call",
        [calls(add, (ones(3),), (of(ones(3, requires_grad=True), torch.Tensor.detach),))],
    ),
    "an inference tensor": (
        calls(add, (ones(3),), (functools.partial(inferred, cloned=False),)),
        "x was made under torch.inference_mode(): clone() it outside, or make it there",
        [calls(add, (ones(3),), (functools.partial(inferred, cloned=True),))],
    ),
    "a lazy conjugate": (
        calls(add, (ones(3, dtype=torch.cfloat),), (CONJUGATE,)),
        "pass x.resolve_conj()",
        [calls(add, (ones(3, dtype=torch.cfloat),), (of(CONJUGATE, torch.Tensor.resolve_conj),))],
    ),
    "a lazy negative": (
        calls(add, (ones(3),), (NEGATIVE,)),
        "pass x.resolve_neg()",
        [calls(add, (ones(3),), (of(NEGATIVE, torch.Tensor.resolve_neg),))],
    ),
    "one tensor twice": (
        calls(lambda x, y: x.add_(1) + y, (ones(3), ones(3)), (ALIASED, ALIASED)),
        "pass different tensors in every call: clone() one where both are the same",
        [calls(lambda x, y: x.add_(1) + y, (ones(3), ones(3)), (ALIASED, of(ALIASED.clone, torch.clone)))],
    ),
    "one tensor twice at first": (
        calls(lambda x, y: x + y, (ALIASED, ALIASED), (ones(3), ones(3))),
        "pass different tensors in every call: clone() one where both are the same",
        [calls(lambda x, y: x + y, (ALIASED, of(ALIASED.clone, torch.clone)), (ones(3), ones(3)))],
    ),
    "a learning rate": (
        learning(tensor=False),
        "make the learning rate a tensor (lr=torch.tensor(...)) and change it in place",
        [learning(tensor=True)],
    ),
    "a global integer": (
        globals_of([2, 3, 4]),
        "torch makes a constant of a global integer: if SCALE is only computed with, make it a tensor",
        [globals_of([torch.tensor(2), torch.tensor(3), torch.tensor(4)])],
    ),
    "a float": (
        calls(add, (ones(3), 0.3), (ones(3), 0.4)),
        "torch.compile(dynamic=True), or pass it as a tensor",
        [
            calls(add, (ones(3), 0.3), (ones(3), 0.4), dynamic=True),
            calls(add, (ones(3), torch.tensor(0.3)), (ones(3), torch.tensor(0.4))),
        ],
    ),
    "a float of a module": (
        scaled(),
        "torch.compile(dynamic=True), or pass it as a tensor",
        [scaled(dynamic=True), scaled(tensor=True)],
    ),
    "an integer": (
        calls(lambda x, n: x[:n] + 1, (ones(9), 2), (ones(9), 3)),
        "torch.compile(dynamic=True), which makes the number dynamic from the first call",
        [calls(lambda x, n: x[:n] + 1, (ones(9), 2), (ones(9), 3), dynamic=True)],
    ),
    "an integer in a dict": (
        calls(lambda x, c: x * c["scale"], (ones(3), {"scale": 0}), (ones(3), {"scale": 3})),
        "torch.compile(dynamic=True), which makes the number dynamic from the first call",
        [calls(lambda x, c: x * c["scale"], (ones(3), {"scale": 0}), (ones(3), {"scale": 3}), dynamic=True)],
    ),
    "an integer of a module": (
        steps(),
        "make it a tensor (a buffer), or set torch._dynamo.config.allow_unspec_int_on_nn_module = True",
        [steps(buffer=True)],
    ),
}


@pytest.mark.parametrize(("again", "hint", "mended"), WHAT.values(), ids=WHAT)
def test_a_program_changed_as_its_hint_says_is_compiled_once(again: Program, hint: str, mended: list[Program]) -> None:
    before = measured(again)
    after = [measured(each) for each in mended]

    assert before.recompiles is not None
    assert {each.hint for each in before.recompiles} == {hint}, [each.guard for each in before.recompiles]
    assert [each.recompiles for each in after] == [()] * len(mended)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (steps(), steps(setting=True)),
        (
            calls(add, (ones(4, 3),), (ones(5, 3),), (ones(6, 3),), dynamic=False),
            calls(add, (ones(4, 3),), (ones(5, 3),), (ones(6, 3),)),
        ),
    ],
    ids=["allow_unspec_int_on_nn_module", "without dynamic=False"],
)
def test_what_becomes_dynamic_is_compiled_once_more_and_no_more(before: Program, after: Program) -> None:
    often, once = measured(before).recompiles, measured(after).recompiles

    assert often is not None
    assert once is not None
    assert len(often) > len(once) == 1


NONE = {
    "a number used as a constant": calls(lambda x, n: x.repeat(*([1] * n)), (ones(3), 2), (ones(3), 3), (ones(3), 4)),
    "a branch on a number": calls(lambda x, n: x + 1 if n > 3 else x - 1, (ones(3), 2), (ones(3), 4)),
    "a flag": calls(lambda x, flag: x + 1 if flag else x - 1, (ones(3), True), (ones(3), False)),
    "a text": calls(lambda x, kind: x + 1 if kind == "a" else x - 1, (ones(3), "a"), (ones(3), "b")),
    "a length": calls(lambda xs: sum(xs), ([torch.ones(3)],), ([torch.ones(3)] * 2,)),
    "a rank": calls(add, (ones(3),), (ones(3, 3),)),
    "a device": calls(add, (ones(3),), (ones(3, device="meta"),)),
    "a size that is marked static": calls(
        add, (of(ones(4), torch._dynamo.mark_static, 0),), (of(ones(5), torch._dynamo.mark_static, 0),)
    ),
    "a branch on a size": calls(lambda x: x + 1 if x.shape[0] < 9 else x - 1, (ones(4),), (ones(9),), dynamic=True),
}


@pytest.mark.parametrize("again", NONE.values(), ids=NONE)
def test_what_no_rule_is_known_to_avoid_has_no_hint(again: Program) -> None:
    found = measured(again).recompiles

    assert found
    assert [each.hint for each in found] == [""] * len(found)


def test_each_rule_is_the_first_for_a_program() -> None:
    said = {hint for _, hint, _ in WHAT.values()}

    for rule in RULES:
        told = rule.says.replace("{name}", "x").replace("{index}", "0")
        named = {told, told.replace("set x", "set num_threads"), told.replace("if x", "if SCALE")}
        assert named & said, rule


def test_dynamic_true_is_not_proposed_to_who_has_it() -> None:
    guard = "0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5"

    assert hint_of("dynamic", guard, dynamic=None).endswith("torch.compile(dynamic=True)")
    assert hint_of("dynamic", guard, dynamic=True) == ""
    assert guard_text(guard).startswith("tensor 'x'")
