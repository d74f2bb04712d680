"""Lanes `xla-lazy` and `xla-openxla`, with torch_xla in this process; `ci/xla` runs it with torch 2.9.

XLA's cache is that of the process: each test has sizes of its own, or it would find what another one compiled.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from holding import hold, measured
from torch import nn

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("torch_xla") is None, reason="torch_xla is not installed (ci/xla has it)"
    ),
]
LANES = ("xla-lazy", "xla-openxla")


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(4, width)
        self.down = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(torch.relu(self.up(x)))


def x(rows: int = 3) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))


@pytest.mark.parametrize(("lane", "width"), list(zip(LANES, (8, 9), strict=True)))
def test_calls_of_one_shape_are_one_program(lane: str, width: int) -> None:
    entry = hold(lambda it: it.run(Net(width), x(), x(), x()), lane=lane, max_recompiles=0, max_graph_breaks=0)

    seen = measured(entry)
    assert entry.verdict == "held", entry.reason
    assert (seen.graphs, seen.graphs_executed) == (1, 3)
    assert [each.phase for each in seen.calls or ()] == ["cold", "steady", "steady"]


@pytest.mark.parametrize(("lane", "width"), list(zip(LANES, (10, 11), strict=True)))
def test_a_new_shape_is_a_recompile(lane: str, width: int) -> None:
    entry = hold(lambda it: it.run(Net(width), x(3), x(5)), lane=lane, max_recompiles=0)

    assert [each.limit for each in entry.violations] == ["max_recompiles=0"]
    (found,) = measured(entry).recompiles or ()
    assert found.guard == "input tensor 0 is float32[5, 4], and was float32[3, 4]"


@pytest.mark.parametrize(("lane", "width"), list(zip(LANES, (12, 13), strict=True)))
def test_a_branch_on_a_value_is_a_break(lane: str, width: int) -> None:
    class Branches(Net):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            return y * 2 if y.sum() > 0 else y * 3

    entry = hold(lambda it: it.run(Branches(width), x(), x()), lane=lane, max_graph_breaks=0)

    assert "max_graph_breaks=0" in [each.limit for each in entry.violations]
    assert "a value was read (aten::_local_scalar_dense)" in [
        each.reason for each in measured(entry).graph_breaks or ()
    ]


@pytest.mark.parametrize(("lane", "width"), list(zip(LANES, (14, 15), strict=True)))
def test_an_operator_that_falls_back_to_the_cpu_is_found_in_a_steady_step(lane: str, width: int) -> None:
    class FallsBack(Net):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x).nonzero().float().contiguous()

    entry = hold(lambda it: it.run(FallsBack(width), x()), lane=lane)

    told = {each.limit: each.details for each in entry.violations}
    assert "1 aten::nonzero" in " ".join(told["max_eager_ops=0"])


@pytest.mark.parametrize(("lane", "width"), list(zip(LANES, (16, 17), strict=True)))
def test_a_wrong_number_is_found(lane: str, width: int) -> None:
    class Wrong(Net):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            return y * 1.01 if x.device.type == "xla" else y

    entry = hold(lambda it: it.run(Wrong(width), x()), lane=lane)

    assert [each.name for each in entry.violations] == ["numerics"]


@pytest.mark.parametrize(("lane", "width"), list(zip(LANES, (18, 19), strict=True)))
def test_steps_of_training_compile_one_forward_and_one_backward(lane: str, width: int) -> None:
    entry = hold(lambda it: it.train(Net(width), [x(), x(), x()]), lane=lane, max_recompiles=0)

    seen = measured(entry)
    assert entry.verdict == "held", entry.reason
    assert (seen.graphs, seen.backward_graphs, seen.graphs_executed) == (1, 1, 3)


@pytest.mark.parametrize(("lane", "width"), list(zip(LANES, (20, 21), strict=True)))
def test_what_the_process_compiled_before_is_not_taken_for_compiled_now(lane: str, width: int) -> None:
    hold(lambda it: it.run(Net(width), x()), lane=lane)

    entry = hold(lambda it: it.run(Net(width), x()), lane=lane)

    assert entry.verdict == "unverified"
    assert "XLA compiled 0 programs in a forward" in entry.reason
