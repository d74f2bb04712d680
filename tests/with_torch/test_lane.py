"""`compile_lane`: what run, train, compile and observe do, return, refuse, and leave behind."""

from __future__ import annotations

import contextlib
import gc
import importlib
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._dynamo.config
from holding import ROOT, hold, lane_of, measured
from torch import nn

from pytest_compilecontract import call
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.lanes import BUILT_IN, Lane
from pytest_compilecontract.facts.measurement import MEANINGLESS, Measurement
from pytest_compilecontract.measure.compile_lane import CompileLane, observing
from pytest_compilecontract.measure.isolation import isolated
from pytest_compilecontract.measure.probes.source import Paths

pytestmark = pytest.mark.insides

X = torch.linspace(-1, 1, 32).reshape(4, 8)
CPU = {"device": "cpu"}


def scaled(x: torch.Tensor, factor: torch.Tensor | None = None, *, shift: float = 0.0) -> torch.Tensor:
    return (x if factor is None else x * factor).sin() + shift


class Model(nn.Module):
    """A small model that keeps the dtypes it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x))


def run(lane: str | Lane, target: Any, *calls: Any, **limits: Any) -> Measurement:
    return measured(hold(lambda it: it.run(target, *calls), lane=lane, **limits))


# ---------------------------------------------------------------------------------------------------------------------
# run


def test_calls_as_tuples_and_with_keywords() -> None:
    with lane_of("aot") as lane:
        found = lane.run(scaled, (X,), (X, X), call(X, factor=X, shift=1.0), call(x=X))

    assert found.numerics is not None
    assert found.numerics.differences == ()
    assert found.calls is not None
    assert len(found.calls) == 4
    assert found is lane.measurements[0]


def test_the_measurement_of_one_graph() -> None:
    found = run("aot", Model(), (X,), (X,), (X,))

    assert (found.graphs, found.backend_calls, found.first_compiles, found.continuations) == (1, 1, 1, 0)
    assert (found.recompiles, found.graph_breaks, found.break_events) == ((), (), 0)
    assert (found.eager_frames, found.limit_hits) == ((), ())
    assert (found.backend_failures, found.errors_suppressed) == ((), ())
    assert (found.graphs_executed, found.ops_captured) == (3, 2)
    assert found.operations == {"linear": 1, "tanh": 1}
    assert (found.backend, found.disagreements, found.raised) == ("aot_eager", (), None)
    assert found.counters is not None
    assert found.counters["stats"]["unique_graphs"] == 1
    told = {name: reason for name, reason in found.unmeasured.items() if reason not in MEANINGLESS}
    assert told == {
        "backward_graphs": "no backward was run from a loss, as compile_lane.train does",
        "saved_bytes": "no limit asks for it",
    }


def test_the_phases_of_the_calls() -> None:
    found = run("aot", scaled, (X,), (X,), (torch.ones(7, 8),), (torch.ones(9, 8),), (X,))

    # The second size compiles again with a symbol, which serves the third.
    phases = [(each.phase, each.graphs_executed) for each in found.calls or ()]
    assert phases == [("cold", 1), ("steady", 1), ("warm-up", 1), ("steady", 1), ("steady", 1)]


def test_graphs_executed_in_each_call_of_a_broken_function() -> None:
    def breaks(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    found = run("capture", breaks, (X,), (X,))

    assert [each.graphs_executed for each in found.calls or ()] == [2, 2]
    assert (found.graphs, found.continuations, found.graphs_executed) == (2, 1, 4)


def test_seconds_are_kept_by_phase() -> None:
    found = run("capture", scaled, (X,), (X,), (X,))

    assert found.calls is not None
    assert found.cold_seconds == found.calls[0].seconds
    assert found.warmup_seconds == 0
    assert found.steady_seconds in [each.seconds for each in found.calls[1:]]
    assert found.overhead_seconds is not None
    assert 0 <= found.overhead_seconds < found.cold_seconds


def test_one_call_has_no_steady_seconds_and_no_overhead() -> None:
    found = run("capture", scaled, (X,))

    assert (found.steady_seconds, found.overhead_seconds) == (None, None)
    assert found.unmeasured["overhead_seconds"] == "the last call did not run cached compiled code"


def test_calls_that_measure_the_overhead_are_not_counted() -> None:
    counted = torch.zeros(1)

    def counts(x: torch.Tensor) -> torch.Tensor:
        counted.add_(1)
        return x + counted

    found = run("capture", counts, (X,), (X,))

    assert found.graphs_executed == 2
    assert counted.item() == 0


def test_the_reference_lane_is_not_judged() -> None:
    entry = hold(lambda lane: lane.run(scaled, (X,)), lane="eager", max_graphs=0)

    assert entry.verdict == "reference"
    assert measured(entry).unmeasured == {"numerics": "the eager lane is the reference and compiles nothing"}


def test_gradients_only_when_asked_for() -> None:
    without = run("aot", Model(), (X,))
    with_gradients = run("aot", Model(), (X,), check_grads=True)

    assert without.backward_graphs is None
    assert with_gradients.backward_graphs == 1
    assert without.numerics is not None
    assert with_gradients.numerics is not None
    assert with_gradients.numerics.compared == without.numerics.compared + 2


def test_gradients_of_an_input() -> None:
    x = X.clone().requires_grad_()

    found = run("aot", scaled, (x,), check_grads=True)

    assert found.backward_graphs == 1
    assert x.grad is None


def test_no_comparison_where_none_is_asked_for() -> None:
    found = run("capture", scaled, (X,), numerics=None)

    assert found.numerics is None
    assert found.unmeasured["numerics"] == "the contract asks for no comparison"


@pytest.mark.parametrize("method", ["bitwise", "allclose"])
def test_the_rule_asked_for(method: str) -> None:
    found = run("capture", scaled, (X,), numerics=method)

    assert found.numerics is not None
    assert (found.numerics.method, found.numerics.differences) == (method, ())


def test_wrapping_a_module_changes_its_state_dict() -> None:
    found = run("capture", Model(), (X,))

    assert found.state_change is not None
    assert found.state_change.keys_added == ("_orig_mod.inner.weight", "_orig_mod.inner.bias")
    assert found.state_change.type_changed == "Model became OptimizedModule"


def test_compiling_in_place_changes_nothing() -> None:
    model = Model()

    found = run(Lane(name="mine", backend="eager", in_place=True), model, (X,), check_state_dict=True)

    assert found.graphs == 1
    assert found.state_change is not None
    assert not found.state_change
    assert model._compiled_call_impl is None
    assert "_compiled_call_impl" not in vars(model)


def test_several_runs_are_one_measurement() -> None:
    def body(lane: CompileLane) -> None:
        lane.run(scaled, (X,))
        lane.run(Model(), (X,), (X,))

    entry = hold(body)

    found = measured(entry)
    assert (found.graphs, found.graphs_executed) == (2, 3)
    assert [each.phase for each in found.calls or ()] == ["cold", "cold", "steady"]


# ---------------------------------------------------------------------------------------------------------------------
# train


def test_a_training_measures_whole_steps() -> None:
    with lane_of("aot") as lane:
        found = lane.train(Model(), [(X,), (X,), (X,)])

    assert (found.graphs, found.backward_graphs, found.graphs_executed) == (1, 1, 3)
    assert [each.phase for each in found.calls or ()] == ["cold", "steady", "steady"]
    assert found.numerics is not None
    # In each step: output, input, loss; a gradient and a value of two parameters.
    assert (found.numerics.compared, found.numerics.differences) == (21, ())


def test_the_backend_eager_compiles_no_backward() -> None:
    with lane_of("capture") as lane:
        found = lane.train(Model(), [(X,)])

    assert found.backward_graphs is None
    assert found.unmeasured["backward_graphs"] == "backend 'eager' compiles no backward; lane 'aot' does"


def test_an_operator_that_asks_dynamo_is_eager_as_ever() -> None:
    """Eager `torch.cond` gives a gradient to what its branches close over, so the eager pass does."""

    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low, self.high = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.mean() > 0, self.high, self.low, (x,))

    entry = hold(lambda lane: lane.train(Either(), [(X,), (X + 2,), (X - 2,)]), max_graphs=1, max_recompiles=0)

    assert (entry.verdict, entry.violations) == ("held", ())
    assert measured(entry).numerics is not None


def test_a_loss_with_targets() -> None:
    seen: list[tuple[torch.Size, torch.Size]] = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.append((output.shape, target.shape))
        return nn.functional.cross_entropy(output, target)

    with lane_of("capture") as lane:
        found = lane.train(Model(), [(X, torch.tensor([0, 1, 2, 3]))], loss=loss)

    assert seen[-1] == (torch.Size([4, 8]), torch.Size([4]))
    assert found.numerics is not None
    assert found.numerics.differences == ()


def test_a_loss_module_and_keywords_of_the_model() -> None:
    class Masked(Model):
        def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * mask

    with lane_of("capture") as lane:
        found = lane.train(Masked(), [call(X, X.sign(), mask=torch.ones(8))], loss=nn.MSELoss())

    assert found.graphs == 1


@pytest.mark.usefixtures("with_reference")
def test_an_optimizer_is_made_for_each_pass() -> None:
    made: list[torch.optim.Optimizer] = []

    class Makes:
        """Not a function, so that the passes do not put its list back."""

        def __call__(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
            made.append(torch.optim.AdamW(parameters, lr=0.1))
            return made[-1]

    with lane_of("capture") as lane:
        lane.train(Model(), [(X,), (X,)], optimizer=Makes())

    # Eager, eager again, compiled, the step that tells what ran in eager, and eager in float64.
    assert len({id(each) for each in made}) == len(made) == 5


def test_gradients_are_not_compared_when_not_asked_for() -> None:
    with lane_of("capture", check_grads=False) as lane:
        found = lane.train(Model(), [(X,)])

    assert found.numerics is not None
    assert found.numerics.compared == 5


# ---------------------------------------------------------------------------------------------------------------------
# Refused


REFUSED: list[Any] = [
    pytest.param(
        lambda lane: lane.run(scaled),
        "compile_lane.run needs at least one call: a tuple of arguments, or call(...)",
        id="no-call",
    ),
    pytest.param(
        lambda lane: lane.run(scaled, [X]),
        "compile_lane.run: call 0 is 'list' (expected a tuple of arguments such as `(x,)`, or call(...))",
        id="no-tuple",
    ),
    pytest.param(
        lambda lane: lane.run(7, (X,)), "compile_lane.run takes a function or module, got 'int'", id="no-function"
    ),
    pytest.param(
        lambda lane: lane.train(scaled, [(X,)]),
        "compile_lane.train takes a torch.nn.Module, got 'function'",
        id="train-no-module",
    ),
    pytest.param(
        lambda lane: lane.train(Model(), []),
        "compile_lane.train needs at least one call: a tuple of arguments, or call(...)",
        id="no-batch",
    ),
    pytest.param(
        lambda lane: lane.train(Model(), [(X,)], optimizer=torch.optim.SGD(Model().parameters(), lr=1.0)),
        "compile_lane.train makes an optimizer for each run: write optimizer=torch.optim.SGD, or "
        "optimizer=lambda parameters: torch.optim.SGD(parameters, lr=...)",
        id="an-optimizer",
    ),
    pytest.param(
        lambda lane: lane.train(Model(), (X,), (X,)),
        "compile_lane.train takes one list of batches: write train(module, [batch, batch], ...)",
        id="batches-as-calls",
    ),
    pytest.param(
        lambda lane: lane.run(torch.compile(scaled), (X,)),
        "the target is already compiled; give compile_lane the eager function or module",
        id="compiled-function",
    ),
    pytest.param(
        lambda lane: lane.run(torch.compile(Model()), (X,)),
        "the target is already compiled; give compile_lane the eager function or module",
        id="compiled-module",
    ),
    pytest.param(
        lambda lane: lane.train(Model(), [(X,)], loss=nn.functional.cross_entropy),
        "compile_lane.train: the loss takes 1 more than the output, but a batch has 1 arguments "
        "(the model's come first, the loss's last)",
        id="no-target",
    ),
    pytest.param(
        lambda lane: lane.run(Model, (X,)),
        "compile_lane.run takes a function or module, got the class Model",
        id="class",
    ),
    pytest.param(
        lambda lane: lane.run(nn.LazyLinear(4), (X,)),
        "the module has uninitialized lazy parameters: call it once first",
        id="lazy",
    ),
    pytest.param(
        lambda lane: lane.train(Model(), 5), "compile_lane.train takes a list of batches, got 'int'", id="batches"
    ),
    pytest.param(
        lambda lane: lane.train(nn.ReLU(), [(X,)]),
        "compile_lane.train: the module has no parameter that requires a gradient",
        id="no-parameter",
    ),
    pytest.param(
        lambda lane: lane.train(Model(), [(X,)], optimizer="adam"),
        "compile_lane.train: optimizer= makes an optimizer, got 'str'",
        id="optimizer-name",
    ),
    pytest.param(
        lambda lane: lane.train(Model(), [(X,)], optimizer=lambda _: None),
        "compile_lane.train: optimizer= made a NoneType, which has no step and zero_grad",
        id="no-optimizer-made",
    ),
    pytest.param(
        lambda lane: lane.train(Model(), [(X,)], optimizer=torch.optim.LBFGS),
        "compile_lane.train: optimizer= made an LBFGS, which runs more than one forward a step",
        id="closure",
    ),
    pytest.param(
        lambda lane: lane.train(Model(), [(X,)], loss="mse"),
        "compile_lane.train: loss= is a function or module, got 'str'",
        id="loss-name",
    ),
    pytest.param(
        lambda lane: lane.train(Model(), [(X, X)], loss=nn.MSELoss),
        "compile_lane.train: loss= is a function or module, got the class MSELoss",
        id="loss-class",
    ),
    pytest.param(
        lambda lane: lane.train(Model(), [(X,)], loss=lambda output: (output,)),
        "compile_lane.train: the loss is a tuple, not a tensor",
        id="loss-no-tensor",
    ),
    pytest.param(
        lambda lane: lane.train(Model(), [(X,)], loss=lambda output: output),
        "compile_lane.train: the loss has shape [4, 8], not one number",
        id="loss-shape",
    ),
    pytest.param(
        lambda lane: lane.train(Model(), [(X,)], loss=lambda output: output.detach().sum()),
        "compile_lane.train: the loss does not depend on a parameter that requires a gradient",
        id="loss-detached",
    ),
]


@pytest.mark.parametrize(("body", "message"), REFUSED)
def test_what_cannot_be_run_is_refused(body: Callable[[CompileLane], Any], message: str) -> None:
    with lane_of("capture") as lane, pytest.raises(UsageError) as caught:
        body(lane)

    assert str(caught.value) == message


def test_a_module_compiled_in_place_is_refused() -> None:
    model = Model()
    model.compile(backend="eager")

    with lane_of("capture") as lane, pytest.raises(UsageError, match="already compiled"):
        lane.run(model, (X,))


def test_a_lane_is_closed_outside_the_body_of_the_test() -> None:
    with lane_of("capture") as lane:
        lane.open = False
        with pytest.raises(UsageError) as from_run:
            lane.run(scaled, (X,))
        with pytest.raises(UsageError) as from_observe, lane.observe():
            pass

    message = "compile_lane measures in the body of the test, not in a fixture: only the body is judged"
    assert str(from_run.value) == str(from_observe.value) == message


@pytest.mark.parametrize(
    "inner",
    [lambda lane: lane.run(scaled, (X,)), lambda lane: lane.observe().__enter__()],
    ids=["run", "observe"],
)
def test_measurements_do_not_go_into_one_another(inner: Callable[[CompileLane], Any]) -> None:
    with lane_of("capture") as lane:
        with lane.observe() as seen:
            lane.compile(scaled)(X)
            with pytest.raises(UsageError) as caught:
                inner(lane)
        after = lane.run(scaled, (X,))

    assert str(caught.value) == "a measurement is already running: observe and run cannot be nested"
    assert (seen.measurement.graphs, after.graphs, after.disagreements) == (1, 1, ())


def test_a_tensor_without_values_is_not_moved() -> None:
    shape = torch.ones(8, device="meta")

    found = run("capture", lambda x, like: x + like.shape[0], (X, shape))

    assert found.graphs == 1
    assert found.numerics is not None
    assert found.numerics.differences == ()


def test_eagers_own_exception_is_the_tests() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        return x[0] @ torch.ones(3)

    with lane_of("capture") as lane, pytest.raises(RuntimeError, match="tensor size"):
        lane.run(fails, (X,))


# ---------------------------------------------------------------------------------------------------------------------
# The lane's device, dtype, autocast, settings


@pytest.mark.usefixtures("with_reference")
def test_a_lane_with_a_dtype() -> None:
    model = Model()
    with lane_of(Lane(name="half", backend="aot_eager", dtype="bfloat16", **CPU)) as lane:
        assert (lane.dtype, lane.device.type) == (torch.bfloat16, "cpu")
        assert torch.get_default_dtype() == torch.bfloat16

        found = lane.run(model, (X,), (X,))

    assert {each.dtype for each in model.parameters()} == {torch.float32}
    assert (X.dtype, torch.get_default_dtype()) == (torch.float32, torch.float32)
    assert found.numerics is not None
    assert (found.numerics.method, found.numerics.differences) == ("fp64", ())


class WithPhase(nn.Module):
    """A product in the lane's dtype, and a rotation by complex numbers that have none."""

    phase: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("phase", torch.polar(torch.ones(2), torch.tensor([0.1, 0.2])))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.phase.is_complex()
        rotated = torch.view_as_complex(self.inner(x).float().reshape(-1, 2, 2)) * self.phase
        return torch.view_as_real(rotated)


