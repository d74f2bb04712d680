"""Walks end: over objects of installed packages that have no end, and over values of which there are too many."""

from __future__ import annotations

import importlib
import itertools
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from holding import hold, measured
from torch import nn

from pytest_compilecontract.calls import call
from pytest_compilecontract.measure.numerics import Copies, Opaque, kind_of, own_dict, parts, snapshot, tensors_in
from pytest_compilecontract.measure.runner import _code_in
from pytest_compilecontract.measure.state import State

pytestmark = pytest.mark.torch

X = torch.ones(3)
LONGEST = 20.0  # seconds: a walk that has no end takes for ever
PACKAGE = '''
import logging, threading
from collections.abc import Mapping
from dataclasses import dataclass, field

class Endless:
    """Each attribute makes another of its kind."""
    def __getattr__(self, name):
        return Endless()

class Growing:
    """What it says that it has grows when it is looked at."""
    def __init__(self):
        self.first = 1
    @property
    def __dict__(self):
        return {f"part {number}": Growing() for number in range(3)}

class Node:
    """One of a graph in which each leads to each."""
    def __init__(self, scope):
        self.scope, self.lock = scope, threading.Lock()

class Kernel(Node):
    """As a kernel: a function, the names it sees, what it has compiled, and every other of its kind."""
    def __init__(self, function, scope):
        super().__init__(scope)
        self.function, self.cache = function, {}
    def __call__(self, x):
        # Compiles once for each kind of argument, as Triton does on the first launch.
        entry = self.cache.setdefault(tuple(x.shape), Node(self.scope))
        entry.scope.append(entry)
        return self.function(x)

class Pages(Mapping):
    """A mapping without end."""
    def __getitem__(self, key):
        return key
    def __iter__(self):
        number = 0
        while True:
            yield number
            number += 1
    def __len__(self):
        return 3

@dataclass
class Doubling:
    """Each has two of its kind, made when they are asked for."""
    depth: int = 0
    left: object = field(default=None)
    def __getattribute__(self, name):
        return Doubling() if name == "left" else object.__getattribute__(self, name)

class Cache:
    """Results: what a model gives out and is given back."""
    def __init__(self):
        self.layers, self.kind = [], dict
    def add(self, x):
        self.layers.append(Layer(x))
        return self

class Layer:
    def __init__(self, keys):
        self.keys, self.calls = keys, 0

class Options:
    """Plain values and nothing else."""
    def __init__(self):
        self.scale, self.names = 2, ["a"]

def graph(count):
    scope = []
    scope += [Node(scope) for _ in range(count)]
    return scope[0]

def wide_graph(x=None):
    made = graph(50)
    made.values = {str(number): [number] for number in range(100_000)}
    made.result = x
    return made
'''


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A package that is installed, and none of the project's."""
    folder: Path = tmp_path_factory.mktemp("environment") / "site-packages"
    folder.mkdir()
    (folder / "endless_package.py").write_text(PACKAGE)
    sys.path.insert(0, str(folder))
    import endless_package  # type: ignore[import-not-found]

    yield endless_package
    sys.path.remove(str(folder))
    del sys.modules["endless_package"]


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < LONGEST


MAKES: dict[str, Callable[[Any], Any]] = {
    "attributes without end": lambda package: package.Endless(),
    "a __dict__ that grows": lambda package: package.Growing(),
    "a graph": lambda package: package.graph(1500),
    "a large graph": lambda package: package.graph(50_000),
    "a graph with a tensor": lambda package: package.wide_graph(torch.ones(2)),
    "a mapping without end": lambda package: package.Pages(),
    "dataclasses without end": lambda package: package.Doubling(),
}
PLACES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda made: made,
    "in a list": lambda made: [made, X],
    "in a dict": lambda made: {"held": made, "x": X},
    "in an attribute": lambda made: Holding(made),
}


class Holding:
    def __init__(self, held: Any) -> None:
        self.held, self.x = held, X


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("make", MAKES)
def test_every_walk_ends(package: Any, make: str, place: str) -> None:
    value = PLACES[place](MAKES[make](package))

    taken = snapshot(value, at="output")
    found = [*tensors_in(value)]
    copies = Copies()
    copies.of(value)
    _code_in([call(value)])
    state = State(lambda: value)
    state.changed()
    state.restore()

    assert len(taken.nodes) < 2 * parts.VALUES
    assert len(found) < 5


