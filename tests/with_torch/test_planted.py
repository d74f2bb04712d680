"""Planted regressions: each is caught, and its healthy twin is held."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from holding import hold, kept_limits, measured
from planting import Doubled
from torch import nn
from torch._dynamo.backends.registry import register_backend

from pytest_compilecontract import call
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.measure.compile_lane import CompileLane

pytestmark = pytest.mark.insides

HELD: tuple[str, dict[str, int | str]] = ("held", {})
NUMERICS = "numerics='fp64' (default)"
NO_EXCEPTION = "no exception (default)"
LIMIT = "allow_recompile_limit=False (default)"
STEADY = "compiled code runs in steady calls (default)"
EAGER = "max_eager_frames=0 (default)"
OPS = "min_ops_captured=1 (default)"

# ---------------------------------------------------------------------------------------------------------------------
# Backends that compile wrong


def _scaled(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
    return lambda *args: tuple(each * 1.01 for each in graph.forward(*args))


def _gradients_doubled(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
    return lambda *args: tuple(Doubled.apply(each) for each in graph.forward(*args))


def _updates_lost(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        return graph.forward(*(each if each.requires_grad else each.clone() for each in args))

    return run


def _transposed(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
    return lambda *args: tuple(each.t().contiguous().t() for each in graph.forward(*args))


def _raises_when_compiling(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
    raise ValueError("no kernel for this graph")


def _raises_when_run(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        raise ValueError("illegal memory access")

    return run


PLANTED = (_scaled, _gradients_doubled, _updates_lost, _transposed, _raises_when_compiling, _raises_when_run)
for each in PLANTED:
    register_backend(compiler_fn=each, name=f"planted{each.__name__}")


def lane_with(backend: Callable[..., Any], **settings: Any) -> Lane:
    """A lane of the project that compiles with one of these backends."""
    return Lane(name="planted", backend=f"planted{backend.__name__}", **settings)


# ---------------------------------------------------------------------------------------------------------------------
# Models


class Block(nn.Module):
    """A healthy block."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x)) + x


