"""Kinds of faults, planted in programs that compile right: each is seen, and its healthy twin is held."""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import functools
import importlib
import itertools
import random
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from holding import hold, kept_limits, measured
from planting import Doubled, by
from torch import nn
from torch._dynamo.backends.registry import register_backend

from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.measure.compile_lane import CompileLane
from pytest_compilecontract.measure.probes.canary import canary
from pytest_compilecontract.measure.probes.stance import forget_examples
from pytest_compilecontract.measure.state import State

pytestmark = pytest.mark.insides

HELD: tuple[str, dict[str, int | str]] = ("held", {})
X = torch.linspace(-1, 1, 32).reshape(4, 8)
compiling = torch.compiler.is_compiling


def running(target: Any, *calls: tuple[Any, ...]) -> Callable[[CompileLane], Any]:
    return lambda lane: lane.run(target, *calls)


def differences(entry: Entry) -> list[str]:
    """The kinds of differences, with where they are."""
    found = measured(entry).numerics
    return [] if found is None else [f"{each.at}: {each.kind}" for each in found.differences]


# ---------------------------------------------------------------------------------------------------------------------
# Arguments are what the test gave


def adds_to_the_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.sum() + y.sum()


def whole() -> torch.Tensor:
    return torch.arange(12.0)


ARGUMENTS: list[Any] = [
    pytest.param(lambda: ((base := whole())[:8], base[4:]), id="overlapping"),
    pytest.param(lambda: (base := whole(), base[2:]), id="base-first"),
    pytest.param(lambda: ((base := whole())[2:], base), id="base-last"),
    pytest.param(lambda: ((base := whole()).view(3, 4), base.view(3, 4)), id="same-view"),
    pytest.param(lambda: ((base := whole().requires_grad_() * 1)[:8], base[4:]), id="in-a-graph"),
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("lane", ["aot", "dynamic"])
def test_views_of_one_base_are_given_as_views(arguments: Callable[[], Any], lane: str) -> None:
    entry = hold(running(adds_to_the_first, arguments()), lane=lane)

    assert kept_limits(entry) == HELD


def test_a_size_that_the_test_marked_dynamic_is_dynamic() -> None:
    marked = torch.ones(5, 8)
    torch._dynamo.mark_dynamic(marked, 0)

    entry = hold(running(torch.sin, (marked,), (torch.ones(7, 8),)), max_recompiles=0)

    assert kept_limits(entry) == HELD


def test_a_size_that_was_marked_dynamic_and_is_made_constant_is_broken_without_a_doubt() -> None:
    marked = torch.ones(8, 4)
    torch._dynamo.mark_dynamic(marked, 0)

    entry = hold(running(lambda x: x + (1 if x.shape[0] == 8 else 2), (marked,)))

    assert entry.verdict == "broken"
    assert "ConstraintViolationError" in entry.reason
    assert measured(entry).disagreements == ()


def doubles_gradients(x: torch.Tensor) -> torch.Tensor:
    return Doubled.apply(x) if compiling() else x.view_as(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", [lambda: whole().requires_grad_()[2:], lambda: whole().requires_grad_() * 2])
def test_gradients_of_arguments_that_are_no_leaves(make: Callable[[], torch.Tensor]) -> None:
    healthy = hold(running(torch.sin, (make(),)), lane="capture", check_grads=True)
    planted = hold(running(doubles_gradients, (make(),)), lane="capture", check_grads=True)

    assert kept_limits(healthy) == HELD
    assert differences(planted) == ["call 0 grad['input tensor 0']: value"]


# ---------------------------------------------------------------------------------------------------------------------
# State. `wrong` is 1 in the healthy twin: compiled code that leaves another number is the fault.


class Slotted:
    __slots__ = ("__hidden", "count", "x")

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x
        self.count = 0
        self.__hidden = 0

    def hide(self, number: int) -> None:
        self.__hidden += number


class Plain:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x
        self.count = 0


@dataclasses.dataclass
class Data:
    x: torch.Tensor
    count: int = 0


class Keeps(nn.Module):
    """Keeps what `note` notes of each call."""

    shared = 0

    def __init__(self, wrong: int) -> None:
        super().__init__()
        self.wrong = wrong
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.note(by(self.wrong))
        return self.linear(x)  # type: ignore[no-any-return]

    def note(self, number: int) -> None:
        raise NotImplementedError


class KeepsInADeque(Keeps):
    def __init__(self, wrong: int) -> None:
        super().__init__(wrong)
        self.last: collections.deque[int] = collections.deque(maxlen=2)

    def note(self, number: int) -> None:
        self.last.append(number)


class KeepsInASlot(Keeps):
    def __init__(self, wrong: int) -> None:
        super().__init__(wrong)
        self.kept = Slotted(X)

    def note(self, number: int) -> None:
        self.kept.count += number


class KeepsInAHiddenSlot(KeepsInASlot):
    def note(self, number: int) -> None:
        self.kept.hide(number)


class KeepsOnItsClass(Keeps):
    def note(self, number: int) -> None:
        type(self).shared += number


class KeepsOnItself(Keeps):
    def note(self, number: int) -> None:
        self.shared += number


class KeepsFarAway(Keeps):
    def __init__(self, wrong: int) -> None:
        super().__init__(wrong)
        self.near = {"a": {"b": [{"c": {"d": [0]}}]}}

    def note(self, number: int) -> None:
        self.near["a"]["b"][0]["c"]["d"][0] += number


class KeepsInAGlobal(Keeps):
    def note(self, number: int) -> None:
        NOTED.append(number)


class KeepsInALateBuffer(Keeps):
    def note(self, number: int) -> None:
        if not hasattr(self, "late"):
            self.register_buffer("late", torch.full((2,), float(number)))


class KeepsInAThreadLocal(Keeps):
    def note(self, number: int) -> None:
        OF_THREAD.count = getattr(OF_THREAD, "count", 0) + number


class KeepsInAContext(Keeps):
    def note(self, number: int) -> None:
        OF_CONTEXT.set(OF_CONTEXT.get() + number)


class Counts(Keeps):
    def __init__(self, wrong: int) -> None:
        super().__init__(wrong)
        self.count = 0

    def note(self, number: int) -> None:
        self.count += number


# Not guarded on torch 2.11: a fault of torch's own, which is seen as a planted one is.
UNGUARDED = torch.__version__.startswith("2.11.")
NOTED: list[int] = []
OF_THREAD = threading.local()
OF_CONTEXT: contextvars.ContextVar[int] = contextvars.ContextVar("OF_CONTEXT")
OF_CONTEXT.set(0)
STATE: list[Any] = [
    pytest.param(KeepsInADeque, "afterwards['last'][0]: value", id="deque"),
    pytest.param(KeepsInASlot, "afterwards['kept.count']: value", id="slot"),
    pytest.param(KeepsInAHiddenSlot, "afterwards['kept._Slotted__hidden']: value", id="hidden-slot"),
    pytest.param(KeepsOnItsClass, "afterwards['KeepsOnItsClass.shared']: value", id="class"),
    pytest.param(KeepsOnItself, "afterwards['shared']: value", id="own-instead-of-the-class's"),
    pytest.param(KeepsFarAway, "afterwards['near.a.b[0].c.d'][0]: value", id="deep"),
    pytest.param(KeepsInAGlobal, "afterwards['NOTED'][0]: value", id="global-of-a-method"),
    pytest.param(KeepsInALateBuffer, "afterwards['late']: value", id="late-buffer"),
    pytest.param(KeepsInAThreadLocal, "afterwards['OF_THREAD.count']: value", id="thread-local"),
    pytest.param(KeepsInAContext, "afterwards['OF_CONTEXT']: value", id="context"),
    pytest.param(Counts, "afterwards['count']: value", id="number"),
]


@pytest.mark.parametrize(("kind", "difference"), STATE)
@pytest.mark.parametrize("way", ["run", "train"])
def test_state_that_compiled_leaves_otherwise(kind: Callable[[int], nn.Module], difference: str, way: str) -> None:
    def body(wrong: int) -> Callable[[CompileLane], Any]:
        model = kind(wrong)
        return lambda lane: lane.run(model, (X,), (X,)) if way == "run" else lane.train(model, [(X,), (X,)])

    healthy, planted = (hold(body(wrong), lane="capture") for wrong in (1, 5))

    if kind is not KeepsOnItsClass or not UNGUARDED:
        assert kept_limits(healthy) == HELD
    assert difference in differences(planted)
    assert (Keeps.shared, vars(KeepsOnItsClass).get("shared"), NOTED) == (0, None, [])
    assert (vars(OF_THREAD), OF_CONTEXT.get()) == ({}, 0)


def test_a_hook_that_fires_more_often() -> None:
    def hooked(wrong: int) -> nn.Module:
        model, fired = nn.Linear(8, 8), [0]

        def hook(*_: Any) -> None:
            fired[0] += by(wrong)

        model.register_forward_hook(hook)
        return model

    healthy, planted = (hold(running(hooked(wrong), (X,), (X,)), lane="capture") for wrong in (1, 2))

    assert kept_limits(healthy) == HELD
    assert differences(planted) == ["afterwards['fired'][0]: value"]


def test_a_hook_that_takes_itself_away_is_there_again_for_each_run() -> None:
    model = nn.Linear(8, 8)
    fired: list[int] = []

    def hook(*_: Any) -> None:
        fired.append(1)
        handle.remove()

    handle = model.register_forward_hook(hook)

    hold(running(model, (X,), (X,)), lane="capture", max_eager_frames=1)

    assert (fired, len(model._forward_hooks)) == ([], 1)


def test_a_key_of_the_state_dict_that_only_eager_adds() -> None:
    class Caches(nn.Module):
        def __init__(self, wrong: int) -> None:
            super().__init__()
            self.wrong = wrong

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if by(self.wrong) == 1:
                self.register_buffer("cache", torch.ones(8))
            return x * 2

    healthy, planted = (hold(running(Caches(wrong), (X,)), lane="capture", max_eager_frames=1) for wrong in (1, 2))

    assert kept_limits(healthy) == HELD
    assert differences(planted) == ["afterwards['state_dict']: structure"]


@pytest.mark.parametrize("kind", [mock.Mock, mock.MagicMock])
def test_a_mock_is_not_another_for_what_it_was_asked_for(kind: type[mock.Mock]) -> None:
    made = kind()

    entry = hold(running(lambda x: (x + 1, made), (X,), (X,)), lane="capture")

    assert kept_limits(entry) == HELD


@pytest.mark.parametrize("kind", [mock.Mock, mock.MagicMock])
def test_what_a_mock_was_given_is_compared(kind: type[mock.Mock]) -> None:
    right, wrong = kind(weight=X), kind(weight=X + 1)

    entry = hold(running(lambda x: (x + 1, wrong if compiling() else right), (X,)), lane="capture")

    assert differences(entry) == ["call 0 output[1].weight: value"]


@pytest.mark.parametrize("kind", [Plain, Slotted, Data])
def test_a_number_in_an_object(kind: Callable[..., Any]) -> None:
    def changes(wrong: int) -> Callable[..., Any]:
        def change(given: Any) -> Any:
            given.count += by(wrong)
            made = kind(given.x * 2)
            made.count = by(wrong)
            return made

        return change

    healthy, planted = (hold(running(changes(wrong), (kind(X),)), lane="capture") for wrong in (1, 5))

    assert kept_limits(healthy) == HELD
    assert differences(planted) == ["call 0 output.count: value", "call 0 input[0].count: value"]


MADE = itertools.count()


class Numbered:
    """Has what no two objects have in common."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x
        self.number = next(MADE)
        self.created = time.perf_counter()
        self.address = id(self)
        if self.number % 2:
            self.odd = True

    @functools.cached_property
    def rows(self) -> int:
        return len(self.x)


def test_what_no_two_objects_have_in_common_is_no_difference() -> None:
    @torch._dynamo.disable
    def makes(x: torch.Tensor) -> Any:
        made = Numbered(x)
        return made if torch.compiler.is_dynamo_compiling() or made.number % 4 else (made.rows, made)[1]

    entry = hold(running(lambda x: makes(x * 2), (X,)), lane="capture")

    assert kept_limits(entry) == HELD


def test_state_after_an_exception_that_both_raise() -> None:
    class Fails(nn.Module):
        count: torch.Tensor

        def __init__(self, wrong: int) -> None:
            super().__init__()
            self.wrong = wrong
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(by(self.wrong))
            torch._dynamo.graph_break()
            raise ValueError("always")

    def body(wrong: int) -> Callable[[CompileLane], Any]:
        def runs(lane: CompileLane) -> None:
            with pytest.raises(ValueError, match="always"):
                lane.run(Fails(wrong), (X,))

        return runs

    healthy, planted = (hold(body(wrong), lane="capture", max_eager_frames=1) for wrong in (1, 5))

    assert kept_limits(healthy) == HELD
    assert differences(planted) == ["afterwards['count']: value"]


# ---------------------------------------------------------------------------------------------------------------------
# Numbers that go stale: what eager reads anew in each call, and each run begins with the old one


class Scales(nn.Module):
    scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def by_default(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return x * scale


def by_attribute(x: torch.Tensor) -> torch.Tensor:
    return x * by_attribute.scale  # type: ignore[attr-defined, no-any-return]


by_attribute.scale = 1.0  # type: ignore[attr-defined]

STALE: list[Any] = [
    pytest.param(Scales(), lambda number: setattr(Scales, "scale", number), id="class-attribute"),
    pytest.param(by_default, lambda number: setattr(by_default, "__defaults__", (number,)), id="default"),
    pytest.param(by_attribute, lambda number: setattr(by_attribute, "scale", number), id="function-attribute"),
]


@pytest.mark.parametrize(("target", "change"), STALE)
def test_a_number_that_changes_between_calls(target: Callable[..., Any], change: Callable[[float], None]) -> None:
    changes = torch._dynamo.disable(change)

    def changing(wrong: int) -> Callable[..., Any]:
        def call(x: torch.Tensor, number: float) -> torch.Tensor:
            # As code that was compiled once and is not guarded: the number stays what it was.
            changes(1.0 if by(wrong) != 1 else number)
            return target(x)  # type: ignore[no-any-return]

        return call

    healthy, planted = (hold(running(changing(wrong), (X, 1.0), (X, 2.0)), lane="capture") for wrong in (1, 2))

    if target is by_default and UNGUARDED:
        assert differences(healthy) == ["call 1 output: value"]
    else:
        assert kept_limits(healthy) == HELD
    assert "call 1 output: value" in differences(planted)
    assert (Scales.scale, by_default.__defaults__, by_attribute.scale) == (1.0, (1.0,), 1.0)  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------------------------
# Random numbers, memory, and other things that a run leaves


def draws_once_more(x: torch.Tensor) -> torch.Tensor:
    y = x + torch.rand(4, 8)
    return y + torch.rand(4, 1) * 0 if compiling() else y


def draws_only_compiled(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + torch.rand(4, 1) * 0 if compiling() else x * 2


def draws(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(4, 8) * random.random() + nn.functional.dropout(x)


@pytest.mark.parametrize("lane", ["capture", "aot", "inductor"])
def test_random_numbers_are_used_up_as_in_eager(lane: str) -> None:
    entry = hold(running(draws, (X,), (X,)), lane=lane, max_eager_frames=1)

    assert kept_limits(entry) == HELD


@pytest.mark.parametrize("lane", ["capture", "aot"])
@pytest.mark.parametrize("target", [draws_once_more, draws_only_compiled])
def test_other_random_numbers_are_used_up(target: Callable[..., Any], lane: str) -> None:
    assert differences(hold(running(target, (X,)), lane=lane)) == ["cpu generator: random numbers"]


@pytest.mark.parametrize(
    ("made", "draw"),
    [
        (lambda: random.Random(0), lambda stream: stream.random()),
        (lambda: torch.Generator().manual_seed(0), lambda stream: torch.rand(1, generator=stream).item()),
        (lambda: np.random.default_rng(0), lambda stream: stream.random()),
        (lambda: np.random.Generator(np.random.MT19937(0)), lambda stream: stream.random()),
        (lambda: np.random.RandomState(0), lambda stream: stream.rand()),
    ],
    ids=["random.Random", "torch.Generator", "numpy's default", "numpy's MT19937", "numpy's RandomState"],
)
def test_a_stream_of_random_numbers_is_state(made: Callable[[], Any], draw: Callable[[Any], float]) -> None:
    model = nn.Identity()
    vars(model)["stream"] = made()
    state = State(model)
    untouched = state.changed()

    first = draw(model.stream)
    moved = state.changed()
    state.restore()

    assert (untouched, list(moved)) == ({}, ["stream"])
    assert draw(model.stream) == first


KEPT: list[Any] = []


def _keeping(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        KEPT.extend(args)
        return graph.forward(*args)

    return run


register_backend(compiler_fn=_keeping, name="keeping")


def test_an_argument_that_compiled_code_keeps_alive() -> None:
    planted = hold(running(lambda x: x * 2, (X,)), lane=Lane(name="planted", backend="keeping"))
    KEPT.clear()

    assert differences(planted) == ["call 0 input tensor 0: memory"]


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


def breaks_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = x.sin()
        torch._dynamo.graph_break()
    return x


@pytest.mark.parametrize("target", [breaks, breaks_in_a_loop, nn.Linear(8, 8), lambda x: x[1:], lambda x: x.add_(1)])
def test_what_dynamo_only_looked_at_is_let_go(target: Callable[..., Any]) -> None:
    entry = hold(running(target, (X.clone(),), (X.clone(),)), max_eager_frames=1, min_ops_captured=0)

    assert kept_limits(entry) == HELD


@pytest.mark.parametrize("wrong", [1, 2])
def test_an_output_that_is_in_no_graph(wrong: int) -> None:
    def detaches(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y if by(wrong) == 1 else y.detach().requires_grad_()

    entry = hold(running(detaches, (X.clone().requires_grad_(),)), lane="capture")

    assert differences(entry) == ([] if wrong == 1 else ["call 0 output: grad_fn"])


# ---------------------------------------------------------------------------------------------------------------------
# Eager by request, code dropped, and threads from elsewhere


def observing(work: Callable[[], Any]) -> Callable[[CompileLane], Any]:
    def body(lane: CompileLane) -> None:
        with lane.observe():
            work()

    return body


def under(stance: str, sizes: tuple[int, ...]) -> Callable[[], None]:
    def work() -> None:
        compiled = torch.compile(breaks, backend="eager")
        compiled(torch.ones(3))
        with torch.compiler.set_stance(stance):
            for size in sizes:
                compiled(torch.ones(size))

    return work


def ran_eager(entry: Entry) -> list[tuple[str, str]]:
    return [(each.frame.function, each.reason) for each in measured(entry).lost_frames or ()]


def test_calls_that_a_stance_makes_eager() -> None:
    served = hold(observing(under("eager_on_recompile", (3, 3))), lane="capture", max_recompiles=0)
    missed = hold(observing(under("eager_on_recompile", (3, 4, 4))), lane="capture", max_recompiles=0)
    forced = hold(observing(under("force_eager", (3, 3))), lane="capture", max_recompiles=0)
    allowed = hold(observing(under("force_eager", (3, 3))), lane="capture", max_eager_frames=1)

    assert kept_limits(served) == kept_limits(allowed) == HELD
    assert missed.verdict == forced.verdict == "violated"
    assert ran_eager(missed) == [("breaks", "stance 'eager_on_recompile' was set")]
    assert ran_eager(forced) == [("breaks", "stance 'force_eager' was set")]


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_a_stance_that_compiles_later_starts_anew_in_each_lane(stance: str) -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def called_again() -> None:
        compiled = torch.compile(doubled, backend="eager")
        with torch.compiler.set_stance(stance):
            for size in (3, 3, 4):
                compiled(torch.ones(size))

    def seen() -> tuple[Any, ...]:
        entry = hold(observing(called_again), lane="capture")
        return (entry.verdict, measured(entry).graphs, measured(entry).backend_calls, ran_eager(entry))

    first = seen()

    assert [seen(), seen()] == [first, first]


def test_the_inputs_that_a_stance_has_seen_may_be_kept_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch._dynamo.eval_frame._EXAMPLE_INPUTS")

    forget_examples()

    assert not hasattr(importlib.import_module("torch._dynamo.eval_frame"), "_EXAMPLE_INPUTS")


def test_a_stance_that_makes_a_part_of_a_call_eager() -> None:
    def grows(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos() if EXTRA == 0 else y.exp()

    def work() -> None:
        global EXTRA
        compiled = torch.compile(grows, backend="eager")
        compiled(torch.ones(3))
        with torch.compiler.set_stance("eager_on_recompile"):
            EXTRA = 1
            compiled(torch.ones(3))

    entry = hold(observing(work), lane="capture")

    assert ran_eager(entry) == [
        ("grows", "stance 'eager_on_recompile' was set: a call ran 1 of 2 compiled graphs"),
    ]


EXTRA = 0


def test_a_module_under_a_stance() -> None:
    def work() -> None:
        compiled = torch.compile(Scales(), backend="eager")
        with torch.compiler.set_stance("force_eager"):
            compiled(X)

    assert ran_eager(hold(observing(work), lane="capture")) == [("forward", "stance 'force_eager' was set")]


def test_a_stance_that_is_set_before() -> None:
    compiled = torch.compile(lambda x: x * 2, backend="eager")

    def body(lane: CompileLane) -> None:
        with torch.compiler.set_stance("force_eager"), lane.observe():
            compiled(X)

    assert ran_eager(hold(body, lane="capture")) == [("<lambda>", "stance 'force_eager' was set")]


def test_a_stance_with_a_backend_of_its_own() -> None:
    compiled = torch.compile(lambda x: x * 2, backend="aot_eager")

    def work() -> None:
        with torch.compiler.set_stance("default", force_backend="eager"):
            compiled(X)

    entry = hold(observing(work), lane="aot")

    assert (entry.verdict, entry.reason) == (
        "unverified",
        "the stance forced backend 'eager', the lane's is 'aot_eager'",
    )


def test_a_call_while_dynamo_is_turned_off() -> None:
    compiled = torch.compile(lambda x: x * 2, backend="eager")

    def work(size: int) -> None:
        compiled(torch.ones(3))
        with torch._dynamo.config.patch(disable=True):
            compiled(torch.ones(size))

    healthy = hold(observing(lambda: work(3)), lane="capture")
    planted = hold(observing(lambda: work(4)), lane="capture")

    assert kept_limits(healthy) == HELD
    assert ran_eager(planted) == [("<lambda>", "torch._dynamo.config.disable was set")]


@pytest.mark.parametrize("reset", [torch._dynamo.reset, torch.compiler.reset])
def test_code_that_a_reset_drops_is_compiled_again(reset: Callable[[], None]) -> None:
    def work() -> None:
        compiled = torch.compile(breaks, backend="eager")
        for size in (3, 4, 5):
            compiled(torch.ones(size))
            reset()

    entry = hold(observing(work), lane="capture", max_recompiles=0)

    seen = measured(entry)
    assert kept_limits(entry) == ("violated", {"max_recompiles=0": 4})
    assert (seen.resets, seen.first_compiles, seen.recompiles) == (3, 6, ())
    assert [each.kind for each in seen.dropped or ()] == ["reset"] * 4
    assert entry.violations[0].details[:2] == (
        f"{(seen.dropped or ())[0].frame}: reset recompile",
        "  guard: torch._dynamo.reset() dropped the code that was compiled",
    )


def test_what_is_compiled_afresh_after_a_reset_is_a_first_compile() -> None:
    def work() -> None:
        for _ in range(3):
            torch._dynamo.reset()
            torch.compile(breaks, backend="eager")(X)

    entry = hold(observing(work), lane="capture", max_recompiles=0)

    assert kept_limits(entry) == HELD
    assert (measured(entry).resets, measured(entry).first_compiles, measured(entry).dropped) == (3, 6, ())


def test_a_thread_that_was_there_before_makes_counts_uncertain() -> None:
    compiled = torch.compile(lambda x: x * 2, backend="eager")
    go, done = threading.Event(), threading.Event()

    def lingers() -> None:
        go.wait()
        compiled(X)
        done.set()

    thread = threading.Thread(target=lingers, name="lingering")
    thread.start()

    def work() -> None:
        go.set()
        assert done.wait(60)

    entry = hold(observing(work), lane="capture")
    thread.join()

    assert (entry.verdict, entry.reason) == (
        "unverified",
        "thread 'lingering' was running before this measurement and compiled 1 frames in it",
    )


def test_a_thread_of_the_tests_own_is_counted() -> None:
    compiled = torch.compile(lambda x: x * 2, backend="eager")

    def work() -> None:
        thread = threading.Thread(target=compiled, args=(X,))
        thread.start()
        thread.join()

    entry = hold(observing(work), lane="capture")

    assert kept_limits(entry) == HELD
    assert measured(entry).graphs == 1


def test_where_a_stance_cannot_be_seen_a_test_of_its_own_is_unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    canary()  # which sets a stance, once a process

    def body(lane: CompileLane) -> None:
        with monkeypatch.context() as patch:
            patch.delattr("torch._dynamo.decorators._set_stance")
            with lane.observe():
                torch.compile(lambda x: x * 2, backend="eager")(X)

    entry = hold(body, lane="capture")

    assert (entry.verdict, entry.reason) == (
        "unverified",
        "eager_by_request: cannot be measured: torch has no torch._dynamo.decorators._set_stance",
    )


# ---------------------------------------------------------------------------------------------------------------------
# Compiled code that is given up


def scaled(x: torch.Tensor, by: float | None) -> torch.Tensor:
    return x if by is None else (x * by).sin()


@torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]
def passed_on(x: torch.Tensor, by: float | None) -> torch.Tensor:
    return scaled(x, by)


def around(x: torch.Tensor, by: float | None) -> torch.Tensor:
    return passed_on(x + 1, by) * 2


@pytest.mark.parametrize(
    ("factors", "found"),
    [
        ((2.0, 2.0, 2.0), HELD),
        # Once it has nothing to do, Dynamo skips it for good, and runs (x * by).sin() eager.
        ((2.0, None, 2.0), ("violated", {"max_eager_frames=0 (default)": 1})),
    ],
    ids=["always the same", "a call without operations"],
)
def test_a_frame_whose_code_is_given_up_after_a_call_without_operations(
    factors: tuple[float | None, ...], found: Any
) -> None:
    entry = hold(running(around, *((X, by) for by in factors)), lane="capture", max_graph_breaks=1)

    assert kept_limits(entry) == found
    causes = [each.cause for each in measured(entry).eager_frames or ()]
    assert ("nothing more to compile" in causes) == (found != HELD)
