"""Whole pytest sessions with baselines: recorded on asking, held to without, and by an older torch's where none is.

One small project in the cheapest lane; what changes between two runs is a variable of the environment.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.sessions import run_session

from pytest_compilecontract.cli.main import main

RELEASE = ".".join(torch.__version__.split(".")[:2])
HERE = f"torch{RELEASE}-cpu"
FILE = f"contracts/baselines/{HERE}/test_block.json"
CONTRACTS = """
import os

import torch
from pytest_compilecontract import compile_contract

BREAKS = os.environ.get("BREAKS", "")


@compile_contract(max_graph_breaks=1)
def test_breaks(compile_lane):
    def step(x):
        y = x.sin()
        if BREAKS == "one":
            print("one")
        if BREAKS == "other":
            print("other")
        return y.cos()

    compile_lane.run(step, (torch.ones(2),))


def test_holds(compile_lane):
    compile_lane.run(lambda x: x.sin(), (torch.ones(2),))


@compile_contract(max_graph_breaks=0)
def test_violates(compile_lane):
    def step(x):
        print("always")
        return x.sin()

    compile_lane.run(step, (torch.ones(2),))


def test_plain():
    pass
"""

pytestmark = [
    pytest.mark.sessions,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the environment's key is a processor's here"),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    code: int
    out: str

    def line(self, start: str) -> str:
        return next((line for line in self.out.splitlines() if line.strip().startswith(start)), "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    folder: Path

    def run(self, *options: str, breaks: str = "", lanes: tuple[str, ...] = ("--contract-lanes=capture",)) -> Ran:
        command = [sys.executable, "-m", "pytest", "--compile-contracts", *lanes, *options]
        env = {
            **os.environ,
            "BREAKS": breaks,
            "PYTHONPATH": str(Path(__file__).parent.parent.parent),
            "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:hypothesispytest",
        }
        ran = run_session(command, cwd=self.folder, env=env)
        return Ran(code=ran.returncode, out=ran.stdout + ran.stderr)

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("baselines/**/*.json")
            if path.parent.name != "defaults"
        }


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, dict[str, bytes]]:
    """What recording all of the project printed and wrote."""
    project = make(tmp_path_factory.mktemp("recorded"))
    ran = project.run("--contract-record", "-n2")
    return ran, project.files()


@pytest.fixture
def project(tmp_path: Path, recorded: tuple[Ran, dict[str, bytes]]) -> Project:
    """The project with its baseline."""
    made = make(tmp_path)
    for name, data in recorded[1].items():
        made.folder.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        made.folder.joinpath(name).write_bytes(data)
    return made


def make(folder: Path) -> Project:
    folder.joinpath("contracts").mkdir()
    folder.joinpath("contracts/test_block.py").write_text(CONTRACTS)
    folder.joinpath("pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return Project(folder=folder)


def test_recording_writes_what_holds_and_refuses_the_rest(recorded: tuple[Ran, dict[str, bytes]]) -> None:
    ran, files = recorded

    assert list(files) == [FILE]
    assert sorted(json.loads(files[FILE])["contracts"]) == [
        "contracts/test_block.py::test_breaks",
        "contracts/test_block.py::test_holds",
    ]
    assert ran.line("recorded 2 lanes in 1 file of ").endswith("contracts/baselines")
    assert ran.line("not recorded") == (
        "  not recorded: contracts/test_block.py::test_violates [capture]: violated: max_graph_breaks=0: 1"
    )
    assert ran.code == pytest.ExitCode.TESTS_FAILED


def test_a_run_that_shows_the_same_holds_and_writes_nothing(project: Project) -> None:
    before = project.files()

    ran = project.run("-k", "holds or breaks or plain")

    where = f"{HERE} (torch {torch.__version__})"
    assert ran.line("baselines: ") == f"baselines: compared 2 of 2 lanes with {where}: 2 held"
    assert (ran.code, project.files()) == (pytest.ExitCode.OK, before)


def test_the_command_that_is_printed_waives_what_drifted(project: Project) -> None:
    ran = project.run("-k", "breaks", "--contract-report=report", breaks="one")

    command = ran.line("compilecontract waive ")
    said = shlex.split(command.partition(" >> ")[0])[1:]
    given = iter(("somebody", "https://example.org/1", "2999-01-01"))
    waived = run_session(
        [sys.executable, "-m", "pytest_compilecontract", *(next(given) if each == "..." else each for each in said)],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)},
    )
    (project.folder / "contracts/waivers.toml").write_text(waived.stdout)
    again = project.run("-k", "breaks", "--contract-report=report", breaks="one")

    assert command.startswith(f"compilecontract waive {Path(FILE).parent} report --owner")
    assert command.endswith(" >> contracts/waivers.toml")
    assert (ran.code, again.code) == (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.OK), again.out
    assert "compilecontract waive" not in again.out


def test_a_waived_lane_that_fails_by_its_limits_says_so(project: Project) -> None:
    waiver = (
        f'contract = "*"\nlane = "*"\nmetric = "*"\ntorch = "=={RELEASE}.*"\nissue = "https://example.org/1"\n'
        'owner = "somebody"\nexpires = 2999-01-01\nkind = "workaround"\n'
    )
    (project.folder / "contracts/waivers.toml").write_text(f"[[waiver]]\n{waiver}")
    test = project.folder / "contracts/test_block.py"
    test.write_text(CONTRACTS.replace("max_graph_breaks=1", "max_graph_breaks=0"))

    ran = project.run("-k", "breaks", breaks="one")

    assert ran.line("1 lane of these") == "  1 lane of these over its limits, which waivers do not change"
    assert ran.code == pytest.ExitCode.TESTS_FAILED


def test_a_lane_that_drifted_fails_with_the_fact_and_the_commands(project: Project) -> None:
    ran = project.run("-k", "breaks", "-n1", breaks="one")

    test = "-- 'contracts/test_block.py::test_breaks[capture]'"
    where = f"{HERE} (torch {torch.__version__})"
    text = ran.out[ran.out.index("compile contract drifted: ") :]
    lines = text.splitlines()
    assert lines[:3] == [
        f"compile contract drifted: contracts/test_block.py::test_breaks, lane capture, compared with {where}",
        "  graph breaks 0 -> 1 at contracts/test_block.py:15 in step",
        '    + contracts/test_block.py:15 in step: print("one")',
    ]
    assert "  fullgraph yes -> no" in lines[3:]
    rerun = "python -m pytest --compile-contracts --contract-lanes=capture"
    assert ran.line(rerun) == f"{rerun} {test}"
    assert ran.line(f"{rerun} --contract-record") == f"{rerun} --contract-record=changed {test}"
    assert ran.line("baselines: ") == f"baselines: compared 1 of 2 lanes with {where}: 1 drifted"
    assert "drifted: capture" in ran.line("test_breaks  ")
    assert ran.code == pytest.ExitCode.TESTS_FAILED


def test_a_change_is_recorded_on_asking_and_one_break_for_another_is_drift(project: Project) -> None:
    accepted = project.run("-k", "breaks", "--contract-record=changed", breaks="one")
    again = project.run("-k", "breaks", breaks="one")
    other = project.run("-k", "breaks", breaks="other")
    better = project.run("-k", "breaks")

    assert accepted.line("recorded 1 lane in 1 file of ")
    assert "graph breaks 1 -> 1" in other.out
    assert better.line("improved") == (
        "  improved contracts/test_block.py::test_breaks [capture]: graph breaks 1 -> 0 at "
        "contracts/test_block.py:15 in step, fullgraph no -> yes"
    )
    assert [ran.code for ran in (accepted, again, other, better)] == [0, 0, 1, 0]


def test_without_its_own_a_run_is_held_to_an_older_torch(project: Project) -> None:
    folder = project.folder / "contracts/baselines"
    folder.joinpath(HERE).rename(folder / "torch2.1-cpu")

    held = project.run("-k", "holds")
    drifted = project.run("-k", "breaks", breaks="one")
    accepted = project.run("-k", "breaks", "--contract-record=new", breaks="one")

    assert "with torch2.1-cpu" in held.line("baselines: ")
    rerun = "python -m pytest --compile-contracts --contract-lanes=capture"
    assert "--contract-record=new" in drifted.line(f"{rerun} --contract-record")
    assert [ran.code for ran in (held, drifted, accepted)] == [0, 1, 0]
    assert sorted(path.name for path in folder.iterdir()) == ["defaults", "torch2.1-cpu", HERE]


def test_what_should_not_be_recorded_needs_a_reason_that_is_kept(project: Project) -> None:
    ran = project.run("-k", "violates", "--contract-record", "--contract-accept-reason=see issue 7")

    kept = json.loads(project.files()[FILE])["contracts"]["contracts/test_block.py::test_violates"]["capture"]
    assert (kept["verdict"], kept["accepted"]) == ("violated", "see issue 7")
    assert ran.code == pytest.ExitCode.TESTS_FAILED


def test_a_baseline_that_cannot_be_read_fails_the_lane_and_the_session(project: Project) -> None:
    (project.folder / FILE).write_text("{")

    ran = project.run("-k", "holds")

    file = project.folder / FILE
    assert f"the baseline of this lane: {file}: not JSON (input data was truncated)" in ran.out
    assert ran.line("ERROR: ") == f"ERROR: {file}: not JSON (input data was truncated)"
    assert ran.code == pytest.ExitCode.TESTS_FAILED


def test_nothing_compared_though_baselines_were_given_fails_the_session(project: Project) -> None:
    nowhere = project.run("-k", "holds", "--contract-baselines=nowhere")
    given = project.run("-k", "holds", "--contract-baselines=contracts/baselines")

    assert nowhere.line("ERROR: ") == (
        f"ERROR: nothing was compared with the baselines in {project.folder / 'nowhere'}"
    )
    assert (nowhere.code, given.code) == (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.OK)


def test_a_folder_of_baselines_is_a_side_of_the_gate(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(project.folder / "contracts/baselines")

    assert main(["gate", folder, folder, "-q"]) == 0
    assert capsys.readouterr().out.endswith("? yes\n")


def test_a_waived_drift_fails_nothing_until_its_last_day(project: Project) -> None:
    waiver = """
        [[waiver]]
        contract = "contracts/test_block.py::test_breaks"
        lane = "capture"
        metric = "{metric}"
        torch = ">=2.1"
        issue = "https://example.org/7"
        owner = "someone"
        expires = {expires}
        kind = "workaround"
        """
    file = project.folder / "contracts/waivers.toml"
    codes = []

    for expires in ("2999-01-31", "2020-01-31"):
        file.write_text("".join(waiver.format(metric=each, expires=expires) for each in ("graph_breaks", "fullgraph")))
        ran = project.run("-k", "breaks", "--contract-report=out", breaks="one")
        codes.append(ran.code)
        if expires.startswith("2999"):
            assert ran.line("waived") == (
                "  waived contracts/test_block.py::test_breaks [capture]: graph breaks 0 -> 1 at "
                "contracts/test_block.py:15 in step, fullgraph yes -> no"
            )

    assert codes == [pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED]
    assert ran.line("ERROR: ") == (
        "ERROR: contracts/waivers.toml:2: the waiver of contracts/test_block.py::test_breaks [capture] graph_breaks "
        "expired on 2020-01-31: the drift is still there: fix it, or set a later date"
    )
    assert ran.line("receipt: ") == f"receipt: {project.folder / 'out/receipt.json'}"


def test_a_contract_that_is_no_more_is_told_and_removed_by_recording_all(project: Project) -> None:
    module = project.folder / "contracts/test_block.py"
    module.write_text(module.read_text().replace("def test_holds(", "def test_holds_still("))
    project.folder.joinpath("pyproject.toml").write_text('[tool.pytest.ini_options]\ncontract_lanes = ["capture"]\n')

    told = project.run("-k", "breaks", lanes=())
    part = project.run("--contract-record", "-k", "breaks", lanes=())
    one_lane = project.run("--contract-record")
    kept = json.loads(project.files()[FILE])["contracts"]
    removed = project.run("--contract-record", lanes=())

    gone = "contracts/test_block.py::test_holds"
    folder = project.folder / "contracts/baselines"
    for ran in (told, part, one_lane):
        assert f"{folder} holds 1 contract that no longer exists" in ran.out.splitlines()
    assert gone in kept
    assert removed.line("removed from") == f"removed from {folder}: 1 contract that no longer exists"
    assert sorted(json.loads(project.files()[FILE])["contracts"]) == [
        "contracts/test_block.py::test_breaks",
        "contracts/test_block.py::test_holds_still",
    ]
