"""Ladders in whole sessions: how far a contract climbs, what stops it, and what a baseline says of a retreat."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sessions import run_session
from support.shared import made_once

pytestmark = pytest.mark.torch

CONTRACTS = """
import os

import pytest
import torch
from torch import nn

from pytest_compilecontract import compile_contract

X = torch.linspace(-1, 1, 16).reshape(2, 8)
MADE = []


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        y = torch.relu(self.inner(x))
        if os.environ.get("BREAKS") and torch.is_autocast_enabled("cpu"):
            torch._dynamo.graph_break()
        return y.sin()


@compile_contract(frontier=["capture", "aot", "train", "autocast", "distributed"], max_graph_breaks=0)
def test_climbs(compile_lane):
    MADE.append(compile_lane)
    compile_lane.run(Model(), (X,), (X,))


@compile_contract(frontier=["capture", "autocast"], min_frontier="autocast", max_graph_breaks=0)
def test_has_to_reach_the_top(compile_lane):
    compile_lane.run(Model(), (X,), (X,))


@compile_contract(frontier=["distributed"])
def test_has_nothing_to_stand_on(compile_lane):
    compile_lane.run(Model(), (X,))


@compile_contract(frontier=["capture", "aot"])
def test_fails_by_itself(compile_lane):
    assert compile_lane.run(Model(), (X,)).backend == "eager", "the second rung"


@compile_contract(frontier=["capture", "autocast"], max_graph_breaks=0)
def test_skips_itself_on_the_second_rung(compile_lane):
    compile_lane.run(Model(), (X,), (X,))
    if compile_lane._lane.autocast:
        pytest.skip("no more here")


@compile_contract(frontier=["capture", "train"])
def test_trains_in_the_wrong_place(compile_lane):
    compile_lane.train(Model(), [(X,)])


def test_each_rung_had_a_lane_of_its_own():
    assert len({id(each) for each in MADE}) == 4
