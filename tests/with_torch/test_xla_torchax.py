"""Lane `xla-torchax`, with torchax in this process; `ci/xla` runs it, since Dynamo fails once torchax is imported."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest
import torch
from holding import hold, measured
from torch import nn

from pytest_compilecontract import call
from pytest_compilecontract.facts.measurement import NO_DYNAMO

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torchax") is None, reason="torchax is not installed (ci/xla has it)"),
]
LANE = "xla-torchax"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(torch.relu(self.up(x)))


def x(rows: int = 3) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))


def traced(tensor: torch.Tensor) -> bool:
    """Whether the target is called to make a program of it, by which the faults below are planted."""
    return hasattr(tensor, "_elem")


def test_calls_of_one_shape_are_one_program() -> None:
    entry = hold(lambda lane: lane.run(Net(), x(), x(), x()), lane=LANE, max_recompiles=0, max_graph_breaks=0)

    seen = measured(entry)
    assert entry.verdict == "held", entry.reason
    assert (seen.graphs, seen.graphs_executed, (seen.operations or {})["dot_general"]) == (1, 3, 2)
    assert [each.phase for each in seen.calls or ()] == ["cold", "steady", "steady"]


def test_what_dynamo_counts_is_not_measured_and_never_0() -> None:
    seen = measured(hold(lambda lane: lane.run(Net(), x()), lane=LANE))

    for name in ("eager_frames", "limit_hits", "guards", "caches", "stage_seconds", "resets"):
        assert getattr(seen, name) is None
        assert seen.unmeasured[name] == NO_DYNAMO


def test_a_limit_on_what_dynamo_has_is_named_as_not_judged() -> None:
    entry = hold(lambda lane: lane.run(Net(), x()), lane=LANE, max_guards=1, fullgraph=True)

    assert entry.verdict == "held"
    assert entry.reason == f"max_guards is not judged: {NO_DYNAMO}"


def test_a_new_shape_is_a_recompile() -> None:
    entry = hold(lambda lane: lane.run(Net(), x(3), x(5), x(3)), lane=LANE, max_recompiles=0)

    (found,) = measured(entry).recompiles or ()
    assert [each.limit for each in entry.violations] == ["max_recompiles=0"]
    assert found.guard == "input tensor 0 is float32[5, 4], and was float32[3, 4]"
    assert found.frame.function == "forward"


def test_a_branch_on_a_value_is_a_break_at_its_line() -> None:
    class Branches(Net):
        def forward(self, x: torch.Tensor) -> Any:
            if x.sum() > 0:
                return super().forward(x)
            return x

    entry = hold(lambda lane: lane.run(Branches(), x()), lane=LANE, max_graph_breaks=0)

    (found,) = measured(entry).graph_breaks or ()
    assert entry.verdict == "broken"
    assert found.kind == "ConcretizationTypeError"
    assert found.location.source.strip() == "if x.sum() > 0:"
    assert "max_graph_breaks=0" in [each.limit for each in entry.violations]


def test_a_branch_on_a_value_is_a_break_where_the_target_handles_the_error_too() -> None:
    class Hides(Net):
        def forward(self, x: torch.Tensor) -> Any:
            try:
                doubled = bool(x.sum() > 100)
            except TypeError:
                doubled = False
            return super().forward(x) * (2 if doubled else 1)

    entry = hold(lambda lane: lane.run(Hides(), x(), x()), lane=LANE, max_graph_breaks=0)

    (found,) = measured(entry).graph_breaks or ()
    assert [each.limit for each in entry.violations] == ["max_graph_breaks=0"]
    assert found.reason == "a value was asked for that is not known yet (ConcretizationTypeError)"
    assert found.location.function == "forward"


def test_a_call_of_a_modules_own_is_in_the_program_and_made_once() -> None:
    class Doubles(Net):
        def __call__(self, x: torch.Tensor) -> Any:
            return super().__call__(torch.sin(x)) * 2

    net = Doubles()
    kinds = []

    def body(lane: Any) -> None:
        lane.run(net, x(), x())
        kinds.append(type(net))

    entry = hold(body, lane=LANE)

    seen = measured(entry)
    assert entry.verdict == "held", entry.reason
    assert ((seen.operations or {})["sine"], seen.graphs) == (1, 1)
    assert kinds == [Doubles]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda y: y.double(), id="dtype"),
        pytest.param(lambda y: y.bfloat16().float(), id="precision"),
        pytest.param(lambda y: y.reshape(-1), id="shape"),
        pytest.param(lambda y: torch.where(y > 0, y * float("nan"), y), id="nan"),
        pytest.param(lambda y: (y,), id="another structure"),
        pytest.param(lambda _: 1.0, id="a number"),
    ],
)
def test_what_a_program_returns_instead_is_found(wrong: Any) -> None:
    class Wrong(Net):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            return wrong(y) if traced(y) else y

    entry = hold(lambda lane: lane.run(Wrong(), x(), x()), lane=LANE)

    assert entry.verdict == "violated"
    assert "numerics" in [each.name for each in entry.violations]


def test_a_cache_that_is_emptied_by_the_test_is_not_held() -> None:
    jax = importlib.import_module("jax")
    net = Net()
    net.register_forward_pre_hook(lambda *_: jax.clear_caches())

    entry = hold(lambda lane: lane.run(net, x(), x()), lane=LANE)

    assert entry.verdict == "violated"
    assert "two independent counts disagree" in entry.reason


def test_a_wrong_number_is_found() -> None:
    class Wrong(Net):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            return y * 1.01 if traced(x) else y

    entry = hold(lambda lane: lane.run(Wrong(), x()), lane=LANE)

    assert [each.name for each in entry.violations] == ["numerics"]


def test_gradients_are_compared_with_those_of_eager() -> None:
    class Detached(Net):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            return y.detach() + 0 * y if traced(x) else y

    right = hold(lambda lane: lane.run(Net(), x()), lane=LANE, check_grads=True)
    wrong = hold(lambda lane: lane.run(Detached(), x()), lane=LANE, check_grads=True)

    assert right.verdict == "held", right.reason
    assert measured(right).backward_graphs == 1
    assert [each.name for each in wrong.violations] == ["numerics"]


def test_steps_of_training_compile_one_forward_and_one_backward() -> None:
    entry = hold(lambda lane: lane.train(Net(), [x(), x(), x()]), lane=LANE, max_recompiles=0)

    seen = measured(entry)
    assert entry.verdict == "held", entry.reason
    assert (seen.graphs, seen.backward_graphs, seen.graphs_executed) == (1, 1, 3)


def test_a_target_that_runs_op_by_op_is_not_compiled() -> None:
    jax = importlib.import_module("jax")

    with jax.disable_jit():
        entry = hold(lambda lane: lane.run(Net(), x()), lane=LANE)

    assert entry.verdict == "violated"
    assert [each.name for each in entry.violations] == ["min_ops_captured"]
    assert "XLA compiled" in entry.reason


def test_a_target_that_computes_nothing_is_not_held() -> None:
    entry = hold(lambda lane: lane.run(nn.Identity(), x()), lane=LANE)

    assert [each.name for each in entry.violations] == ["min_ops_captured"]


def test_an_output_of_the_cpu_is_outside_of_xla() -> None:
    class Host(Net):
        def __init__(self) -> None:
            super().__init__()
            self.table = [torch.ones(2)]

        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x), self.table[0] * 2

    entry = hold(lambda lane: lane.run(Host(), x()), lane=LANE)
    allowed = hold(lambda lane: lane.run(Host(), x()), lane=LANE, max_eager_ops=1)

    assert [each.limit for each in entry.violations] == ["max_eager_ops=0"]
    assert allowed.verdict == "held", allowed.reason


def test_a_callback_into_python_is_outside_of_xla() -> None:
    jax, interop = importlib.import_module("jax"), importlib.import_module("torchax.interop")

    class CallsBack(Net):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            if not traced(y):
                return y
            array = interop.jax_view(y)
            shape = jax.ShapeDtypeStruct(array.shape, array.dtype)
            return interop.torch_view(jax.pure_callback(lambda each: each, shape, array))

    net = CallsBack().requires_grad_(False)
    entry = hold(lambda lane: lane.run(net, x()), lane=LANE)

    assert [each.limit for each in entry.violations] == ["max_eager_ops=0"]


def test_a_steady_step_that_compiles_is_not_held() -> None:
    def scaled(x: torch.Tensor, _key: object) -> torch.Tensor:
        return x * 2

    entry = hold(lambda lane: lane.run(scaled, call(x(), object())), lane=LANE)

    assert entry.verdict == "unverified"
    assert entry.reason == "a steady step, the last call again, compiled 1 program"


def test_a_second_measurement_in_one_test_compiles_again() -> None:
    net = Net()

    def body(lane: Any) -> None:
        lane.run(net, x())
        lane.run(net, x())

    entry = hold(body, lane=LANE, max_recompiles=0)

    assert entry.verdict == "held", entry.reason
    assert measured(entry).graphs == 2


def test_random_numbers_of_xla_are_not_compared() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout())

    entry = hold(lambda lane: lane.run(net, x()), lane=LANE)

    assert entry.reason == "numerics: cannot be measured: XLA draws random numbers of its own"


def test_batch_norm_of_torchax_does_not_learn_and_is_found() -> None:
    entry = hold(lambda lane: lane.run(nn.BatchNorm1d(4), x(8)), lane=LANE)

    told = [line for each in entry.violations for line in each.details]
    assert any("running_mean" in line for line in told)


def test_a_body_that_trains_by_itself_compiles_with_the_lane() -> None:
    def body(compile: Any) -> object:
        torch.manual_seed(0)
        net = Net()
        step, optimizer = compile(net), torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            loss = step(x()).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach(), net

    entry = hold(lambda lane: lane.compare(body), lane=LANE, max_recompiles=0)

    assert entry.verdict == "held", entry.reason
    assert measured(entry).graphs == 1
