"""Many ranks in one process, by torch's fake process group: structure is measured there, and numerics are not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.sessions import run_session

pytestmark = pytest.mark.torch

CONTRACTS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import pytest

from pytest_compilecontract import compile_contract


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2048, 2048)

    def forward(self, x):
        return torch.relu(self.linear(x))


@pytest.mark.parametrize(
    "ranks", [pytest.param(n, marks=compile_contract(ranks=n, process_group="fake")) for n in (8, 1024)]
)
@compile_contract(lanes=["aot"], max_graphs=1, same_collectives=True)
def test_sharded(compile_lane, ranks):
    assert (dist.get_rank(), dist.get_world_size()) == (0, ranks)

    def training(compile):
        model = nn.Sequential(Block(), Block())
        mesh = init_device_mesh("cpu", (ranks,))
        for each in model:
            compile(each, in_place=True)
            fully_shard(each, mesh=mesh)
        fully_shard(model, mesh=mesh)
        loss = model(torch.ones(2, 2048, requires_grad=True)).sum()
        loss.backward()
        return loss

    compile_lane.compare(training)


@compile_contract(ranks=8, process_group="fake", lanes=["aot"], same_collectives=True)
def test_loses_its_collective(compile_lane):
    def summed(x):
        x = x * 2
        if not torch.compiler.is_compiling():
            dist.all_reduce(x)
        return x

    compile_lane.run(summed, torch.ones(4))


def test_nothing_is_left():
    assert not dist.is_initialized()
"""
WRONG = """
from pytest_compilecontract import compile_contract


@compile_contract(ranks=8, process_group="fake", numerics="allclose")
def test_compares(compile_lane): ...
"""


def session(folder: Path, text: str) -> tuple[int, str]:
    (folder / "test_of_many.py").write_text(text, encoding="utf-8")
    command = ["--compile-contracts", "-p", "no:cacheprovider", "--contract-report=report", "test_of_many.py"]
    ran = run_session([sys.executable, "-m", "pytest", *command], cwd=folder, timeout=300)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("many")
    code, said = session(folder, CONTRACTS)
    assert code == 1, said
    assert "1 failed, 3 passed" in said
    receipt = json.loads((folder / "report" / "receipt.json").read_text(encoding="utf-8"))
    return {each["contract"].rpartition("::")[2]: each for each in receipt["entries"]}


def test_counts_and_collectives_do_not_depend_on_how_many_ranks_there_are(entries: dict[str, dict[str, Any]]) -> None:
    few, many = (entries[f"test_sharded[{ranks}]"] for ranks in (8, 1024))

    assert (few["verdict"], many["verdict"]) == ("held", "held")
    assert few["measurement"]["graphs"] == many["measurement"]["graphs"] == 1
    assert few["measurement"]["collectives"] == many["measurement"]["collectives"]
    assert many["lane_settings"] == {"backend": "aot_eager", "process_group": "fake", "ranks": 1024}


def test_numerics_are_not_measured_and_say_why(entries: dict[str, dict[str, Any]]) -> None:
    measured = entries["test_sharded[1024]"]["measurement"]

    assert measured["numerics"] is None
    assert measured["unmeasured"]["numerics"] == "process group 'fake' moves no data"


def test_a_collective_that_compiling_loses_violates_the_lane(entries: dict[str, dict[str, Any]]) -> None:
    (violation,) = entries["test_loses_its_collective"]["violations"]

    assert (violation["limit"], violation["measured"]) == ("same_collectives=True", "not the same as in eager")
    assert violation["facts"] == [["compiled: none", "eager: 1 all_reduce"]]


def test_a_limit_on_numerics_is_refused(tmp_path: Path) -> None:
    code, said = session(tmp_path, WRONG)

    assert code == 4
    assert "process_group='fake' moves no data, so it contradicts numerics='allclose'" in said