"""


class Project:
    """The project above, and what its sessions print and leave."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "test_model.py").write_text(CONTRACTS, encoding="utf-8")
        (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", encoding="utf-8")

    def run(self, *options: str, breaks: bool = False) -> tuple[int, str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--compile-contracts",
            "--contract-report=r",
        ]
        surroundings = {**os.environ, "BREAKS": "1" if breaks else "", "COLUMNS": "200"}
        ran = run_session([*command, *options], cwd=self.folder, env=surroundings, timeout=600)
        return ran.returncode, ran.stdout

    def entry(self, test: str) -> dict[str, Any]:
        document = json.loads((self.folder / "r" / "receipt.json").read_text(encoding="utf-8"))
        return next(each for each in document["entries"] if each["contract"] == f"test_model.py::{test}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, str]:
    folder, said = made_once(tmp_path_factory, "whole", lambda folder: Project(folder).run()[1])
    return Project(folder), said


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, str]:
    options = ("-k", "climbs or top or skips", "-n", "2")
    folder, said = made_once(tmp_path_factory, "broken", lambda folder: Project(folder).run(*options, breaks=True)[1])
    return Project(folder), said


def verdicts(entry: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["verdict"] for each in entry["frontier"]["steps"]}


def test_what_cannot_be_measured_is_left_out_and_said(whole: tuple[Project, str]) -> None:
    project, said = whole

    entry = project.entry("test_climbs")

    assert entry["verdict"] == "held"
    assert verdicts(entry) == {
        "capture": "held",
        "aot": "held",
        "train": "held",
        "autocast": "held",
        "distributed": "unmeasured",
    }
    assert (entry["measurement"]["backend"], entry["measurement"]["backward_graphs"]) == ("aot_eager", 1)
    assert "holds up to autocast (rung 4 of 5); distributed not measured: its ranks cannot be launched" in said


def test_each_rung_is_a_clean_start(whole: tuple[Project, str]) -> None:
    _, said = whole

    assert "test_each_rung_had_a_lane_of_its_own" not in said.partition("short test summary")[2]


def test_a_ladder_without_a_rung_is_unmeasured(whole: tuple[Project, str]) -> None:
    entry = whole[0].entry("test_has_nothing_to_stand_on")

    assert (entry["verdict"], entry["reason"]) == (
        "unmeasured",
        "its ranks cannot be launched here",
    )


def test_a_test_that_fails_by_itself_ends_the_walk_as_broken(whole: tuple[Project, str]) -> None:
    entry = whole[0].entry("test_fails_by_itself")

    assert entry["verdict"] == "broken"
    assert "the second rung" in entry["reason"]
    assert verdicts(entry) == {"capture": "held", "aot": "failed"}


def test_a_ladder_that_trains_is_written_with_run(whole: tuple[Project, str]) -> None:
    _, said = whole

    assert "frontier: 'train' is a rung of its own; write compile_lane.run" in said


def test_the_walk_stops_where_it_does_not_hold(broken: tuple[Project, str]) -> None:
    project, said = broken

    entry = project.entry("test_climbs")

    assert entry["verdict"] == "held"
    assert verdicts(entry)["autocast"] == "failed"
    assert verdicts(entry)["distributed"] == "not reached"
    failed = next(each for each in entry["frontier"]["steps"] if each["name"] == "autocast")
    assert failed["reason"] == "max_graph_breaks=0: 1"
    assert "torch._dynamo.graph_break()" in failed["details"][0]
    assert "holds up to train (rung 3 of 5); autocast does not: max_graph_breaks=0: 1" in said


def test_a_rung_that_skips_itself_is_judged_by_what_it_had_measured(
    whole: tuple[Project, str], broken: tuple[Project, str]
) -> None:
    left_out, failed = (side.entry("test_skips_itself_on_the_second_rung") for side, _ in (whole, broken))

    assert (left_out["verdict"], verdicts(left_out)) == ("held", {"capture": "held", "autocast": "unmeasured"})
    assert left_out["frontier"]["steps"][1]["reason"] == "no more here"
    assert (failed["verdict"], verdicts(failed)) == ("held", {"capture": "held", "autocast": "failed"})
    assert failed["frontier"]["steps"][1]["reason"] == "max_graph_breaks=0: 1"


def test_a_contract_that_has_to_reach_a_rung_fails_below_it(broken: tuple[Project, str]) -> None:
    project, said = broken

    entry = project.entry("test_has_to_reach_the_top")

    assert entry["verdict"] == "violated"
    assert [each["limit"] for each in entry["violations"]] == ["min_frontier='autocast'"]
    assert "python -m pytest --compile-contracts -- 'test_model.py::test_has_to_reach_the_top[frontier]'" in said
    assert "test_climbs" not in said.partition("short test summary")[2]


def test_a_frontier_that_retreats_is_drift(tmp_path: Path) -> None:
    project = Project(tmp_path)
    recorded, _ = project.run("-k", "climbs", "--contract-record")

    same, _ = project.run("-k", "climbs")
    retreated, said = project.run("-k", "climbs", breaks=True)

    assert (recorded, same, retreated) == (0, 0, 1)
    assert "frontier" in said
    assert "autocast" in said.partition("FAILED")[0]
    assert "max_graph_breaks=0: 1" in said


def test_what_stands_on_a_rung_that_was_left_out_is_left_out_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path)
    ladder = '@compile_contract(frontier=["aot", "inductor", "cudagraphs", "train"])\ndef test_high(compile_lane):\n'
    no_compiler = 'os.environ["CXX"] = "/nonexistent"\n'
    (tmp_path / "test_model.py").write_text(
        CONTRACTS + no_compiler + ladder + "    compile_lane.run(Model(), (X,), (X,))\n"
    )
    if torch.cuda.is_available():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    code, said = project.run("-k", "high")

    entry = project.entry("test_high")
    assert (code, entry["verdict"]) == (0, "held"), said
    assert [each["verdict"] for each in entry["frontier"]["steps"]] == ["held", "unmeasured", "unmeasured", "held"]
    assert entry["frontier"]["steps"][2]["reason"] == "it needs 'inductor' below it, which was not measured"


def test_chosen_lanes_leave_ladders_out(tmp_path: Path) -> None:
    code, said = Project(tmp_path).run("-k", "climbs", "--contract-lanes=capture", "-rs")

    assert code == 0, said
    assert "SKIPPED [1] test_model.py:26: --contract-lanes excludes ladders" in said
    assert "no lane could be measured" not in said  # though one rung could not be, whatever was chosen


WHOLE_MODULE = """
import pytest
import torch
from torch import nn

from pytest_compilecontract import compile_contract

pytestmark = pytest.mark.compile_contract(frontier=["capture", "aot"])
X = torch.ones(2, 4)


def test_ordinary():
    assert True


def test_compiles_by_itself():
    torch.compile(torch.sin, backend="eager")(X)


@compile_contract(frontier=["capture", "train"], min_frontier="train")
def test_trains_nothing(compile_lane):
    compile_lane.compare(lambda compile: compile(torch.sin)(X))


@compile_contract(frontier=["capture", "distributed", "aot"], min_frontier="distributed", max_graph_breaks=0)
def test_needs_what_is_not_measured(compile_lane):
    def breaks(x):
        if compile_lane._lane.backend == "aot_eager":
            torch._dynamo.graph_break()
        return x.sin()

    compile_lane.run(breaks, (X,))


@pytest.fixture(scope="module")
def ends_badly():
    yield
    raise OSError("the file is gone")


def test_shares_what_ends_badly(compile_lane, ends_badly):
    compile_lane.run(torch.sin, (X,))
"""


