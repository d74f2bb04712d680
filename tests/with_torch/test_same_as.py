"""Lanes of a contract that must agree (`same_as`): the other one runs first, in the same test."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_compilecontract.measure import numerics
from tests.support.sessions import run_session

pytestmark = pytest.mark.sessions

CONTRACTS = """
import pytest
import torch
from torch import nn

from pytest_compilecontract import compile_contract
from pytest_compilecontract.shapes import sizes, tensors


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.inner(x))


def calls(*sizes):
    return [(torch.randn(n, 8),) for n in sizes]


def is_first(compile_lane):
    return compile_lane.name == "capture"


@compile_contract(lanes=["capture", "aot"], same_as="capture")
def test_agree(compile_lane):
    compile_lane.run(Block(), *calls(2, 3))
    compile_lane.train(nn.Sequential(Block(), nn.Dropout()), calls(2, 2))


@compile_contract(lanes=["aot"], same_as="capture")
def test_break(compile_lane):
    def f(x):
        if not is_first(compile_lane):
            torch._dynamo.graph_break()
        return x.sin().cos()

    compile_lane.run(f, *calls(2))


@compile_contract(lanes=["aot"], same_as="capture")
def test_value(compile_lane):
    factor = 1.0 if is_first(compile_lane) else 1.01
    compile_lane.run(lambda x: x * factor, *calls(2))


@compile_contract(lanes=["aot"], same_as="capture")
def test_gradient(compile_lane):
    model = Block()
    compile_lane.train(model, calls(2), loss=lambda y: y.sum() * (1 if is_first(compile_lane) else 1.01))


@compile_contract(lanes=["aot"], same_as="capture")
def test_nan_in_the_second_measurement(compile_lane):
    compile_lane.run(torch.sin, *calls(2))
    off = 0.0 if is_first(compile_lane) else float("nan")
    compile_lane.run(lambda x: x + off, *calls(2))


@compile_contract(lanes=["aot"], same_as="capture")
def test_inputs(compile_lane):
    compile_lane.run(torch.sin, (torch.ones(3) * (1 if is_first(compile_lane) else 2),))


@compile_contract(lanes=["aot"], same_as="capture")
def test_one_measurement_more(compile_lane):
    compile_lane.run(torch.sin, *calls(2))
    if not is_first(compile_lane):
        compile_lane.run(torch.cos, *calls(2))


@compile_contract(lanes=["aot"], same_as="capture")
def test_skipped_there(compile_lane):
    if is_first(compile_lane):
        pytest.skip("not here")
    compile_lane.run(torch.sin, *calls(2))


@compile_contract(lanes=["aot"], same_as="capture")
def test_raises_there(compile_lane):
    if is_first(compile_lane):
        raise ValueError("only there")
    compile_lane.run(torch.sin, *calls(2))


@compile_contract(lanes=["aot"], same_as="absent")
def test_cannot_run_there(compile_lane):
    compile_lane.run(torch.sin, *calls(2))


@compile_contract(lanes=["aot"], same_as="capture")
def test_makes_its_own_calls(compile_lane):
    with compile_lane.observe():
        compile_lane.compile(Block())(torch.randn(2, 8))


@compile_contract(lanes=["aot"], same_as="capture")
def test_hunts(compile_lane):
    compile_lane.hunt(torch.sin, tensors(sizes(2, 4), 3), sequences=2)


@compile_contract(lanes=["aot"], same_as="bf16")
def test_precision(compile_lane):
    compile_lane.run(Block(), *calls(2))


@compile_contract(lanes=["aot"], same_as="bf16")
def test_two_precisions(compile_lane):
    compile_lane.run(torch.relu, (torch.arange(24.0, dtype=torch.float32).reshape(3, 8) / 8,))


@pytest.fixture(scope="module")
def drawn():
    return nn.Linear(8, 8)


@compile_contract(lanes=["aot"], same_as="capture")
def test_wider_fixture(compile_lane, drawn):
    compile_lane.run(drawn, *calls(2))


@compile_contract(lanes=["aot"], same_as="capture")
@pytest.mark.xfail(reason="known", raises=AssertionError)
def test_expected_to_fail_there(compile_lane):
    compile_lane.run(torch.sin, *calls(2))
    assert compile_lane.name == "aot"


@compile_contract(lanes=["aot"], same_as="capture", max_graph_breaks=9, max_recompiles=9, max_graphs=9)
def test_planted(compile_lane):
    compile_lane.run(torch.sin, *calls(2, 2, 2))
"""
LANES = """
[tool.compilecontract.lanes.absent]
backend = "aot_eager"
requires = ["no_such_package"]

