"""The taps, the second channel and the canary: where one of them is gone or wrong, the measurement says so.

A function is taken from where the plugin looks for it, as a later torch may do, and torch still works: a module's
function becomes a builtin, and a class an empty subclass that inherits the method.
"""

from __future__ import annotations

import builtins
import importlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from holding import ROOT, hold, kept_limits, measured

from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.measure.compile_lane import CompileLane
from pytest_compilecontract.measure.probes import canary as canary_module
from pytest_compilecontract.measure.probes import dynamo, trace
from pytest_compilecontract.measure.probes.canary import canary, sings
from pytest_compilecontract.measure.probes.dynamo import Ledger
from pytest_compilecontract.measure.probes.taps import Taps

pytestmark = pytest.mark.insides

CONVERT_FRAME: Any = importlib.import_module("torch._dynamo.convert_frame")
OUTPUT_GRAPH: Any = importlib.import_module("torch._dynamo.output_graph")
SYMBOLIC_CONVERT: Any = importlib.import_module("torch._dynamo.symbolic_convert")
LOGGING: Any = importlib.import_module("torch._logging._internal")
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    """The canary is asked once a process: before and after each of these tests it is not known."""
    sings.cache_clear()
    yield
    sings.cache_clear()


def inherits(patch: Patch, module: Any, name: str) -> None:
    patch.setattr(module, name, type(name, (getattr(module, name),), {"__module__": module.__name__}))


def without_convert_frame(patch: Patch) -> None:
    inherits(patch, CONVERT_FRAME, "ConvertFrameAssert")


def without_compile(patch: Patch) -> None:
    patch.setattr(builtins, "_compile", CONVERT_FRAME._compile, raising=False)
    patch.delattr(CONVERT_FRAME, "_compile")


def without_recompilation_reasons(patch: Patch) -> None:
    name = "get_and_maybe_log_recompilation_reasons"
    patch.setattr(builtins, name, getattr(CONVERT_FRAME, name), raising=False)
    patch.delattr(CONVERT_FRAME, name)


def without_log_graph_break(patch: Patch) -> None:
    # torch asks for this class by its name: here the method moves to the classes that inherit it.
    base, name = SYMBOLIC_CONVERT.InstructionTranslatorBase, "log_graph_break"
    for inheriting in base.__subclasses__():
        patch.setattr(inheriting, name, vars(base)[name], raising=False)
    patch.delattr(base, name)


def without_call_user_compiler(patch: Patch) -> None:
    inherits(patch, OUTPUT_GRAPH, "OutputGraph")


GRAPHS = {"graphs", "backend_calls", "compiles", "ops_captured", "operations", "graphs_executed", "recomputed_graphs"}
BREAKS = {"graph_breaks", "break_events"}
FRAMES = {
    "first_compiles",
    "continuations",
    "recompiles",
    "dropped",
    "guards",
    "eager_frames",
    "limit_hits",
    "backend_failures",
    "errors_suppressed",
} | BREAKS
CASES = [
    pytest.param(
        without_convert_frame,
        {*FRAMES, "graphs_executed", "recomputed_graphs"},
        "torch has no torch._dynamo.convert_frame.ConvertFrameAssert.__call__",
        id="ConvertFrameAssert",
    ),
    pytest.param(
        without_compile,
        FRAMES,
        "torch has no torch._dynamo.convert_frame._compile",
        id="_compile",
    ),
    pytest.param(
        without_recompilation_reasons,
        {"recompiles"},
        "torch has no torch._dynamo.convert_frame.get_and_maybe_log_recompilation_reasons",
        id="recompilation_reasons",
    ),
    pytest.param(
        without_log_graph_break,
        BREAKS,
        "torch has no torch._dynamo.symbolic_convert.InstructionTranslatorBase.log_graph_break",
        id="log_graph_break",
    ),
    pytest.param(
        without_call_user_compiler,
        GRAPHS | {"backend_failures"},
        "torch has no torch._dynamo.output_graph.OutputGraph.call_user_compiler",
        id="call_user_compiler",
    ),
]
LIMITS: dict[str, tuple[str, Any]] = {
    "graph_breaks": ("max_graph_breaks", 9),
    "recompiles": ("max_recompiles", 9),
    "graphs": ("max_graphs", 9),
    "eager_frames": ("max_eager_frames", 9),
    "ops_captured": ("min_ops_captured", 1),
    "limit_hits": ("allow_recompile_limit", False),
    "guards": ("max_guards", 999),
}
DEFAULTS = {"eager_frames", "ops_captured", "limit_hits", "graphs_executed"}