@pytest.mark.parametrize("make", ["attributes without end", "a __dict__ that grows", "a graph", "a large graph"])
@pytest.mark.parametrize("place", ["a closure", "an attribute", "an argument"])
def test_a_lane_that_holds_such_an_object_is_held(package: Any, make: str, place: str) -> None:
    held = MAKES[make](package)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = held if place == "an attribute" else None

        def forward(self, x: torch.Tensor, given: Any = None) -> torch.Tensor:
            return x * 2

    def closing(x: torch.Tensor) -> torch.Tensor:
        assert held is not None
        return x * 2

    target: Any = closing if place == "a closure" else Model()
    args = (X, held) if place == "an argument" else (X,)

    entry = hold(lambda lane: lane.run(target, args, args), lane="capture", max_eager_frames=9, min_ops_captured=0)

    assert (entry.verdict, entry.reason) == ("held", "")


def test_a_kernel_that_eager_launches_is_no_state(package: Any) -> None:
    scope: list[Any] = []
    kernel = package.Kernel(lambda x: x * 2, scope)
    scope += [package.Node(scope) for _ in range(200)]

    @torch.compiler.disable
    def launch(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = kernel(x)
        return y

    entry = hold(
        lambda lane: lane.run(lambda x: launch(x).sin(), *[(X,)] * 3),
        lane="capture",
        max_graph_breaks=1,
        max_eager_frames=9,
    )

    assert (kind_of(kernel), entry.verdict, entry.reason) == ("code", "held", "")
    assert kernel.cache


def test_a_kernel_of_triton_is_code() -> None:
    triton = pytest.importorskip("triton")

    @triton.jit  # type: ignore[untyped-decorator]
    def kernel(x: Any) -> None: ...

    tuned = triton.autotune(configs=[triton.Config({})], key=[])(kernel)

    assert [kind_of(each) for each in (kernel, tuned)] == ["code", "code"]


def test_an_output_that_is_too_large_to_follow_is_a_doubt(package: Any) -> None:
    entry = hold(
        lambda lane: lane.run(lambda x: (x * 2, package.graph(5000)), (X,)),
        lane="capture",
        max_graph_breaks=9,
        max_eager_frames=9,
        min_ops_captured=0,
    )

    assert entry.verdict == "unverified"
    assert "more than 2000 values, no tensor among them" in entry.reason


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> int:
    """A bound that is met soon: to judge very many values takes a while."""
    monkeypatch.setattr(parts, "VALUES", 500)
    return 500


def test_a_list_that_is_longer_than_the_bound_says_so(low: int) -> None:
    long = list(range(low + 5))

    taken = snapshot(long, at="output")

    assert taken.nodes["output[...]"] == Opaque(type="...", unread=f"more than {low} values")
    assert len(taken.nodes) == low + 2


def test_a_difference_behind_the_bound_is_not_held(low: int) -> None:
    def compiled(target: Any) -> Any:
        torch.compile(target, backend="eager")(X)
        return lambda x: [*range(low), 7]

    entry = hold(
        lambda lane: lane.run(lambda x: [*range(low), len(x)], (X,), compile_with=compiled),
        lane="capture",
        max_graph_breaks=9,
        max_eager_frames=9,
        min_ops_captured=0,
    )

    assert entry.verdict == "unverified"
    assert f"call 0 output[...] cannot be read (more than {low} values)" in entry.reason


def test_arguments_of_more_values_than_the_bound_are_shared_and_the_lane_says_so(low: int) -> None:
    long = list(range(low + 5))

    entry = hold(
        lambda lane: lane.run(lambda x, given: x * 2, (X, long)), lane="capture", max_eager_frames=9, min_ops_captured=0
    )

    numerics = measured(entry).numerics
    assert numerics is not None
    assert f"arguments of more than {low} values are shared by all runs, not copied" in numerics.note


def endless(kind: type, held: Any) -> Any:
    """A container of a class of the project's that holds something, and gives out numbers without end."""

    def numbers(self: Any) -> Iterator[int]:
        return itertools.count()

    def pairs(self: Any) -> Iterator[tuple[int, int]]:
        return zip(itertools.count(), itertools.count(), strict=True)

    return type("Endless", (kind,), {"__iter__": numbers, "items": pairs, "values": numbers, "keys": numbers})(held)


CONTAINERS: dict[type, Any] = {
    list: [1],
    tuple: (1,),
    set: {1},
    deque: [1],
    dict: {"a": 1},
    OrderedDict: {"a": 1},
}


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("place", PLACES)
def test_a_container_that_gives_out_more_than_it_holds_is_read_as_python_does(kind: type, place: str) -> None:
    value = PLACES[place](endless(kind, CONTAINERS[kind]))

    snapshot(value, at="output")
    tensors = [*tensors_in(value)]
    Copies().of(value)
    _code_in([call(value)])
    state = State(lambda: value)
    state.restore()

    assert [*state.changed()] == []
    assert len(tensors) < 2


def test_an_argument_that_gives_out_more_than_it_holds_is_said_to_be_shared() -> None:
    given = endless(list, [1])

    entry = hold(
        lambda lane: lane.run(lambda x, given: x * 2, (X, given)),
        lane="capture",
        max_eager_frames=9,
        min_ops_captured=0,
    )

    numerics = measured(entry).numerics
    assert numerics is not None
    assert "arguments that yield more than they contain are shared by all runs, not copied: Endless" in numerics.note


def test_what_is_changed_in_such_a_container_is_put_back() -> None:
    numbers, names, entries = endless(list, [1]), endless(set, {1}), endless(dict, {"a": 1})
    state = State(lambda: (numbers, names, entries))
    numbers[0], entries["a"] = 2, 2
    names.add(2)

    assert len([*state.changed()]) == 3
    state.restore()
    assert (numbers[0], names == {1}, entries["a"]) == (1, True, 1)


def test_a_dict_of_very_many_entries_is_kept_as_a_whole() -> None:
    held = dict.fromkeys(range(50_000), 1)
    state = State(lambda: held)

    held[7] = 2
    held["new"] = 3  # type: ignore[index]

    assert [*state.changed()] == ["held"]
    assert state.unreached == "state not compared: the contents of the 50000 entries of 'held'"
    state.restore()
    assert (held[7], len(held)) == (1, 50_000)


# What holds results is compared all the same.


def test_results_of_an_installed_package_are_compared(package: Any) -> None:
    def nodes(x: torch.Tensor) -> list[str]:
        return [at for at, _ in snapshot(package.Cache().add(x), at="output").tensors()]

    assert nodes(X) == ["output.layers[0].keys"]
    assert [kind_of(each) for each in (package.Cache(), package.Cache().add(X), package.Options())] == [
        "plain", "results", "plain",
    ]  # fmt: skip


@pytest.mark.parametrize("where", ["output", "argument", "attribute"])
def test_a_wrong_value_in_a_cache_of_an_installed_package_is_a_difference(package: Any, where: str) -> None:
    kept = package.Cache().add(torch.zeros(3))

    @torch.compiler.disable
    def write(cache: Any, x: torch.Tensor, by: int) -> Any:
        cache.layers[0].keys = x * by
        return cache

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cache = kept
            self.by = 1

        def forward(self, x: torch.Tensor, cache: Any = None) -> Any:
            if where == "output":
                return write(package.Cache().add(x), x, self.by)
            write(self.cache if where == "attribute" else cache, x, self.by)
            return x * 2

    def wrong(model: Any) -> Any:
        model.by = 2
        return torch.compile(model, backend="eager")

    args = (X, package.Cache().add(torch.zeros(3))) if where == "argument" else (X,)

    def verdict(compile_with: Any) -> str:
        return hold(
            lambda lane: lane.run(Model(), args, compile_with=compile_with),
            lane="capture",
            max_graph_breaks=9,
            max_eager_frames=9,
            min_ops_captured=0,
        ).verdict

    assert verdict(None) == "held"
    assert verdict(wrong) == "violated"
    assert kept.layers[0].keys.tolist() == [0, 0, 0]


def test_attributes_are_read_where_they_are_kept(package: Any) -> None:
    assert own_dict(package.Options()) == {"scale": 2, "names": ["a"]}
    assert own_dict(package.Growing()) is None  # its class says otherwise, and there is no other way to it
    assert own_dict(package.Endless()) == {}
    assert own_dict(3) is None


RECORDS = {
    "pip/a-1.0.dist-info/RECORD": "some_b.py,sha256=x,1\nsome_c/__init__.py,sha256=x,1\nsome_f/theirs.py,sha256=x,1\n"
}


@pytest.mark.parametrize(
    ("file", "installed"),
    [
        pytest.param("site-packages/some_a.py", True, id="in site-packages"),
        pytest.param("pip/some_b.py", True, id="a module, by pip --target"),
        pytest.param("pip/some_c/__init__.py", True, id="a package, by pip --target"),
        pytest.param("pip/some_f/__init__.py", False, id="a package of which pip put another module there"),
        pytest.param("pip/some_d.py", False, id="the project's own, beside what pip put there"),
        pytest.param("src/some_e/__init__.py", False, id="elsewhere"),
    ],
)
def test_what_is_installed_is_none_of_the_projects(
    file: str, installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {**RECORDS, file: ""}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    home, _, rest = file.rpartition("some_")
    name = f"some_{rest[0]}"
    monkeypatch.syspath_prepend(tmp_path / home)
    importlib.import_module(name)

    assert parts.is_projects(name) is not installed
