"""Hunting: what a hunt finds, how short it makes it, and what it says of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from holding import hold, lane_of, measured
from planting import spoiled
from support.sessions import run_session
from torch import nn
from torch._dynamo import register_backend

from pytest_compilecontract.baselines.kept import refusal
from pytest_compilecontract.calls import call
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.files.receipt import read_receipt
from pytest_compilecontract.measure import hunt as hunting
from pytest_compilecontract.measure.counterexample import test_of, written
from pytest_compilecontract.measure.shapes import Moded
from pytest_compilecontract.shapes import buckets, calls, modes, sizes, tensor, tensors

hypothesis = pytest.importorskip("hypothesis")
pytestmark = pytest.mark.insides

st = hypothesis.strategies


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def odd(out: torch.Tensor) -> torch.Tensor:
    return out * 1.5 if out.shape[0] % 2 else out


def strided(out: torch.Tensor) -> torch.Tensor:
    """As if the output were contiguous, whatever it is."""
    return out if out.is_contiguous() else out.as_strided(out.shape, (out.shape[1], 1)).clone()


def hunted(target: Any, drawn: Any, *, lane: str | Lane = "capture", sequences: int = 200, **limits: Any) -> Entry:
    return hold(
        lambda compile_lane: compile_lane.hunt(target, drawn, sequences=sequences, derandomize=True),
        lane=lane,
        **limits,
    )


@cache
def hunted_branches() -> Entry:
    """What is found of a branch on a size, which is only read."""
    return hunted(branches, tensors(sizes(2, 10), 4), max_recompiles=1)


def counterexample(entry: Entry) -> str:
    found = measured(entry).hunted
    assert found is not None
    return "\n".join(found.counterexample)


def test_a_family_within_its_bound_holds_whatever_the_number_of_sequences() -> None:
    entry = hunted(Block(4), tensors(sizes(1, 64), 4), max_recompiles=2, sequences=30)

    found = measured(entry).hunted
    assert entry.verdict == "held", entry.reason
    assert found is not None
    assert found.sequences > 5
    assert found.calls > found.sequences
    assert found.counterexample == ()
    assert refusal(entry) == "hunted: each run draws different calls"


# Each with the least calls that show it, and what must be said of it.
def branches(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] > 7 else x.sin()


def special(x: torch.Tensor) -> torch.Tensor:
    return x.sin() if x.shape[0] == 1 else x.cos()


def edge(x: torch.Tensor) -> torch.Tensor:
    return x.sin() if x.shape[0] < 64 else x.cos()


def scales(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * 2 if by > 0.5 else x * by


FAULTS = [
    pytest.param(
        special, tensors(sizes(1, 128), 4), "capture", {"max_recompiles": 0}, ["tensor(1, 4)"], id="a size of 1"
    ),
    pytest.param(
        torch.sin,
        tensors(sizes(2, 128), 4),
        spoiled(odd),
        {"max_recompiles": 9},
        ["(tensor(3, 4),)"],
        id="wrong for odd lengths",
    ),
    pytest.param(
        edge,
        tensors(buckets(8, 16, 32, 64, 128), 4),
        "capture",
        {"max_recompiles": 1},
        ["tensor(64, 4)"],
        id="one bucket more than a graph",
    ),
    pytest.param(
        torch.sin,
        tensors(sizes(2, 64), 4, contiguous=buckets(True, False)),
        spoiled(strided),
        {"max_recompiles": 9},
        ["(tensor(2, 4, contiguous=False),)"],
        id="a stride that is assumed",
    ),
    pytest.param(
        scales,
        calls(tensors(3), buckets(0.25, 0.3, 0.75)),
        "capture",
        {"max_recompiles": 0},
        ["(tensor(3), 0.25)"],
        id="a float that is guarded",
    ),
]


@pytest.mark.parametrize(("target", "drawn", "lane", "limits", "shortest"), FAULTS)
def test_a_fault_is_found_and_made_short(
    target: Any, drawn: Any, lane: str | Lane, limits: dict[str, Any], shortest: list[str]
) -> None:
    entry = hunted(target, drawn, lane=lane, **limits)

    assert entry.verdict == "violated", entry.reason
    said = counterexample(entry)
    assert [each for each in shortest if each not in said] == [], said
    assert said.count("tensor(") <= 3, said


def test_a_branch_on_a_size_is_found_and_made_short() -> None:
    entry = hunted_branches()

    assert entry.verdict == "violated", entry.reason
    assert "(tensor(8, 4),)" in counterexample(entry)
    assert counterexample(entry).count("tensor(") <= 3


def test_the_failure_has_a_test_to_paste_that_fails_too() -> None:
    entry = hunted_branches()

    said = counterexample(entry)
    details = entry.violations[0].details
    where = details.index("the shortest sequence that fails:")
    assert details[where + 1 :] == tuple(f"  {line}" for line in said.splitlines())
    found: dict[str, Any] = {"target": branches}
    exec(said, found)
    pasted = hold(found["test_found"], lane="capture", max_recompiles=1)
    assert [each.limit for each in pasted.violations] == ["max_recompiles=1"]


MET = []


def noting(is_it: Callable[[torch.Tensor], bool]) -> Lane:
    """A lane that computes wrong where the first input of a graph `is_it`."""

    def backend(graph: Any, _inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            wrong = any(isinstance(each, torch.Tensor) and is_it(each) for each in args)
            return tuple(each + 1 for each in graph(*args)) if wrong else graph(*args)

        return run

    name = f"wrong_where_{len(MET)}"
    MET.append(name)
    register_backend(backend, name=name)
    return Lane(name=name.replace("_", "-"), backend=name)


def test_a_tensor_that_was_written_to_is_not_taken_for_the_one_that_it_was() -> None:
    drawn = st.tuples(tensors(3), st.booleans()).map(lambda both: both[0].fill_(-7) if both[1] else both[0])

    entry = hunted(torch.sin, drawn, lane=noting(lambda x: bool((x == -7).any())), max_recompiles=9)

    assert entry.verdict == "violated", entry.reason
    assert "compile_lane.run(target, (<tensor (3,) torch.float32>,))" in counterexample(entry)


def test_arguments_that_are_one_tensor_are_not_taken_for_two() -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 5 if x is y else x + y * 2

    def pair(same: bool) -> tuple[torch.Tensor, torch.Tensor]:
        made = tensor(3)
        return made, made if same else tensor(3)

    entry = hunted(both, st.booleans().map(pair), max_recompiles=0)

    assert entry.verdict == "violated", entry.reason
    said = counterexample(entry)
    assert said.splitlines()[2:] == [
        "    t = tensor(3)",
        "    compile_lane.run(target, (tensor(3), tensor(3)), (t, t))",
    ]
    found: dict[str, Any] = {"target": both}
    exec(said, found)
    assert hold(found["test_found"], lane="capture", max_recompiles=0).verdict == "violated"


def _in_data(made: torch.Tensor) -> torch.Tensor:
    made.data.fill_(1)
    return made


def _marked(made: torch.Tensor) -> torch.Tensor:
    torch._dynamo.mark_dynamic(made, 0)
    return made


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: tensor(3).fill_(1), id="written to"),
        pytest.param(lambda: _in_data(tensor(3)), id="written to where nothing counts it"),
        pytest.param(lambda: tensor(3, 3).t_(), id="transposed"),
        pytest.param(lambda: tensor(3).requires_grad_(), id="another requires_grad"),
        pytest.param(lambda: _marked(tensor(3)), id="marked"),
    ],
)
def test_only_what_is_made_alike_is_written_as_made(made: Callable[[], torch.Tensor]) -> None:
    assert written([Moded(made=call(tensor(3)))]).key is not None
    assert written([Moded(made=call(made()))]).key is None


def test_what_cannot_be_written_is_said_above_the_test() -> None:
    found = written([Moded(made=call(tensor(3), object(), torch.float64, object()))])

    assert test_of("target", found) == (
        "import torch",
        "from pytest_compilecontract.shapes import tensor",
        "# <object> stands for a value that cannot be written",
        "def test_found(compile_lane):",
        "    compile_lane.run(target, (tensor(3), <object>, torch.float64, <object>))",
    )


def test_tensors_that_share_their_memory_are_not_written_as_two() -> None:
    one, other = tensor(3), tensor(3)
    other.data = one.data

    assert written([Moded(made=call(one, other))]).key is None


def test_what_is_met_more_than_once_is_assigned_by_a_name_that_is_free() -> None:
    made, kept = tensor(3), [1]

    found = written([Moded(made=call(made, kept)), Moded(made=call(made, kept=kept))], beside="Block(t)")

    assert found.shared == ("t2 = tensor(3)", "a = [1]")
    assert found.calls == ("(t2, a)", "call(t2, kept=a)")


def test_calls_in_modes_are_told_with_them() -> None:
    drawn = modes(tensors(2, 4), grad=buckets(True, False), training=buckets(True, False))

    entry = hunted(Block(4), drawn, max_recompiles=0)

    assert entry.verdict == "violated"
    said = counterexample(entry)
    assert "GLOBAL_STATE changed: grad_mode" in str(entry.violations[0].details)
    assert said.splitlines()[0] == "from pytest_compilecontract.shapes import mode, tensor"
    found: dict[str, Any] = {"target": Block(4)}
    exec(said, found)
    pasted = hold(found["test_found"], lane="capture", max_recompiles=0)
    assert [each.limit for each in pasted.violations] == ["max_recompiles=0"], said


class WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


def test_gradients_of_calls_in_modes_are_compared() -> None:
    def backend(graph: Any, _inputs: Any) -> Any:
        return lambda *args: tuple(WrongBackward.apply(each) for each in graph(*args))

    register_backend(backend, name="wrong_backward")
    drawn = modes(tensors(2, 4), grad=buckets(True, False))
    given = {"max_recompiles": 9, "check_grads": True, "sequences": 8}

    right = hunted(Block(4), drawn, **given)
    wrong = hunted(Block(4), drawn, lane=Lane(name="wrong", backend="wrong_backward"), **given)

    assert (right.verdict, right.reason) == ("held", "")
    assert [each.limit for each in wrong.violations] == ["numerics='fp64'"]
    assert "grad" in str(wrong.violations[0].details)
    assert counterexample(wrong).endswith("compile_lane.run(target, mode((tensor(2, 4),), grad=True))")


def test_a_sequence_of_no_calls_is_not_held() -> None:
    entry = hunted(torch.sin, st.lists(tensors(2, 3), max_size=2), max_recompiles=9, sequences=10)

    assert entry.verdict == "held", entry.reason


def test_a_strategy_may_draw_sequences_of_its_own() -> None:
    pairs = st.tuples(sizes(2, 8), sizes(2, 8)).map(lambda both: [(tensor(both[0]),), (tensor(both[1]),)])

    entry = hunted(torch.sin, pairs, max_recompiles=0)

    assert entry.verdict == "violated"
    assert counterexample(entry).count("tensor(") == 2


def test_what_eager_refuses_is_no_counterexample() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 0:
            raise ValueError("empty")
        return x.sin()

    assert hunted(refuses, tensors(sizes(0, 4)), max_recompiles=9, sequences=20).verdict == "held"
    with lane_of("capture") as compile_lane, pytest.raises(UsageError) as caught:
        compile_lane.hunt(refuses, tensors(0), sequences=5)
    assert str(caught.value) == "compile_lane.hunt: nothing that was drawn could be run: ValueError: empty"


def test_a_compiled_call_that_raises_is_a_counterexample() -> None:
    def raises(graph: Any, _inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            if any(isinstance(each, torch.Tensor) and each.shape[0] == 5 for each in args):
                raise RuntimeError("five")
            return graph(*args)

        return run

    register_backend(raises, name="raises_at_five")

    entry = hunted(torch.sin, tensors(sizes(2, 9)), lane=Lane(name="five", backend="raises_at_five"), max_recompiles=9)

    assert entry.verdict == "broken"
    assert "(tensor(5),)" in counterexample(entry)


def test_a_hunt_leaves_the_target_as_it_was() -> None:
    model = Block(4)
    before = {name: each.clone() for name, each in model.state_dict().items()}

    hunted(model, tensors(sizes(1, 9), 4), max_recompiles=2, sequences=10)

    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_time_that_is_over_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with lane_of("capture", max_recompiles=9) as compile_lane:
        seen = compile_lane.hunt(torch.sin, tensors(sizes(1, 99)), sequences=500, seconds=0.5)

    assert seen.hunted is not None
    assert seen.hunted.ended == "after 0.5 s"
    assert 0 < seen.hunted.sequences < 500


def test_the_eager_lane_makes_one_sequence() -> None:
    entry = hunted(torch.sin, tensors(sizes(1, 9)), lane="eager", max_recompiles=0)

    assert entry.verdict == "reference"


def test_a_strategy_of_nothing_is_one_line() -> None:
    with lane_of("capture") as compile_lane, pytest.raises(UsageError) as caught:
        compile_lane.hunt(torch.sin, st.nothing())

    assert str(caught.value) == (
        "compile_lane.hunt: hypothesis could draw nothing from this strategy: "
        "Cannot create non-empty lists with elements drawn from strategy nothing() because it has no values"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param({"drawn": torch.ones(2)}, "takes a strategy of hypothesis, got 'Tensor'", id="no strategy"),
        pytest.param({"target": Block}, "takes a function or module, got the class Block", id="a class"),
        pytest.param({"sequences": 0}, ": sequences: expected an int of at least 1, got 0", id="no sequence"),
        pytest.param({"calls": True}, ": calls: expected an int of at least 1, got True", id="a bool"),
        pytest.param({"seconds": -1}, ": seconds: expected a number above 0, got -1", id="no time"),
    ],
)
def test_what_cannot_be_is_one_line(given: dict[str, Any], said: str) -> None:
    whole: dict[str, Any] = {"target": torch.sin, "drawn": tensors(2), **given}

    with lane_of("capture") as compile_lane, pytest.raises(UsageError) as caught:
        compile_lane.hunt(whole.pop("target"), whole.pop("drawn"), **whole)

    assert str(caught.value) == f"compile_lane.hunt{said if said.startswith(':') else f' {said}'}"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        pytest.param(call(tensor(2, 3)), "(tensor(2, 3),)", id="one tensor"),
        pytest.param(call(tensor(2, dtype=torch.int64), 3), "(tensor(2, dtype=torch.int64), 3)", id="two arguments"),
        pytest.param(call(tensor(2), mask=None), "call(tensor(2), mask=None)", id="by keyword"),
        pytest.param(call([tensor(2, 2, contiguous=False)]), "([tensor(2, 2, contiguous=False)],)", id="a list"),
        pytest.param(call(torch.ones(2)), "(<tensor (2,) torch.float32>,)", id="a tensor of one's own"),
        pytest.param(
            call({"x": tensor(1, requires_grad=True)}), "({'x': tensor(1, requires_grad=True)},)", id="a dict"
        ),
        pytest.param(call(float("nan"), -float("inf")), '(float("nan"), float("-inf"))', id="no number"),
        pytest.param(call(slice(1), torch.device("cpu")), "(slice(None, 1, None), torch.device('cpu'))", id="a slice"),
        pytest.param(call(object(), range(2)), "(<object>, range(0, 2))", id="an object"),
    ],
)
def test_how_a_call_is_written(made: call, text: str) -> None:
    assert written([Moded(made=made)]).calls == (text,)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8]
)
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 1, 4), (0, 3)])
def test_a_tensor_has_its_sizes_and_the_same_values_each_time(
    dtype: torch.dtype, contiguous: bool, shape: tuple[int, ...]
) -> None:
    first, second = (tensor(*shape, dtype=dtype, contiguous=contiguous) for _ in range(2))

    assert (first.shape, first.dtype) == (shape, dtype)
    assert torch.equal(first, second)
    if all(size > 1 for size in shape) and shape:
        assert first.is_contiguous() is contiguous


def test_the_target_is_named_as_the_test_has_it() -> None:
    class Lane:
        def hunt(self, _target: Any, _drawn: Any) -> str:
            return hunting.target_text(sys._getframe(1))

    assert Lane().hunt(Block(4 + 4), tensors(2)) == "Block(4 + 4)"
    assert hunting.target_text(None) == "target"


GIVEN = """
import torch
from hypothesis import given, settings, strategies as st
from pytest_compilecontract import compile_contract