[tool.compilecontract.lanes.bf16]
backend = "aot_eager"
dtype = "bfloat16"

[tool.compilecontract.lanes.two]
backend = "aot_eager"
ranks = 2
"""


def session(folder: Path, text: str, *options: str) -> tuple[int, str]:
    (folder / "test_lanes.py").write_text(text, encoding="utf-8")
    (folder / "pyproject.toml").write_text(LANES, encoding="utf-8")
    command = ["--compile-contracts", "-p", "no:cacheprovider", "--contract-report=report", "test_lanes.py", *options]
    ran = run_session([sys.executable, "-m", "pytest", *command], cwd=folder, timeout=300)
    return ran.returncode, ran.stdout + ran.stderr


def entries_of(folder: Path) -> dict[str, dict[str, Any]]:
    receipt = json.loads((folder / "report" / "receipt.json").read_text(encoding="utf-8"))
    return {f"{each['contract'].rpartition('::')[2]} {each['lane']}": each for each in receipt["entries"]}


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("lanes")
    session(folder, CONTRACTS)
    return entries_of(folder)


def violation(entry: dict[str, Any]) -> tuple[str, list[list[str]]]:
    (found,) = entry["violations"]
    assert found["name"] == "same_as"
    return found["measured"], found["facts"]


def test_lanes_that_agree_are_held_and_have_one_entry_each(entries: dict[str, dict[str, Any]]) -> None:
    found = {name: each["verdict"] for name, each in entries.items() if name.startswith("test_agree")}

    assert found == {"test_agree capture": "held", "test_agree aot": "held"}
    assert entries["test_agree capture"]["measurement"]["beside"] is None
    assert entries["test_agree aot"]["measurement"]["beside"]["compared"] > 2


def test_a_break_in_one_lane_is_named_by_its_line(entries: dict[str, dict[str, Any]]) -> None:
    measured, facts = violation(entries["test_break aot"])

    assert measured == "graph breaks differ"
    assert facts == [
        ["graph breaks differ", "capture: none", "aot: test_lanes.py:37 in f: Call to `torch._dynamo.graph_break()`"]
    ]


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("test_value", "call 0 output: value: 16 of 16 elements differ, most at "),
        ("test_gradient", "step 0 loss: value: 1 of 1 elements differ, most: "),
        ("test_nan_in_the_second_measurement", "call 0 output: nan: 16 of 16 elements differ, most at "),
    ],
)
def test_results_that_differ_name_both_lanes(entries: dict[str, dict[str, Any]], name: str, at: str) -> None:
    measured, facts = violation(entries[f"{name} aot"])

    assert measured == "results differ"
    assert facts[0][0] == "results differ"
    assert any(line.startswith(at) and "aot " in line and "capture " in line for line in facts[0][1:]), facts


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("test_inputs", "the two lanes were not given the same call 0 input[0]"),
        ("test_one_measurement_more", "lane 'capture' compared nothing here"),
        ("test_hunts", "calls that hypothesis draws are compared with eager alone"),
    ],
)
def test_what_cannot_be_compared_is_a_violation(entries: dict[str, dict[str, Any]], name: str, said: str) -> None:
    measured, facts = violation(entries[f"{name} aot"])

    assert measured.endswith("results not compared")
    assert facts[-1] == ["results not compared", said]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("test_skipped_there", "the test was skipped there: not here"),
        ("test_raises_there", "the test failed there: ValueError: only there"),
        ("test_expected_to_fail_there", "the test failed there: AssertionError: assert 'capture' == 'aot'"),
    ],
)
def test_a_lane_that_did_not_run_agrees_with_none(entries: dict[str, dict[str, Any]], name: str, said: str) -> None:
    measured, _ = violation(entries[f"{name} aot"])

    assert measured.startswith("nothing to compare with: ")
    assert measured.endswith(said)


@pytest.mark.parametrize("name", ["test_precision", "test_two_precisions", "test_wider_fixture"])
def test_what_both_lanes_were_given_is_the_same(entries: dict[str, dict[str, Any]], name: str) -> None:
    assert entries[f"{name} aot"]["verdict"] == "held", entries[f"{name} aot"]["violations"]


def test_a_planted_fault_that_sets_the_lanes_apart_is_noticed(tmp_path: Path) -> None:
    code, said = session(tmp_path, CONTRACTS, "-k", "test_planted", "--contract-plant=graph-break,recompile")

    assert code == 0, said
    noticed = entries_of(tmp_path)["test_planted aot"]["planted"]
    by = {each["fault"]: each["by"] for each in noticed}
    assert by == dict.fromkeys(("graph-break", "recompile"), "same_as='capture'")


def test_without_the_other_lane_the_contract_is_unmeasured(entries: dict[str, dict[str, Any]]) -> None:
    entry = entries["test_cannot_run_there aot"]

    assert entry["verdict"] == "unmeasured"
    assert entry["reason"].startswith("lane 'absent', which same_as names, cannot run here: ")


def test_code_that_makes_its_own_calls_is_compared_in_its_counts(entries: dict[str, dict[str, Any]]) -> None:
    assert entries["test_makes_its_own_calls aot"]["verdict"] == "held"


@pytest.mark.parametrize("options", [["-n", "2"], ["--contract-repeat=2"], ["--contract-plant=factor"]])
def test_every_way_of_running_compares_the_lanes(tmp_path: Path, options: list[str]) -> None:
    session(tmp_path, CONTRACTS, "-k", "test_agree or test_value", *options)
    found = entries_of(tmp_path)

    assert found["test_agree aot"]["verdict"] == "held"
    assert violation(found["test_value aot"])[0] == "results differ"


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("same_as='captured'", "same_as: unknown lane 'captured', did you mean 'capture'?"),
        ("same_as='eager'", "same_as: lane 'eager' compiles nothing, and every lane is compared with eager"),
        ("same_as='two'", "same_as runs both lanes in one process, and lane 'two' has ranks"),
        ("same_as='aot', ranks=2", "same_as='aot' runs both lanes in one process, so it contradicts ranks=2"),
        ("same_as='aot', frontier=['capture']", "frontier runs lanes of its own, so it contradicts same_as='aot'"),
        ("same_as=3", "same_as: expected the name of a lane, got 3"),
    ],
)
def test_what_no_lane_can_be_held_to_is_refused(tmp_path: Path, limits: str, said: str) -> None:
    marked = f"@compile_contract({limits})\ndef test_x(compile_lane): ..."
    text = f"from pytest_compilecontract import compile_contract\n{marked}"

    code, shown = session(tmp_path, text)

    assert code == pytest.ExitCode.USAGE_ERROR
    assert said in shown


def run_of(value: torch.Tensor) -> numerics.Run:
    return numerics.Run(groups={"output": numerics.snapshot(value, at="output")})


def kept(value: torch.Tensor, again: torch.Tensor | None = None, **how: Any) -> tuple[numerics.Runs, numerics.Kept]:
    runs = numerics.Runs(eager=run_of(value), compiled=run_of(value), again=run_of(value if again is None else again))
    tolerance = numerics.Tolerance(method="fp64", rtol=None, atol=None, precision=how.pop("precision", None))
    return runs, numerics.kept(runs, tolerance, **{"random": False, "device": "cpu", **how})


def test_the_less_precise_lane_sets_the_tolerance() -> None:
    value = torch.linspace(1, 2, 64)
    runs, mine = kept(value * 1.003)
    names = ("mine", "other")

    assert numerics.agreed(runs, mine, kept(value)[1], names).numerics.differences
    assert not numerics.agreed(runs, mine, kept(value, precision=torch.bfloat16)[1], names).numerics.differences


def test_where_eager_differs_from_itself_a_difference_is_not_known() -> None:
    value = torch.linspace(1, 2, 64)
    runs, mine = kept(value)
    _, other = kept(value * 2, again=value * 3)

    found = numerics.agreed(runs, mine, other, ("mine", "other")).numerics

    assert found.differences == ()
    assert found.uncompared == ("output: eager differs from itself there",)


@pytest.mark.parametrize(
    ("word", "said"), [("two", ""), ("three", "the two lanes were not given the same call 0 input[4]")]
)
def test_scalars_of_two_lanes_are_the_same_as_those_of_eager_are(word: str, said: str) -> None:
    def lane(last: str) -> numerics.Kept:
        values = [Decimal("sNaN"), {float("nan")}, float("nan"), 2, last]
        run = numerics.Run(groups={}, before=numerics.snapshot(values, at="call 0 input"))
        return replace(kept(torch.ones(1))[1], compiled=run)

    assert numerics.why_apart(lane("two"), lane(word)) == said


def test_random_numbers_of_two_types_of_device_are_not_compared() -> None:
    value = torch.ones(3)
    _, mine = kept(value, random=True)

    assert numerics.why_apart(mine, kept(value, random=True)[1]) == ""
    said = numerics.why_apart(mine, kept(value, random=True, device="cuda")[1])
    assert said == "random numbers are drawn differently on cpu and cuda"


def test_a_lane_that_is_left_out_runs_no_other_lane(tmp_path: Path) -> None:
    _, said = session(tmp_path, CONTRACTS, "-k", "test_value", "--contract-lanes=capture")

    assert "1 skipped" in said
    assert "same_as" not in said
