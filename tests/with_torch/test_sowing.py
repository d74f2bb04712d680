"""Faults planted in contracts that hold: each is put in its place, and turns red what it is to turn red.

Its healthy twin is the run without a fault, which holds; and where a limit is missing the fault is let by.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from holding import hold
from support.sessions import run_session
from torch import nn
from torch._dynamo.output_graph import OutputGraph

from pytest_compilecontract.facts.faults import FAULTS, KNOWN, DeviceFault
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.planted import Planted
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.files.journal import NAME as JOURNAL
from pytest_compilecontract.files.journal import recovered
from pytest_compilecontract.files.receipt import read_receipt
from pytest_compilecontract.judge.planted import Shown, judged
from pytest_compilecontract.measure.compile_lane import CompileLane
from pytest_compilecontract.measure.noise_runs import Kept, keeping
from pytest_compilecontract.measure.planting import Looking, Planting, starts_of, steady_of

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parent.parent.parent
NUMERICS = "numerics='fp64' (default)"
LIMITS: dict[str, Any] = {"max_graph_breaks": 0, "max_recompiles": 0}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x)) + x


class Counts(nn.Module):
    """Writes to a buffer, and returns its input in another shape."""

    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> Any:
        self.steps.add_(x.mean(0))
        return x.view(-1), x * self.steps


def batches(count: int = 4) -> list[tuple[torch.Tensor]]:
    return [(torch.linspace(-1, 1, 32).reshape(4, 8) * (1 + number),) for number in range(count)]


@cache
def running(make: Callable[[], nn.Module] = Block, calls: int = 4) -> Callable[[CompileLane], Any]:
    return lambda lane: lane.run(make(), *batches(calls))


def training(lane: CompileLane) -> Any:
    return lane.train(Block(), batches(), optimizer=torch.optim.AdamW)


def looked(body: Callable[[CompileLane], Any], *, lane: str | Lane = "aot", **limits: Any) -> tuple[Looking, Entry]:
    """A run without a fault, and what there is in it to plant faults in."""
    looking = Looking()
    with looking.entered(None):
        entry = hold(body, lane=lane, **limits)
    return looking, entry


@lru_cache(maxsize=8)
def healthy_twin(
    body: Callable[[CompileLane], Any], lane: str | Lane, limits: tuple[tuple[str, Any], ...]
) -> tuple[Looking, Entry, Kept]:
    """The run without a fault, which many faults have in common: it is only read. Beside it eager's noise."""
    return (*looked(body, lane=lane, **dict(limits)), Kept())


def sown(
    name: str, body: Callable[[CompileLane], Any], *, lane: str | Lane = "aot", **limits: Any
) -> tuple[Planting, Entry]:
    """A run with a fault, in a lane that holds without."""
    fault = KNOWN[name]
    looking, healthy, kept = healthy_twin(body, lane, tuple(limits.items()))
    assert (healthy.verdict, healthy.reason) == ("held", "")
    assert healthy.measurement is not None
    starts = starts_of(healthy.measurement.calls, looking.graphs_run)
    steady = steady_of(healthy.measurement.calls, starts)
    planting = Planting(fault, site=looking.site(fault, starts), starts=starts, steady=steady)
    with keeping(kept), planting.entered(fault):
        entry = hold(body, lane=lane, **limits)
    assert planting.problem == planting.missing == ""
    return planting, entry


def became(name: str, body: Callable[[CompileLane], Any], **how: Any) -> tuple[str, str]:
    """What became of a fault that was planted."""
    planting, entry = sown(name, body, **how)
    assert planting.took or planting.placed
    return judged(KNOWN[name], Shown(entry=entry))


# Each fault, where it fits

FITTING = {
    **{each.name: running() for each in FAULTS if not isinstance(each, DeviceFault)},
    **dict.fromkeys(("alias-lost", "not-updated"), running(Counts)),
}


@pytest.mark.parametrize("lane", ["capture", "aot"])
@pytest.mark.parametrize("name", FITTING)
def test_a_fault_is_noticed_for_the_right_reason(name: str, lane: str) -> None:
    grads = {} if name in ("alias-lost", "not-updated") else {"check_grads": True}

    outcome, by = became(name, FITTING[name], lane=lane, **LIMITS, **grads)

    assert (outcome, bool(by)) == ("noticed", True)


@pytest.mark.parametrize(
    "name", [each.name for each in FAULTS if each.name in FITTING and each.name not in ("alias-lost", "not-updated")]
)
def test_a_fault_is_noticed_in_training(name: str) -> None:
    outcome, by = became(name, training, **LIMITS)

    assert (outcome, bool(by)) == ("noticed", True)


def test_it_is_in_the_pass_that_compares_random_numbers_too() -> None:
    lane = Lane(name="decomposed", backend="aot_eager_decomp_partition")
    body = lambda lane: lane.run(nn.Sequential(nn.Linear(8, 8), nn.Dropout()), *batches(2))  # noqa: E731

    assert became("nan-all", body, lane=lane) == ("noticed", NUMERICS)


