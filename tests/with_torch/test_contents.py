"""What values hold that is in no attribute: compiled code that gives or leaves another is seen, its twin is not."""

from __future__ import annotations

import array
import collections
import dataclasses
import functools
import io
import ipaddress
import itertools
import re
import weakref
from collections.abc import Callable
from datetime import timedelta, timezone
from typing import Any

import numpy as np
import pytest
import torch
from holding import hold, measured
from planting import by
from torch import nn

from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.measure.compile_lane import CompileLane

pytestmark = pytest.mark.insides

X = torch.linspace(-1, 1, 32).reshape(4, 8)


def found(target: Any, *calls: tuple[Any, ...]) -> tuple[list[str], Entry]:
    """The differences, each with where it is, its kind and what it is."""

    def body(lane: CompileLane) -> Any:
        return lane.run(target, *calls)

    entry = hold(body, lane="capture", max_eager_frames=2, max_graph_breaks=4)
    numerics = measured(entry).numerics
    assert numerics is not None
    return [f"{each.at}: {each.kind}, {each.detail}" for each in numerics.differences], entry


class Sorted(list[int]):
    """A list with an attribute."""

    by = 0


class Table(dict[str, int]):
    """A dict with an attribute."""

    by = 0


@dataclasses.dataclass
class Fields:
    x: int = 0


def with_attribute(kind: type) -> Callable[[int], object]:
    def make(number: int) -> object:
        made = kind()
        made.by = number
        return made

    return make


def advanced(number: int) -> object:
    iterator = iter([5, 6, 7, 8, 9])
    for _ in range(number):
        next(iterator)
    return iterator


def raised(number: int) -> BaseException:
    return OSError(2, "no such file", f"file {number}")


def adding(number: int) -> Callable[[int], int]:
    return lambda other: number + other


class Counted:
    def __init__(self, number: int) -> None:
        self.number = number

    def more(self) -> int:
        return self.number + 1


