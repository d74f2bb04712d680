"""A break below torch's own files, or Python's, is at the innermost line that a person can change, and counted once."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from traceback import FrameSummary

import pytest
import torch
from torch import nn

from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.measurement import GraphBreak, Measurement
from pytest_compilecontract.measure.isolation import isolated
from pytest_compilecontract.measure.probes.attempts import Attempt
from pytest_compilecontract.measure.probes.dynamo import Ledger
from pytest_compilecontract.measure.probes.source import Paths, scope_of
from pytest_compilecontract.measure.recorder import Measuring

pytestmark = pytest.mark.torch

PATHS = Paths(Path(__file__).parent)


def measured(body: Callable[[], object]) -> Measurement:
    with isolated(None):
        measuring = Measuring(PATHS, lane=Lane(name="capture", backend="eager"))
        with measuring:
            body()
        return measuring.measurement()


def breaks_of(seen: Measurement) -> list[GraphBreak]:
    assert seen.graph_breaks is not None
    assert seen.disagreements == ()
    assert seen.break_events == sum(each.events for each in seen.graph_breaks)
    return list(seen.graph_breaks)


def lines_of(seen: Measurement) -> list[str]:
    return [each.location.source for each in breaks_of(seen)]


def an_optimizer() -> torch.optim.Optimizer:
    """Its step is wrapped in a function of torch's that breaks the graph by itself."""
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    return torch.optim.SGD([weight], lr=0.1)


@functools.singledispatch
def scaled(_number: object, x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_break_in_torchs_own_file_is_at_the_line_that_calls_it() -> None:
    optimizer = an_optimizer()

    def step() -> None:
        optimizer.step()

    seen = measured(torch.compile(step, backend="eager"))

    (found,) = breaks_of(seen)
    assert (found.location.source, found.location.function) == ("optimizer.step()", "step")
    # What torch went through is kept, to its last line.
    (stack,) = found.stacks
    assert [frame.file for frame in stack] == [
        "test_places.py",
        "torch/optim/optimizer.py",
        "torch/optim/optimizer.py",
    ]
    # The wrapper, tried by itself when it is called, meets what its caller met.
    assert found.events == 2


def test_a_frame_left_eager_by_it_names_the_same_line() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            return (x * x).sin()

    seen = measured(lambda: torch.compile(forward, backend="eager")(torch.ones(3, requires_grad=True)))

    hooks = "with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):"
    assert {*lines_of(seen)} == {hooks}
    assert {each.location.source for each in seen.eager_frames or () if each.location} <= {hooks}


def test_a_break_that_pythons_library_meets_again_by_itself_is_one() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return scaled(2.0, x)

    seen = measured(lambda: torch.compile(forward, backend="eager")(torch.ones(3)))

    (found,) = breaks_of(seen)
    assert found.location.source == "return scaled(2.0, x)"
    assert found.events >= 2
    assert len(found.stacks) == 1


def test_each_line_that_calls_what_breaks_is_a_place() -> None:
    optimizer = an_optimizer()

    def first() -> None:
        optimizer.step()

    def second() -> None:
        optimizer.step()  # again

    def body() -> None:
        torch.compile(first, backend="eager")()
        torch.compile(second, backend="eager")()

    seen = measured(body)

    assert lines_of(seen) == ["optimizer.step()", "optimizer.step()  # again"]


def test_torchs_line_is_named_where_nobody_elses_is_on_the_stack() -> None:
    seen = measured(torch.compile(an_optimizer().step, backend="eager"))

    (found,) = breaks_of(seen)
    assert found.location.file == "torch/optim/optimizer.py"


def test_a_break_that_another_call_met_is_another() -> None:
    optimizer = an_optimizer()

    def step() -> None:
        optimizer.step()

    def body() -> None:
        torch.compile(step, backend="eager")()
        torch.compiler.reset()
        torch.compile(optimizer.step, backend="eager")()

    seen = measured(body)

    assert [each.location.file for each in breaks_of(seen)] == ["test_places.py", "torch/optim/optimizer.py"]


def test_a_recompile_names_the_line_that_calls_torchs_module() -> None:
    dropout = nn.Dropout(0.5)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return dropout(x)

    def body() -> None:
        compiled = torch.compile(forward, backend="eager")
        compiled(torch.ones(3))
        dropout.eval()
        compiled(torch.ones(3))

    seen = measured(body)

    assert seen.recompiles is not None
    assert [each.location and each.location.source for each in seen.recompiles] == ["return dropout(x)"]


def test_what_is_torchs_and_pythons_is_told_from_packages_and_the_project() -> None:
    files = [torch.optim.__file__, copy.__file__, pytest.__file__, __file__]

    assert [PATHS.is_out_of_reach(file) for file in files] == [True, True, False, False]


class Breaking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    class Inner:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                torch._dynamo.graph_break()
            return x


def test_a_torch_of_any_folder_is_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of PYTHONPATH, or a checkout: its places have one name, and none is the project's."""
    monkeypatch.setattr(torch, "__path__", ["/opt/of/mine/torch"])
    paths, file = Paths(Path("/opt/of/mine")), "/opt/of/mine/torch/optim/optimizer.py"

    assert paths.name(file) == "torch/optim/optimizer.py"
    assert not paths.is_users(file)
    assert paths.is_out_of_reach(file)
    assert paths.is_users("/opt/of/mine/torches/optimizer.py")


def test_a_place_knows_its_class() -> None:
    def both() -> None:
        torch.compile(Breaking(), backend="eager")(torch.ones(3))
        torch.compile(Breaking.Inner(), backend="eager")(torch.ones(3))

    seen = measured(both)

    assert {each.location.scope for each in breaks_of(seen)} == {"Breaking", "Breaking.Inner"}
    assert {each.frame.scope for each in seen.eager_frames or ()} == {"Breaking.Inner"}


def test_a_file_that_is_no_python_has_no_classes(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("class A:\n    def f(\n", encoding="utf-8")

    assert scope_of(str(tmp_path / "broken.py"), 2) == scope_of("<string>", 1) == ""


class Unsupported(Exception):  # noqa: N818 - as torch calls it
    """A break as Dynamo logs it."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.msg = message
        self.real_stack = [FrameSummary(__file__, line, "step", line="pass")]


@pytest.mark.parametrize(
    ("breaks", "hints"),
    [
        (
            [("No heap", 5), ("Reconstruction failure", 9)],
            (
                "Dynamo broke in this frame before, and this break may follow from it: "
                "No heap at test_places.py:5 in step",
            ),
        ),
        ([("No heap", 5), ("No heap", 5)], ()),
        ([("No heap", 5)], ()),
    ],
    ids=["another before", "the same before", "none before"],
)
def test_a_break_that_may_come_of_another_names_it(breaks: list[tuple[str, int]], hints: tuple[str, ...]) -> None:
    ledger = Ledger(PATHS)
    attempt = Attempt(code=test_a_break_that_may_come_of_another_names_it.__code__, name="step")

    def log_graph_break(exc: Exception, reason: str = "") -> None:
        """As torch's own takes its arguments."""

    with ledger._current(attempt):
        for message, line in breaks:
            ledger._on_graph_break(log_graph_break, exc=Unsupported(message, line))
    ledger.attempts.append(attempt)

    (found,) = ledger.told.graph_breaks()
    assert (found.reason, found.hints) == (breaks[-1][0], hints)
