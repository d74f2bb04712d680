"""Ranks held to one process: results that all ranks have, eager and compiled, and that one process has not."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.sessions import run_session
from torch import Tensor, nn
from with_torch.holding import hold, lane_of, measured

from pytest_compilecontract.errors import UsageError

pytestmark = pytest.mark.torch

Compile = Callable[..., Any]
CONTRACTS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_compilecontract import compile_contract

two = compile_contract(ranks=2, process_group="gloo", lanes=["aot"])


def batch(rank):
    return torch.full((2, 4), 1.0 + rank)


def trained(model, *batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = torch.stack([model(each).square().mean() for each in batches]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [each.detach().clone() for each in model.parameters()]


def linear():
    torch.manual_seed(0)
    return nn.Linear(4, 4)


def alone():
    return trained(linear(), *map(batch, range(dist.get_world_size())))


@two
def test_averages(compile_lane):
    compile_lane.compare(
        lambda compile: trained(DistributedDataParallel(compile(linear())), batch(dist.get_rank())), alone=alone
    )


@two
def test_agrees_and_is_wrong(compile_lane):
    # No gradient is reduced, in eager either: of a batch that all have, each rank learns the same.
    compile_lane.compare(lambda compile: trained(compile(linear()), batch(0)), alone=alone)


@two
def test_agrees_and_is_wrong_by_itself(compile_lane):
    compile_lane.compare(lambda compile: trained(compile(linear()), batch(0)))
"""


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("one")
    (folder / "test_of_one.py").write_text(CONTRACTS, encoding="utf-8")
    command = ["--compile-contracts", "-p", "no:cacheprovider", "--contract-report=report", "test_of_one.py"]
    ran = run_session([sys.executable, "-m", "pytest", *command], cwd=folder, timeout=300)
    assert "1 failed, 2 passed" in ran.stdout, ran.stdout + ran.stderr
    receipt = json.loads((folder / "report" / "receipt.json").read_text(encoding="utf-8"))
    return {each["contract"].rpartition("::")[2]: each for each in receipt["entries"]}


def test_ranks_that_learn_what_one_process_learns_hold(entries: dict[str, dict[str, Any]]) -> None:
    assert entries["test_averages"]["verdict"] == "held"


def test_ranks_that_all_agree_and_are_all_wrong_are_seen_beside_one_process(entries: dict[str, dict[str, Any]]) -> None:
    assert entries["test_agrees_and_is_wrong_by_itself"]["verdict"] == "held"
    (violation,) = entries["test_agrees_and_is_wrong"]["violations"]

    assert violation["name"] == "numerics"
    assert violation["facts"][0][0].startswith("body 0 output[0]: one process: value: ")
    sides = {side for fact in violation["facts"] for side in ("compiled", "eager in ranks") if f": {side} " in fact[0]}
    assert sides == {"compiled", "eager in ranks"}


# In one process, as it is beside any lane


def doubled(compile: Compile) -> tuple[Tensor, nn.Module]:
    model = nn.ReLU()
    return compile(lambda x: model(x) * 2)(torch.ones(3)), model


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.compiler.reset()


def test_what_agrees_holds_and_modules_are_no_results() -> None:
    entry = hold(lambda lane: lane.compare(doubled, alone=lambda: (torch.full((3,), 2.0), None)), numerics="bitwise")

    assert entry.verdict == "held"


def test_a_difference_names_the_side_and_both_numbers() -> None:
    entry = hold(lambda lane: lane.compare(doubled, alone=lambda: (torch.full((3,), 3.0), nn.ReLU())))

    found = measured(entry).numerics
    assert found is not None
    assert [(each.at, each.kind, each.detail) for each in found.differences] == [
        (
            "body 0 output[0]",
            "one process",
            f"value: 3 of 3 elements differ, most at [0]: {side} 2, one process 3",
        )
        for side in ("compiled", "eager in ranks")
    ]


def test_a_rounding_of_another_order_is_no_difference() -> None:
    entry = hold(lambda lane: lane.compare(doubled, alone=lambda: (torch.full((3,), 2.0000002), None)))

    assert entry.verdict == "held"


def test_what_is_missing_alone_is_a_difference() -> None:
    entry = hold(lambda lane: lane.compare(doubled, alone=lambda: None))

    assert entry.verdict == "violated"


@pytest.mark.usefixtures("group")
def test_code_for_one_process_that_runs_a_collective_is_refused() -> None:
    def reduced() -> tuple[Tensor, None]:
        x = torch.full((3,), 2.0)
        dist.all_reduce(x)
        return x, None

    with lane_of() as lane, pytest.raises(UsageError) as caught:
        lane.compare(doubled, alone=reduced)

    assert str(caught.value) == "compile_lane.compare: alone= is code for one process, and it ran 1 all_reduce"


def test_what_it_raises_is_the_tests_own() -> None:
    def wrong() -> None:
        raise ValueError("not here")

    with lane_of() as lane, pytest.raises(ValueError, match="not here"):
        lane.compare(doubled, alone=wrong)


def test_where_both_raise_nothing_is_compared_with_one_process() -> None:
    def raising(compile: Compile) -> Tensor:
        compile(torch.relu)(torch.ones(3))
        raise ValueError("in both")

    with lane_of() as lane, pytest.raises(ValueError, match="in both"):
        lane.compare(raising, alone=lambda: torch.ones(3))

    (seen,) = lane.measurements
    assert seen.numerics is not None
    assert seen.numerics.differences == ()


def test_a_value_in_its_place_is_refused() -> None:
    with lane_of() as lane, pytest.raises(UsageError) as caught:
        lane.compare(doubled, alone=torch.ones(3))  # type: ignore[arg-type]

    assert str(caught.value) == "compile_lane.compare: alone= is a function without arguments, got 'Tensor'"


def test_where_nothing_is_compared_there_is_no_use_for_it() -> None:
    with lane_of(numerics=None) as lane, pytest.raises(UsageError) as caught:
        lane.compare(doubled, alone=lambda: torch.ones(3))

    assert str(caught.value) == "compile_lane.compare: alone= is compared with, and numerics=None compares nothing"


def test_containers_of_one_type_are_told_apart_by_their_parts() -> None:
    entry = hold(
        lambda lane: lane.compare(lambda compile: {"a": compile(torch.sin)(torch.ones(2))}, alone=lambda: {"b": 1})
    )

    (compiled, *_) = [line for fact in entry.violations[0].facts for line in fact if "structure" in line]
    assert "only compiled has " in compiled
    assert "and only one process has " in compiled