KEPT = [Counted(each) for each in range(6)]
MADE: list[Any] = [
    pytest.param(lambda n: ValueError("a", n), ".args[1]: value", id="exception"),
    pytest.param(raised, ".filename: value", id="os-error"),
    pytest.param(lambda n: ExceptionGroup("a", [ValueError(n)]), ".args[1][0].args[0]: value", id="exception-group"),
    pytest.param(lambda n: collections.defaultdict((int, float)[n % 2]), ".default_factory: value", id="defaultdict"),
    pytest.param(lambda n: collections.deque([1], maxlen=n), ".maxlen: value", id="deque"),
    pytest.param(lambda n: functools.partial(max, n), ".args[0]: value", id="partial"),
    pytest.param(lambda n: functools.partial(max, key=n), ".keywords['key']: value", id="partial-keyword"),
    pytest.param(lambda n: functools.partial((min, max)[n % 2]), ".func: value", id="partial-function"),
    pytest.param(lambda n: functools.partial(max, torch.ones(3) * n), ".args[0]: value", id="partial-tensor"),
    pytest.param(lambda n: bytearray([n]), "[:]: value", id="bytearray"),
    pytest.param(lambda n: array.array("i", [n]), ".tobytes(): value", id="array"),
    pytest.param(lambda n: array.array("f", [n]), ".tolist(): value", id="array-of-floats"),
    pytest.param(lambda n: memoryview(bytes([n])), ".tobytes(): value", id="memoryview"),
    pytest.param(lambda n: io.BytesIO(bytes([n])), ".getvalue(): value", id="bytes-io"),
    pytest.param(lambda n: io.StringIO(str(n)), ".getvalue(): value", id="string-io"),
    pytest.param(lambda n: re.compile(str(n)), ".pattern: value", id="pattern"),
    pytest.param(lambda n: re.match("..", f"{n}.."), ".string: value", id="match"),
    pytest.param(lambda n: timezone(timedelta(hours=n)), ".utcoffset(None): value", id="timezone"),
    pytest.param(lambda n: ipaddress.ip_address(n), ".packed: value", id="address"),
    pytest.param(lambda n: collections.UserList([n]), ".data[0]: value", id="user-list"),
    pytest.param(lambda n: collections.UserString(str(n)), ".data: value", id="user-string"),
    pytest.param(lambda n: {n: 1}.keys(), "[0]: value", id="keys"),
    pytest.param(lambda n: {1: n}.items(), "[0][1]: value", id="items"),
    pytest.param(lambda n: {(n, 2)}, ": value", id="set-of-tuples"),
    pytest.param(advanced, ": structure", id="iterator"),
    pytest.param(lambda n: zip([n], "a", strict=False), "[0][0]: value", id="zip"),
    pytest.param(lambda n: map(float, [n]), ".__reduce__()[1][1][0]: value", id="map"),
    pytest.param(lambda n: itertools.count(n), ".__reduce__()[1][0]: value", id="count"),
    pytest.param(lambda n: itertools.chain([1], [n]), "[1]: value", id="chain"),
    pytest.param(lambda n: torch.Generator().manual_seed(n), ".get_state(): value", id="generator"),
    pytest.param(lambda n: torch.finfo((torch.half, torch.float)[n % 2]), ".dtype: value", id="finfo"),
    pytest.param(lambda n: np.array([str(n)]), ".tobytes(): value", id="array-of-text"),
    pytest.param(lambda n: np.array([{"a": n}, None]), ".tolist()[0]['a']: value", id="array-of-objects"),
    pytest.param(lambda n: np.datetime64(n, "D"), ".tobytes(): value", id="day"),
    pytest.param(lambda n: weakref.ref(KEPT[n]), "().number: value", id="weak-reference"),
    pytest.param(lambda n: KEPT[n].more, ".__self__.number: value", id="method"),
    pytest.param(adding, ".__closure__['number']: value", id="closure"),
    pytest.param(lambda n: (lambda: 1, lambda: 4)[n // 4], ".__code__.co_consts[1]: value", id="constant-of-a-lambda"),
    pytest.param(
        lambda n: (lambda x: x + x, lambda x: x * x)[n // 4], ".__code__.co_code: value", id="code-of-a-lambda"
    ),
    pytest.param(with_attribute(Sorted), ".by: value", id="list-with-an-attribute"),
    pytest.param(with_attribute(Table), ".by: value", id="dict-with-an-attribute"),
    pytest.param(with_attribute(Fields), ".by: value", id="dataclass-with-an-attribute"),
]


@pytest.mark.parametrize(("make", "difference"), MADE)
def test_an_output_that_holds_another(make: Callable[[int], object], difference: str) -> None:
    made = torch.compiler.disable(make)

    def target(wrong: int) -> Callable[[torch.Tensor], Any]:
        return lambda x: (x * 2, made(by(wrong)))

    healthy, planted = (found(target(wrong), (X,)) for wrong in (1, 4))

    assert healthy[0] == []
    assert any(each.startswith(f"call 0 output[1]{difference}, ") for each in planted[0])


def test_what_is_compared_by_type_alone_is_said() -> None:
    differences, entry = found(lambda x: (x * 2, [nn.Identity]), (X,))
    same, beside = found(lambda x, module: (x * 2, module), (X, nn.Identity()))

    assert differences == same == []
    assert "by type alone" not in str(measured(entry).numerics)
    note = "compared by type alone: call 0 output[1] (a torch.nn.modules.linear.Identity)"
    assert note in getattr(measured(beside).numerics, "note", "")


def test_reading_an_iterator_does_not_advance_it() -> None:
    iterator = zip([1, 2, 3], itertools.count(), strict=False)

    differences, _ = found(lambda x: (x * 2, iterator), (X,))

    assert differences == []
    assert [*iterator] == [(1, 0), (2, 1), (3, 2)]


# ---------------------------------------------------------------------------------------------------------------------
# State that a run changes: each run starts from what it was.


class Other(nn.Identity):
    pass


class Changes(nn.Module):
    """Changes something by a number: 1 in eager, `wrong` compiled."""

    def __init__(self, wrong: int) -> None:
        super().__init__()
        self.wrong = wrong
        self.first, self.second = nn.ReLU(), nn.Sequential(nn.Identity(), nn.Tanh())
        self.table: dict[str, int] = collections.defaultdict(int)
        self.log, self.raw = io.StringIO("before"), io.BytesIO(b"before")
        self.kept = Counted(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.leave(by(self.wrong))
        return x * 2

    @torch.compiler.disable
    def leave(self, number: int) -> None:
        """Not traced: torch 2.11 loses some of it."""
        self.change(number)

    def change(self, number: int) -> None:
        raise NotImplementedError


class Replaces(Changes):
    def change(self, number: int) -> None:
        self.first = nn.ReLU() if number == 1 else nn.Tanh()


class Deletes(Changes):
    def change(self, number: int) -> None:
        if number == 1:
            self.first = nn.Identity()
        else:
            self._modules.pop("first", None)


class Reorders(Changes):
    def change(self, number: int) -> None:
        if number != 1:
            self.second._modules.update({"0": self.second._modules.pop("0")})


class Adds(Changes):
    def change(self, number: int) -> None:
        if number != 1:
            self.second.append(nn.ReLU())


class SwitchesItsClass(Changes):
    def change(self, number: int) -> None:
        self.second[0].__class__ = nn.Identity if number == 1 else Other


class SwitchesTheClassOfAnObject(Changes):
    def change(self, number: int) -> None:
        if number != 1:
            self.kept.__class__ = Recounted


class Recounted(Counted):
    pass


class OtherFactory(Changes):
    def change(self, number: int) -> None:
        self.table.default_factory = int if number == 1 else float  # type: ignore[attr-defined]


class Writes(Changes):
    def change(self, number: int) -> None:
        self.log.write(str(number))


class WritesBytes(Changes):
    def change(self, number: int) -> None:
        self.raw.write(bytes([number]))


LEFT: list[Any] = [
    pytest.param(Replaces, "afterwards['first (reassigned)']: type", id="submodule-replaced"),
    pytest.param(Deletes, "afterwards['first (reassigned)']: type", id="submodule-deleted"),
    pytest.param(Reorders, "only compiled has ['second, submodules, order of keys']", id="submodules-reordered"),
    pytest.param(SwitchesItsClass, "only compiled has ['second.0.__class__']", id="class-of-a-module"),
    pytest.param(SwitchesTheClassOfAnObject, "only compiled has ['kept.__class__']", id="class-of-an-object"),
    pytest.param(OtherFactory, "only compiled has ['table.default_factory (reassigned)']", id="default-factory"),
    pytest.param(Writes, "afterwards['log'][0]: value", id="text-in-memory"),
    pytest.param(WritesBytes, "afterwards['raw'][0]: value", id="bytes-in-memory"),
]


@pytest.mark.parametrize(("kind", "difference"), LEFT)
def test_state_that_compiled_leaves_otherwise(kind: type[Changes], difference: str) -> None:
    models = [kind(wrong) for wrong in (1, 4)]
    before = [as_it_is(model) for model in models]

    healthy, planted = (found(model, (X,), (X,)) for model in models)

    assert healthy[0] == []
    assert any(difference in each for each in planted[0])
    assert [as_it_is(model) for model in models] == before


class Hooks(Changes):
    """Registers a hook of one name, which closes over another number."""

    def change(self, number: int) -> None:
        def hook(*_: object) -> int | None:
            return number if number > 99 else None

        self.first.register_forward_hook(hook)


def test_a_hook_of_the_same_name_that_is_another() -> None:
    healthy, planted = (found(Hooks(wrong), (X,)) for wrong in (1, 4))

    assert healthy[0] == []
    at = "afterwards['first, hooks']['_forward_hooks'][0].__closure__['number']: value"
    assert [each.partition(",")[0] for each in planted[0]] == [at.partition(",")[0]]
    assert at in planted[0][0]


def test_a_submodule_that_a_run_adds_is_taken_off_again() -> None:
    model = Adds(4)
    before = as_it_is(model)

    found(model, (X,), (X,))

    assert as_it_is(model) == before


def as_it_is(model: Changes) -> tuple[object, ...]:
    modules = [(path, id(each), type(each)) for path, each in model.named_modules()]
    inside = [*model.second]
    return modules, inside, type(model.kept), model.table.default_factory, model.log.getvalue(), model.raw.getvalue()  # type: ignore[attr-defined]