EXPECTED = """
import pytest
import torch

from pytest_compilecontract import compile_contract

X = torch.ones(2, 4)


def breaks(x):
    torch._dynamo.graph_break()
    return x.sin()


@pytest.mark.xfail(strict=True, reason="known")
@compile_contract(frontier=["capture", "aot"], max_graph_breaks=0)
def test_known(compile_lane):
    compile_lane.run(breaks, (X,))


@pytest.mark.xfail(strict=True, reason="known")
@compile_contract(frontier=["capture", "aot"], max_graph_breaks=0)
def test_mended(compile_lane):
    compile_lane.run(torch.sin, (X,))


@pytest.mark.xfail(reason="known")
@compile_contract(frontier=["capture", "aot"])
def test_fails_by_itself(compile_lane):
    compile_lane.run(torch.sin, (X,))
    raise ValueError("mine")


@pytest.mark.xfail(run=False, reason="never")
@compile_contract(frontier=["capture", "aot"])
def test_is_not_run(compile_lane):
    raise SystemExit("it ran")
"""


def test_a_failure_that_is_expected_is_that_of_the_whole_walk(tmp_path: Path) -> None:
    project = Project(tmp_path)
    (tmp_path / "test_model.py").write_text(EXPECTED, encoding="utf-8")

    code, said = project.run("-rxX")

    assert code == 1, said
    assert "[XPASS(strict)] known" in said
    assert said.splitlines()[-1].strip("= ").startswith("1 failed, 3 xfailed"), said.splitlines()[-1]
    assert project.entry("test_known")["verdict"] == "violated"
    mended = project.entry("test_mended")
    assert (mended["verdict"], mended["reason"]) == ("broken", "the test failed in call: [XPASS(strict)] known")


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, str]:
    project = Project(tmp_path_factory.mktemp("marked"))
    (project.folder / "test_model.py").write_text(WHOLE_MODULE, encoding="utf-8")
    return project, project.run()[1]


def test_a_ladder_of_a_module_is_for_those_that_lanes_can_run(marked: tuple[Project, str]) -> None:
    project, said = marked

    bare = project.entry("test_compiles_by_itself")

    assert "INTERNALERROR" not in said
    assert (bare["verdict"], bare.get("frontier")) == ("held", None)


def test_from_train_on_something_has_to_be_trained(marked: tuple[Project, str]) -> None:
    entry = marked[0].entry("test_trains_nothing")

    assert (entry["verdict"], entry["reason"]) == (
        "unmeasured",
        "train: nothing was trained: from this rung on, compile_lane.run trains",
    )


def test_a_rung_that_is_needed_and_was_not_measured_is_unmeasured_whatever_fails_above(
    marked: tuple[Project, str],
) -> None:
    entry = marked[0].entry("test_needs_what_is_not_measured")

    assert verdicts(entry)["aot"] == "failed"
    assert (entry["verdict"], entry["reason"]) == ("unmeasured", "distributed: its ranks cannot be launched here")


def test_a_ladder_whose_surroundings_fail_after_it_is_broken(marked: tuple[Project, str]) -> None:
    entry = marked[0].entry("test_shares_what_ends_badly")

    assert entry["verdict"] == "broken"
    assert "OSError: the file is gone" in entry["reason"]
    assert verdicts(entry) == {"capture": "held", "aot": "held"}


def test_pytest_that_only_sets_up_walks_nothing(marked: tuple[Project, str]) -> None:
    code, said = marked[0].run("--setup-only", "-k", "nothing")

    assert code == 0, said
    assert "INTERNALERROR" not in said


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        pytest.param('frontier=["capture", "capture"]', "frontier: 'capture' is given twice", id="twice"),
        pytest.param('frontier=["capture", "moon"]', "frontier: unknown rung 'moon'", id="unknown"),
        pytest.param("frontier=[]", "frontier: expected a list of rungs, the lowest first, got []", id="empty"),
        pytest.param('frontier=["aot"], lanes=["aot"]', "contradicts lanes", id="lanes"),
        pytest.param('min_frontier="aot"', "min_frontier='aot' needs frontier", id="no-ladder"),
        pytest.param(
            'frontier=["aot"], min_frontier="train"', "min_frontier='train' is not a rung of frontier", id="no-rung"
        ),
        pytest.param(
            'frontier=["aot", "cudagraphs"]',
            "'cudagraphs' applies to Inductor only: put 'inductor'",
            id="no-inductor",
        ),
    ],
)
def test_a_ladder_that_cannot_be_is_refused_in_one_line(pytester: pytest.Pytester, marker: str, message: str) -> None:
    Project(pytester.path)
    text = "from pytest_compilecontract import compile_contract\n\n\n"
    text += f"@compile_contract({marker})\ndef test_it(compile_lane):\n    pass\n"
    pytester.makepyfile(test_model=text)

    ran = pytester.runpytest("-q", "--compile-contracts")

    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    (said,) = [line for line in ran.errlines if "test_model.py::test_it: " in line]
    assert message in said
