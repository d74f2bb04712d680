"""Policy: what is to be compiled is compiled in an explicit warm-up, and nothing after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from contracts.policies.regional import Block, Stack
from contracts.policies.warmup import Padded, may_ask_for_fullgraph, nothing_compiles, warm_up
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

WIDTH = 16
SIZES = (1, 2, 4, 8)
# From this release on `fullgraph=True` is an error where nothing was compiled.
STRICT = (2, 13)
RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])


def a_stack() -> Stack:
    return Stack([Block(WIDTH)], WIDTH).eval()


def rows(number: int) -> Tensor:
    return torch.linspace(-1, 1, number * WIDTH).reshape(number, WIDTH)


def served(compile: Callable[..., Any], batches: tuple[int, ...], device: torch.device) -> list[Tensor]:
    """Warm up every size, then serve batches of any, with nothing left to compile."""
    torch.manual_seed(0)
    serve = compile(a_stack().to(device), dynamic=False, fullgraph=may_ask_for_fullgraph())
    with torch.no_grad():
        warm_up(serve, [(rows(size).to(device),) for size in SIZES])
        with nothing_compiles():
            # Under CUDA graphs a result is overwritten by the next: whoever keeps several copies them.
            return [Padded(serve, SIZES)(rows(number).to(device)).clone() for number in batches]


@compile_contract(
    fullgraph=True, max_graphs=len(SIZES), max_recompiles=len(SIZES) - 1, lanes=["capture", "aot", "cudagraphs"]
)
def test_after_the_warm_up_nothing_compiles(compile_lane: CompileLane) -> None:
    """Four sizes are four graphs; every batch up to the largest is then served by one of them, as eager would."""
    compile_lane.compare(lambda compile: served(compile, (1, 2, 3, 4, 5, 7, 8), compile_lane.device))


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["aot"])
def test_a_shape_that_was_not_warmed_up_is_refused(compile_lane: CompileLane) -> None:
    """Without padding another shape would compile while somebody waits: it raises."""
    with compile_lane.observe(), torch.no_grad():
        serve = compile_lane.compile(a_stack(), dynamic=False)
        warm_up(serve, [(rows(4),)])
        with nothing_compiles(), pytest.raises(RuntimeError, match="fail_on_recompile"):
            serve(rows(3))


@compile_contract(max_graphs=0, min_ops_captured=0, lanes=["aot"])
def test_more_rows_than_the_largest_size_is_an_error(compile_lane: CompileLane) -> None:
    """Nothing is compiled for them."""
    with compile_lane.observe():
        serve = Padded(compile_lane.compile(a_stack(), dynamic=False), SIZES)
        with pytest.raises(ValueError, match="1 to 8 rows were warmed up, got 9"):
            serve(rows(9))


@compile_contract(max_graphs=1, max_recompiles=0, lanes=["aot"])
def test_one_step_a_shape_is_enough(compile_lane: CompileLane) -> None:
    """The first step compiles and no later one does: a warm-up is one step long, a second is steady."""
    seen = compile_lane.run(a_stack(), *((rows(4),) for _ in range(4)))

    assert [each.phase for each in seen.calls or ()] == ["cold", "steady", "steady", "steady"]


def test_padding_is_cut_off() -> None:
    """Eager: as many rows come out as went in, whatever was put behind them. An ordinary test."""
    model = a_stack()
    serve = Padded(model, SIZES)

    for number in range(1, SIZES[-1] + 1):
        torch.testing.assert_close(serve(rows(number)), model(rows(number)))


class Watching(TorchDispatchMode):
    """A mode that only looks on, as a profiler's or a debugger's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@compile_contract(max_graphs=0, min_ops_captured=0, lanes=["capture"])
def test_fullgraph_everywhere_is_a_crash_where_nothing_is_compiled(compile_lane: CompileLane) -> None:
    """Blanket `fullgraph=True` in a dispatch mode: silently eager up to torch 2.12, an error from 2.13 on."""
    with compile_lane.observe(), torch.no_grad():
        serve = compile_lane.compile(a_stack(), fullgraph=True)
        with Watching():
            if RELEASE < STRICT:
                warm_up(serve, [(rows(4),)])
            else:
                with pytest.raises(RuntimeError, match="fullgraph=True found no compiled frames"):
                    warm_up(serve, [(rows(4),)])


@compile_contract(max_graphs=0, min_ops_captured=0, lanes=["capture"])
def test_fullgraph_only_where_something_is_compiled_warms_up_everywhere(compile_lane: CompileLane) -> None:
    """The fix: it is set where it can be kept, and a warm-up in a dispatch mode runs in eager on every release."""
    with compile_lane.observe(), torch.no_grad(), Watching():
        serve = compile_lane.compile(a_stack(), fullgraph=may_ask_for_fullgraph())
        warm_up(serve, [(rows(4),)])


def test_compiling_that_is_switched_off_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """With TORCH_COMPILE_DISABLE=1 too, which torch reads when it is imported. An ordinary test."""
    asked = may_ask_for_fullgraph()
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")

    assert (asked, may_ask_for_fullgraph()) == (True, False)
