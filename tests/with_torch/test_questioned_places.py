"""Noise runs have to do with the places in question alone: only these are kept of them, and judged anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from holding import hold, measured, results_of
from planting import spoiled

from pytest_compilecontract.lane import CompileLane
from pytest_compilecontract.measure.noise_runs import Kept, keeping
from pytest_compilecontract.measure.numerics import Judged, Judging, Run, Runs, TensorLeaf, Tolerance, judged, snapshot
from pytest_compilecontract.measure.numerics.snapshot import NOT_WANTED
from pytest_compilecontract.measure.passes import Passes
from pytest_compilecontract.measure.programs import Trail

pytestmark = pytest.mark.torch

X = torch.linspace(-1, 1, 64).reshape(8, 8)


class Head(torch.nn.Module):
    """Two results, of which the first is spoiled."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (self.out(x).sin() * 3).softmax(-1), self.into(x)


def run(compile_lane: CompileLane) -> None:
    torch.manual_seed(0)
    compile_lane.run(Head(), (X,), (X + 1,))


def train(compile_lane: CompileLane) -> None:
    torch.manual_seed(0)
    compile_lane.train(
        Head(),
        [(X,), (X + 1,)],
        loss=lambda both: both[0].square().mean() + both[1].square().mean(),
        optimizer=torch.optim.AdamW,
    )


def choose(compile_lane: CompileLane) -> None:
    close = torch.cat([X, X.nextafter(X + 1)])
    compile_lane.run(lambda x: ((x * 3).sin().topk(3, dim=0), x.sum()), (close,))


def of_all_kinds(compile_lane: CompileLane) -> None:
    def results(x: torch.Tensor) -> Any:
        out = (x * 3).sin()
        whole = out.relu() + 1
        return out, [whole, whole], {"complex": torch.complex(x, x.cos()), "chosen": x.argmax(-1), "sign": x > 0}, 0.5

    compile_lane.run(results, (X,), (X * 2,))


def of_subclasses(compile_lane: CompileLane) -> None:
    rows = torch.nested.nested_tensor([X[:3], X[3:]], layout=torch.jagged)
    compile_lane.run(lambda x, y: (x.sin() * 3, y.cos()), (rows, X))


# What a backend does to its first result.
SPOILED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "much": lambda out: out * 3,
    "little": lambda out: out * 1.001,
    "nan": lambda out: out.masked_fill(out == out.max(), float("nan")),
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Judged, Judged]]:
    """What each judging found, beside what the rule finds that knows of no earlier one."""
    found: list[tuple[Judged, Judged]] = []
    real_init, real = Judging.__init__, Judging.judged
    given: dict[int, tuple[Runs, Tolerance, list[Run]]] = {}

    def init(self: Judging, runs: Runs, tolerance: Tolerance) -> None:
        given[id(self)] = (runs, tolerance, [])
        real_init(self, runs, tolerance)

    def both(self: Judging, moved: Sequence[Run], bias: bool) -> Judged:
        here = real(self, moved, bias)
        if id(self) in given:
            runs, tolerance, all_moved = given[id(self)]
            # Of what is explained, earlier runs are let go.
            all_moved.extend(moved[len(all_moved) :])
            monkeypatch.setattr(Judging, "judged", real)
            found.append((here, judged(replace(runs, moved=tuple(all_moved), bias=bias), tolerance)))
            monkeypatch.setattr(Judging, "judged", both)
        return here

    monkeypatch.setattr(Judging, "__init__", init)
    monkeypatch.setattr(Judging, "judged", both)
    return found


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
@pytest.mark.parametrize("body", [run, train, choose, of_all_kinds, of_subclasses])
def test_what_is_judged_again_in_part_is_judged_as_if_it_were_whole(
    body: Callable[[CompileLane], None],
    spoil: Callable[[torch.Tensor], torch.Tensor],
    asked: list[tuple[Judged, Judged]],
) -> None:
    hold(body, lane=spoiled(spoil))

    assert len(asked) > 1, "noise was never asked"
    for in_part, whole in asked:
        assert in_part == whole


def test_what_noise_explains_stays_explained(asked: list[tuple[Judged, Judged]]) -> None:
    # Eager itself moves as far in the second call, and not in the first, of which more runs are asked. By how much
    # depends on the processor.
    signs = torch.ones(64).cumsum(0).remainder(2).mul(2).sub(1).reshape(8, 8)

    def body(compile_lane: CompileLane) -> None:
        compile_lane.run(lambda x: ((x.exp() * 1e4).sin(), x.sum()), (X,), (X * 2,))

    for by in (1e-3, 1.4e-3, 2e-3, 2.8e-3, 4e-3):
        hold(body, lane=replace(spoiled(lambda out, by=by: out + by * signs), device="cpu"))  # type: ignore[misc]

    assert any(whole.explained for _, whole in asked)
    assert all(in_part == whole for in_part, whole in asked)


@pytest.fixture
def rounded(monkeypatch: pytest.MonkeyPatch) -> list[Trail]:
    """The noise runs that are made."""
    return results_of(monkeypatch, Passes, "rounded")


def kept_of(trail: Trail) -> set[str]:
    """The places at which a run has the values of a tensor."""
    leaves = [pair for each in trail.run().groups.values() for pair in each.tensors()]
    assert all(leaf.data is not None or leaf.unread == NOT_WANTED for _, leaf in leaves)
    return {at for at, leaf in leaves if leaf.data is not None}


def test_a_noise_run_keeps_what_is_in_question(rounded: list[Trail]) -> None:
    entry = hold(run, lane=spoiled(SPOILED["much"]))

    at = {each.at for each in measured(entry).numerics.differences}  # type: ignore[union-attr]
    assert at == {"call 0 output[0]", "call 1 output[0]"}
    assert rounded
    assert all(kept_of(each) == at for each in rounded)


def test_a_noise_run_for_the_next_run_of_a_test_keeps_everything(rounded: list[Trail]) -> None:
    with keeping(Kept()):
        hold(run, lane=spoiled(SPOILED["much"]))

    assert all({"call 0 output[1]", "call 1 output[1]"} <= kept_of(each) for each in rounded)


def test_a_tensor_at_two_places_is_kept_at_the_one_in_question() -> None:
    looped = X.clone()
    looped.mine = looped  # type: ignore[attr-defined]

    for places in (["out[0]"], ["out[1]"], ["out[0]", "out[1]"], []):
        nodes = snapshot([looped, looped], at="out", wanted=frozenset(places)).nodes

        leaves = {at: node for at, node in nodes.items() if isinstance(node, TensorLeaf)}
        assert {at for at in ("out[0]", "out[1]") if leaves[at].data is not None} >= {*places}
        assert places or all(leaf.unread == NOT_WANTED for leaf in leaves.values())