def branches(x):
    return x * 2 if x.shape[0] > 5 else x.sin()


@compile_contract(max_recompiles=0)
@settings(max_examples=20, derandomize=True)
@given(rows=st.integers(2, 9))
def test_each_is_judged_by_itself(compile_lane, rows):
    compile_lane.run(branches, (torch.randn(rows),), (torch.randn(rows),))


class TestSizes:
    @compile_contract(max_recompiles=1)
    @given(sizes=st.lists(st.sampled_from([2, 3, 6]), min_size=3, max_size=3))
    @settings(max_examples=30, derandomize=True)
    def test_is_made_short(self, compile_lane, sizes):
        compile_lane.run(branches, *((torch.randn(size),) for size in sizes))


@compile_contract(max_recompiles=1)
@settings(max_examples=12, derandomize=True)
@given(sizes=st.lists(st.sampled_from([2, 3, 6]), min_size=3, max_size=3))
def test_goes_on_all_the_same(compile_lane, sizes):
    try:
        compile_lane.run(branches, *((torch.randn(size),) for size in sizes))
    except Exception:
        compile_lane.run(many_graphs, (torch.randn(2),))


def many_graphs(x):
    x = x.sin()
    torch._dynamo.graph_break()
    x = x.sin()
    torch._dynamo.graph_break()
    x = x.sin()
    torch._dynamo.graph_break()
    return x.sin()


