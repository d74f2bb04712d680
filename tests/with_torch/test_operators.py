"""What ran in eager in a steady call: measured operator by operator, so that no frame that Dynamo skips is left out."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from holding import hold, kept_limits, lane_of, measured
from torch import nn
from torch.nn import functional as F
from torch.profiler import record_function
from torch.utils.checkpoint import checkpoint_sequential

from pytest_compilecontract.calls import call
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.measurement import Measurement, StepOperators
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.measure.compile_lane import CompileLane
from pytest_compilecontract.measure.probes import operators

pytestmark = pytest.mark.insides

LANES = ("capture", "aot")


class Watch(nn.Module):
    """A layer that breaks the graph: it reads a value on the CPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = x.abs().mean().item()
        return x * 2


class Net(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.stem, self.block = nn.Linear(4, 4), block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.block(self.stem(x)))


def layers() -> tuple[nn.Module, ...]:
    return nn.Linear(4, 4), nn.ReLU(), Watch(), nn.Linear(4, 4), nn.ReLU()


def looks(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
    output.mean().item()


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].register_forward_hook(looks)
    return model


def activation(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + x.mean().item()


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, activation=activation, batch_first=True)


class Scaled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * weight.abs().max().item()


def parametrized() -> nn.Module:
    linear = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(linear, "weight", Scaled())
    return nn.Sequential(linear, nn.ReLU())


def log_prob(x: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Normal(x, x.abs() + 1, validate_args=True).log_prob(x) + 1


def run(target: Any, *calls: Any, lane: str | Lane = "aot", **limits: Any) -> Entry:
    made = calls or ((torch.randn(2, 4),),) * 3
    return hold(lambda compile_lane: compile_lane.run(target, *made), lane=lane, **limits)


def of(entry: Entry) -> StepOperators:
    found = measured(entry).operators_run
    assert found is not None, measured(entry).unmeasured
    return found


def eager(entry: Entry, *why: str) -> dict[str, int]:
    """The operators that ran in eager, by name, over all groups of these reasons."""
    found: Counter[str] = Counter()
    for each in of(entry).groups:
        if each.why in (why or ("skipped", "graph break", "frame")):
            found.update(each.operators)
    return dict(found)


# Frames that Dynamo skips


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    ("make", "skipped"),
    [
        pytest.param(lambda: nn.Sequential(*layers()), {"linear": 2, "relu": 2}, id="a container"),
        pytest.param(lambda: Net(nn.Sequential(*layers())), {"linear": 2, "relu": 2}, id="a container in a module"),
        pytest.param(hooked, {"linear": 3}, id="a forward hook"),
        pytest.param(parametrized, {"linear": 1, "relu": 1}, id="a parametrization"),
    ],
)
def test_a_break_in_torchs_own_code_leaves_all_of_it_eager(
    make: Callable[[], nn.Module], skipped: dict[str, int], lane: str
) -> None:
    entry = run(make(), lane=lane, max_graph_breaks=1)

    assert kept_limits(entry) == ("violated", {"max_eager_frames=0 (default)": 1})
    assert eager(entry, "skipped") == skipped


@pytest.mark.parametrize("lane", LANES)
def test_an_encoder_layer_whose_activation_breaks(lane: str) -> None:
    entry = run(encoder(), (torch.randn(2, 3, 4),), (torch.randn(2, 3, 4),), lane=lane, max_graph_breaks=1)

    assert kept_limits(entry) == ("violated", {"max_eager_frames=0 (default)": 1})
    assert eager(entry, "skipped")["layer_norm"] == 2


def test_argument_checks_of_a_distribution() -> None:
    entry = run(log_prob, max_graph_breaks=2)

    assert kept_limits(entry) == ("violated", {"max_eager_frames=0 (default)": 2})
    assert (of(entry).compiled, of(entry).eager) == (3, 19)