def test_what_eager_compiles_for_itself_is_right() -> None:
    # In eager, too, torch.cond runs what torch.compile makes of it.
    def either(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.mean() > 0, lambda y: y.cos(), lambda y: y.sin() + 1, (x,))

    body = lambda lane: lane.run(either, *batches(2))  # noqa: E731

    assert became("zeros", body, lane="capture") == ("noticed", NUMERICS)
    assert became("random-drawn", body, lane="capture") == ("noticed", NUMERICS)


def test_what_a_program_compares_by_itself_has_faults_as_well() -> None:
    def compares(lane: CompileLane) -> None:
        def body(compile: Callable[..., Any]) -> Any:
            compiled = compile(Block())
            return [compiled(*each) for each in batches()]

        lane.compare(body)

    assert became("element-off", compares) == ("noticed", NUMERICS)
    assert became("graph-break", compares, max_graph_breaks=0) == ("noticed", "max_graph_breaks=0")


# What lets a fault by


def test_without_its_limit_a_fault_is_let_by() -> None:
    assert became("graph-break", running()) == ("not noticed", "")
    assert became("recompile", running()) == ("not noticed", "")
    assert became("recompile-limit", running(), allow_recompile_limit=True) == ("not noticed", "")
    assert became("eager-frame", running(), max_eager_frames=1) == ("not noticed", "")
    assert became("zeros", running(), numerics=None) == ("not noticed", "")


def test_a_gradient_that_nobody_asks_for_is_let_by() -> None:
    planting, entry = sown("grad-doubled", running())

    assert (planting.placed > 0, planting.asked, entry.verdict) == (True, 0, "held")


def test_what_is_only_observed_has_no_numbers_to_notice_it() -> None:
    def observes(lane: CompileLane) -> None:
        compiled = lane.compile(torch.sin)
        with lane.observe():
            compiled(*batches()[0])

    assert became("nan-all", observes) == ("not noticed", "")


# What is exact about them


@pytest.mark.parametrize(("name", "index"), [("third-call", 2), ("nan-last", 3)])
def test_only_one_call_is_wrong(name: str, index: int) -> None:
    _, entry = sown(name, running())

    assert entry.measurement is not None
    assert entry.measurement.numerics is not None
    assert [each.at for each in entry.measurement.numerics.differences] == [f"call {index} output"]


def test_one_recompile_is_one() -> None:
    _, entry = sown("recompile", running())

    assert entry.measurement is not None
    assert len(entry.measurement.recompiles or ()) == 1