def test_a_lane_with_a_dtype_leaves_the_model_as_it_was() -> None:
    model = WithPhase()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.inner.weight.grad = torch.ones(4, 4)
    with lane_of(Lane(name="half", backend="aot_eager", dtype="bfloat16", **CPU)) as lane:
        lane.run(model, (torch.ones(3, 4),))
        lane.run(model, (torch.ones(3, 4),))

    after = model.state_dict()
    assert {name: value.dtype for name, value in after.items()} == {name: value.dtype for name, value in before.items()}
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert torch.equal(model.inner.weight.grad, torch.ones(4, 4))


def test_what_a_function_reaches_has_the_dtype_too() -> None:
    weight = torch.ones(4, 4)
    with lane_of(Lane(name="half", backend="aot_eager", dtype="bfloat16", **CPU)) as lane:
        lane.run(lambda x, y: x @ weight + y, (torch.ones(3, 4), torch.ones(3, 4, dtype=torch.float32)))

    assert weight.dtype == torch.float32


def test_an_input_made_before_the_lane_follows_a_model_made_in_it() -> None:
    with lane_of(Lane(name="half", backend="aot_eager", dtype="bfloat16", **CPU)) as lane:
        model = Model()
        assert {each.dtype for each in model.parameters()} == {torch.bfloat16}

        found = lane.run(model, (X,), (X,))

    assert X.dtype == torch.float32
    assert found.numerics is not None
    assert found.numerics.differences == ()