class BreaksInForward(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        torch._dynamo.graph_break()
        return x.relu()


class BreaksWithGradients(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        if torch.is_grad_enabled():
            torch._dynamo.graph_break()
        return x.relu()


class BreaksForAnItem(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        return x.relu() * x.max().item()


class BreaksTwice(BreaksInForward):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        return x.relu() * x.max().item()


class Counts(Block):
    """Keeps a number that the compiled code is specialised on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


class CountsInABuffer(Block):
    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)
        return super().forward(x)


X = torch.linspace(-1, 1, 32).reshape(4, 8)


def running(make: Callable[[], nn.Module], *, calls: int = 3) -> Callable[[CompileLane], Any]:
    return lambda lane: lane.run(make(), *[(X,)] * calls)


def training(make: Callable[[], nn.Module], *, steps: int = 3) -> Callable[[CompileLane], Any]:
    return lambda lane: lane.train(make(), [(X,)] * steps)


def without_gradients(body: Callable[[CompileLane], Any]) -> Callable[[CompileLane], Any]:
    return torch.no_grad()(body)


# ---------------------------------------------------------------------------------------------------------------------
# Graph breaks


@pytest.mark.parametrize("lane", ["capture", "aot"])
def test_a_break_in_the_forward(lane: str) -> None:
    healthy = hold(running(Block), lane=lane, max_graph_breaks=0)
    planted = hold(running(BreaksInForward), lane=lane, max_graph_breaks=0)

    assert kept_limits(healthy) == HELD
    assert kept_limits(planted) == ("violated", {"max_graph_breaks=0": 1})
    assert planted.violations[0].details[0].endswith("in forward: torch._dynamo.graph_break()")


def test_a_break_only_when_gradients_are_on() -> None:
    healthy = hold(without_gradients(running(BreaksWithGradients)), max_graph_breaks=0)
    planted = hold(training(BreaksWithGradients), max_graph_breaks=0)

    assert kept_limits(healthy) == HELD
    assert kept_limits(planted) == ("violated", {"max_graph_breaks=0": 1})


def test_the_expected_break_for_another_reason() -> None:
    healthy = hold(running(BreaksInForward), max_graph_breaks=1)
    planted = hold(running(BreaksForAnItem), max_graph_breaks=1)

    # A limit is a number: it cannot see this one. The measurement can, and with it an assertion in the test's.
    assert kept_limits(healthy) == kept_limits(planted) == HELD
    kinds = [each.kind for entry in (healthy, planted) for each in measured(entry).graph_breaks or ()]
    assert kinds == [
        "Call to `torch._dynamo.graph_break()`",
        "Unsupported Tensor.item() call with capture_scalar_outputs=False",
    ]


def test_a_second_break_beside_the_expected_one() -> None:
    healthy = hold(running(BreaksInForward), max_graph_breaks=1)
    planted = hold(running(BreaksTwice), max_graph_breaks=1)

    assert kept_limits(healthy) == HELD
    assert kept_limits(planted) == ("violated", {"max_graph_breaks=1": 2})


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = x.sin()
        torch._dynamo.graph_break()
    return x.cos()


def in_a_try(x: torch.Tensor) -> torch.Tensor:
    try:
        x = x.sin()
        torch._dynamo.graph_break()
        x = x.exp()
    except ValueError:
        pass
    return x.cos()


def without_a_break(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = x.sin()
    return x.cos()


@pytest.mark.parametrize("function", [in_a_loop, in_a_try])
def test_a_break_that_takes_the_whole_frame(function: Callable[..., Any]) -> None:
    healthy = hold(lambda lane: lane.run(without_a_break, (X,), (X,)))
    planted = hold(lambda lane: lane.run(function, (X,), (X,)), numerics=None)

    assert kept_limits(healthy) == HELD
    assert planted.verdict == "violated"
    assert [each.limit for each in planted.violations] == [EAGER, OPS]
    (lost,) = measured(planted).lost_frames or ()
    assert (lost.cause, lost.frame.function) == ("graph break", function.__name__)


def pieces(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x.sin()
    yield x.cos()


def test_a_generator_runs_eager() -> None:
    def planted_body(lane: CompileLane) -> None:
        with lane.observe():
            list(lane.compile(pieces)(X))

    def healthy_body(lane: CompileLane) -> None:
        with lane.observe():
            lane.compile(lambda x: list(pieces(x)))(X)

    healthy = hold(healthy_body)
    planted = hold(planted_body)

    assert kept_limits(healthy) == HELD
    assert kept_limits(planted) == ("violated", {EAGER: 1, OPS: 0})


# ---------------------------------------------------------------------------------------------------------------------
# Recompiles


def test_a_recompile_in_each_call() -> None:
    healthy = hold(running(Block), max_recompiles=0)
    planted = hold(running(Counts), max_recompiles=0)

    assert kept_limits(healthy) == HELD
    assert kept_limits(planted) == ("violated", {"max_recompiles=0": 2})
    assert "self.calls == 0" in planted.violations[0].details[1]


def test_silent_eager_behind_the_recompile_limit() -> None:
    lane = Lane(name="planted", backend="aot_eager", dynamo={"recompile_limit": 2})

    healthy = hold(running(Counts, calls=2), lane=lane)
    planted = hold(running(Counts, calls=4), lane=lane)

    assert kept_limits(healthy) == HELD
    # Numbers agree, no exception, no break: only these two tell.
    assert kept_limits(planted) == ("violated", {LIMIT: "reached by 1 frame", STEADY: "1 of 4 calls ran none"})
    assert [each.graphs_executed for each in measured(planted).calls or ()] == [1, 1, 0, 0]


def test_steady_calls_that_run_eager_after_an_eager_call() -> None:
    @torch._dynamo.disable
    def next_call(eager: bool) -> None:
        torch.compiler.set_stance("force_eager" if eager else "default")

    def flips(x: torch.Tensor, eager: bool) -> torch.Tensor:
        x = x.sin()
        next_call(eager)
        return x.cos()

    healthy = hold(lambda lane: lane.run(flips, (X, False), (X, False), (X, False)), lane="capture")
    planted = hold(lambda lane: lane.run(flips, (X, False), (X, True), (X, True), (X, True)), lane="capture")

    assert kept_limits(healthy) == HELD
    assert planted.verdict == "violated"
    assert STEADY in kept_limits(planted)[1]


def test_the_recompile_limit_allowed() -> None:
    lane = Lane(name="planted", backend="aot_eager", dynamo={"recompile_limit": 2})

    entry = hold(running(Counts, calls=4), lane=lane, allow_recompile_limit=True)

    assert kept_limits(entry) == HELD
    assert len(measured(entry).limit_hits or ()) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Compiled is wrong


def numerics_of(body: Callable[[CompileLane], Any], lane: str | Lane, **limits: Any) -> tuple[str, list[str]]:
    """The verdict, and the kinds of differences with where they are."""
    entry = hold(body, lane=lane, **limits)
    found = measured(entry).numerics
    assert found is not None
    return entry.verdict, [f"{each.at}: {each.kind}" for each in found.differences]


def test_outputs_one_percent_off() -> None:
    assert numerics_of(running(Block, calls=1), "capture") == ("held", [])

    assert numerics_of(running(Block, calls=1), lane_with(_scaled)) == ("violated", ["call 0 output: value"])


def test_gradients_doubled_with_the_same_output() -> None:
    assert numerics_of(training(Block, steps=1), "capture") == ("held", [])

    verdict, differences = numerics_of(training(Block, steps=1), lane_with(_gradients_doubled))
    assert verdict == "violated"
    assert [each for each in differences if "grad" in each] == [
        "step 0 grad['inner.weight']: value",
        "step 0 grad['inner.bias']: value",
    ]
    assert [each for each in differences if "output" in each or "loss" in each] == []


def test_doubled_gradients_of_a_forward_call() -> None:
    lane = lane_with(_gradients_doubled)

    assert numerics_of(running(Block, calls=1), lane) == ("held", [])  # no gradient is asked for
    verdict, _ = numerics_of(running(Block, calls=1), lane, check_grads=True)
    assert verdict == "violated"


def test_a_buffer_that_is_not_updated() -> None:
    assert numerics_of(running(CountsInABuffer), "capture") == ("held", [])

    verdict, differences = numerics_of(running(CountsInABuffer), lane_with(_updates_lost))
    assert (verdict, differences) == ("violated", ["afterwards['steps']: value"])


def test_a_buffer_that_is_not_updated_in_training() -> None:
    assert numerics_of(training(CountsInABuffer, steps=1), "capture") == ("held", [])

    verdict, differences = numerics_of(training(CountsInABuffer, steps=1), lane_with(_updates_lost))
    assert (verdict, differences) == ("violated", ["step 0 buffer['steps']: value"])


def test_an_output_with_another_stride() -> None:
    assert numerics_of(running(Block, calls=1), "capture") == ("held", [])

    assert numerics_of(running(Block, calls=1), lane_with(_transposed)) == ("violated", ["call 0 output: stride"])


def test_a_change_to_an_input_that_is_lost() -> None:
    def adds(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x.sin()

    body = lambda lane: lane.run(adds, (X.clone(),))  # noqa: E731

    assert numerics_of(body, "capture") == ("held", [])
    verdict, differences = numerics_of(body, lane_with(_updates_lost))
    assert (verdict, differences) == ("violated", ["call 0 input[0]: input changed"])


def test_a_branch_taken_only_when_compiled() -> None:
    def differs(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * (1.01 if torch.compiler.is_compiling() else 1.0)

    entry = hold(lambda lane: lane.run(differs, (X,)), lane="capture")

    assert kept_limits(entry) == ("violated", {NUMERICS: "1 difference"})


def compiled_only(wrong: float) -> float:
    """1 in eager, `wrong` where Dynamo compiles the caller: the planted twin of a healthy 1."""
    return wrong if torch.compiler.is_compiling() else 1.0


# ---------------------------------------------------------------------------------------------------------------------
# State that compiled code leaves wrong, with outputs that are right. `wrong` is 1 in the healthy twin.


class Keeps(nn.Module):
    """Keeps something of each call."""

    average: torch.Tensor

    def __init__(self, wrong: float) -> None:
        super().__init__()
        self.wrong = wrong
        self.register_buffer("average", torch.zeros(8))
        self.attribute = torch.zeros(8)
        self.kept: list[torch.Tensor] = []
        self.calls = 0


class ReassignsABuffer(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.average = self.average * 0.9 + x.mean(0) * compiled_only(self.wrong)
        return x * 2


class ReassignsAnAttribute(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.attribute = self.attribute + x.mean(0) * compiled_only(self.wrong)
        return x * 2


class FillsAList(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(x * compiled_only(self.wrong))
        return x * 2


class CountsCalls(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += int(compiled_only(self.wrong))
        return x * 2


class ChangesItsMode(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.train(compiled_only(self.wrong) == 1)
        return x * 2


WRONG_STATE = [
    pytest.param(ReassignsABuffer, "afterwards['average (reassigned)']: value", id="buffer-reassigned"),
    pytest.param(ReassignsAnAttribute, "afterwards['attribute (reassigned)']: value", id="attribute-reassigned"),
    pytest.param(FillsAList, "afterwards['kept'][0]: value", id="list"),
    pytest.param(CountsCalls, "afterwards['calls']: value", id="number"),
    pytest.param(ChangesItsMode, "afterwards: structure", id="mode"),
]


@pytest.mark.parametrize(("kind", "difference"), WRONG_STATE)
@pytest.mark.parametrize("lane", ["capture", "aot"])
def test_state_that_is_left_wrong(kind: type[Keeps], difference: str, lane: str) -> None:
    assert numerics_of(lambda it: it.run(kind(1), (X,)), lane) == ("held", [])

    verdict, differences = numerics_of(lambda it: it.run(kind(5), (X,)), lane)
    assert verdict == "violated"
    assert difference in differences


def test_a_parameter_frozen_only_when_compiled() -> None:
    class Freezes(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.compiler.is_compiling():
                self.inner.weight.requires_grad_(False)
            return super().forward(x)

    assert numerics_of(running(Block, calls=1), "capture") == ("held", [])

    verdict, _ = numerics_of(running(Freezes, calls=1), "capture")
    assert verdict == "violated"


COUNT = 0
SEEN: list[int] = []
LAST = torch.zeros(8)


def counts_globally(x: torch.Tensor, wrong: float) -> torch.Tensor:
    global COUNT
    COUNT = int(compiled_only(wrong))
    return x * 2


def lists_globally(x: torch.Tensor, wrong: float) -> torch.Tensor:
    SEEN.append(int(compiled_only(wrong)))
    return x * 2


def rebinds_a_global(x: torch.Tensor, wrong: float) -> torch.Tensor:
    global LAST
    LAST = x.sum(0) * compiled_only(wrong)
    return x * 2


@pytest.mark.parametrize("function", [counts_globally, lists_globally, rebinds_a_global])
def test_a_global_that_is_left_wrong(function: Callable[..., Any]) -> None:
    assert numerics_of(lambda lane: lane.run(function, (X + 2, 1)), "capture") == ("held", [])

    verdict, differences = numerics_of(lambda lane: lane.run(function, (X + 2, 7)), "capture")
    assert (verdict, len(differences)) == ("violated", 1)
    assert (COUNT, SEEN, LAST.tolist()) == (0, [], [0.0] * 8)


def test_two_variables_of_one_name_are_both_compared() -> None:
    def keeping(wrong: float) -> Callable[..., Any]:
        last = torch.zeros(8)

        def keeps(x: torch.Tensor) -> None:
            nonlocal last
            last = x.sum(0) * compiled_only(wrong)

        return keeps

    def body(wrong: float) -> Callable[[CompileLane], Any]:
        one, other = keeping(1), keeping(wrong)

        def calls_both(x: torch.Tensor) -> torch.Tensor:
            one(x)
            other(x)
            return x * 2

        return lambda lane: lane.run(calls_both, (X + 2,))

    assert numerics_of(body(1), "capture") == ("held", [])
    verdict, differences = numerics_of(body(7), "capture")
    assert (verdict, differences) == ("violated", ["afterwards['last (reassigned) (2)']: value"])


# ---------------------------------------------------------------------------------------------------------------------
# Compiled in parts already: eager must be eager


class Scales(nn.Module):
    def __init__(self, wrong: float) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() * compiled_only(self.wrong)


class Decorated(Scales):
    @torch.compile(backend="eager")
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() * compiled_only(self.wrong)


def regional(wrong: float) -> Callable[..., Any]:
    return nn.Sequential(torch.compile(Scales(wrong), backend="eager"), nn.ReLU())


def regional_in_place(wrong: float) -> Callable[..., Any]:
    inner = Scales(wrong)
    inner.compile(backend="eager")
    return nn.Sequential(inner, nn.ReLU())


def a_compiled_function(wrong: float) -> Callable[..., Any]:
    compiled = torch.compile(lambda x: x.sin() * compiled_only(wrong), backend="eager")
    return lambda x: compiled(x) + 1


@pytest.mark.parametrize("make", [Decorated, regional, regional_in_place, a_compiled_function])
def test_a_target_that_is_compiled_in_parts(make: Callable[[float], Callable[..., Any]]) -> None:
    # Only wrong values are looked for: where torch compiles twice, what was captured twice is torch's affair.
    _, healthy = numerics_of(lambda lane: lane.run(make(1), (X + 2,)), "capture")
    verdict, planted = numerics_of(lambda lane: lane.run(make(9), (X + 2,)), "capture")

    assert (healthy, planted) == ([], ["call 0 output: value"])
    assert verdict == "violated"


# ---------------------------------------------------------------------------------------------------------------------
# Gradients asked for: those of every tensor that the call reaches


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor


class Weighted(nn.Module):
    def __init__(self, wrong: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.wrong(self.weight)

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x)


def doubles_gradients(x: torch.Tensor) -> torch.Tensor:
    return Doubled.apply(x) if torch.compiler.is_compiling() else x.view_as(x)  # type: ignore[no-any-return]


def healthy_gradients(x: torch.Tensor) -> torch.Tensor:
    return x.view_as(x)


def leaf() -> torch.Tensor:
    return X.clone().requires_grad_()


def _calling(module: nn.Module) -> Callable[..., Any]:
    return lambda x: module(x)


GRADIENTS: list[Any] = [
    pytest.param(lambda lane, f: lane.run(lambda given: f(given["a"]), ({"a": leaf()},)), id="in-a-dict"),
    pytest.param(lambda lane, f: lane.run(lambda given: f(given[0]), ([leaf()],)), id="in-a-list"),
    pytest.param(lambda lane, f: lane.run(Weighted(f).other, (X,)), id="bound-method"),
    pytest.param(lambda lane, f: lane.run(_calling(Weighted(f)), (X,)), id="module-in-a-function"),
    pytest.param(lambda lane, f: lane.run(lambda m, x: m(x), (Weighted(f), X)), id="module-as-an-argument"),
    pytest.param(lambda lane, f: lane.run(lambda x: Output(f(x)), (leaf(),)), id="dataclass-output"),
]


@pytest.mark.parametrize("body", GRADIENTS)
def test_a_gradient_that_is_wrong_where_the_output_is_right(body: Callable[..., Any]) -> None:
    healthy = numerics_of(lambda lane: body(lane, healthy_gradients), "capture", check_grads=True)
    verdict, differences = numerics_of(lambda lane: body(lane, doubles_gradients), "capture", check_grads=True)

    assert healthy == ("held", [])
    assert verdict == "violated"
    assert differences
    assert [each for each in differences if " grad[" not in each] == []


def test_a_gradient_check_with_nothing_to_check_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        hold(lambda lane: lane.run(lambda x: x * 2, (X,)), check_grads=True)

    assert str(caught.value) == "check_grads=True, but no output requires a gradient"


# ---------------------------------------------------------------------------------------------------------------------
# Outputs of any kind are compared, or the lane is not held

OUTPUTS: list[Any] = [
    pytest.param(lambda y: collections.deque([y]), "violated", id="deque"),
    pytest.param(lambda y: {"a": y}.values(), "violated", id="dict-values"),
    pytest.param(lambda y: map(torch.clone, [y]), "violated", id="map"),
    pytest.param(lambda y: {y}, "unverified", id="set-of-tensors"),
    pytest.param(lambda y: lambda: y, "violated", id="closure"),
    pytest.param(lambda y: functools.partial(torch.add, y), "violated", id="partial"),
]


@pytest.mark.parametrize(("wrap", "verdict"), OUTPUTS)
def test_a_wrong_output_in_a_container_is_not_held(wrap: Callable[..., Any], verdict: str) -> None:
    def body(wrong: float) -> Callable[[CompileLane], Any]:
        return lambda lane: lane.run(lambda x: wrap(x * compiled_only(wrong)), (X,))

    healthy = hold(body(1), lane="capture", max_eager_frames=1, min_ops_captured=0)
    planted = hold(body(3), lane="capture", max_eager_frames=1, min_ops_captured=0)

    # What cannot be compared is not known to be right either.
    assert healthy.verdict == ("held" if verdict == "violated" else "unverified")
    assert planted.verdict == verdict


def test_a_model_whose_state_cannot_be_put_back_is_not_held() -> None:
    class Numbers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.numbers = (number for number in itertools.count())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * compiled_only(1000) + next(self.numbers)

    entry = hold(lambda lane: lane.run(Numbers(), (X,), (X,)), lane="capture", allow_recompile_limit=True)

    assert entry.verdict == "unverified"
    assert "call 0 output: eager differs from itself there" in entry.reason


# ---------------------------------------------------------------------------------------------------------------------
# Exceptions


def test_a_wrong_output_before_the_exception_that_both_raise() -> None:
    def looks_up(wrong: float) -> Callable[..., Any]:
        return lambda weight, index: nn.functional.embedding(index, weight) * compiled_only(wrong)

    def body(wrong: float) -> Callable[[CompileLane], Any]:
        def runs(lane: CompileLane) -> None:
            with pytest.raises(IndexError):
                lane.run(looks_up(wrong), (X, torch.tensor([0])), (X, torch.tensor([99])))

        return runs

    assert numerics_of(body(1), "capture") == ("held", [])
    assert numerics_of(body(3), "capture") == ("violated", ["call 0 output: value"])


def test_a_backend_that_fails() -> None:
    entry = hold(running(Block), lane=lane_with(_raises_when_compiling))

    assert kept_limits(entry) == (
        "broken",
        {NO_EXCEPTION: "raised BackendCompilerFailed", EAGER: 1, OPS: 0},
    )
    (failure,) = measured(entry).backend_failures or ()
    assert (failure.type, failure.message) == ("ValueError", "no kernel for this graph")
    assert entry.violations[0].details[0] == (
        "BackendCompilerFailed: backend='planted_raises_when_compiling' raised: ValueError: no kernel for this graph "
        "(in call 0; eager does not raise)"
    )


def test_errors_that_dynamo_suppresses() -> None:
    entry = hold(running(Block), lane=lane_with(_raises_when_compiling, dynamo={"suppress_errors": True}))

    assert kept_limits(entry) == ("violated", {EAGER: 1, OPS: 0})
    (suppressed,) = measured(entry).errors_suppressed or ()
    assert (suppressed.type, suppressed.message) == ("ValueError", "no kernel for this graph")
    assert [each.cause for each in measured(entry).lost_frames or ()] == ["suppressed error"]


def test_an_exception_in_compiled_only() -> None:
    entry = hold(running(Block), lane=lane_with(_raises_when_run))

    assert kept_limits(entry) == ("broken", {NO_EXCEPTION: "raised ValueError"})
    raised = measured(entry).raised
    assert raised is not None
    assert raised.message == "illegal memory access (in call 0; eager does not raise)"


def test_an_exception_in_eager_only() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            raise ValueError("eager refuses")
        return x.sin()

    entry = hold(lambda lane: lane.run(refuses, (X,)))

    assert kept_limits(entry) == ("broken", {NO_EXCEPTION: "raised no exception"})
    raised = measured(entry).raised
    assert raised is not None
    assert raised.message == "eager raises ValueError in call 0: eager refuses; compiled does not raise"


def test_an_exception_in_both_is_the_tests_own() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        return x.sin() @ torch.ones(3, 3)

    with pytest.raises(RuntimeError):
        hold(lambda lane: lane.run(refuses, (X,)))


# ---------------------------------------------------------------------------------------------------------------------
# No false alarm


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 8))


def test_dropout_is_no_difference_on_inductor() -> None:
    entry = hold(running(dropping, calls=2), lane="inductor", max_recompiles=0, max_graph_breaks=0)

    assert kept_limits(entry) == HELD
    found = measured(entry).numerics
    assert found is not None
    assert "judged in a pass of its own with fallback_random=True" in found.note


def test_dropout_of_another_share_is_a_difference() -> None:
    def drops(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.9 if torch.compiler.is_compiling() else 0.1)

    entry = hold(lambda lane: lane.run(drops, (X + 3,)), lane="aot")

    assert kept_limits(entry) == (
        "violated",
        {
            NUMERICS: "1 difference, judged by allclose (no float64 reference: "
            "random numbers are drawn differently in float64)"
        },
    )


@torch.library.custom_op("planted::noise", mutates_args=())
def noise(x: torch.Tensor) -> torch.Tensor:
    """Not deterministic, and not by torch's generators."""
    return x + int.from_bytes(os.urandom(2), "big")


@noise.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_a_model_that_is_not_deterministic_is_told_from_one_that_is_compiled_wrong() -> None:
    entry = hold(lambda lane: lane.run(lambda x: torch.ops.planted.noise(x.sin()), (X,)))

    assert entry.verdict == "unverified"
    assert entry.reason == "not compared with eager: call 0 output: eager differs from itself there"
    found = measured(entry).numerics
    assert found is not None
    assert found.differences == ()
    assert "this model is not deterministic: eager differs from eager at call 0 output" in found.note


# ---------------------------------------------------------------------------------------------------------------------
# The reference passes leave no trace: compiled starts from what eager started from


def test_a_counter_on_a_module_starts_again() -> None:
    model = Counts()

    entry = hold(lambda lane: lane.run(model, (X,), (X,)))

    assert kept_limits(entry) == HELD
    assert model.calls == 0


def test_the_buffers_of_a_batch_norm_start_again() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    before = {name: each.clone() for name, each in model.state_dict().items()}

    entry = hold(lambda lane: lane.train(model, [(X,), (X * 2,)]))

    assert kept_limits(entry) == HELD
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_a_closure_starts_again() -> None:
    total = torch.zeros(8)
    calls = 0

    def accumulates(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        total.add_(x.sum(0))
        return total * calls

    entry = hold(lambda lane: lane.run(accumulates, (X + 1,), (X + 1,)))

    assert kept_limits(entry) == HELD
    assert (calls, total.tolist()) == (0, [0.0] * 8)


def test_an_optimizer_starts_again() -> None:
    def momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    entry = hold(lambda lane: lane.train(Block(), [(X,)] * 3, optimizer=momentum))

    assert kept_limits(entry) == HELD


def test_a_step_as_a_function_with_its_own_optimizer_starts_again() -> None:
    model = Block()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    entry = hold(lambda lane: lane.run(step, (X,), (X,)), lane="capture")

    assert kept_limits(entry) == HELD
    assert optimizer.state_dict()["state"] == {}


def test_a_cache_that_the_first_call_fills_starts_again() -> None:
    class Caches(Block):
        def __init__(self) -> None:
            super().__init__()
            self.cache: dict[int, torch.Tensor] = {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] not in self.cache:
                self.cache[x.shape[0]] = torch.ones(x.shape[0], 1)
            return super().forward(x) * self.cache[x.shape[0]]

    model = Caches()

    entry = hold(lambda lane: lane.run(model, (X,), (X,)))

    assert kept_limits(entry) == HELD
    assert model.cache == {}
    # Compiled code was built with the empty cache, then with the filled one.
    assert len(measured(entry).recompiles or ()) == 1


def test_inputs_are_the_same_in_every_pass() -> None:
    x = X.clone()

    entry = hold(lambda lane: lane.run(lambda x: x.add_(1), call(x), call(x)))

    assert kept_limits(entry) == HELD
    assert torch.equal(x, X)