def breaks(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    torch._dynamo.graph_break()
    return x.cos()


def running(function: Callable[..., Any]) -> Callable[[CompileLane], Any]:
    return lambda lane: lane.run(function, (torch.ones(3),), (torch.ones(4),))


def counted(metric: Any) -> int:
    # What a recompile is called (`kind`) may rest on a tap that is gone. That there was one does not.
    return len(metric) if isinstance(metric, tuple) else metric


def tapped() -> dict[str, Any]:
    """What the five taps replace, as it is now."""
    return {
        "frame": CONVERT_FRAME.ConvertFrameAssert.__call__,
        "compile": getattr(CONVERT_FRAME, "_compile", None),
        "reasons": getattr(CONVERT_FRAME, "get_and_maybe_log_recompilation_reasons", None),
        "break": vars(SYMBOLIC_CONVERT.InstructionTranslatorBase).get("log_graph_break"),
        "backend": OUTPUT_GRAPH.OutputGraph.call_user_compiler,
    }


def test_every_metric_of_the_ledger_needs_taps_that_exist() -> None:
    with Ledger(dynamo.Paths(ROOT)) as ledger:
        assert ledger.missing == {}

    named = {tap for taps in dynamo.NEEDS.values() for tap in taps}
    assert named == {
        "convert_frame",
        "_compile",
        "recompilation_reasons",
        "log_graph_break",
        "call_user_compiler",
        "reset",
        "set_stance",
        "catch_errors",
    }


def test_the_functions_are_put_back() -> None:
    before = tapped()

    hold(running(breaks), lane="capture")

    assert tapped() == before
    assert isinstance(LOGGING.trace_log, logging.Logger)


@pytest.mark.parametrize(("remove", "metrics", "reason"), CASES)
def test_a_tap_that_is_gone(
    monkeypatch: Patch, remove: Callable[[Patch], None], metrics: set[str], reason: str
) -> None:
    whole = measured(hold(running(breaks), lane="capture"))
    sings.cache_clear()
    remove(monkeypatch)
    before = tapped()

    found = measured(hold(running(breaks), lane="capture"))

    assert {name for name in dynamo.NEEDS if getattr(found, name) is None} == metrics
    assert {name: found.unmeasured[name] for name in metrics} == dict.fromkeys(metrics, reason)
    for name in set(dynamo.NEEDS) - metrics:
        assert counted(getattr(found, name)) == counted(getattr(whole, name)), name
    assert found.disagreements == ()
    assert found.numerics == whole.numerics
    assert tapped() == before


@pytest.mark.parametrize(("remove", "metrics", "reason"), CASES)
def test_a_limit_on_what_cannot_be_measured_is_a_violation(
    monkeypatch: Patch, remove: Callable[[Patch], None], metrics: set[str], reason: str
) -> None:
    remove(monkeypatch)
    limits = dict(LIMITS[name] for name in sorted(metrics) if name in LIMITS)

    entry = hold(running(lambda x: x.sin()), lane="capture", **limits)

    message = f"cannot be measured on torch {torch.__version__}: {reason}"
    assert kept_limits(entry) == ("violated", {f"{name}={value}": message for name, value in limits.items()})


@pytest.mark.parametrize(("remove", "metrics", "reason"), CASES)
def test_without_a_limit_the_defaults_cannot_be_held(
    monkeypatch: Patch, remove: Callable[[Patch], None], metrics: set[str], reason: str
) -> None:
    remove(monkeypatch)

    entry = hold(running(lambda x: x.sin()), lane="capture")

    judged_by_default = metrics & DEFAULTS
    assert entry.verdict == ("unverified" if judged_by_default else "held")
    said = {each for each in entry.reason.split("; ") if each}
    assert said == {f"{name}: cannot be measured: {reason}" for name in judged_by_default}


def test_a_parameter_that_is_gone() -> None:
    class Owner:
        def function(self, error: Exception) -> None: ...

    before = vars(Owner)["function"]
    with Taps() as taps:
        taps.set("it", Owner, "function", lambda original: original(), reads=("exc",))
        assert vars(Owner)["function"] is before

    (reason,) = taps.missing.values()
    assert reason.endswith("Owner.function of torch has no parameter 'exc'")


def test_a_module_that_is_gone() -> None:
    with Taps() as taps:
        taps.set("it", None, "function", lambda original: original())

    assert taps.missing == {"it": "torch has no such module.function"}


# ---------------------------------------------------------------------------------------------------------------------
# The second way of counting


def unverified(found: Any) -> tuple[str, str]:
    return found.verdict, found.reason


def test_the_trace_is_not_set_up(monkeypatch: Patch) -> None:
    monkeypatch.setattr(builtins, "trace_log", LOGGING.trace_log, raising=False)
    monkeypatch.delattr(LOGGING, "trace_log")

    entry = hold(running(lambda x: x.sin()), lane="capture")

    assert unverified(entry) == (
        "unverified",
        "two independent counts disagree: torch._logging._internal has no trace_log",
    )


def test_the_trace_counts_no_recompile(monkeypatch: Patch) -> None:
    monkeypatch.setattr(trace.Trace, "_note", lambda self, name, metadata_fn, payload_fn: None)

    entry = hold(running(lambda x: x.sin()), lane="capture")

    assert unverified(entry) == (
        "unverified",
        "two independent counts disagree: recompiles: 1 by the ledger, 0 by torch's trace",
    )


def test_the_trace_counts_no_break(monkeypatch: Patch) -> None:
    monkeypatch.setattr(trace.Trace, "_note", lambda self, name, metadata_fn, payload_fn: None)

    found: Measurement = measured(hold(lambda lane: lane.run(breaks, (torch.ones(3),)), lane="capture"))

    assert found.disagreements == ("graph breaks: 1 by the ledger, 0 by torch's trace",)


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda run: torch.func.grad(run)(torch.ones(3)),
    "vmap": lambda run: torch.func.vmap(run)(torch.ones(2, 3)),
    "jvp": lambda run: torch.func.jvp(run, (torch.ones(3),), (torch.ones(3),)),
    "jacrev": lambda run: torch.func.jacrev(run)(torch.ones(3)),
}