def test_one_break_is_one_with_a_break_of_the_programs_own() -> None:
    def breaks(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    _, entry = sown("graph-break", lambda lane: lane.run(breaks, *batches(2)), max_graph_breaks=1)

    assert entry.measurement is not None
    assert len(entry.measurement.graph_breaks or ()) == 2


def test_zeros_in_the_place_of_zeros_are_no_fault() -> None:
    looking, _ = looked(lambda lane: lane.run(lambda x: (x.sin() + 1) * 0, *batches()))

    assert "zeros" in looking.idle
    assert looking.site(KNOWN["zeros"], (0, 1, 2, 3)) is None


def test_nothing_stale_is_found_where_every_call_gives_the_same() -> None:
    looking, _ = looked(lambda lane: lane.run(torch.sin, *batches(1) * 3))

    assert looking.site(KNOWN["stale-constant"], (0, 1, 2)) is None


def test_a_copy_of_an_expanded_output_is_no_other_one() -> None:
    looking, _ = looked(lambda lane: lane.run(lambda x: (x.round() * 2).expand(2, -1, -1), *batches(1)))

    assert "float16-inside" in looking.idle
    assert looking.site(KNOWN["float16-inside"], (0,)) is None


def test_a_backward_within_what_is_compiled_does_not_compile_the_fault() -> None:
    def body(compile: Callable[..., Any]) -> Any:
        block = Block()

        def step(x: torch.Tensor) -> None:
            block(x).square().mean().backward()

        compiled = compile(step)
        for each in batches():
            compiled(*each)
        return [each.grad for each in block.parameters()]

    planting, entry = sown("grad-doubled", lambda lane: lane.compare(body), max_graph_breaks=2, max_recompiles=0)

    assert planting.took == len(batches())
    assert [each.name for each in entry.violations] == ["numerics"]


def test_the_target_and_torch_are_as_they_were() -> None:
    before = torch.compile, vars(OutputGraph)["call_user_compiler"]
    block, kept = Block(), {}
    kept = {name: each.clone() for name, each in block.state_dict().items()}

    for name in ("parameter-written", "graph-break", "recompile-limit"):
        sown(name, lambda lane: lane.run(block, *batches()), allow_recompile_limit=True)

    assert (torch.compile, vars(OutputGraph)["call_user_compiler"]) == before
    assert all(torch.equal(each, kept[name]) for name, each in block.state_dict().items())


# Whole sessions

CONTRACTS = """
import pytest
import torch

from pytest_compilecontract import compile_contract

X = [torch.linspace(-1, 1, 8) * (1 + number) for number in range(4)]
EARLY = torch.compile(lambda x: x.sin(), backend="eager")


@compile_contract(max_graph_breaks=0, max_recompiles=0)
def test_tight(compile_lane):
    print("said once")
    compile_lane.run(lambda x: x.sin() + 1, *((x,) for x in X))


def test_loose(compile_lane):
    compile_lane.run(lambda x: x.sin() + 1, *((x,) for x in X))


@compile_contract(max_graph_breaks=0)
def test_violated(compile_lane):
    compile_lane.run(lambda x: torch._dynamo.graph_break() or x.sin(), (X[0],))


@pytest.mark.compile_contract
def test_bare():
    compiled = torch.compile(lambda x: x.sin(), backend="eager")
    for x in X:
        torch.testing.assert_close(compiled(x), x.sin())


@pytest.mark.compile_contract
def test_compiled_before():
    for x in X:
        assert EARLY(x).shape == x.shape


def test_plain():
    assert True
"""


def session(folder: Path, *options: str) -> tuple[dict[str, dict[str, Planted]], int, str]:
    """What became of each fault, by contract; pytest's exit code, and what it printed."""
    (folder / "test_it.py").write_text(CONTRACTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--compile-contracts", *options]
    path = os.pathsep.join(each for each in (str(ROOT), os.environ.get("PYTHONPATH", "")) if each)
    ran = run_session(
        [*command, "--contract-lanes=capture", "--contract-report=report"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
    )
    entries = read_receipt(folder / "report" / "receipt.json").entries
    return (
        {each.contract.rpartition("::")[2]: {one.fault: one for one in each.planted} for each in entries},
        ran.returncode,
        ran.stdout,
    )


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "a worker"])
def test_a_session_says_what_its_contracts_would_miss(tmp_path: Path, workers: tuple[str, ...]) -> None:
    found, code, said = session(tmp_path, "--contract-plant=zeros,stride,graph-break,kernel,third-call", *workers)

    outcomes = {contract: {name: each.outcome for name, each in faults.items()} for contract, faults in found.items()}
    every = {"zeros": "noticed", "stride": "noticed", "third-call": "noticed", "kernel": "not applicable"}
    if torch.cuda.is_available():
        every["kernel"] = outcomes["test_tight"]["kernel"]
    assert outcomes["test_tight"] == {**every, "graph-break": "noticed"}
    assert outcomes["test_loose"] == {**every, "graph-break": "not noticed"}
    assert outcomes["test_violated"] == {}
    assert found["test_bare"]["zeros"].by == "an assertion in the test"
    assert found["test_bare"]["stride"].outcome == "not noticed"
    assert found["test_compiled_before"]["graph-break"].why == "it is compiled before the test runs"
    assert "  NOT NOTICED: graph-break: max_graph_breaks=0 would notice it" in said
    assert "  test_it.py::test_violated [capture]: violated" in said
    survived = sum(each.survived for planted in found.values() for each in planted.values())
    assert f"exit code 1: {survived} planted faults not noticed" in said
    assert code == 1
    assert (tmp_path / "report" / "planted.md").read_text().startswith("# Planted faults: ")
    assert "<!doctype html>" in (tmp_path / "report" / "planted.html").read_text()


def test_without_a_survivor_a_session_passes(tmp_path: Path) -> None:
    _, code, said = session(tmp_path, "--contract-plant=zeros,graph-break", "-k", "tight")

    assert code == 0
    assert "planted faults: every one was noticed (2 of 2)" in said
    assert "exit code 1" not in said


@pytest.mark.parametrize("option", ["--contract-repeat=2", "--contract-bisect", "--contract-record=all"])
def test_it_goes_with_no_other_reruns(pytester: pytest.Pytester, option: str) -> None:
    result = pytester.runpytest("--compile-contracts", "--contract-plant", option)

    name = option.partition("=")[0]
    result.stderr.fnmatch_lines([f"ERROR: --contract-plant runs a lane once per fault: remove {name}"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_an_unknown_kind_is_a_usage_error(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--compile-contracts", "--contract-plant=nan")

    result.stderr.fnmatch_lines(["*unknown fault 'nan' (known faults: nan-element, *"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_run_that_is_killed_keeps_what_became_of_the_faults_so_far(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("""
import os
import signal

import torch

RUNS = []


def test_dies(compile_lane):
    RUNS.append(None)
    if len(RUNS) == 5:  # once as it is, once to look, and with two faults
        os.kill(os.getpid(), signal.SIGKILL)
    compile_lane.run(lambda x: x + 1, *[(torch.ones(4),)] * 2)
""")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    options = ["--contract-plant=zeros,inf,shape,rank", "--contract-lanes=capture", "--contract-report=report"]
    path = os.pathsep.join(each for each in (str(ROOT), os.environ.get("PYTHONPATH", "")) if each)
    run_session(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--compile-contracts", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )

    (entry,) = recovered(tmp_path / "report" / JOURNAL).receipt.entries

    assert entry.verdict == "held"
    planted = [each for each in entry.planted if each.outcome != "not applicable"]
    assert len(planted) == 2
    assert {each.outcome for each in planted} == {"noticed"}
    # What was never planted is not left out, as if those two had been all.
    assert [each.why for each in entry.planted[2:]] == ["the process ended before it was planted"] * 2
