"""Whole sessions that measure each lane several times: one test, one verdict, and the band of what moves by itself.

One small project in the cheapest lane, run a few times.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sessions import run_session

from pytest_compilecontract.facts.metrics import BANDED

pytestmark = pytest.mark.sessions

CONTRACTS = """
import unittest

import pytest
import torch

from pytest_compilecontract import compile_contract

X = torch.ones(4)
RAN = dict.fromkeys(
    ["module", "function", "unstable", "swapped", "raises", "asserts", "skips", "skips_early", "first", "end"], 0
)


def ran(name):
    RAN[name] += 1
    return RAN[name]


def whole(x):
    return x.sin() + 1


def breaks(x):
    x = x.sin()
    torch._dynamo.graph_break()
    return x.cos()


def breaks_elsewhere(x):
    x = x.cos()
    torch._dynamo.graph_break()
    return x.sin()


@pytest.fixture(scope="module")
def wide():
    return ran("module")


@pytest.fixture
def narrow(record_property):
    record_property("set up", ran("function"))
    return RAN["function"]


@pytest.fixture
def skips_later():
    if ran("skips_early") > 1:
        pytest.skip("no second time")


@pytest.fixture
def fails_at_the_end():
    yield
    if ran("end") == 2:
        raise RuntimeError("no end")


def test_held(compile_lane, wide, narrow):
    print("output of a repeat")
    assert (wide, narrow) == (1, RAN["function"])
    compile_lane.run(whole, (X,), (X,), (X,))


@compile_contract(max_graph_breaks=1)
def test_unstable(compile_lane):
    compile_lane.run(breaks if ran("unstable") == 2 else whole, (X,), (X,))


def test_swapped(compile_lane):
    compile_lane.run(breaks if ran("swapped") == 3 else breaks_elsewhere, (X,))


@compile_contract(max_graph_breaks=0)
def test_violated(compile_lane):
    compile_lane.run(breaks, (X,), (X,))


@compile_contract(max_graph_breaks=0)
def test_violated_the_first_time(compile_lane):
    compile_lane.run(breaks if ran("first") == 1 else whole, (X,), (X,))


def test_raises_later(compile_lane):
    def step(x):
        return x.view(3 if torch.compiler.is_compiling() and now == 2 else 4)

    now = ran("raises")
    compile_lane.run(step, (X,))


def test_asserts_later(compile_lane):
    compile_lane.run(whole, (X,))
    assert ran("asserts") < 2, "my own assertion"


def test_skips_later(compile_lane):
    if ran("skips") > 1:
        pytest.skip("no second time")
    compile_lane.run(whole, (X,))


def test_skips_early(compile_lane, skips_later):
    compile_lane.run(whole, (X,))


@pytest.mark.xfail(strict=True)
def test_expected_to_fail(compile_lane):
    compile_lane.run(whole, (X,))
    raise AssertionError


def test_fails_at_the_end(compile_lane, fails_at_the_end):
    compile_lane.run(whole, (X,))


class TestInAClass:
    def test_has_an_instance_of_its_own(self, compile_lane):
        assert not hasattr(self, "seen")
        self.seen = True
        compile_lane.run(whole, (X,))


@compile_contract
class TestUnit(unittest.TestCase):
    def test_unit(self):
        assert not hasattr(self, "seen")
        self.seen = True
        torch.compile(whole, backend="eager")(X)


@compile_contract(max_graphs=1)
class TestWithOrdinaryNeighbours:
    def test_compiles_nothing(self):
        print("once")


@compile_contract(max_graphs=1)
def test_bare():
    torch.compile(whole, backend="eager")(X)


def test_plain(narrow):
    assert narrow
