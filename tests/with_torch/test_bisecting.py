"""Where a lane broke, in whole sessions: a fault planted in a stage is named, and the lane's verdict stays.

What becomes of the stages' outcomes otherwise is in tests/plugin/test_stages.py.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.sessions import run_session
from support.shared import made_once

from pytest_compilecontract.measure.probes.backends import name_of

pytestmark = pytest.mark.torch

CONTRACTS = """
import torch
from torch import nn
from torch._dynamo.backends.registry import register_backend

from pytest_compilecontract import compile_contract

X = torch.linspace(-1, 1, 8)


@register_backend(name="off_by_one")
def off_by_one(graph, inputs):
    return lambda *args: tuple(each + 1 for each in graph.forward(*args))


class Overwritten(nn.Module):
    # A fault of torch's own, in AOTAutograd: the backward reads the buffer as it is after the step.
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.register_buffer("state", torch.zeros(8))

    def forward(self, x):
        state = self.weight * self.state.clone() + x
        self.state.copy_(state.detach())
        return state


def wrong_in_capture(x):
    return x.cos() if torch.compiler.is_dynamo_compiling() else x.sin()


def right(x):
    return x.sin() + 1


@compile_contract(lanes=["aot", "capture"])
def test_capture(compile_lane):
    compile_lane.run(wrong_in_capture, (X,))


@compile_contract(lanes=["limited"])
def test_capture_with_settings(compile_lane):
    compile_lane.run(wrong_in_capture, (X,))


@compile_contract(lanes=["aot", "decomposed"])
def test_aot(compile_lane):
    compile_lane.train(Overwritten(), [(X,)] * 3)


@compile_contract(lanes=["own"])
def test_the_backend_itself(compile_lane):
    compile_lane.run(right, (X,))


COUNTED = []


def wrong_once(x):
    return x.cos() if torch.compiler.is_dynamo_compiling() and len(COUNTED) == 1 else x.sin()


@compile_contract(lanes=["aot"])
def test_does_not_recur(compile_lane):
    COUNTED.append(1)
    compile_lane.run(wrong_once, (X,))


FLAKY = []


def wrong_twice(x):
    return x.cos() if torch.compiler.is_dynamo_compiling() and len(FLAKY) <= 2 else x.sin()


@compile_contract(lanes=["aot"])
def test_fails_by_chance(compile_lane):
    FLAKY.append(1)
    compile_lane.run(wrong_twice, (X,))


OWN = []


def wrong_at_first(x):
    return x.cos() if torch.compiler.is_dynamo_compiling() and len(OWN) == 1 else x.sin()


@compile_contract(lanes=["aot"])
def test_fails_by_itself_later(compile_lane):
    OWN.append(1)
    compile_lane.run(wrong_at_first, (X,))
    assert len(OWN) == 1


@compile_contract(lanes=["aot"])
def test_compiles_its_own_way(compile_lane):
    compile_lane.run(right, (X,), compile_with=lambda target: torch.compile(target, backend="off_by_one"))


@compile_contract(lanes=["capture"])
def test_compiles_its_own_way_in_its_body(compile_lane):
    compile_lane.compare(lambda compile: compile(right, backend="off_by_one")(X))


@compile_contract(lanes=["decomposed"])
def test_dropout(compile_lane):
    compile_lane.run(lambda x: nn.functional.dropout(x, 0.5, True), (X,))


@compile_contract(lanes=["capture"])
def test_holds(compile_lane):
    compile_lane.run(right, (X,))


@compile_contract(lanes=["capture"], max_graphs=0, min_ops_captured=0)
def test_too_many_graphs(compile_lane):
    compile_lane.run(right, (X,))


@compile_contract(lanes=["capture"])
def test_fails_by_itself(compile_lane):
    compile_lane.run(right, (X,))
    raise ValueError("its own")
"""
PYPROJECT = """
[tool.pytest.ini_options]

[tool.compilecontract.lanes.own]
backend = "off_by_one"

[tool.compilecontract.lanes.decomposed]
backend = "aot_eager_decomp_partition"