def test_the_failure_says_what_runs_eager_where_and_why() -> None:
    entry = run(Net(nn.Sequential(*layers())), max_graph_breaks=1)

    (violation,) = entry.violations
    line = Net.forward.__code__.co_firstlineno + 1
    broke = Watch.forward.__code__.co_firstlineno + 1
    frame, sentence, at = violation.details
    assert frame.endswith("in forward: ran in eager, skipped")
    assert sentence == (
        "  all of Sequential.forward runs in eager, 2 linear, 2 relu: it is torch's own code and broke at "
        f"test_operators.py:{broke}"
    )
    assert at == f"  at test_operators.py:{line} in forward: return F.relu(self.block(self.stem(x)))"


def test_the_loop_of_the_project_is_told_once() -> None:
    class Own(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self:
                x = layer(x)
            return x

    entry = run(Net(Own(*layers())), max_graph_breaks=1)

    assert kept_limits(entry) == ("violated", {"max_eager_frames=0 (default)": 1})
    assert eager(entry, "frame") == {"linear": 2, "relu": 2}


def test_what_the_author_allows_holds() -> None:
    entry = run(nn.Sequential(*layers()), max_graph_breaks=1, max_eager_frames=1, max_eager_ops=5)

    assert entry.verdict == "held"


def test_a_compiled_training_step_has_no_eager_operators_of_its_own() -> None:
    def body(compile_lane: Any) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        compile_lane.train(model, [(torch.randn(2, 4),)] * 3)

    entry = hold(body, max_graph_breaks=0, max_eager_ops=0)

    assert entry.verdict == "held"
    assert of(entry).compiled == 3


def test_a_training_step_whose_container_breaks() -> None:
    entry = hold(lambda compile_lane: compile_lane.train(nn.Sequential(*layers()), [(torch.randn(2, 4),)] * 3))

    assert kept_limits(entry)[1]["max_eager_frames=0 (default)"] == 1
    assert eager(entry, "skipped") == {"linear": 2, "relu": 2}


# What a graph break stands for


class Disabled(nn.Module):
    @torch.compiler.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@torch.compiler.disable
def disabled(x: torch.Tensor) -> torch.Tensor:
    return (x @ x.T).relu()


def calls_disabled(x: torch.Tensor) -> torch.Tensor:
    return disabled(x.sin()).cos()


def branches(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    if y.sum() > 100:
        y = y * 2
    return y.cos()


def reduces(x: torch.Tensor) -> torch.Tensor:
    return functools.reduce(lambda value, step: step(value), [torch.sin, lambda v: v + v.sum().item(), torch.cos], x)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    ("target", "operators_of_the_break"),
    [
        pytest.param(calls_disabled, {"matmul": 1, "numpy_T": 1, "relu": 1}, id="a disabled function"),
        pytest.param(branches, {"is_nonzero": 1}, id="a branch on a tensor"),
        pytest.param(reduces, {"item": 1}, id="item in a function that Python calls"),
    ],
)
def test_the_very_call_that_a_break_stands_for_is_no_eager_frame(
    target: Any, operators_of_the_break: dict[str, int], lane: str
) -> None:
    entry = run(target, lane=lane, max_graph_breaks=1)

    assert entry.verdict == "held"
    assert eager(entry) == operators_of_the_break
    assert not of(entry).skipped


@pytest.mark.parametrize("lane", LANES)
def test_a_branch_on_a_tensor_is_on_its_own_line(lane: str) -> None:
    entry = run(branches, lane=lane, max_graph_breaks=1)

    (asked,) = [each for each in of(entry).groups if "is_nonzero" in each.operators]
    assert asked.location is not None
    assert asked.location.line == branches.__code__.co_firstlineno + 2


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor


def copied(x: torch.Tensor) -> torch.Tensor:
    table = {"x": x.sin()}
    other = copy.deepcopy(table)
    return other["x"] + 1


def copied_in_a_call(x: torch.Tensor) -> torch.Tensor:
    pair = Pair(x.sin(), x.cos())
    other = dataclasses.asdict(pair)
    return other["first"] + other["second"]


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("target", [copied, copied_in_a_call])
def test_a_break_in_pythons_own_library_stands_for_its_call(target: Any, lane: str) -> None:
    """torch 2.12 follows copy.deepcopy and breaks inside; others break at its call, or within dataclasses.asdict."""
    entry = run(target, lane=lane, max_graph_breaks=2)

    assert entry.verdict == "held", entry.reason
    assert sum(eager(entry).values()) > 0
    assert not of(entry).skipped


def test_a_limit_on_operators_counts_these_too() -> None:
    entry = run(calls_disabled, max_graph_breaks=1, max_eager_ops=2)

    assert kept_limits(entry) == ("violated", {"max_eager_ops=2": 3})


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a module"])
def test_a_disabled_layer_excuses_nothing_beside_it(inside: bool) -> None:
    block = nn.Sequential(nn.Linear(4, 4), Disabled(), nn.Linear(4, 4))
    entry = run(Net(block) if inside else block, max_graph_breaks=1, min_ops_captured=0)

    assert kept_limits(entry) == ("violated", {"max_eager_frames=0 (default)": 1})
    assert eager(entry, "skipped")["linear"] == 2


def test_a_disabled_function_excuses_no_other_call_of_its_line() -> None:
    block = nn.Sequential(*layers())

    def both(x: torch.Tensor) -> torch.Tensor:
        return block(x.sin()) + disabled(x).sum()

    entry = run(both, max_graph_breaks=2)

    assert kept_limits(entry) == ("violated", {"max_eager_frames=0 (default)": 1})
    assert eager(entry, "skipped") == {"linear": 2, "relu": 2}


class Silent(nn.Module):
    """A disabled layer that asks for no operator."""

    @torch.compiler.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x.shape
        return x


def test_a_disabled_layer_without_operators_excuses_nothing_beside_it() -> None:
    entry = run(Net(nn.Sequential(nn.Linear(4, 4), Silent())), max_graph_breaks=1)

    assert kept_limits(entry) == ("violated", {"max_eager_frames=0 (default)": 1})
    assert eager(entry, "skipped") == {"linear": 1}


def test_disabled_layers_and_nothing_else_are_what_the_breaks_stand_for() -> None:
    entry = run(Net(nn.Sequential(Disabled(), Disabled())))

    assert entry.verdict == "held"
    assert eager(entry, "graph break") == {"mul": 2}


@pytest.mark.parametrize(
    "through",
    [
        pytest.param(lambda block, x: checkpoint_sequential(block, 1, x, use_reentrant=False), id="checkpoints"),
        pytest.param(lambda block, x: eval("block(x)"), id="eval"),
    ],
)
def test_a_break_stands_for_no_module_that_an_untraced_function_calls(through: Callable[..., Any]) -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    entry = run(lambda x: through(block, x.sin()).cos())

    assert kept_limits(entry) == ("violated", {"max_eager_frames=0 (default)": 1})
    assert eager(entry, "skipped") == {"linear": 1, "relu": 1}


def in_a_field(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    print(f"{y.mean():.3f}")  # noqa: T201 - the break
    return y.cos()


def test_text_made_of_a_tensor_is_no_eager_frame() -> None:
    entry = run(in_a_field)

    assert entry.verdict == "held"
    assert eager(entry, "graph break")["item"] >= 1


def test_a_number_that_dynamo_makes_a_tensor_of_is_no_operator_of_the_program() -> None:
    calls = [(torch.randn(4), 0.5 * step) for step in range(5)]

    entry = run(lambda x, scale: (x * scale).sin(), *calls, max_graph_breaks=0, max_eager_ops=0)

    assert entry.verdict == "held"


@pytest.mark.parametrize("lane", ["aot", "inductor"])
def test_a_compiled_backward_within_a_call_did_not_run_eager(lane: str) -> None:
    linear = nn.Linear(4, 4)

    def gradients(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = linear(x).pow(2).mean()
        return torch.autograd.grad(loss, list(linear.parameters()))

    entry = run(gradients, lane=lane)

    assert entry.verdict == "held"
    assert eager(entry) in ({}, {"ones_like": 1})


def test_a_span_that_the_program_names_is_no_operator() -> None:
    class Labelled(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with record_function("net::stem"):
                x = self.stem(x)
            with record_function("net::block"):
                return self.block(x)

    def regions(compile_lane: Any) -> None:
        def compile_block(model: Net) -> Net:
            compile_lane.compile(model.block, in_place=True)
            return model

        compile_lane.run(Labelled(Double()), *((torch.randn(2, 4),),) * 3, compile_with=compile_block)

    entry = hold(regions, max_eager_ops=0)

    assert entry.verdict == "held"
    assert (of(entry).compiled, of(entry).eager) == (1, 0)


def test_a_frame_that_had_nothing_to_compile_in_its_first_call() -> None:
    def late(x: torch.Tensor, more: bool) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos() + 1 if more else y

    x = torch.randn(4)
    entry = run(late, (x, False), (x, True), (x, True), max_graph_breaks=1)

    assert kept_limits(entry) == ("violated", {"max_eager_frames=0 (default)": 1})
    assert eager(entry, "skipped") == {"add": 1, "cos": 1}


# By module and by line


def test_both_numbers_by_module_and_by_line() -> None:
    entry = run(Net(nn.Sequential(*layers())), max_graph_breaks=1)

    found = of(entry)
    assert found.modules["block.0"] == (0, 1)
    assert found.modules["block.1"] == (0, 1)
    assert found.modules["stem"] == (1, 0)
    assert found.modules["block.2"] == (3, 1)
    line = Watch.forward.__code__.co_firstlineno + 1
    assert found.lines[f"test_operators.py:{line}"] == (2, 1)
    assert sum(each[0] for each in found.modules.values()) == found.compiled
    assert sum(each[1] for each in found.modules.values()) == found.eager


@pytest.mark.parametrize("lane", [*LANES, "inductor"])
def test_a_whole_graph_ran_compiled_whatever_the_backend(lane: str) -> None:
    entry = run(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), lane=lane, max_eager_ops=0)

    assert entry.verdict == "held"
    assert (of(entry).compiled, of(entry).eager) == (3, 0)
    assert of(entry).modules == {"0": (1, 0), "1": (1, 0), "2": (1, 0)}


class Double(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_regions_compiled_by_the_project_leave_the_rest_to_eager_on_purpose() -> None:
    def regions(compile_lane: Any) -> None:
        def compile_block(model: Net) -> Net:
            compile_lane.compile(model.block, in_place=True)
            return model

        compile_lane.run(Net(Double()), *((torch.randn(2, 4),),) * 3, compile_with=compile_block)

    entry = hold(regions, max_eager_ops=0)

    assert entry.verdict == "held"
    assert of(entry).modules == {"block": (1, 0)}


def test_a_graph_within_an_operator_that_is_written_in_python() -> None:
    with torch.library._scoped_library("compilecontract_test", "FRAGMENT") as library:
        library.define("cosine(Tensor x) -> Tensor")
        library.impl("cosine", lambda x: x.cos(), "CPU")

        entry = run(lambda x: torch.ops.compilecontract_test.cosine(x.sin()) * 2, max_graph_breaks=1)

    assert entry.verdict == "held"
    assert eager(entry) == {"compilecontract_test::cosine": 1}
    assert of(entry).compiled == 3


# Where it cannot be told


def unknown(seen: Measurement) -> str:
    assert seen.operators_run is None
    return seen.unmeasured["operators_run"]


def counts_in(log: Path) -> Callable[[], int]:
    """What counts calls where no pass puts it back."""

    @torch.compiler.disable
    def count() -> int:
        with log.open("a") as file:
            file.write(".")
        return log.stat().st_size

    return count


def test_a_call_that_compiles_again_tells_nothing(tmp_path: Path) -> None:
    count = counts_in(tmp_path / "calls")

    @torch.compiler.disable
    def stamp() -> str:
        return "x" * count()

    def grows(x: torch.Tensor) -> torch.Tensor:
        stamped = stamp()
        return x * (2 if stamped > "4" else 3)

    entry = run(grows, (torch.randn(4),), max_recompiles=9)

    assert unknown(measured(entry)) == "a repeated call compiles again"
    assert entry.verdict == "unverified"
    assert "what ran in eager besides the graph breaks is unknown" in entry.reason


def test_an_iterator_that_has_come_to_its_end_begins_anew() -> None:
    factors = iter([2.0, 3.0, 4.0])

    def scales(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x * next(factors)

    entry = run(scales, max_graph_breaks=9, max_recompiles=9, max_eager_frames=9)

    assert measured(entry).operators_run is not None


def test_a_number_that_becomes_free_in_the_repeated_call() -> None:
    steps = [0]

    def counts(x: torch.Tensor) -> torch.Tensor:
        steps[0] += 1
        return x * steps[0]

    entry = run(counts, (torch.randn(4),), max_recompiles=0, max_eager_ops=0)

    assert entry.verdict == "held"
    assert of(entry).compiled > 0


def test_eager_frames_behind_a_break_are_told_from_the_start_where_each_call_compiles() -> None:
    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.said = nn.Sequential(*layers()), "a"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.said += "a"
            return self.block(x.sin()) * len(self.said)

    entry = run(Grows(), max_recompiles=9)

    assert entry.verdict == "violated"
    assert eager(entry, "skipped") == {"linear": 2, "relu": 2}


class Either(nn.Module):
    """Calls a container that breaks, or one of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers())

    def forward(self, x: torch.Tensor, *, whole: bool) -> torch.Tensor:
        return self.layers(x) if whole else self.layers[0](x)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("ways", [(True, False), (False, True, False), (False, True, True)], ids=str)
def test_what_an_earlier_call_runs_in_eager_is_told_too(ways: tuple[bool, ...], lane: str) -> None:
    calls = [call(torch.randn(2, 4), whole=whole) for whole in ways]

    entry = run(Either(), *calls, lane=lane)

    assert [each.limit for each in entry.violations] == ["max_eager_frames=0 (default)"]
    assert eager(entry, "skipped") == {"linear": 2, "relu": 2}
    assert of(entry).eager == sum(eager(entry).values())


def test_earlier_calls_find_the_state_that_they_had() -> None:
    class Counting(Either):
        steps = 0

        def forward(self, x: torch.Tensor, *, whole: bool = True) -> torch.Tensor:
            self.steps += 1
            return super().forward(x, whole=self.steps == 2)

    model = Counting()

    entry = run(model, *((torch.randn(2, 4),),) * 4)

    assert [each.limit for each in entry.violations] == ["max_eager_frames=0 (default)"]
    assert eager(entry, "skipped") == {"linear": 2, "relu": 2}
    assert model.steps == 0


def test_an_earlier_call_that_compiles_for_a_new_optimizer_starts_from_where_the_others_end() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    assert run(step, lane="capture").verdict == "held"


def test_an_earlier_training_step_that_runs_in_eager() -> None:
    model = Either()

    entry = hold(
        lambda lane: lane.train(model, [call(torch.randn(2, 4), whole=whole) for whole in (False, True, False)])
    )

    assert [each.limit for each in entry.violations] == ["max_eager_frames=0 (default)"]
    assert eager(entry, "skipped") == {"linear": 2, "relu": 2}


def test_of_calls_that_take_one_way_only_the_last_is_told() -> None:
    alike = [call(torch.randn(rows, 4), whole=True) for rows in (2, 3, 4)]

    assert of(run(Either(), *alike)) == of(run(Either(), *alike[-1:] * 3))


def test_a_call_that_raises_the_next_time_tells_nothing(tmp_path: Path) -> None:
    count = counts_in(tmp_path / "calls")

    def refuses(x: torch.Tensor) -> torch.Tensor:
        # Eager, eager again, in float64 and compiled.
        if count() > 4 * 3:
            raise ValueError("no more")
        return x.sin()

    entry = run(refuses)

    assert unknown(measured(entry)) == "a repeated call raises ValueError"


def compared(model: nn.Module, lane: CompileLane) -> None:
    def body(compile: Callable[..., Any]) -> list[torch.Tensor]:
        compiled = compile(model)
        return [compiled(torch.ones(2, 4)) for _ in range(3)]

    lane.compare(body)


def observed(model: nn.Module, lane: CompileLane) -> None:
    with lane.observe():
        lane.compile(model)(torch.ones(2, 4))


@pytest.mark.parametrize("make", [compared, observed])
@pytest.mark.parametrize(
    ("block", "inside"),
    [
        (lambda: nn.Sequential(*layers()), "forward of torch/nn/modules/container.py"),
        (encoder, "forward of torch/nn/modules/transformer.py"),
        (Watch, None),
    ],
    ids=["a container", "an encoder layer", "a layer of the project"],
)
def test_own_calls_through_torchs_code_that_broke_are_unverified(
    make: Callable[[nn.Module, CompileLane], None], block: Callable[[], nn.Module], inside: str | None
) -> None:
    entry = hold(lambda lane: make(Net(block()).eval(), lane))

    assert entry.verdict == ("unverified" if inside else "held")
    assert entry.reason.startswith(f"what ran in eager in {inside} is unknown" if inside else "")


def test_a_body_makes_its_own_calls() -> None:
    entry = hold(lambda compile_lane: compile_lane.compare(lambda compile: compile(torch.sin)(torch.ones(3))))

    assert unknown(measured(entry)) == "the body of the test makes its own calls"


def test_a_limit_on_what_cannot_be_told_is_violated() -> None:
    entry = hold(
        lambda compile_lane: compile_lane.compare(lambda compile: compile(torch.sin)(torch.ones(3))), max_eager_ops=0
    )

    assert entry.verdict == "violated"
    assert "the body of the test makes its own calls" in str(entry.violations[0].measured)


POOL = ThreadPoolExecutor(1, initializer=torch.ones, initargs=(1,))
COMPILED = torch.compile(nn.Linear(4, 4), backend="aot_eager")


def started(work: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    found: list[torch.Tensor] = []
    worker = threading.Thread(target=lambda: found.append(work(x)))
    worker.start()
    worker.join()
    return found[0]


def handed(work: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return POOL.submit(work, x).result()


class Elsewhere(nn.Module):
    """A part of its work is done in another thread, which Dynamo does not follow; another may be done here."""

    def __init__(self, through: Callable[..., torch.Tensor], work: Callable[..., torch.Tensor], *, here: bool) -> None:
        super().__init__()
        self.layer, self.through, self.work, self.here = nn.Linear(4, 4), through, work, here

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.aside(self.layer(x)).cos()

    @torch.compiler.disable
    def aside(self, x: torch.Tensor) -> torch.Tensor:
        return self.through(self.work, x.abs() if self.here else x)


@pytest.mark.parametrize("through", [started, handed])
@pytest.mark.parametrize("here", [True, False], ids=["and here", "there alone"])
def test_operators_in_another_thread_are_not_measured_and_not_0(
    through: Callable[..., torch.Tensor], here: bool
) -> None:
    entry = run(Elsewhere(through, lambda x: (x * 2).sin(), here=here), max_eager_ops=9)

    why = "operators ran in another thread, and not in a compiled graph: mul, sin"
    assert unknown(measured(entry)) == why
    assert entry.verdict == "violated"


@pytest.fixture
def two_threads() -> Iterator[None]:
    """As many for the work of one operator."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("lane", ["capture", "aot"])
def test_an_operator_that_shares_its_work_among_threads_is_one_operator(lane: str) -> None:
    """The attention of a CPU allocates in each of them."""
    entry = hold(lambda given: given.train(Attends(), [(torch.randn(2, 4, 64, 8),)]), lane=lane)

    assert of(entry).eager == 0


def test_what_is_computed_in_memory_of_another_thread_is_told() -> None:
    entry = run(Elsewhere(started, lambda x: torch.empty_like(x).fill_(1), here=False), max_eager_ops=9)

    assert "fill_" in unknown(measured(entry))


@pytest.mark.parametrize("through", [started, handed])
def test_graphs_in_another_thread_are_no_eager_operators(through: Callable[..., torch.Tensor]) -> None:
    seen = of(run(Elsewhere(through, COMPILED, here=False)))

    assert (seen.compiled, seen.eager) == (3, 0)


def test_the_profiler_tells_lines_of_this_thread_alone() -> None:
    seen = measured(run(Elsewhere(started, COMPILED, here=True)))

    assert unknown(seen) == "torch's profiler saw 2 of 3 compiled graphs: some ran in another thread"


def test_a_thread_that_outlives_the_call_is_not_measured() -> None:
    over = threading.Event()

    def leaves(x: torch.Tensor) -> torch.Tensor:
        threading.Thread(target=lambda: (over.wait(60), x * 2), name="late").start()
        return x

    try:
        seen = measured(run(Elsewhere(lambda work, x: work(x), leaves, here=False)))
    finally:
        over.set()

    assert unknown(seen) == "the call left a thread running: late"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_operators_in_a_process_that_the_call_forks_are_not_measured_and_not_0() -> None:
    def forked(_work: Any, x: torch.Tensor) -> torch.Tensor:
        reads, writes = os.pipe()
        if (child := os.fork()) == 0:
            os.write(writes, str(float(x.flatten()[0])).encode())
            os._exit(0)
        os.close(writes)
        found = float(os.read(reads, 100))
        os.close(reads)
        os.waitpid(child, 0)
        return x.new_full((), found)

    entry = run(Elsewhere(forked, torch.sin, here=False), max_eager_ops=0)

    why = "the call starts processes, and what runs in them is not measured: 1 by os.fork"
    assert unknown(measured(entry)) == why
    assert entry.verdict != "held"


def test_the_backward_of_a_step_is_not_the_targets() -> None:
    with lane_of("aot") as compile_lane:
        seen = compile_lane.train(
            nn.Linear(4, 4), [torch.randn(2, 4)] * 3, loss=torch.Tensor.sum, optimizer=torch.optim.SGD
        )

    assert seen.operators_run is not None
    assert (seen.operators_run.compiled, seen.operators_run.eager) == (1, 0)


def test_a_torch_whose_profiler_sees_one_thread_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._profiler, "_ExperimentalConfig")

    assert unknown(measured(run(torch.sin))) == "torch's profiler cannot record all threads"


@pytest.mark.parametrize(
    ("owner", "name", "reason"),
    [
        pytest.param(
            torch._dynamo.eval_frame._TorchDynamoContext,
            "__call__",
            "torch has no torch._dynamo.eval_frame._TorchDynamoContext.__call__.compile_wrapper",
            id="the entrance",
        ),
    ],
)
def test_a_torch_without_what_is_read_tells_why(
    owner: Any, name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda self, fn: original(self, fn))

    assert unknown(measured(run(calls_disabled))) == reason


def test_a_torch_whose_profiler_tells_no_whole_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.profiler import python_tracer

    monkeypatch.delattr(python_tracer, "_prefix_regex")

    assert unknown(measured(run(calls_disabled))) == "torch has no torch.profiler.python_tracer._prefix_regex"


def test_a_profile_of_the_tests_own_is_left_alone() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as taken:
        seen = measured(run(torch.sin))

    assert unknown(seen) == "torch's profiler is already running"
    assert taken.key_averages()


def test_the_steady_call_counts_nothing() -> None:
    with lane_of("aot") as compile_lane:
        seen = compile_lane.run(torch.sin, *((torch.randn(2, 4),),) * 3)

    assert (seen.graphs_executed, len(seen.calls or ()), seen.recompiles) == (3, 3, ())


def test_the_quiet_of_the_profiler_is_not_left_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in operators.QUIET:
        monkeypatch.delenv(name, raising=False)

    run(torch.sin)

    assert not operators.QUIET.keys() & os.environ.keys()
