"""Tensor subclasses, right and wrong, by every way in: jagged tensors, wrappers, plain ones, parameters of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from holding import hold, measured
from torch import nn
from torch.utils._pytree import tree_map

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.measure.compile_lane import CompileLane
from pytest_compilecontract.measure.numerics import Copies, wide
from pytest_compilecontract.measure.probes.refusals import Refusals
from pytest_compilecontract.measure.probes.rounding import Choices, Rounding
from pytest_compilecontract.measure.probes.source import Paths
from pytest_compilecontract.measure.state import NotWide, State

pytestmark = [pytest.mark.insides, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")]
compiling = torch.compiler.is_compiling
# Before 2.15 a backend with AOTAutograd raises for a subclass that overrides nothing.
OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)
OF_PLAIN = "capture" if OLD else "aot"
# Where Dynamo compiles the methods of a wrapper whose operators give plain tensors, as frames of their own.
OLDEST = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12)


class Tagged(torch.Tensor):
    """A subclass that overrides nothing."""


class Two(torch.Tensor):
    """A wrapper of two tensors, with a name that is in neither."""

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor, name: str = "") -> Two:
        made: Two = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, a.size(), strides=a.stride(), dtype=a.dtype, device=a.device
        )
        return made

    def __init__(self, a: torch.Tensor, b: torch.Tensor, name: str = "") -> None:
        self.a, self.b, self.named = a, b, name

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Two({self.a}, {self.b})"

    def __tensor_flatten__(self) -> tuple[list[str], str]:
        return ["a", "b"], self.named

    @staticmethod
    def __tensor_unflatten__(inner: Any, name: str, *_: Any) -> Two:
        return Two(inner["a"], inner["b"], name)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = next((each.named for each in args if isinstance(each, Two)), "")

        def of(part: str) -> Any:
            def inner(value: Any) -> Any:
                return getattr(value, part) if isinstance(value, Two) else value

            return function(*tree_map(inner, args), **tree_map(inner, kwargs or {}))

        a, b = of("a"), of("b")
        if not isinstance(a, torch.Tensor):
            return a
        written = args and isinstance(args[0], Two) and function._schema.is_mutable
        return args[0] if written else Two(a, b, name)


class Scaled(torch.Tensor):
    """Codes and a scale, with a dtype that is in neither; operators give plain tensors."""

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> Scaled:
        made: Scaled = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=dtype)  # type: ignore[attr-defined]
        return made

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> tuple[list[str], torch.dtype]:
        return ["codes", "scale"], self.dtype

    @staticmethod
    def __tensor_unflatten__(inner: Any, dtype: torch.dtype, *_: Any) -> Scaled:
        return Scaled(inner["codes"], inner["scale"], dtype)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return Scaled(function(args[0].codes), function(args[0].scale), args[0].dtype)

        def plain(value: Any) -> Any:
            return value.codes.to(value.dtype) * value.scale.to(value.dtype) if isinstance(value, Scaled) else value

        return function(*tree_map(plain, args), **tree_map(plain, kwargs or {}))


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 3


def twice(x: torch.Tensor) -> torch.Tensor:
    """Twice x, with a gradient that is wrong where it is compiled."""
    made: torch.Tensor = Wrong.apply(x) if compiling() else x * 2  # type: ignore[no-untyped-call]
    return made


def jagged(*, grad: bool = False, dtype: torch.dtype | None = None) -> torch.Tensor:
    parts = [torch.randn(2, 4, dtype=dtype), torch.randn(3, 4, dtype=dtype)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=grad)


def two(*, grad: bool = False, name: str = "") -> Two:
    made: Two = Two(torch.randn(4, 4), torch.randn(4, 4), name).requires_grad_(grad)
    return made


def tagged(*, grad: bool = False) -> torch.Tensor:
    return torch.randn(4, 4).as_subclass(Tagged).requires_grad_(grad)


def scaled() -> Scaled:
    return Scaled(torch.randint(-5, 5, (4, 4), dtype=torch.int8), torch.rand(4, 1), torch.float32)


def x(*, grad: bool = False) -> torch.Tensor:
    return torch.randn(4, 4, requires_grad=grad)


class Gives(nn.Module):
    """A module of one parameter of any kind, and what it makes of it."""

    def __init__(self, parameter: torch.Tensor, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(parameter), nn.Parameter(torch.randn(4))
        self.made = forward

    def forward(self, *args: Any) -> Any:
        return self.made(self, *args)


class Holds(nn.Module):
    """A module with a buffer of any kind and an attribute of another."""

    def __init__(self, buffer: torch.Tensor, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.register_buffer("buffer", buffer)
        self.linear, self.beside, self.made = nn.Linear(4, 4), {"x": two(), "n": jagged()}, forward

    def forward(self, *args: Any) -> Any:
        return self.made(self, *args)


class Program(NamedTuple):
    """A target and what each of three calls is given; `train` where it is trained."""

    target: Callable[[], Any]
    given: Callable[[], tuple[Any, ...]]
    lane: str | Lane = "aot"
    limits: dict[str, Any] = {}  # noqa: RUF012 - never written to
    train: bool = False
    compile_with: Callable[[CompileLane, Any], Any] | None = None

    def body(self, lane: CompileLane) -> None:
        torch.manual_seed(0)
        given = [self.given() for _ in range(3)]
        if self.train:
            lane.train(self.target(), given)
        elif self.compile_with is not None:
            lane.run(self.target(), *given, compile_with=lambda target: self.compile_with(lane, target))  # type: ignore[misc]
        else:
            lane.run(self.target(), *given)


def of(function: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: function


def sharing() -> tuple[torch.Tensor, torch.Tensor]:
    one = jagged()
    return one, torch.nested.nested_tensor_from_jagged(torch.randn(5, 4), one.offsets())


def on_values() -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.randn(5, 4)
    return values, torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 5]))


def one_twice() -> Two:
    one = x()
    return Two(one, one)


def in_a_graph(make: Callable[..., torch.Tensor]) -> torch.Tensor:
    return make(grad=True) * 2


GRADS: dict[str, Any] = {"check_grads": True}
BF16 = Lane(name="bf16", backend="aot_eager", dtype="bfloat16")
DYNAMIC = Lane(name="dynamic", backend="aot_eager", dynamic=True)

RIGHT: dict[str, Program] = {
    "jagged": Program(of(lambda n: n * 2 + 1), lambda: (jagged(),)),
    "jagged, a linear layer": Program(lambda: nn.Linear(4, 4), lambda: (jagged(),)),
    "jagged, gradients of a layer": Program(lambda: nn.Linear(4, 4), lambda: (jagged(),), limits=GRADS),
    "jagged, gradients of an argument": Program(of(lambda n: (n.values() * 2).sum()), lambda: (jagged(grad=True),),
                                                limits=GRADS),
    "jagged, gradients through one": Program(of(lambda n: n.sin()), lambda: (jagged(grad=True),), limits=GRADS),
    "jagged, in a graph": Program(of(lambda n: n.sin()), lambda: (in_a_graph(jagged),), limits=GRADS),
    "jagged beside plain": Program(lambda: Gives(torch.ones(4), lambda m, y, n: (y * m.weight, n * m.bias * 2)),
                                   lambda: (x(), jagged()), limits=GRADS),
    "two jagged of the same offsets": Program(of(lambda a, b: a * b + a), sharing),
    "a list of jagged of the same offsets": Program(of(lambda given: given[0] * given[1]), lambda: ([*sharing()],)),
    "jagged on an argument's memory": Program(of(lambda v, n: v + n.values()), on_values),
    "jagged that is written to": Program(of(lambda n: n.values().add_(1) * 0), lambda: (jagged(),)),
    "jagged in bfloat16": Program(lambda: nn.Linear(4, 4), lambda: (jagged(),), BF16),
    "jagged of bfloat16": Program(of(lambda n: (n.sin() * 1.3).values().softmax(-1)),
                                  lambda: (jagged(dtype=torch.bfloat16),)),
    "jagged, dynamic": Program(lambda: nn.Linear(4, 4), lambda: (jagged(),), DYNAMIC),
    "jagged, trained": Program(lambda: nn.Linear(4, 4), lambda: (jagged(),), train=True),
    "jagged as an attribute": Program(lambda: Holds(x(), lambda m, n: (m.beside["n"] * n).values()),
                                      lambda: (torch.randn(4),)),
    "wrapper": Program(of(lambda y: y * 2 + 1), lambda: (two(),)),
    "wrapper, gradients": Program(of(lambda y: y.sin() * 2), lambda: (two(grad=True),), limits=GRADS),
    "wrapper, in a graph": Program(of(lambda y: y.sin()), lambda: (in_a_graph(two),), limits=GRADS),
    "wrapper with a name": Program(of(lambda y: y * 2), lambda: (two(name="mine"),)),
    "wrapper in a dict": Program(of(lambda given: {"y": [given["x"] * 2]}), lambda: ({"x": two()},)),
    "wrapper that is written to": Program(of(lambda y: (y.add_(1), y * 0)[1]), lambda: (two(),)),
    "wrapper, a view of it": Program(of(lambda y: y.view(-1).view(4, 4)), lambda: (two(),)),
    "wrapper of one tensor twice": Program(of(lambda y: y + 1), lambda: (one_twice(),)),
    "wrapper as a parameter": Program(lambda: Gives(two(), lambda m, y: m.weight * y), lambda: (two(),), limits=GRADS),
    "wrapper as a parameter, trained": Program(lambda: Gives(two(), lambda m, y: (m.weight * y).sin() * m.weight),
                                               lambda: (two(),), train=True),
    "wrapper as a parameter in bfloat16": Program(lambda: Gives(two(), lambda m, y: m.weight * y), lambda: (two(),),
                                                  BF16),
    "wrapper as a parameter, given": Program(lambda: Gives(two(), lambda m, y: (m.weight.detach(), y * 2)),
                                             lambda: (two(),)),
    "wrapper as an attribute": Program(lambda: Holds(x(), lambda m, y: m.beside["x"] * y), lambda: (two(),)),
    "wrapper, dynamic": Program(of(lambda y: y.sin()), lambda: (two(),), DYNAMIC),
    "wrapper of a wrapper": Program(of(lambda y: y * 2), lambda: (Two(two(), two()),)),
    "plain subclass": Program(of(lambda y: y * 2), lambda: (tagged(),), OF_PLAIN),
    "plain subclass, gradients": Program(of(lambda y: y.sin() * 2), lambda: (tagged(grad=True),), OF_PLAIN, GRADS),
    "plain subclass, a layer": Program(lambda: nn.Linear(4, 4), lambda: (tagged(),), OF_PLAIN, GRADS),
    "plain subclass, trained": Program(lambda: nn.Linear(4, 4), lambda: (tagged(),), OF_PLAIN, train=True),
    "plain subclass as a parameter": Program(lambda: Gives(tagged(), lambda m, y: m.weight * y), lambda: (x(),),
                                             OF_PLAIN, GRADS),
    "codes and a scale": Program(of(lambda w, y: y @ w), lambda: (scaled(), x())),
    "codes and a scale, copied": Program(of(lambda w: w.clone()), lambda: (scaled(),)),
    "codes and a scale as a buffer, trained": Program(lambda: Holds(scaled(), lambda m, y: m.linear(y) @ m.buffer),
                                                      lambda: (x(),), train=True),
}  # fmt: skip


@pytest.mark.usefixtures("with_reference")
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_with_a_subclass_is_held(name: str) -> None:
    program = RIGHT[name]
    if OLDEST and name.startswith("codes"):
        pytest.skip("torch compiles the frames of such a class")

    entry = hold(program.body, lane=program.lane, **program.limits)

    assert (entry.verdict, entry.reason, entry.violations) == ("held", "", ())
    numerics = measured(entry).numerics
    assert numerics is not None
    if name.startswith("codes"):
        assert "no float64 reference: " in numerics.note
        assert "Scaled" in numerics.note or "'buffer'" in numerics.note
    else:
        assert (numerics.method, numerics.note) == ("fp64", "")


def otherwise(change: Callable[[Any], Any]) -> Callable[[CompileLane, Any], Any]:
    """Compile, and change what the compiled function gives."""

    def put(lane: CompileLane, target: Any) -> Any:
        compiled = lane.compile(target)
        return lambda *args: change(compiled(*args))

    return put


def keeping(lane: CompileLane, target: Any) -> Any:
    compiled, kept = lane.compile(target), []

    def run(*args: Any) -> Any:
        kept.append(args)
        return compiled(*args)

    return run


def leaving_a_gradient(lane: CompileLane, target: Any) -> Any:
    compiled = lane.compile(target)

    def run(y: Any) -> Any:
        y.grad = torch.ones_like(y)
        return compiled(y)

    return run


def writing(lane: CompileLane, target: Any) -> Any:
    compiled = lane.compile(target)

    def run(n: Any) -> Any:
        n.values().add_(1)
        return compiled(n)

    return run


def offset(y: Any) -> Any:
    offsets = torch.tensor([0, 3, 5])
    return torch.nested.nested_tensor_from_jagged(y.values(), offsets)


def if_compiling(one: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: one(*args) if compiling() else other(*args)


# Each is violated, with a difference of this kind among others.
WRONG: dict[str, tuple[Program, str]] = {
    "jagged: a value": (Program(of(if_compiling(lambda n: n * 2.01, lambda n: n * 2)), lambda: (jagged(),)), "value"),
    "jagged: detached": (Program(of(if_compiling(lambda n: (n * 2).detach(), lambda n: n * 2)),
                                 lambda: (jagged(grad=True),)), "requires_grad"),
    "jagged: offsets": (Program(of(lambda n: n * 2), lambda: (jagged(),), compile_with=otherwise(offset)), "value"),
    "jagged: a dtype": (Program(of(lambda n: n * 2), lambda: (jagged(),),
                                compile_with=otherwise(lambda y: y.to(torch.bfloat16))), "dtype"),
    "jagged: an alias": (Program(of(if_compiling(lambda n: n.values().clone(), lambda n: n.values())),
                                 lambda: (jagged(),)), "alias"),
    "jagged: a write": (Program(of(lambda n: n.values() * 0), lambda: (jagged(),), compile_with=writing),
                        "input changed"),
    "jagged: kept alive": (Program(of(lambda n: n.values() * 2), lambda: (jagged(),), compile_with=keeping), "memory"),
    "jagged: a gradient left": (Program(of(lambda n: n.values() * 2), lambda: (jagged(grad=True),),
                                        compile_with=leaving_a_gradient), "structure"),
    "jagged: the gradient of an argument": (Program(of(lambda n, y: twice(n.values()).sum() + y),
                                                    lambda: (jagged(grad=True), x(grad=True)), limits=GRADS), "value"),
    "jagged: the gradient of a second output": (
        Program(lambda: Gives(torch.ones(4), lambda m, y, n: (y * m.weight, n * twice(m.bias))),
                lambda: (x(), jagged()), limits=GRADS), "value"),
    "jagged: the gradient through an output": (
        Program(lambda: Gives(torch.ones(4), lambda m, n: twice(n * m.weight)), lambda: (jagged(),), limits=GRADS),
        "value"),
    "jagged: trained": (Program(lambda: Gives(torch.ones(4), lambda m, n: twice(n * m.weight) * m.bias),
                                lambda: (jagged(),), train=True), "value"),
    "jagged: plain instead": (Program(of(lambda n: n * 2), lambda: (jagged(),),
                                      compile_with=otherwise(lambda y: y.values())), "type"),
    "wrapper: a value": (Program(of(lambda y: y * 2), lambda: (two(),),
                                 compile_with=otherwise(lambda y: Two(y.a, y.b * 1.01, y.named))), "value"),
    "wrapper: its parts changed places": (Program(of(lambda y: y * 2), lambda: (two(),),
                                                  compile_with=otherwise(lambda y: Two(y.b, y.a, y.named))), "value"),
    "wrapper: detached": (Program(of(if_compiling(lambda y: (y * 2).detach(), lambda y: y * 2)),
                                  lambda: (two(grad=True),)), "requires_grad"),
    "wrapper: the gradient of an argument": (Program(of(lambda y: twice(y)), lambda: (two(grad=True),), limits=GRADS),
                                             "value"),
    "wrapper: the gradient of a parameter": (Program(lambda: Gives(two(), lambda m, y: twice(m.weight) * y),
                                                     lambda: (two(),), limits=GRADS), "value"),
    "wrapper: a parameter, trained": (Program(lambda: Gives(two(), lambda m, y: twice(m.weight) * y),
                                              lambda: (two(),), train=True), "value"),
    "wrapper: its name": (Program(of(lambda y: y * 2), lambda: (two(name="mine"),),
                                  compile_with=otherwise(lambda y: Two(y.a, y.b, "other"))), "value"),
    "wrapper: a stride": (Program(of(lambda y: y * 2), lambda: (two(),),
                                  compile_with=otherwise(lambda y: Two(y.a.t().contiguous().t(), y.b))), "stride"),
    "wrapper: an alias": (Program(of(if_compiling(lambda y: y.clone(), lambda y: y.view(-1).view(4, 4))),
                                  lambda: (two(),)), "alias"),
    "wrapper: an alias of a parameter": (
        Program(lambda: Gives(two(), lambda m, y: (m.weight.detach().clone() if compiling() else m.weight.detach(),
                                                   y * 2)), lambda: (two(),)), "alias"),
    "wrapper: a write": (Program(of(if_compiling(lambda y: (y.add_(1), y * 0)[1], lambda y: y * 0)),
                                 lambda: (two(),)), "input changed"),
    "wrapper: kept alive": (Program(of(lambda y: y * 2), lambda: (two(),), compile_with=keeping), "memory"),
    "wrapper: plain instead": (Program(of(lambda y: y * 2), lambda: (two(),),
                                       compile_with=otherwise(lambda y: y.a)), "type"),
    "codes and a scale: the dtype": (Program(of(lambda w: w.clone()), lambda: (scaled(),), compile_with=otherwise(
        lambda w: Scaled(w.codes, w.scale, torch.float64))), "dtype"),
    "plain subclass: a value": (Program(of(if_compiling(lambda y: y * 2.01, lambda y: y * 2)), lambda: (tagged(),),
                                        OF_PLAIN), "value"),
    "plain subclass: detached": (Program(of(if_compiling(lambda y: (y * 2).detach(), lambda y: y * 2)),
                                         lambda: (tagged(grad=True),), OF_PLAIN), "requires_grad"),
    "plain subclass: the gradient of an argument": (
        Program(of(lambda y, z: twice(y.as_subclass(torch.Tensor)) + z), lambda: (tagged(grad=True), x(grad=True)),
                OF_PLAIN, GRADS), "value"),
    "plain subclass: the gradient of a parameter": (
        Program(lambda: Gives(tagged(), lambda m, y: twice(m.weight.as_subclass(torch.Tensor)) * y), lambda: (x(),),
                OF_PLAIN, GRADS), "value"),
    "plain subclass: kept alive": (Program(of(lambda y: y * 2), lambda: (tagged(),), OF_PLAIN, compile_with=keeping),
                                   "memory"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_with_a_subclass_is_violated(name: str) -> None:
    program, kind = WRONG[name]
    if OLDEST and name.startswith("codes"):
        pytest.skip("torch compiles the frames of such a class")

    entry = hold(program.body, lane=program.lane, **program.limits)

    assert entry.verdict == "violated"
    assert all(each.limit.startswith("numerics=") for each in entry.violations)
    numerics = measured(entry).numerics
    assert numerics is not None
    assert kind in {each.kind for each in numerics.differences}


class Narrow(Two):
    """A wrapper of another dtype than the tensors in it, which no operator takes off."""

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor, name: str = "") -> Narrow:
        made: Narrow = torch.Tensor._make_wrapper_subclass(cls, a.size(), dtype=torch.float64)  # type: ignore[attr-defined]
        return made

    @staticmethod
    def __tensor_unflatten__(inner: Any, name: str, *_: Any) -> Narrow:
        return Narrow(inner["a"], inner["b"], name)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_dispatch__(function, types, args, kwargs)
        return Narrow(made.a, made.b) if type(made) is Two else made


def test_a_gradient_through_a_wrapper_that_cannot_be_made_is_no_held_lane() -> None:
    """Of codes and scales nobody can say what a gradient is."""

    def body(lane: CompileLane) -> None:
        given = [(Narrow(x(), x()).requires_grad_(), x(grad=True)) for _ in range(3)]
        lane.run(lambda n, y: (n * 1, y * 2), *given)

    entry = hold(body, check_grads=True)

    assert entry.verdict == "unverified"
    assert "call 0 grad of output 0" in entry.reason
    assert "a gradient of a Narrow cannot be made: it has parts in another dtype than torch.float64" in entry.reason


@pytest.mark.parametrize("how", ["run", "train"])
def test_an_output_without_a_gradient_or_a_loss_says_why(how: str) -> None:
    model = Gives(x(), lambda m, n: n * 1)

    def body(lane: CompileLane) -> None:
        given = [(Narrow(x(), x()).requires_grad_(),)] * 3
        if how == "run":
            lane.run(model, *given)
        else:
            lane.train(model, given)

    with pytest.raises(UsageError, match="a gradient of a Narrow cannot be made: it has parts in another dtype than"):
        hold(body, check_grads=how == "run")


def test_a_copy_of_two_jagged_tensors_shares_their_offsets() -> None:
    one, other = sharing()

    copies = Copies().of([one, {"other": other}])

    first: Any = copies[0]
    second: Any = copies[1]["other"]
    assert first.offsets() is second.offsets()
    assert first.offsets() is not one.offsets()
    assert (first * second).shape == first.shape
    assert torch.equal(first.values(), one.values())


@pytest.mark.parametrize("make", [jagged, two, tagged])
def test_a_copy_of_a_subclass_is_a_leaf_where_it_is(make: Callable[..., torch.Tensor]) -> None:
    leaf, made, graded = make(grad=True), make(grad=True) * 2, make(grad=True)
    graded.grad = torch.ones_like(graded)

    copy, other, with_grad = Copies().of([leaf, made, graded])

    assert (type(copy), copy.requires_grad, copy.is_leaf) == (type(leaf), True, True)
    assert (type(other), other.requires_grad, other.is_leaf) == (type(made), True, False)
    assert type(with_grad.grad) is type(graded)
    assert with_grad.grad is not graded.grad
    (copy * 2).backward(torch.ones_like(copy))
    grad = copy.grad.values() if copy.is_nested else copy.grad.a if isinstance(copy, Two) else copy.grad
    assert grad.flatten().tolist() == [2.0] * grad.numel()


def test_a_parameter_of_a_subclass_is_copied_with_what_was_noted_on_it() -> None:
    parameter: Any = nn.Parameter(tagged())
    parameter.noted = [parameter]

    copy = Copies().of({"p": parameter})["p"]

    assert type(copy) is Tagged
    assert isinstance(copy, nn.Parameter)
    assert copy.noted[0] is copy
    assert copy.data_ptr() != parameter.data_ptr()


def test_a_wrapper_and_its_part_share_memory_in_their_copies() -> None:
    part = x()
    copy, wrapper = Copies().of((part, Two(part, x())))

    copy.zero_()

    assert wrapper.a.tolist() == copy.tolist()


@pytest.mark.parametrize("make", [jagged, two])
def test_the_wide_data_of_a_wrapper_are_in_its_parts(make: Callable[[], torch.Tensor]) -> None:
    held: dict[str, Any] = {"x": make()}
    parts = dict(vars(held["x"]))
    state = State(lambda: held)

    with state.in_wide():
        inner = held["x"].values() if held["x"].is_nested else held["x"].a
        assert (held["x"].dtype, inner.dtype) == (torch.float64, torch.float64)

    assert all(vars(held["x"])[name] is part for name, part in parts.items())
    (copy,) = Copies(to=wide).of([held["x"]])
    assert {each.dtype for each in vars(copy).values() if isinstance(each, torch.Tensor)} <= {
        torch.float64,
        torch.int64,
    }


def test_what_no_cast_keeps_as_it_is_has_no_wide_run() -> None:
    held = {"x": scaled()}

    with pytest.raises(NotWide) as caught, State(lambda: held).in_wide():
        pass

    assert str(caught.value) == "'held.x' cannot be cast to float64: a Scaled becomes a Tensor"


def test_what_a_wrapper_computes_is_rounded_differently() -> None:
    y = Two(torch.randn(50, 50), torch.randn(50, 50))
    right: Any = y * y

    with Rounding(0, Choices(Paths(Path(__file__).parent)), tf32=False):
        moved: Any = y * y

    for one, other in ((right.a, moved.a), (right.b, moved.b)):
        assert 0.5 < float((one == other).double().mean()) < 1
        assert torch.allclose(one, other, rtol=1e-6, atol=0)


def test_an_operator_of_the_parts_that_refuses_float64_runs_in_float32() -> None:
    x, weight = torch.randn(16, 32, dtype=torch.float64), torch.randn(4, 32, 16, dtype=torch.float64)
    offs = torch.tensor([4, 8, 12, 16], dtype=torch.int32)

    with Refusals(torch.float64) as refusals:
        found: Any = torch._grouped_mm(Two(x, x), Two(weight, weight), offs=offs)

    assert (type(found), found.a.dtype, found.b.dtype) == (Two, torch.float64, torch.float64)
    assert refusals.ran_in == {"aten._grouped_mm.default": torch.float32}
