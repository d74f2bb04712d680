"""`compile_lane.compare`: code that makes its own calls, eager and compiled."""

from __future__ import annotations

import pytest
import torch
from holding import hold, kept_limits, lane_of, measured
from torch import nn
from torch._dynamo import register_backend
from torch._inductor.compile_fx import compile_fx
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.measure.endings import BrokenLane

pytestmark = pytest.mark.torch


class Scale(nn.Module):
    gain = 1.0

    def forward(self, x):
        return x * self.gain


@pytest.mark.usefixtures("with_reference")
def test_what_lies_between_calls_is_seen_by_both() -> None:
    def body(compile):
        module = Scale()
        run = compile(module)
        found = []
        for gain in (1.0, 2.0, 3.0):
            module.gain = gain
            found.append(run(torch.ones(3)))
        return found

    entry = hold(lambda lane: lane.compare(body))

    assert kept_limits(entry) == ("held", {})
    assert measured(entry).graphs_executed == 3
    assert measured(entry).numerics.compared == 3
    assert measured(entry).numerics.method == "allclose"
    assert measured(entry).numerics.note == "no float64 reference: code that makes its own tensors has no float64 run"


def test_what_is_returned_is_compared_place_by_place() -> None:
    def body(compile):
        run = compile(lambda x: x + torch.compiler.is_compiling())
        return {"loss": run(torch.ones(2)), "calls": 1}

    entry = hold(lambda lane: lane.compare(body))

    assert entry.verdict == "violated"
    assert [(each.at, each.kind) for each in measured(entry).numerics.differences] == [
        ("body 0 output['loss']", "value")
    ]


def test_gradients_of_the_bodys_own_backward_are_compared() -> None:
    def body(compile):
        x = torch.ones(3, requires_grad=True)
        run = compile(lambda x: (x * 2).sum() * (1.5 if torch.compiler.is_compiling() else 1.0))
        run(x).backward()
        return x.grad

    entry = hold(lambda lane: lane.compare(body))

    assert [(each.at, each.kind) for each in measured(entry).numerics.differences] == [("body 0 output", "value")]


def test_a_call_that_runs_eager_in_silence_is_seen() -> None:
    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def body(compile):
        run = compile(lambda x: x.sin())
        found = [run(torch.ones(2))]
        with Passing():
            found.append(run(torch.ones(2)))
        return found

    entry = hold(lambda lane: lane.compare(body))

    assert kept_limits(entry) == (
        "violated",
        {"compiled code runs in steady calls (default)": "1 of 2 calls ran none"},
    )


def test_what_never_has_anything_to_run_is_not_held_to_another_that_has() -> None:
    def body(compile):
        sines, nothing = compile(lambda x: x.sin()), compile(lambda x: x)
        return [run(torch.ones(2)) for run in (sines, nothing, sines, nothing)]

    entry = hold(lambda lane: lane.compare(body))

    assert kept_limits(entry) == ("held", {})
    assert [each.graphs_executed for each in measured(entry).calls] == [1, 1, 0, 0]


