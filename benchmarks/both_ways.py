"""The same three contracts, by hand and with the plugin. overhead.py gives the lanes and takes the times."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from pytest_compilecontract import compile_contract

WIDTH = 32
BACKEND = os.environ["BOTH_WAYS_BACKEND"]
COLD = os.environ["BOTH_WAYS_COLD"] == "1"
TURNS = pytest.mark.parametrize("turn", range(int(os.environ["BOTH_WAYS_TURNS"])))


class Block(nn.Module):
    """A pre-norm transformer block without its dropout."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.after = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.before(x)).chunk(3, dim=-1)
        q, k, v = (each.view(batch, length, self.heads, -1).transpose(1, 2) for each in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.after(x))))


def with_a_break(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() * 2
    torch._dynamo.graph_break()
    return y.cos() + 1


def inputs(count: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 16, WIDTH) for _ in range(count)]


@contextlib.contextmanager
def clean() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    with fresh_cache() if COLD else contextlib.nullcontext():
        yield


@TURNS
def test_infer_by_hand(turn: int) -> None:
    with clean():
        model, xs = Block(), inputs(3)
        expected = [model(x) for x in xs]
        counting = CompileCounterWithBackend(BACKEND)
        run = torch.compile(model, backend=counting)

        for x, wanted in zip(xs, expected, strict=True):
            torch.testing.assert_close(run(x), wanted)

    assert counting.frame_count == 1
    assert not counters["graph_break"]


@TURNS
@compile_contract(max_recompiles=0, max_graph_breaks=0)
def test_infer_by_plugin(compile_lane, turn: int) -> None:
    compile_lane.run(Block(), *((x,) for x in inputs(3)))


@TURNS
def test_train_by_hand(turn: int) -> None:
    with clean():
        model, xs = Block(), inputs(3)
        twin = copy.deepcopy(model)
        counting = CompileCounterWithBackend(BACKEND)
        run = torch.compile(model, backend=counting)
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (model, twin)]

        for x in xs:
            losses = [each(x).square().mean() for each in (run, twin)]
            for loss in losses:
                loss.backward()
            torch.testing.assert_close(*losses)
            for one, other in zip(model.parameters(), twin.parameters(), strict=True):
                torch.testing.assert_close(one.grad, other.grad)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            for one, other in zip(model.parameters(), twin.parameters(), strict=True):
                torch.testing.assert_close(one, other)

    assert counting.frame_count == 1
    assert not counters["graph_break"]


@TURNS
@compile_contract(max_recompiles=0, max_graph_breaks=0)
def test_train_by_plugin(compile_lane, turn: int) -> None:
    compile_lane.train(Block(), [(x,) for x in inputs(3)])


@TURNS
def test_break_by_hand(turn: int) -> None:
    with clean():
        xs = [torch.ones(8, n) for n in (8, 9, 10)]
        expected = [with_a_break(x) for x in xs]
        counting = CompileCounterWithBackend(BACKEND)
        run = torch.compile(with_a_break, backend=counting)

        for x, wanted in zip(xs, expected, strict=True):
            torch.testing.assert_close(run(x), wanted)

    assert counting.frame_count == 4
    assert len(counters["graph_break"]) == 1


@TURNS
@compile_contract(max_recompiles=2, max_graph_breaks=1)
def test_break_by_plugin(compile_lane, turn: int) -> None:
    compile_lane.run(with_a_break, *((torch.ones(8, n),) for n in (8, 9, 10)))