@given(rows=st.integers(2, 9))
def test_of_its_own(rows):
    assert rows < 100
"""


PROFILE = """\
from hypothesis import settings

settings.register_profile("chosen", print_blob={blob})
settings.load_profile("chosen")
"""


@pytest.mark.parametrize("blob", [False, True], ids=["plain", "print_blob"])
def test_a_test_with_given_is_judged_example_by_example(blob: bool, tmp_path: Path) -> None:
    """Where hypothesis says how to run an example again, as it does in CI, that is kept."""
    (tmp_path / "conftest.py").write_text(PROFILE.format(blob=blob), encoding="utf-8")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "test_given.py").write_text(GIVEN, encoding="utf-8")

    # What hypothesis adds is in what one of the tests says.
    some = ["-k", "made_short"] if blob else []
    options = ["--compile-contracts", "--contract-lanes=capture,eager", "--contract-report=r", *some]
    ran = run_session([sys.executable, "-m", "pytest", *options], cwd=tmp_path)

    entries = {entry.test: entry for entry in read_receipt(tmp_path / "r" / "receipt.json").entries}
    verdicts = {
        "test_given.py::test_each_is_judged_by_itself[capture]": "held",
        "test_given.py::test_each_is_judged_by_itself[eager]": "reference",
        "test_given.py::TestSizes::test_is_made_short[capture]": "violated",
        "test_given.py::TestSizes::test_is_made_short[eager]": "reference",
        "test_given.py::test_goes_on_all_the_same[capture]": "violated",
        "test_given.py::test_goes_on_all_the_same[eager]": "reference",
    }
    run = {test: verdict for test, verdict in verdicts.items() if not some or "made_short" in test}
    assert {test: entry.verdict for test, entry in entries.items()} == run, ran.stdout
    short = measured(entries["test_given.py::TestSizes::test_is_made_short[capture]"]).hunted
    assert short is not None
    assert short.counterexample[1:3] == ("    sizes=[2, 3, 6],", ")")
    assert any("@reproduce_failure" in line for line in short.counterexample) == blob
    assert "    the shortest sequence that fails:\n" in ran.stdout
    if some:
        return
    found = measured(entries["test_given.py::test_each_is_judged_by_itself[capture]"])
    assert (found.graphs, found.hunted is not None and found.hunted.sequences > 1) == (1, True)