def test_a_module_compiled_in_place_is_noted_and_put_back() -> None:
    class Block(nn.Module):
        """Of the project's own: torch 2.11 to 2.13 compile nothing of one of torch's classes in place."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() + 1

    module = Block()

    def body(compile):
        compile(module, in_place=True)
        return [module(torch.ones(2)) for _ in range(2)]

    entry = hold(lambda lane: lane.compare(body))

    assert kept_limits(entry) == ("held", {})
    assert [each.graphs_executed for each in measured(entry).calls] == [1, 1]
    assert module._compiled_call_impl is None


def test_keywords_of_compile_win_over_the_lanes() -> None:
    def body(compile):
        run = compile(lambda x: x.sin(), dynamic=True)
        return [run(torch.ones(size)) for size in (3, 4)]

    entry = hold(lambda lane: lane.compare(body), max_recompiles=0)

    assert kept_limits(entry) == ("held", {})


def test_an_exception_in_the_compiled_run_alone_breaks_the_lane() -> None:
    def body(compile):
        run = compile(lambda x: x.sin())
        run(torch.ones(1))
        if hasattr(run, "_torchdynamo_orig_callable"):
            raise ValueError("compiled")
        return 1

    entry = hold(lambda lane: lane.compare(body))

    assert entry.verdict == "broken"
    assert entry.reason == "no exception (default): raised ValueError"
    assert measured(entry).raised.message == "compiled (in body 0; eager does not raise)"


def test_an_exception_of_eagers_own_is_raised() -> None:
    def body(compile):
        compile(lambda x: x.sin())(torch.ones(1))
        raise ValueError("both")

    with lane_of("aot") as lane, pytest.raises(ValueError, match="both"):
        lane.compare(body)


def test_a_difference_in_raising_is_a_broken_lane() -> None:
    def body(compile):
        if compile(torch.sin) is not torch.sin:
            raise ValueError("compiled")

    with lane_of("aot") as lane, pytest.raises(BrokenLane):
        lane.compare(body)


def test_random_numbers_of_a_body_start_from_the_same_seed() -> None:
    def body(compile):
        run = compile(lambda x: x + torch.rand(4))
        return [run(torch.zeros(4)) for _ in range(2)]

    entry = hold(lambda lane: lane.compare(body))

    assert kept_limits(entry) == ("held", {})


def test_a_body_that_differs_from_itself_is_told_from_compiled_that_differs() -> None:
    drawn = (number for number in range(1000))

    def body(compile):
        return compile(lambda x, n: x + n)(torch.zeros(4), float(next(drawn)))

    entry = hold(lambda lane: lane.compare(body))

    assert measured(entry).numerics.differences == ()
    assert entry.verdict != "held"


@pytest.mark.parametrize(
    ("given", "named"), [(nn.Linear, "the class Linear"), (3, "'int'")], ids=["a class", "no function"]
)
def test_what_is_no_body_is_refused(given: object, named: str) -> None:
    with lane_of("aot") as lane, pytest.raises(UsageError) as caught:
        lane.compare(given)  # type: ignore[arg-type]

    assert str(caught.value) == f"compile_lane.compare takes a function of one argument, got {named}"


def test_the_eager_lane_compiles_nothing() -> None:
    def body(compile):
        return compile(lambda x: x.sin())(torch.ones(2))

    entry = hold(lambda lane: lane.compare(body), lane="eager")

    assert entry.verdict == "reference"


def is_compiled(run) -> bool:
    return hasattr(run, "_torchdynamo_orig_callable")


def test_an_assertion_of_the_body_is_told_from_one_of_torchs() -> None:
    def of_its_own(compile):
        run = compile(lambda x: x.sin())
        run(torch.ones(1))
        assert not is_compiled(run)

    def of_torchs_testing(compile):
        run = compile(lambda x: x.sin())
        torch.testing.assert_close(run(torch.ones(1)), torch.full((1,), 9.0 if is_compiled(run) else 1.0).sin())

    def below_torchs_code(compile):
        run = compile(lambda x: x.sin())
        run(torch.ones(1))
        torch.func.vmap(lambda x: None if is_compiled(run) else x)(torch.ones(1))

    def asserted(body):
        seen = measured(hold(lambda lane: lane.compare(body))).raised
        return seen.type, seen.asserted

    assert asserted(of_its_own) == asserted(of_torchs_testing) == ("AssertionError", True)
    assert asserted(below_torchs_code) == ("ValueError", False)


def test_what_inductor_wrote_is_no_code_of_the_project() -> None:
    """Its files lie in a cache, in no folder of packages, and a check in one of them fails below the call."""

    def wrong_stride(graph, example_inputs):
        compiled = compile_fx(graph, example_inputs)
        return lambda *inputs: compiled(*(each.t().contiguous().t() if each.dim() == 2 else each for each in inputs))

    def body(compile):
        return compile(lambda x: (x @ x).sin())(torch.ones(3, 3))

    register_backend(wrong_stride, name="wrong_stride")
    raised = measured(hold(lambda lane: lane.compare(body), lane=Lane(name="strided", backend="wrong_stride"))).raised

    assert (raised.type, raised.asserted) == ("AssertionError", False)
    assert raised.location.file.endswith("test_compare.py")


def scanned(compile):
    """A cumulative product, in one operator."""
    return compile(lambda x: torch.cumprod(x, dim=0))(torch.linspace(0.5, 1.5, 6))


def looped(compile):
    total, found = torch.ones(()), []
    for each in torch.linspace(0.5, 1.5, 6):
        total = total * each
        found.append(total)
    return torch.stack(found)


def test_a_fused_body_agrees_with_its_plain_reference() -> None:
    entry = hold(lambda lane: lane.compare(scanned, reference=looped), max_recompiles=0)

    assert kept_limits(entry) == ("held", {})
    assert measured(entry).graphs == 1
    assert measured(entry).numerics.compared == 1


def test_a_reference_that_says_otherwise_is_a_difference() -> None:
    def off_by_one(compile):
        return looped(compile).roll(1)

    entry = hold(lambda lane: lane.compare(scanned, reference=off_by_one))

    assert entry.verdict == "violated"
    assert [(each.at, each.kind) for each in measured(entry).numerics.differences] == [("body 0 output", "value")]


def test_nothing_of_the_reference_counts() -> None:
    def broken(compile):
        run = compile(lambda x: x + 1)
        for size in (2, 3, 4):
            run(torch.ones(size))
        return looped(compile)

    entry = hold(lambda lane: lane.compare(scanned, reference=broken), max_recompiles=0)

    assert kept_limits(entry) == ("held", {})
    assert measured(entry).first_compiles == 1


def test_what_is_no_reference_is_refused() -> None:
    with lane_of("aot") as lane, pytest.raises(UsageError) as caught:
        lane.compare(scanned, reference=torch.ones(2))  # type: ignore[arg-type]

    assert str(caught.value) == (
        "compile_lane.compare: reference= is a function of one argument as the body is, got 'Tensor'"
    )