[tool.compilecontract.lanes.limited]
backend = "aot_eager"
dynamo.recompile_limit = 7
"""
SET = "--contract-set=torch._dynamo.config.recompile_limit=9"


def run_contracts(folder: Path) -> str:
    """What a session of the contracts above printed; it leaves its receipt in this folder."""
    (folder / "test_it.py").write_text(CONTRACTS, encoding="utf-8")
    (folder / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--compile-contracts",
        "--contract-bisect",
        SET,
    ]
    lanes = "--contract-lanes=capture,aot,own,decomposed,limited"
    return run_session([*command, lanes, "--contract-report=r"], cwd=folder, timeout=900).stdout


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, dict[str, Any]]]:
    folder, said = made_once(tmp_path_factory, "bisected", run_contracts)
    entries = json.loads((folder / "r" / "receipt.json").read_text(encoding="utf-8"))["entries"]
    return said, {each["test"].partition("::")[2]: each for each in entries}


def test_a_fault_of_capture(session: tuple[str, dict[str, dict[str, Any]]]) -> None:
    said, entries = session

    entry = entries["test_capture[aot]"]

    assert (entry["verdict"], entry["measurement"]["backend"]) == ("violated", "aot_eager")
    assert entry["reason"].endswith("where it broke: Dynamo's capture (backend 'eager') is the first to fail")
    rerun = f"--compile-contracts --contract-lanes=capture {SET} -- 'test_it.py::test_capture[capture]'"
    assert f"  python -m pytest {rerun}" in said


def test_what_runs_of_how_many_is_said_unless_it_is_to_be_quiet(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(CONTRACTS, encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--compile-contracts", "--contract-bisect"]

    said, quiet = (
        run_session([*command, *option, "--contract-lanes=aot", "-k", "test_capture and aot"], cwd=tmp_path).stdout
        for option in ([], ["-q"])
    )

    assert re.findall(r"test_capture\[aot\]: where it broke: runs (.*), \d+ s", said) == [
        "Dynamo's capture (backend 'eager'), 1 of 2",
        "Dynamo's capture (backend 'eager'), 1 of 2",
        "the lane itself, 2 of 2",
    ]
    assert ": where it broke: runs" not in quiet
    assert "where it broke: Dynamo's capture (backend 'eager') is the first to fail" in quiet


def test_a_lane_is_run_again_with_the_settings_that_it_was_given(
    session: tuple[str, dict[str, dict[str, Any]]],
) -> None:
    said, _ = session

    rerun = f"--compile-contracts --contract-lanes=aot {SET} -- 'test_it.py::test_capture[aot]'"
    assert f"\npython -m pytest {rerun}\n" in said


def test_no_built_in_lane_stands_for_one_with_settings(session: tuple[str, dict[str, dict[str, Any]]]) -> None:
    said, entries = session

    test = "test_capture_with_settings[limited]"

    assert entries[test]["reason"].endswith("where it broke: Dynamo's capture (backend 'eager') is the first to fail")
    rerun = f"--compile-contracts --contract-lanes=limited --contract-bisect {SET} -- 'test_it.py::{test}'"
    assert f"  python -m pytest {rerun}" in said


def test_a_fault_of_aotautograd(session: tuple[str, dict[str, dict[str, Any]]]) -> None:
    said, entries = session

    entry = entries["test_aot[aot]"]

    assert (entry["verdict"], entry["measurement"]["backend"]) == ("violated", "aot_eager")
    assert entry["reason"].endswith(
        "where it broke: AOTAutograd (backend 'aot_eager') is the first to fail; up to Dynamo's capture it holds"
    )
    assert f"--contract-lanes=aot --contract-bisect {SET} -- 'test_it.py::test_aot[aot]'" in said


def test_a_stage_that_fails_otherwise_than_the_lane_proves_nothing(
    session: tuple[str, dict[str, dict[str, Any]]],
) -> None:
    _, entries = session

    entry = entries["test_aot[decomposed]"]

    # The backend of decompositions raises, where AOTAutograd's own gives wrong gradients.
    assert (entry["verdict"], entry["measurement"]["backend"]) == ("broken", "aot_eager_decomp_partition")
    failed_otherwise = "AOTAutograd (backend 'aot_eager') fails (wrong numbers), where the lane failed differently ("
    assert f"where it broke: unknown, {failed_otherwise}" in entry["reason"]


def test_a_fault_of_a_backend_of_ones_own(session: tuple[str, dict[str, dict[str, Any]]]) -> None:
    said, entries = session

    entry = entries["test_the_backend_itself[own]"]

    assert entry["verdict"] == "violated"
    assert entry["reason"].endswith(
        "where it broke: backend 'off_by_one' itself is the first to fail; up to AOTAutograd it holds"
    )
    assert f"--contract-lanes=own --contract-bisect {SET} -- 'test_it.py::test_the_backend_itself[own]'" in said


def test_what_does_not_fail_again_is_nobodys_fault_for_sure(session: tuple[str, dict[str, dict[str, Any]]]) -> None:
    _, entries = session

    reason = entries["test_does_not_recur[aot]"]["reason"]

    assert reason.endswith("where it broke: unknown, the lane itself does not fail again")


def test_what_fails_by_chance_is_nobodys_fault_for_sure(session: tuple[str, dict[str, dict[str, Any]]]) -> None:
    _, entries = session

    reason = entries["test_fails_by_chance[aot]"]["reason"]

    assert reason.endswith(
        "where it broke: unknown, Dynamo's capture (backend 'eager') fails (wrong numbers), and then holds"
    )


def test_a_test_that_fails_by_itself_shows_no_stage_to_hold(session: tuple[str, dict[str, dict[str, Any]]]) -> None:
    _, entries = session

    reason = entries["test_fails_by_itself_later[aot]"]["reason"]

    assert reason.endswith("where it broke: unknown, the lane itself was not measured again: the test itself failed")


@pytest.mark.parametrize("test", ["test_compiles_its_own_way[aot]", "test_compiles_its_own_way_in_its_body[capture]"])
def test_no_stage_is_blamed_where_the_test_chooses_its_backend(
    session: tuple[str, dict[str, dict[str, Any]]], test: str
) -> None:
    _, entries = session

    entry = entries[test]

    assert entry["verdict"] == "violated"
    assert entry["reason"].endswith(
        "where it broke: unknown, the test chooses its own backend: 'off_by_one' compiled instead of 'eager'"
    )


def test_random_numbers_of_decompositions_are_no_fault(session: tuple[str, dict[str, dict[str, Any]]]) -> None:
    _, entries = session

    entry = entries["test_dropout[decomposed]"]

    assert entry["verdict"] == "held"
    # Beside why there was no run in float64.
    assert "judged in a pass of its own with fallback_random=True" in entry["measurement"]["numerics"]["note"]


@pytest.mark.parametrize("test", ["test_holds", "test_too_many_graphs", "test_fails_by_itself"])
def test_what_no_stage_can_explain_is_not_run_again(session: tuple[str, dict[str, dict[str, Any]]], test: str) -> None:
    _, entries = session

    assert "where it broke" not in entries[f"{test}[capture]"].get("reason", "")


def split(graph: object) -> object:
    return graph


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        pytest.param(SimpleNamespace(compiler_name="aot_eager"), "aot_eager", id="by name"),
        pytest.param(split, "split", id="a function"),
        pytest.param(SimpleNamespace(compiler_name="aotinductor"), "inductor", id="Inductor ahead of time"),
        pytest.param(
            SimpleNamespace(__name__="debug", _torchdynamo_orig_backend=SimpleNamespace(compiler_name="eager")),
            "eager",
            id="inside torch's debug wrapper",
        ),
        pytest.param(
            SimpleNamespace(__self__=SimpleNamespace(backend_compile_fn=split)), "split", id="behind the splitter"
        ),
    ],
)
def test_a_backend_has_the_name_that_it_was_asked_for_by(backend: object, name: str) -> None:
    assert name_of(backend) == name


# What a user sees of noise runs, and what they cost

WRONG = """
import torch
from torch._dynamo.backends.registry import register_backend

