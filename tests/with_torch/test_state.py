"""State: what a run may change is put back before the next one, so that counts are those of the calls alone.

Each program is also run by hand, with torch's own counter of graphs: the plugin has to say the same.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import queue
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from holding import hold, kept_limits, measured
from torch import nn
from torch._dynamo.testing import CompileCounter

from pytest_compilecontract.measure.state import State

pytestmark = pytest.mark.torch

X = torch.ones(3)
Program = tuple[Callable[..., Any], list[tuple[Any, ...]]]
compiling = torch.compiler.is_compiling
ANYTHING = {"max_eager_frames": 9, "min_ops_captured": 0}


def graphs_by_hand(build: Callable[[], Program]) -> int:
    target, calls = build()
    counter = CompileCounter()
    torch._dynamo.reset()
    with torch.random.fork_rng():
        compiled = torch.compile(target, backend=counter)
        for each in calls:
            compiled(*each)
    torch._dynamo.reset()
    torch.set_grad_enabled(True)
    return counter.frame_count


def in_a_closure(make: Callable[[], Any], step: Callable[[Any, torch.Tensor], Any]) -> Callable[[], Program]:
    """Three calls of a function that reads and changes what is in its closure."""

    def build() -> Program:
        held = make()
        return lambda x: step(held, x), [(X,)] * 3

    return build


def in_an_attribute(make: Callable[[], Any], step: Callable[[Any, torch.Tensor], Any]) -> Callable[[], Program]:
    class Holding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = make()

        def forward(self, x: torch.Tensor) -> Any:
            return step(self.held, x)

    return lambda: (Holding(), [(X,)] * 3)


def counts(held: Any, x: torch.Tensor) -> torch.Tensor:
    held.calls += 1
    held.kept = held.kept + x
    return held.kept * held.calls


def shared(make: Callable[[], Any], step: Callable[[torch.Tensor, Any], Any]) -> Callable[[], Program]:
    """Three calls that are given the same object."""

    def build() -> Program:
        given = make()
        return step, [(X, given)] * 3

    return build


def grows(x: torch.Tensor, kept: list[torch.Tensor]) -> torch.Tensor:
    kept.append(x)
    return torch.stack(kept).sum(0)


def caches(x: torch.Tensor, cache: dict[str, torch.Tensor]) -> torch.Tensor:
    cache["keys"] = torch.cat([cache["keys"], x]) if "keys" in cache else x
    return cache["keys"].sum()


def grows_by_a_method(x: torch.Tensor, remember: Callable[[torch.Tensor], None]) -> torch.Tensor:
    remember(x)
    return x + len(remember.__self__)  # type: ignore[attr-defined]


def a_callback() -> Callable[[torch.Tensor], torch.Tensor]:
    seen: list[int] = []

    def callback(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return x * len(seen)

    return callback


def is_its_own() -> Program:
    weight = torch.ones(3)
    return lambda x: x + 1 if x is weight else x - 1, [(weight,), (torch.zeros(3),), (weight,)]


def leaves_no_grad() -> Program:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.set_grad_enabled(False)
        return y

    return step, [(X,)] * 2


PROGRAMS: dict[str, Callable[[], Program]] = {
    "SimpleNamespace": in_a_closure(lambda: types.SimpleNamespace(calls=0, kept=torch.zeros(3)), counts),
    "argparse.Namespace": in_an_attribute(lambda: argparse.Namespace(calls=0, kept=torch.zeros(3)), counts),
    "list iterator": in_an_attribute(lambda: iter([1, 2, 3]), lambda held, x: x + next(held)),
    "range iterator": in_a_closure(lambda: iter(range(9)), lambda held, x: x * next(held)),
    "list of an iterator": in_an_attribute(lambda: [iter([1, 2, 3])], lambda held, x: x + next(held[0])),
    "count": in_an_attribute(itertools.count, lambda held, x: x + next(held)),
    "argument: list": shared(list, grows),
    "argument: dict": shared(dict, caches),
    "argument: bound method": shared(lambda: [].append, grows_by_a_method),
    "argument: callback": shared(a_callback, lambda x, callback: callback(x)),
    "argument: tensor of the closure": is_its_own,
    "grad mode": leaves_no_grad,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_changes_state_is_counted_as_by_hand(name: str) -> None:
    target, calls = PROGRAMS[name]()

    entry = hold(lambda lane: lane.run(target, *calls), lane="capture", **ANYTHING)

    assert (entry.verdict, entry.reason) == ("held", "")
    assert measured(entry).graphs == graphs_by_hand(PROGRAMS[name])


def test_state_that_no_lane_can_capture_is_put_back_too() -> None:
    waiting: queue.Queue[int] = queue.Queue()
    for number in range(3):
        waiting.put(number)

    entry = hold(
        lambda lane: lane.run(lambda x: x + waiting.get_nowait(), (X,), (X,), (X,)), lane="capture", **ANYTHING
    )

    assert (entry.verdict, waiting.qsize()) == ("held", 3)


def test_the_users_iterator_is_given_back_where_it_was() -> None:
    model, calls = PROGRAMS["list iterator"]()
    own = model.held  # type: ignore[attr-defined]

    hold(lambda lane: lane.run(model, *calls), lane="capture")

    assert model.held is own  # type: ignore[attr-defined]
    assert list(own) == [1, 2, 3]


def reads_on(held: Any, x: torch.Tensor) -> torch.Tensor:
    if compiling():
        next(held)
    return x * 2


def sets_a_gradient(held: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    held.grad = x * (2 if compiling() else 1)
    return x * 2


def turns(held: dict[str, int], x: torch.Tensor) -> torch.Tensor:
    if compiling():
        held["first"] = held.pop("first")
    return x * 2


def leaves_gradients_off(held: Any, x: torch.Tensor) -> torch.Tensor:
    if compiling():
        torch.set_grad_enabled(False)
    return x * 2


@pytest.mark.parametrize(
    ("make", "step", "found"),
    [
        (lambda: iter([1, 2, 3]), reads_on, "afterwards structure: only compiled has ['held'] (1 part, eager 0)"),
        (lambda: torch.zeros(3), sets_a_gradient, "afterwards['held.grad'] value: worst at [0]: compiled 2, eager 1"),
        (
            lambda: {"first": 1, "second": 2},
            turns,
            "afterwards structure: only compiled has ['held, order of keys'] (1",
        ),
        (lambda: None, leaves_gradients_off, "torch.is_grad_enabled() setting left: compiled False, eager not"),
    ],
    ids=["an iterator", "a gradient", "the order of keys", "a setting"],
)
def test_what_is_left_otherwise_is_told(
    make: Callable[[], Any], step: Callable[[Any, torch.Tensor], Any], found: str
) -> None:
    target, calls = in_a_closure(make, step)()

    entry = hold(lambda lane: lane.run(target, *calls), lane="capture")

    assert kept_limits(entry) == ("violated", {"numerics='fp64' (default)": "1 difference"})
    numerics = measured(entry).numerics
    assert numerics is not None
    assert [f"{each.at} {each.kind}: {each.detail}"[: len(found)] for each in numerics.differences] == [found]


class Noted:
    """Of a class that has nothing yet."""


class Leaving(nn.Module):
    """Leaves something by `leave(self, x)`, as a model keeps notes on what it did."""

    def __init__(self, leave: Callable[[Any, torch.Tensor], object]) -> None:
        super().__init__()
        self.leave, self.act = leave, torch.relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.leave(self, x)
        return x * 2


def makes_an_attribute(model: Any, x: torch.Tensor) -> None:
    model.last = 2 if compiling() else 1


def makes_a_tensor_attribute(model: Any, x: torch.Tensor) -> None:
    model.last = x * (2 if compiling() else 1)


def makes_a_class_attribute(model: Any, x: torch.Tensor) -> None:
    Noted.last = 2 if compiling() else 1  # type: ignore[attr-defined]


def replaces_a_function(model: Any, x: torch.Tensor) -> None:
    model.act = torch.tanh if compiling() else torch.sin


def notes_on_its_input(model: Any, x: torch.Tensor) -> None:
    x.tag = 2 if compiling() else 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("leave", "found"),
    [
        (makes_an_attribute, "afterwards['last'] value: compiled 2, eager 1"),
        (makes_a_tensor_attribute, "afterwards['last'] value: worst at [0]: compiled 2, eager 1"),
        (makes_a_class_attribute, "afterwards['Noted.last'] value: compiled 2, eager 1"),
        (replaces_a_function, "afterwards['act (reassigned)'] value: compiled 'torch._VariableFunctionsClass.tanh', "),
        (notes_on_its_input, "call 0 input[0].tag value: compiled 2, eager 1"),
    ],
    ids=["attribute", "tensor", "class attribute", "function", "attribute of an input"],
)
def test_what_a_model_makes_otherwise_is_told(leave: Callable[[Any, torch.Tensor], object], found: str) -> None:
    model = Leaving(leave)

    entry = hold(lambda lane: lane.run(model, (X.clone(),)), lane="capture")

    assert entry.verdict == "violated"
    numerics = measured(entry).numerics
    assert numerics is not None
    assert [f"{each.at} {each.kind}: {each.detail}"[: len(found)] for each in numerics.differences] == [found]
    assert (model.act, hasattr(model, "last"), hasattr(Noted, "last")) == (torch.relu, False, False)


def registers_a_hook(model: nn.Linear) -> object:
    return model.register_forward_hook(nothing)


def registers_a_hook_beside_another(model: nn.Linear) -> object:
    return model.register_forward_pre_hook(nothing, with_kwargs=True)


def registers_a_hook_on_a_gradient(model: nn.Linear) -> object:
    return model.weight.register_hook(nothing)


def registers_a_hook_on_an_accumulated_gradient(model: nn.Linear) -> object:
    return model.weight.register_post_accumulate_grad_hook(nothing)


def nothing(*args: object) -> None:
    return None


REGISTER = {
    "_forward_hooks": registers_a_hook,
    "_forward_pre_hooks": registers_a_hook_beside_another,
    "weight._backward_hooks": registers_a_hook_on_a_gradient,
    "weight._post_accumulate_grad_hooks": registers_a_hook_on_an_accumulated_gradient,
}


@pytest.mark.parametrize("in_eager", [False, True])
@pytest.mark.parametrize("table", REGISTER)
def test_a_hook_that_a_run_leaves_is_told_and_taken_off(table: str, in_eager: bool) -> None:
    model = nn.Linear(3, 3)
    model.register_forward_pre_hook(nothing)

    def leaves(x: torch.Tensor) -> torch.Tensor:
        out = model(x)
        if in_eager and not compiling():
            REGISTER[table](model)
        return out

    def compile_with(lane: Any) -> Callable[[Any], Any]:
        def compiled(target: Any) -> Any:
            run = lane.compile(target)

            def again(x: torch.Tensor) -> torch.Tensor:
                out: torch.Tensor = run(x)
                if not in_eager:
                    REGISTER[table](model)
                return out

            return again

        return compiled

    entry = hold(lambda lane: lane.run(leaves, (X,), (X,), compile_with=compile_with(lane)), lane="capture")

    found = measured(entry).numerics
    assert found is not None
    assert [each.kind for each in found.differences] == ["structure"]
    assert "model, hooks" in found.differences[0].at + found.differences[0].detail
    assert (len(model._forward_hooks), len(model._forward_pre_hooks)) == (0, 1)
    assert not model.weight._backward_hooks
    assert not model.weight._post_accumulate_grad_hooks  # type: ignore[attr-defined]


def test_hooks_that_both_runs_leave_are_the_same_by_name() -> None:
    model = nn.Linear(3, 3)

    def leaves(x: torch.Tensor) -> torch.Tensor:
        if not model._forward_hooks:
            model.register_forward_hook(nothing)
        return model(x)  # type: ignore[no-any-return]

    entry = hold(lambda lane: lane.run(leaves, (X,)), lane="capture", **ANYTHING, max_graph_breaks=9)

    assert entry.verdict == "held", measured(entry).numerics
    assert not model._forward_hooks


def test_a_gradient_that_is_left_in_an_argument_is_told() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        ((x * x).sum() * (2 if compiling() else 1)).backward()
        return x.detach() * 0

    entry = hold(lambda lane: lane.run(step, (torch.ones(3, requires_grad=True),)), lane="capture", **ANYTHING)

    numerics = measured(entry).numerics
    assert numerics is not None
    assert [each.at for each in numerics.differences] == ["call 0 input grad['tensor 0']"]


def noting(x: torch.Tensor) -> torch.Tensor:
    noting.last = tuple(x.shape)  # type: ignore[attr-defined]
    return x * 2


def test_an_attribute_of_a_function_is_put_back_whatever_its_name() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        step._calls += 1  # type: ignore[attr-defined]
        return x * step._calls  # type: ignore[attr-defined,no-any-return]

    step._calls = 0  # type: ignore[attr-defined]

    entry = hold(lambda lane: lane.run(step, (X,), (X,)), lane="capture", **ANYTHING)

    assert (entry.verdict, vars(step)["_calls"]) == ("held", 0)


def test_a_note_that_torch_makes_on_a_function_stays() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    state = State(step)
    step._torchdynamo_disable = True  # type: ignore[attr-defined]
    step.calls = 1  # type: ignore[attr-defined]

    assert state.made() == {"step.calls": 1}
    state.restore()
    assert vars(step) == {"_torchdynamo_disable": True}


def test_an_attribute_that_a_run_adds_to_a_function_is_put_away() -> None:
    entry = hold(lambda lane: lane.run(noting, (X,), (X,)), lane="capture", **ANYTHING)

    assert (entry.verdict, hasattr(noting, "last")) == ("held", False)


def test_an_output_that_is_the_users_own_list_and_one_that_is_a_copy() -> None:
    def step(given: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return given[0] * 2, (list(given) if compiling() else given)

    entry = hold(lambda lane: lane.run(step, ([X, X + 1],)), lane="capture")

    numerics = measured(entry).numerics
    assert numerics is not None
    assert [(each.at, each.kind, each.detail) for each in numerics.differences] == [
        ("call 0 output[1]", "alias", "shares memory with call 0 input[0] in eager, not in compiled")
    ]


@pytest.mark.parametrize("when", [True, False], ids=["compiled alone", "eager alone"])
def test_what_one_run_alone_keeps_for_later_is_its_own_affair(when: bool) -> None:
    def keep(model: Any, x: torch.Tensor) -> None:
        if compiling() == when:
            model.cached = x.shape

    model = Leaving(keep)

    assert hold(lambda lane: lane.run(model, (X,)), lane="capture").verdict == "held"
    assert not hasattr(model, "cached")


def test_a_setting_that_compiled_code_leaves_otherwise() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.set_default_dtype(torch.float64)
        return y

    entry = hold(lambda lane: lane.run(step, (X,)), lane="aot")

    numerics = measured(entry).numerics
    assert numerics is not None
    assert [(each.at, each.kind, each.detail) for each in numerics.differences] == [
        ("torch.get_default_dtype()", "setting left", "compiled not, eager torch.float64")
    ]
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [({}, "unverified"), ({"numerics": None}, "unverified"), ({"max_recompiles": 0}, "violated")],
    ids=["no limits", "nothing compared", "a limit of which nothing is known"],
)
def test_an_exception_that_eager_raises_as_well_the_next_time_is_not_held_against_compiled(
    limits: dict[str, Any], verdict: str
) -> None:
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    waiting.put(1)

    entry = hold(lambda lane: lane.run(lambda x: x + waiting.get_nowait(), (X,)), lane="capture", **limits)

    assert entry.verdict == verdict
    assert "eager differs from itself: run once more, it raises Empty in call 0 too" in entry.reason


def test_nothing_is_held_against_compiled_where_eager_has_other_values_the_second_time() -> None:
    kept: queue.SimpleQueue[int] = queue.SimpleQueue()

    def step(x: torch.Tensor) -> torch.Tensor:
        kept.put(1)
        return x * kept.qsize()

    entry = hold(lambda lane: lane.run(step, (X,), (X,)), lane="capture", **ANYTHING)

    assert entry.verdict == "unverified"
    assert "call 0 output: eager differs from itself there" in entry.reason


def test_an_argument_that_cannot_be_copied_keeps_all_its_parts() -> None:
    batch = {"x": X, "lock": threading.Lock(), "scale": 2}

    entry = hold(lambda lane: lane.run(lambda given: given["x"] * given["scale"], (batch,), (batch,)), lane="capture")

    assert (entry.verdict, entry.reason) == ("held", "")


def test_a_subclass_of_a_container_has_attributes_too() -> None:
    class Remembering(collections.UserList[int], list[int]):
        calls = 0

    remembering = Remembering()

    def step(x: torch.Tensor) -> torch.Tensor:
        remembering.calls += 1
        return x * remembering.calls

    entry = hold(lambda lane: lane.run(step, (X,), (X,)), lane="capture", **ANYTHING)

    assert (entry.verdict, remembering.calls) == ("held", 0)