def test_a_lane_with_a_matmul_precision() -> None:
    seen: list[str] = []

    def loss(output: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_float32_matmul_precision())
        return output.square().mean()

    with lane_of(Lane(name="tf32", backend="aot_eager", matmul_precision="medium", **CPU)) as lane:
        lane.train(nn.Linear(8, 8), [(X,)], loss=loss)

    assert set(seen) == {"medium"}  # eager, float64 and compiled alike
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.usefixtures("with_reference")
def test_a_lane_with_autocast() -> None:
    seen: list[torch.dtype] = []

    def loss(output: torch.Tensor) -> torch.Tensor:
        seen.append(output.dtype)
        return output.float().square().mean()

    with lane_of(Lane(name="mixed", backend="aot_eager", autocast="bfloat16", **CPU)) as lane:
        found = lane.train(nn.Linear(8, 8), [(X,)], loss=loss)

    assert set(seen) == {torch.bfloat16, torch.float64}  # the reference has no autocast
    assert found.numerics is not None
    assert found.numerics.differences == ()
    assert not torch.is_autocast_enabled("cpu")


def test_a_lane_overrides_settings_and_puts_them_back() -> None:
    before = torch._dynamo.config.capture_scalar_outputs

    def items(x: torch.Tensor) -> torch.Tensor:
        return x * x.max().item()

    broken = run("capture", items, (X,))
    whole = run(Lane(name="mine", backend="eager", dynamo={"capture_scalar_outputs": True}), items, (X,))

    assert (len(broken.graph_breaks or ()), len(whole.graph_breaks or ())) == (1, 0)
    assert torch._dynamo.config.capture_scalar_outputs is before