"""
OTHER = "def test_other(): pass"


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    folder: Path

    def run(self, *options: str) -> Ran:
        command = [sys.executable, "-m", "pytest", "--compile-contracts", "--contract-lanes=capture"]
        command += ["--contract-report=report", "-rA", "--junitxml=junit.xml", *options]
        env = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parent.parent.parent),
            "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:hypothesispytest",
        }
        ran = run_session(command, cwd=self.folder, env=env)
        return Ran(
            code=ran.returncode,
            out=ran.stdout + ran.stderr,
            receipt=json.loads(self.folder.joinpath("report/receipt.json").read_text()),
            junit=self.folder.joinpath("junit.xml").read_text(),
        )


@dataclass(frozen=True, kw_only=True)
class Ran:
    code: int
    out: str
    receipt: dict[str, Any]
    junit: str

    @cached_property
    def entries(self) -> dict[str, dict[str, Any]]:
        return {entry["contract"].rpartition("::")[2]: entry for entry in self.receipt["entries"]}

    @cached_property
    def outcomes(self) -> dict[str, str]:
        found = {}
        for line in self.out.splitlines():
            word, _, rest = line.partition(" ")
            if word == "SKIPPED":
                found["test_skips_early"] = word
            if word in ("PASSED", "FAILED", "ERROR", "XFAIL", "XPASS") and "::" in rest:
                name = rest.split(" - ")[0].rpartition("::")[2].partition("[")[0]
                found[name] = f"{found[name]}, {word}" if name in found else word
        return found

    def line(self, start: str) -> str:
        return next((line for line in self.out.splitlines() if line.strip().startswith(start)), "")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("repeats")
    folder.joinpath("test_block.py").write_text(CONTRACTS)
    folder.joinpath("test_other.py").write_text(OTHER)
    folder.joinpath("pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return Project(folder=folder)


@pytest.fixture(scope="module")
def ran(project: Project) -> Ran:
    return project.run("--contract-repeat=3", "--contract-record")


VERDICTS = {
    "test_held": ("held", "PASSED", 3),
    "test_unstable": ("unstable", "FAILED", 3),
    "test_swapped": ("unstable", "FAILED", 3),
    "test_violated": ("violated", "FAILED", 3),
    "test_violated_the_first_time": ("unstable", "FAILED", 3),
    "test_raises_later": ("broken", "FAILED", 2),
    "test_asserts_later": ("broken", "FAILED", 1),
    "test_skips_later": ("unstable", "FAILED", 1),
    "test_skips_early": ("unmeasured", "SKIPPED", 1),
    "test_expected_to_fail": ("broken", "XFAIL", 1),
    "test_fails_at_the_end": ("broken", "PASSED, ERROR", 2),
    "test_has_an_instance_of_its_own": ("held", "PASSED", 3),
    "test_unit": ("held", "PASSED", 3),
    "test_bare": ("held", "PASSED", 3),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_lane_has_one_verdict_over_its_repeats(name: str, ran: Ran) -> None:
    entry = ran.entries[name]

    assert (entry["verdict"], ran.outcomes.get(name, ""), entry["repeats"]) == VERDICTS[name]


def test_what_compiles_nothing_or_is_no_contract_runs_once(ran: Ran) -> None:
    assert "test_compiles_nothing" not in ran.entries
    assert (ran.outcomes["test_compiles_nothing"], ran.outcomes["test_plain"]) == ("PASSED", "PASSED")
    assert ran.out.count("\nonce\n") == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("test_unstable", "fullgraph: yes in repeat 1, no in repeat 2; graph breaks: 0 in repeat 1, 1 in repeat 2"),
        ("test_swapped", "graph breaks: 1 in repeat 1, 1 in repeat 3 (test_block.py:26 in breaks)"),
        ("test_raises_later", "no exception (default): raised "),
        ("test_raises_later", " (in repeat 2)"),
        ("test_asserts_later", "the test failed in call: AssertionError: my own assertion (in repeat 2)"),
        ("test_skips_later", "repeat 2 was skipped: no second time"),
        ("test_skips_early", "no second time"),
        ("test_fails_at_the_end", "the test failed in teardown: RuntimeError: no end (in repeat 2)"),
    ],
)
def test_what_the_repeats_do_not_agree_on_is_said(name: str, reason: str, ran: Ran) -> None:
    assert reason in ran.entries[name]["reason"]


def test_the_failure_says_both_values_and_how_to_see_it_again(ran: Ran) -> None:
    text = ran.out[ran.out.index("compile contract unstable: test_block.py::test_violated_the_first_time") :]

    assert text.splitlines()[:10] == [
        "compile contract unstable: test_block.py::test_violated_the_first_time, lane capture (1 violation)",
        "  its repeats disagree:",
        "    limits exceeded: 1 in repeat 1, 0 in repeat 2 (max_graph_breaks=0)",
        "    fullgraph: no in repeat 1, yes in repeat 2",
        "    graph breaks: 1 in repeat 1, 0 in repeat 2 (test_block.py:26 in breaks)",
        "    graphs: 2 in repeat 1, 1 in repeat 2",
        "    graphs executed: 4 in repeat 1, 2 in repeat 2",
        "    graphs for the backend: 2 in repeat 1, 1 in repeat 2",
        "  max_graph_breaks=0: measured 1",
        "    test_block.py:26 in breaks: torch._dynamo.graph_break()",
    ]
    options = "--compile-contracts --contract-lanes=capture --contract-repeat=3"
    test = "'test_block.py::test_violated_the_first_time[capture]'"
    assert f"python -m pytest {options} -- {test}" in text.splitlines()


def test_what_moves_by_itself_has_the_band_of_its_repeats(ran: Ran) -> None:
    entry = ran.entries["test_held"]

    assert set(entry["spread"]) <= set(BANDED)
    assert {"cold_seconds", "steady_seconds", "ops_captured"} <= set(entry["spread"])
    sums = {
        "compile_seconds": sum(entry["measurement"]["stage_seconds"].values()),
        "guards_a_call": sum(sum(each["kinds"].values()) for each in entry["measurement"]["guards"]),
    }
    for name, (low, high) in entry["spread"].items():
        assert low <= (entry["measurement"] | sums)[name] <= high
    assert entry["spread"]["ops_captured"] == [2.0, 2.0]
    low, high = entry["spread"]["cold_seconds"]
    assert low < high


def test_a_repeat_starts_from_a_clean_item(ran: Ran) -> None:
    held = ran.out[ran.out.index("_ test_held[capture] _") :]

    assert held.partition("\n_")[0].count("output of a repeat") == 1
    assert ran.junit.count('<property name="set up"') == 2  # test_held and test_plain, once each
    assert ran.junit.count("<testcase ") == 17


def test_only_repeats_that_agree_are_recorded(project: Project, ran: Ran) -> None:
    (file,) = project.folder.rglob("contracts/baselines/*/test_block.json")

    contracts = json.loads(file.read_text())["contracts"]
    lane = contracts["test_block.py::test_held"]["capture"]
    names = {name.rpartition("::")[2] for name in contracts}
    assert names == {name for name, (verdict, _, _) in VERDICTS.items() if verdict == "held"}
    assert lane["repeats"] == 3
    assert {"cold_seconds", "steady_seconds"} <= set(lane["spread"])
    assert "cold_seconds" not in lane["measurement"]
    assert ran.line("not recorded: test_block.py::test_swapped").startswith(
        "  not recorded: test_block.py::test_swapped [capture]: unstable: graph breaks: 1 in repeat 1, 1 in repeat 3"
    )
    assert ran.line("lanes: ") == "lanes: 4 held, 1 unmeasured, 4 unstable, 1 violated, 4 broken"
    assert ran.line("each lane") == "each lane was measured 3 times"


def test_a_part_under_xdist_that_stops_early_is_the_same(project: Project) -> None:
    names = "held or violated_the_first or in_a_class or bare or plain or other"

    both = project.run("--contract-repeat=2", "-k", names, "-n1", "--maxfail=1")

    assert both.entries["test_held"]["repeats"] == 2
    assert both.entries["test_violated_the_first_time"]["verdict"] == "unstable"
    assert Counter(both.outcomes.values())["FAILED"] == 1
    assert both.code != 0


def test_a_run_with_a_baseline_is_held_to_it(project: Project, ran: Ran) -> None:
    again = project.run("--contract-repeat=2", "-k", "test_held or test_unstable")

    assert again.line("baselines: compared 1 of 4 lanes").endswith(": 1 held")
    assert again.entries["test_unstable"]["verdict"] == "unstable"
    assert ran.code == again.code == pytest.ExitCode.TESTS_FAILED


def test_once_is_once(project: Project) -> None:
    once = project.run("-k", "test_held")

    entry = once.entries["test_held"]
    assert (entry["repeats"], entry["spread"]) == (1, {})
    assert once.line("each lane") == ""
    assert torch.__version__ in once.line("compile contracts on torch") or once.code == 0