@pytest.mark.parametrize("logged", [False, True], ids=["no-log", "torch-logs-graph-breaks"])
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_frame_that_a_transform_refuses_is_a_break_of_which_the_trace_may_know_nothing(
    transform: Callable[[Any], Any], logged: bool
) -> None:
    def total(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum()

    def body(lane: CompileLane) -> None:
        with lane.observe():
            transform(lane.compile(total))

    log = importlib.import_module("torch._dynamo.convert_frame").graph_break_log
    level = log.level
    log.setLevel(logging.DEBUG if logged else logging.WARNING)
    try:
        found = measured(hold(body))
    finally:
        log.setLevel(level)

    assert [each.kind for each in found.graph_breaks or ()] == ["Unsupported functorch tracing attempt"]
    assert found.disagreements == ()


def test_torchs_own_counter_of_graphs_disagrees(monkeypatch: Patch) -> None:
    counters = importlib.import_module("torch._dynamo.utils").counters

    def counts_too_much(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            counters["stats"]["unique_graphs"] += 1
        return x.sin()

    def body(lane: CompileLane) -> None:
        with lane.observe():
            lane.compile(lambda x: x.sin())(torch.ones(3))
            counts_too_much(torch.ones(3))

    entry = hold(body, lane="capture")

    assert unverified(entry) == (
        "unverified",
        'two independent counts disagree: graphs: 1 by the ledger, 2 by counters["stats"]["unique_graphs"]',
    )


def test_counters_that_the_test_clears_are_not_compared() -> None:
    counters = importlib.import_module("torch._dynamo.utils").counters

    def body(lane: CompileLane) -> None:
        with lane.observe():
            lane.compile(lambda x: x.sin())(torch.ones(3))
            counters.clear()

    entry = hold(body, lane="capture")

    assert (entry.verdict, measured(entry).graphs) == ("held", 1)


def test_the_bytecode_hook_disagrees(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Ledger, "_on_bytecode", lambda self, code, new_code: None)

    entry = hold(lambda lane: lane.run(lambda x: x.sin(), (torch.ones(3),)), lane="capture")

    assert unverified(entry) == (
        "unverified",
        "two independent counts disagree: frames compiled: 1 by the ledger, 0 by torch's bytecode hook",
    )


# ---------------------------------------------------------------------------------------------------------------------
# The canary


def test_the_canary_sings() -> None:
    assert canary() is None


def test_the_canary_counts_wrong(monkeypatch: Patch) -> None:
    monkeypatch.setitem(canary_module.EXPECTED, "recompiles", 1)

    entry = hold(lambda lane: lane.run(lambda x: x.sin(), (torch.ones(3),)), lane="capture")

    assert unverified(entry) == (
        "unverified",
        "two independent counts disagree: the canary counted recompiles 2 instead of 1",
    )


def test_the_canary_raises(monkeypatch: Patch) -> None:
    def raises(*_: Any) -> Ledger:
        raise RuntimeError("no\nledger")

    monkeypatch.setattr(canary_module, "Ledger", raises)

    assert canary() == "the canary raised RuntimeError: no"


@pytest.mark.parametrize(
    ("setting", "value"),
    [("assume_static_by_default", False), ("recompile_limit", 1), ("error_on_recompile", True)],
)
def test_the_canary_sings_whatever_the_project_has_set(setting: str, value: Any) -> None:
    with torch._dynamo.config.patch({setting: value}):
        assert canary() is None


def test_the_canary_sings_under_the_modes_of_a_test() -> None:
    with torch.no_grad(), torch.device("meta"):
        found = canary()

    assert found is None


def test_the_canary_sings_under_a_stance_and_leaves_it() -> None:
    with torch.compiler.set_stance("force_eager"):
        found = canary()
        compiled = torch.compile(lambda x: torch.compiler.is_compiling(), backend="eager")(torch.ones(3))

    assert (found, compiled) == (None, False)