# ---------------------------------------------------------------------------------------------------------------------
# compile and observe


def test_compile_takes_overrides() -> None:
    with lane_of("capture") as lane, lane.observe() as seen:
        compiled = lane.compile(lambda x: x.sin(), dynamic=True)
        compiled(torch.ones(4, 8))  # X is a view, and torch guards on the base of one
        compiled(torch.ones(9, 3))

    assert (seen.measurement.graphs, seen.measurement.recompiles) == (1, ())


def test_the_reference_lane_compiles_nothing() -> None:
    with lane_of("eager") as lane:
        assert lane.compile(scaled) is scaled


def test_a_module_compiled_in_place_is_put_back() -> None:
    model = Model()
    with lane_of(Lane(name="mine", backend="eager", in_place=True)) as lane:
        assert lane.compile(model) is model
        assert model._compiled_call_impl is not None

    assert model._compiled_call_impl is None


def test_observe_measures_what_the_test_compiles() -> None:
    with lane_of("capture") as lane, lane.observe() as seen:
        compiled = lane.compile(scaled)
        compiled(X)
        inside = seen.measurement.graphs
        compiled(torch.ones(5))

    found = seen.measurement
    assert (inside, found.graphs, len(found.recompiles or ())) == (1, 2, 1)
    assert found.graphs_executed == 2
    assert (found.calls, found.numerics) == (None, None)
    assert found.unmeasured["calls"] == "the test makes its own calls"
    assert found.unmeasured["numerics"] == "observed, not run against eager"
    assert lane.measurements == [found]


