"""The compile budget: guards, compile caches and cache entries are counted, and each limit has seen its fault."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from holding import hold, measured
from torch import nn

from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.measurement import CacheBypass
from pytest_compilecontract.measure.probes import guards
from pytest_compilecontract.measure.probes.dynamo import Ledger
from pytest_compilecontract.measure.probes.source import Paths
from pytest_compilecontract.measure.probes.told import guards_of

pytestmark = pytest.mark.torch

X = torch.ones(4, 4)
PATHS = Paths(Path(__file__).parent)


class Tower(nn.Module):
    """Layers in a list, with a setting of each in a dict."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))
        self.scales = {f"layer {number}": number for number in range(layers)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, scale in zip(self.layers, self.scales.values(), strict=True):
            x = layer(x) + scale
        return x


def grows(x: torch.Tensor) -> torch.Tensor:
    """Compiled again for each number of dimensions."""
    return x + x.dim()


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch._dynamo.allow_in_graph
def opaque(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def calls_opaque(x: torch.Tensor) -> torch.Tensor:
    return opaque(x) + 1


def a_pass(graph: Any) -> None:
    """A pass of the project's own: Inductor cannot know what it does, and so keeps nothing."""


@contextlib.contextmanager
def with_a_pass() -> Iterator[None]:
    with torch._inductor.config.patch(post_grad_custom_post_pass=a_pass):
        yield


# Guards


def listed(target: Any, *calls: tuple[object, ...]) -> tuple[list[int], list[int]]:
    """The guards of each entry, by the probe and by the lines of torch's own listing of them."""
    from torch._dynamo import convert_frame

    printed: list[int] = []
    original = convert_frame._compile

    @functools.wraps(original)
    def compiles(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        code = getattr(result, "guarded_code", result)
        lines = [line.partition("+- ")[2] for line in str(code.guard_manager).splitlines()]
        # Of a guard that tensors share, the second line is its name alone.
        printed.append(sum(1 for each in lines if ": " in each and "Manager" not in each.partition(": ")[0]))
        return result

    torch.compiler.reset()
    convert_frame._compile = compiles
    try:
        with Ledger(PATHS) as ledger:
            compiled = torch.compile(target, backend="eager")
            for each in calls:
                compiled(*each)
    finally:
        convert_frame._compile = original
    return [each.count for each in guards_of(ledger.attempts, PATHS) or ()], printed


@pytest.mark.parametrize(
    ("target", "calls"),
    [
        pytest.param(twice, [(X,)], id="a function"),
        pytest.param(Tower(3), [(X,)], id="modules in a list and numbers in a dict"),
        pytest.param(lambda x, y: x + y, [(X, X + 1)], id="two tensors that must not be one"),
        pytest.param(lambda x: x[2:] * x.shape[0], [(X,), (torch.ones(5, 4),), (torch.ones(6, 4),)], id="a free size"),
    ],
)
def test_each_guard_that_torch_lists_is_counted_once(target: Any, calls: list[tuple[object, ...]]) -> None:
    counted, printed = listed(target, *calls)

    assert counted == printed
    assert min(counted) > 0


def test_the_guards_of_a_call_are_those_of_the_frame_with_most() -> None:
    seen = measured(hold(lambda lane: [lane.run(twice, (X,)), lane.run(Tower(3), (X,))], lane="capture"))

    assert seen.guards is not None
    small, large = (each.count for each in seen.guards)
    assert seen.guards_a_call == large > small


def test_more_guards_than_the_limit_are_told_by_frame_and_kind() -> None:
    def guards_of(layers: int, **limits: Any) -> Any:
        return hold(lambda lane: lane.run(Tower(layers), (X,)), lane="capture", **limits)

    allowed = measured(guards_of(1)).guards_a_call
    held, violated = (guards_of(layers, max_guards=allowed) for layers in (1, 8))

    assert (held.verdict, violated.verdict) == ("held", "violated")
    (found,) = violated.violations
    assert (found.name, found.bound) == ("max_guards", allowed)
    where, kinds = found.facts[0]
    assert where.startswith("test_budget.py:")
    assert f"in forward: {found.measured} guards" in where
    assert "TENSOR_MATCH" in kinds


def test_guards_in_another_form_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_compilecontract.measure.probes.attempts.guards_in", lambda _: None)

    entry = hold(lambda lane: lane.run(twice, (X,)), lane="capture", max_guards=10**6)

    assert measured(entry).guards is None
    assert [each.name for each in entry.violations] == ["max_guards"]
    assert guards.UNREADABLE in str(entry.violations[0].measured)
    assert guards.guards_in(object()) is None


# Entries of the cache, before the limit is met


def test_a_recompile_says_how_many_entries_of_the_cache_are_used() -> None:
    calls = [(torch.ones(*[2] * dims),) for dims in (1, 2, 3)]

    entry = hold(lambda lane: lane.run(grows, *calls), lane="capture", max_recompiles=0)

    again = measured(entry).recompiles or ()
    assert [(each.entries, each.limit) for each in again] == [(2, 8), (3, 8)]
    assert "3 of 8 cache entries used" in entry.violations[0].facts[-1]
    assert not measured(entry).limit_hits


def test_the_limit_is_that_of_the_setting_and_of_the_compile() -> None:
    calls = [(torch.ones(*[2] * dims),) for dims in (1, 2)]

    def compiles(lane: Any) -> None:
        with torch._dynamo.config.patch(recompile_limit=5):
            lane.run(grows, *calls)

    found = [measured(hold(compiles, lane="capture")).recompiles]
    if "recompile_limit" in torch.compile.__code__.co_varnames:
        few = Lane(name="few", backend="eager", recompile_limit=5)
        found.append(measured(hold(lambda lane: lane.run(grows, *calls), lane=few)).recompiles)

    assert [each.used for recompiles in found for each in recompiles or ()] == ["2 of 5 cache entries used"] * len(
        found
    )


# Compile caches


def test_a_graph_is_a_miss_of_each_cache_that_looks_it_up() -> None:
    entry = hold(lambda lane: lane.run(twice, (X,)), lane="inductor", max_cache_misses=1, max_cache_bypasses=0)

    assert [(each.name, each.measured, each.facts) for each in entry.violations] == [
        (
            "max_cache_misses",
            2,
            (("FX graph cache: 1 looked up and not found",), ("AOTAutograd cache: 1 looked up and not found",)),
        )
    ]


def test_a_warm_lane_misses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    shared = Lane(name="shared", cache="shared")

    cold, warm = (hold(lambda lane: lane.run(twice, (X,)), lane=shared, max_cache_misses=0) for _ in range(2))

    assert (cold.verdict, warm.verdict) == ("violated", "held")


@pytest.mark.parametrize(
    ("cache", "reason", "body"),
    [
        pytest.param("FX graph cache", "post grad custom pass", "a pass", id="a pass of the project's own"),
        pytest.param("AOTAutograd cache", "opaque", "a function", id="a function that torch cannot hash"),
    ],
)
def test_a_graph_that_a_cache_does_not_take_is_told_with_torchs_reason(cache: str, reason: str, body: str) -> None:
    def runs(lane: Any) -> None:
        with with_a_pass() if body == "a pass" else contextlib.nullcontext():
            lane.run(twice if body == "a pass" else calls_opaque, (X,))

    entry = hold(runs, lane="inductor", max_cache_bypasses=0)

    assert [each.name for each in entry.violations] == ["max_cache_bypasses"]
    told = [line for fact in entry.violations[0].facts for line in fact]
    assert any(each.startswith(f"{cache}: ") and reason in each for each in told), told


def test_a_bypass_that_torch_only_counts_has_no_reason() -> None:
    from pytest_compilecontract.measure.probes.caches import NO_REASON, bypasses_in, cache_state

    told = CacheBypass(cache="FX graph cache", reason="frozen")
    state = cache_state({"inductor": {"fxgraph_cache_bypass": 2}, "aot_autograd": {"autograd_cache_bypass": 1}})

    assert bypasses_in(state, [told]) == (
        told,
        CacheBypass(cache="FX graph cache", reason=NO_REASON),
        CacheBypass(cache="AOTAutograd cache", reason=NO_REASON),
    )


def test_caches_that_are_switched_off_hold_no_limit() -> None:
    off = Lane(name="off", inductor={"fx_graph_cache": False})

    entry = hold(lambda lane: lane.run(twice, (X,)), lane=off, max_cache_misses=5, max_cache_bypasses=5)

    assert [each.name for each in entry.violations] == ["max_cache_misses", "max_cache_bypasses"]
    assert "torch looked up 0 of 1 graphs in its FX graph cache" in str(entry.violations[0].measured)


def test_caches_that_are_switched_off_for_one_graph_of_two_hold_no_limit() -> None:
    def runs(lane: Any) -> None:
        def both(x: torch.Tensor) -> torch.Tensor:
            y = compiled(x)
            with torch._inductor.config.patch(fx_graph_cache=False):
                return other(y)

        compiled, other = lane.compile(twice), lane.compile(grows)
        with lane.observe():
            both(X)

    entry = hold(runs, lane="inductor", max_cache_misses=9, numerics=None)

    assert [str(each.measured).partition(": ")[2] for each in entry.violations] == [
        "torch looked up 1 of 2 graphs in its FX graph cache, which is switched off for the others"
    ]


def test_a_backward_that_is_looked_up_stands_for_no_other_graph() -> None:
    def runs(lane: Any) -> None:
        compiled, other = lane.compile(twice), lane.compile(grows)
        with lane.observe():
            compiled(torch.ones(4, 4, requires_grad=True)).sum().backward()
            with torch._inductor.config.patch(fx_graph_cache=False):
                other(X)

    entry = hold(runs, lane="inductor", max_cache_misses=9, numerics=None)

    assert [str(each.measured).partition(": ")[2] for each in entry.violations] == [
        "torch looked up 1 of 2 graphs in its FX graph cache, which is switched off for the others"
    ]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("fx_graph_cache", "torch looked up 0 of 1 graphs in its FX graph cache"),
        ("force_disable_caches", "a backend of the project's uses Inductor, with its caches switched off"),
    ],
)
def test_a_backend_that_hands_on_to_inductor_is_asked_for_its_caches(setting: str, reason: str) -> None:
    from torch._inductor.compile_fx import compile_fx

    def backend(graph: Any, inputs: Any) -> Any:
        with torch._inductor.config.patch({setting: setting != "fx_graph_cache"}):
            return compile_fx(graph, inputs)

    def runs(lane: Any) -> None:
        with lane.observe():
            torch.compile(twice, backend=backend)(X)

    entry = hold(runs, lane="inductor", max_cache_misses=9, numerics=None)

    assert [each.name for each in entry.violations] == ["max_cache_misses"]
    assert reason in str(entry.violations[0].measured)


def test_a_graph_that_does_nothing_is_in_no_cache_that_is_switched_off() -> None:
    entry = hold(lambda lane: lane.run(torch.Tensor.contiguous, (X,)), lane="inductor", max_cache_misses=1)

    assert entry.verdict == "held", entry.reason


def test_counters_that_a_test_clears_hold_no_limit() -> None:
    def runs(lane: Any) -> None:
        compiled = lane.compile(twice)
        with lane.observe():
            compiled(X)
            torch._dynamo.utils.counters.clear()

    entry = hold(runs, lane="inductor", max_cache_misses=0, numerics=None)

    assert "the test cleared Dynamo's counters" in str(entry.violations[0].measured)


@pytest.mark.parametrize("lane", ["capture", "aot"])
def test_a_lane_without_compile_caches_is_not_judged_by_them(lane: str) -> None:
    entry = hold(lambda each: each.run(twice, (X,)), lane=lane, max_cache_misses=0, max_cache_bypasses=0)

    assert entry.verdict == "held"
    assert measured(entry).caches is None
    assert "max_cache_misses is not judged: only Inductor's graphs are in torch's compile caches" in entry.reason