from pytest_compilecontract import compile_contract
from pytest_compilecontract.measure import noise_runs
from pytest_compilecontract.measure.passes import Passes

noise_runs.TELL_SECONDS = 0.0
rounded = Passes.rounded


def noted(*given):
    with open("made", "a") as file:
        file.write("x")
    return rounded(*given)


Passes.rounded = noted


@compile_contract(lanes=["aot"])
def test_wrong(compile_lane):
    print("of the test")
    compile_lane.run(
        lambda x: x.sin() * 1.01 if torch.compiler.is_dynamo_compiling() else x.sin(), (torch.linspace(-1, 1, 64),)
    )
"""


def test_stages_use_noise_runs_of_one_another_and_progress_is_printed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(WRONG, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--compile-contracts", "--contract-bisect"]

    said = run_session([*command, "--contract-lanes=aot,capture"], cwd=tmp_path, timeout=300).stdout

    lines = said.splitlines()
    told = [line for line in lines if line.startswith("test_wrong[aot]: the numbers differ: noise run ")]
    runs = len([line for line in told if " noise run 1 of at most " in line])
    assert "Dynamo's capture (backend 'eager') is the first to fail" in said
    assert runs >= 3
    # The lane itself makes its own; the first stage makes them once more, and those after it one each.
    each = len(told) // runs
    assert len((tmp_path / "made").read_text(encoding="utf-8")) == 2 * each + runs - 2
    # Where pytest captures output, what the test printed is shown once, in its section.
    assert lines.count("of the test") == 1