def test_observe_starts_from_no_compiled_code() -> None:
    with lane_of("capture") as lane:
        compiled = lane.compile(scaled)
        compiled(X)
        with lane.observe() as seen:
            compiled(X)

    assert (seen.measurement.graphs, seen.measurement.recompiles) == (1, ())


def test_observe_keeps_what_it_saw_when_the_block_raises() -> None:
    with lane_of("capture") as lane:
        with contextlib.suppress(ValueError), lane.observe():
            lane.compile(scaled)(X)
            raise ValueError("the test's own")

        assert [each.graphs for each in lane.measurements] == [1]


def test_observe_sees_every_thread() -> None:
    with lane_of("capture") as lane, lane.observe() as seen:
        threads = [
            threading.Thread(target=lambda: torch.compile(lambda x: x.sin(), backend="eager")(X)),
            threading.Thread(target=lambda: torch.compile(lambda x: x.cos(), backend="eager")(X)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert (seen.measurement.graphs, seen.measurement.graphs_executed) == (2, 2)
    assert seen.measurement.disagreements == ()


def test_a_bare_test_is_observed_with_its_own_torch_compile() -> None:
    with isolated(None), observing(Paths(ROOT)) as seen:
        thread = threading.Thread(target=lambda: torch.compile(scaled, backend="eager")(X))
        thread.start()
        thread.join()

    assert (seen.measurement.graphs, seen.measurement.backend) == (1, "eager")


# ---------------------------------------------------------------------------------------------------------------------
# Nothing is left behind


def test_the_module_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    model[0].weight.grad = torch.full((8, 8), 3.0)

    with lane_of("capture") as lane:
        lane.train(model, [(X,), (X,)])

    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.full((8, 8), 3.0))
    assert model[1].bias.grad is None


def test_the_targets_own_generator_is_put_back() -> None:
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()

    def draws(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + torch.rand(4, 8, generator=generator)

    entry = hold(lambda lane: lane.run(draws, (X,), (X,)), lane="capture", max_eager_frames=9)

    assert entry.verdict == "held"
    assert torch.equal(generator.get_state(), before)


def test_a_loss_with_state_is_put_back() -> None:
    class Grows(nn.Module):
        scale: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(()))

        def forward(self, output: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.scale.mul_(1.5)
            return output.square().mean() * self.scale

    loss = Grows()

    entry = hold(lambda lane: lane.train(Model(), [(X,), (X,)], loss=loss))

    assert entry.verdict == "held"
    assert loss.scale.item() == 1


def test_the_mode_and_frozen_parameters_are_put_back() -> None:
    class Freezes(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.eval()
            self.inner.weight.requires_grad_(False)
            return super().forward(x)

    model = Freezes()
    with lane_of("capture") as lane:
        lane.run(model, (X,))

    assert (model.training, model.inner.training) == (True, True)
    assert model.inner.weight.requires_grad


def test_the_model_is_not_kept_alive() -> None:
    model = Model()
    alive = weakref.ref(model)
    with lane_of("capture") as lane:
        lane.run(model, (X,))
    del model, lane
    torch.compiler.reset()
    gc.collect()

    assert alive() is None


def state_of_the_process() -> dict[str, Any]:
    counters = importlib.import_module("torch._dynamo.utils").counters
    return {
        "grad mode": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "dynamo": torch._dynamo.config.get_config_copy(),
        "compiler": torch.compiler.config.get_config_copy(),
        "fx": importlib.import_module("torch.fx.experimental._config").get_config_copy(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "anomaly": torch.is_anomaly_enabled(),
        "threads": torch.get_num_threads(),
        "backends": {
            "fastpath": torch.backends.mha.get_fastpath_enabled(),
            "flash": torch.backends.cuda.flash_sdp_enabled(),
            "benchmark": torch.backends.cudnn.benchmark,
            "mkldnn": torch.backends.mkldnn.enabled,
            "reduced": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        },
        "stance": importlib.import_module("torch._dynamo.eval_frame")._stance.stance,
        "counters": {group: dict(values) for group, values in counters.items() if values},
        "random": (random.getstate(), torch.get_rng_state().tolist()),
    }


def changes_everything(lane: CompileLane) -> None:
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_float32_matmul_precision("medium")
    torch.use_deterministic_algorithms(True)
    torch._dynamo.config.recompile_limit = 1
    torch.compiler.config.job_id = "mine"
    importlib.import_module("torch.fx.experimental._config").translation_validation = True
    torch.set_autocast_enabled("cpu", True)
    torch.autograd.set_detect_anomaly(True)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cudnn.benchmark = True
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.compiler.set_stance("force_eager")
    random.seed(99)
    torch.manual_seed(99)
    lane.compile(scaled)(X)


OWN = Lane(name="mine", backend="eager", dtype="bfloat16", matmul_precision="high")


@pytest.mark.parametrize("ending", ["passes", "fails"])
@pytest.mark.parametrize("lane", [BUILT_IN["capture"], OWN])
def test_the_process_is_left_as_it_was(lane: Lane, ending: str) -> None:
    importlib.import_module("torch._dynamo.utils").counters["mine"]["kept"] = 3
    random.seed(5)
    before = state_of_the_process()

    def body(compile_lane: CompileLane) -> None:
        changes_everything(compile_lane)
        compile_lane.measurements.append(Measurement())
        if ending == "fails":
            raise ValueError("the test's own")

    try:
        hold(body, lane=lane)
    except ValueError:
        assert ending == "fails"

    assert state_of_the_process() == before


def test_a_lane_starts_clean_whatever_went_before() -> None:
    def body(lane: CompileLane) -> Measurement:
        return lane.run(scaled, (X,), (torch.ones(5),))

    clean = measured(hold(body))
    limit = torch._dynamo.config.recompile_limit
    for index in range(12):
        torch.compile(lambda x, index=index: scaled(x) + index, backend="eager")(torch.ones(index + 1))
    with torch.no_grad():
        used = measured(hold(body))

    assert torch._dynamo.config.recompile_limit == limit
    assert (used.graphs, used.recompiles, used.counters) == (clean.graphs, clean.recompiles, clean.counters)


class ReadsItsGradient(nn.Module):
    """Its branch is taken where the user has left a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.linear.weight.grad is not None:
            torch._dynamo.graph_break()
            y = y * (1 + self.linear.weight.grad.norm())
        return y


@pytest.mark.parametrize("check_grads", [False, True])
def test_a_gradient_that_the_user_has_left_is_read_by_every_call(check_grads: bool) -> None:
    model, x = ReadsItsGradient(), torch.randn(4, 8)
    model(x).sum().backward()

    entry = hold(lambda it: it.run(model, (x,), (x,)), lane="aot", max_graph_breaks=0, check_grads=check_grads)

    assert [each.limit for each in entry.violations] == ["max_graph_breaks=0"]


def test_a_gradient_stays_the_tensor_that_it_was() -> None:
    model, x = nn.Linear(4, 4, bias=False), torch.randn(2, 4)
    flat = torch.arange(16.0)
    model.weight.grad = flat.view(4, 4)

    hold(lambda it: it.run(model, (x,), (x,)), lane="aot", check_grads=True)

    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == torch.arange(16.0).view(4, 4).tolist()
    flat.fill_(3.0)
    assert model.weight.grad.unique().tolist() == [3.0]
