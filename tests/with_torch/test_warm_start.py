"""Warm starts, whole sessions: what a second process compiles again is measured, held to limits, and never guessed."""

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

pytestmark = pytest.mark.sessions

SETTINGS = """
[tool.compilecontract.lanes.slow]
backend = "slow"
"""
CONFTEST = """
import functools
import os
import time
from pathlib import Path

import torch
import torch._inductor.cpu_vec_isa as processor

BEGAN_WITH = os.environ.get("OF_A_BODY", "nothing")


def check_build(self, code):
    with (Path(__file__).parent / "processor.log").open("a") as log:
        log.write(f"{os.getpid()} ")
    return False


@functools.cache
def search():
    processor.VecAVX2().check_build("a program")
    return []


processor.VecISA.check_build = check_build
processor.valid_vec_isa_list = search


@torch._dynamo.register_backend
def slow(graph, inputs):
    time.sleep(0.5)
    return graph.forward
"""
CONTRACTS = """
import os
from pathlib import Path

import pytest
import torch
from conftest import BEGAN_WITH
from torch import nn

from pytest_compilecontract import compile_contract

HERE = Path(__file__).parent
X = torch.ones(4, 4)


def grown(x):
    return torch.relu(x) + 1


def other(x):
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


def is_second(name):
    \"\"\"Whether another process has been here; this one leaves its mark.\"\"\"
    mark = HERE / f"{name}.mark"
    if mark.exists() and mark.read_text() != str(os.getpid()):
        return True
    mark.write_text(str(os.getpid()))
    return False


def a_pass(graph):
    pass


@compile_contract(lanes=["inductor", "capture"], max_warm_misses=0, max_warm_seconds=600)
def test_holds(compile_lane):
    compile_lane.train(nn.Linear(4, 4), [(X,)] * 2)


@compile_contract(lanes=["inductor"], max_warm_misses=0)
def test_is_compiled_again(compile_lane):
    with torch._inductor.config.patch(post_grad_custom_post_pass=a_pass):
        compile_lane.run(grown, X)


@compile_contract(lanes=["inductor"], max_warm_misses=0)
def test_keeps_nothing(compile_lane):
    # The second process gets other code to compile, as where a constant is read from the clock.
    factor = 3 if is_second("keeps") else 2
    compile_lane.run(lambda x: x * factor, X)


@compile_contract(lanes=["inductor"], max_warm_misses=0)
def test_needs_a_backward_and_has_none(compile_lane):
    compile_lane.run(nn.Linear(4, 4), X)


@compile_contract(lanes=["inductor"], max_warm_misses=0, max_warm_seconds=600)
def test_compiles_something_else(compile_lane):
    compile_lane.run(other if is_second("else") else grown, X)


@compile_contract(lanes=["inductor"], max_warm_misses=0, max_warm_seconds=600)
def test_fails_the_second_time(compile_lane):
    compile_lane.run(grown, X)
    assert not is_second("fails"), "only once"


@compile_contract(lanes=["inductor"], max_warm_misses=0)
def test_leaves_a_variable(compile_lane, monkeypatch):
    factor = 2 if BEGAN_WITH == "nothing" else 3
    compile_lane.run(lambda x: x * factor, X)
    monkeypatch.setenv("OF_A_BODY", "something")


@compile_contract(max_warm_misses=0)
def test_compiles_by_itself():
    torch.compile(grown)(X)


@compile_contract(lanes=["inductor"])
def test_asks_for_nothing(compile_lane):
    compile_lane.run(grown, X)
"""
SLOW = """
import torch

from pytest_compilecontract import compile_contract


def grown(x):
    return torch.relu(x) + 1


@compile_contract(lanes=["slow"], max_cold_seconds=0.1)
def test_is_too_slow(compile_lane):
    compile_lane.run(grown, torch.ones(4))


@compile_contract(lanes=["slow"], max_cold_seconds=600)
def test_is_fast_enough(compile_lane):
    compile_lane.run(grown, torch.ones(4))


@compile_contract(lanes=["inductor"], max_warm_seconds=0.0001)
def test_restarts_too_slowly(compile_lane):
    compile_lane.run(grown, torch.ones(4))
"""


def of_a_session(folder: Path, contracts: str, *options: str) -> str:
    (folder / "pyproject.toml").write_text(SETTINGS, encoding="utf-8")
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (folder / "test_of_budgets.py").write_text(contracts, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--compile-contracts", "-p", "no:cacheprovider"]
    lanes = "--contract-lanes=capture,inductor,slow"
    done = run_session(
        [*command, lanes, "--contract-report=report", *options, "test_of_budgets.py"],
        cwd=folder,
        env=dict(os.environ),
        timeout=1200,
    )
    return str(done.stdout)


def entries_in(folder: Path) -> dict[str, dict[str, Any]]:
    receipt = json.loads((folder / "report" / "receipt.json").read_text(encoding="utf-8"))
    return {f"{each['contract'].rpartition('::')[2]}[{each['lane']}]": each for each in receipt["entries"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, said = made_once(tmp_path_factory, "warm", lambda folder: of_a_session(folder, CONTRACTS))
    assert "report" in said
    return folder


@pytest.fixture(scope="module")
def once(made: Path) -> dict[str, dict[str, Any]]:
    return entries_in(made)


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder, said = made_once(
        tmp_path_factory, "repeated", lambda folder: of_a_session(folder, SLOW, "--contract-repeat=3")
    )
    assert "report" in said
    return entries_in(folder)


def test_a_restart_that_finds_all_in_the_caches_holds(once: dict[str, Any]) -> None:
    entry = once["test_holds[inductor]"]
    first, warm = entry["measurement"], entry["measurement"]["warm"]

    assert (entry["verdict"], entry["reason"]) == ("held", "")
    assert first["caches"]["fx_graph_miss"] == 2
    assert (warm["caches"]["fx_graph_miss"], warm["caches"]["aot_autograd_miss"]) == (0, 0)
    assert warm["caches"]["aot_autograd_hit"] == 1
    # Dynamo keeps nothing.
    assert warm["frames"] == first["first_compiles"] == 1
    assert sum(warm["stage_seconds"].values()) > 0


def test_a_lane_without_compile_caches_starts_nothing_again(once: dict[str, Any]) -> None:
    entry = once["test_holds[capture]"]

    assert entry["verdict"] == "held"
    assert entry["measurement"]["warm"] is None
    assert "max_warm_misses is not judged: only Inductor's graphs are in torch's compile caches" in entry["reason"]


def test_what_no_cache_takes_is_compiled_again_and_told_why(once: dict[str, Any]) -> None:
    (violation,) = once["test_is_compiled_again[inductor]"]["violations"]

    assert (violation["name"], violation["measured"]) == ("max_warm_misses", 2)
    assert [fact[0].partition(":")[0] for fact in violation["facts"]] == ["AOTAutograd cache", "FX graph cache"]
    assert all("post grad custom pass" in fact[0] for fact in violation["facts"])


def test_code_that_differs_in_each_process_is_missed_by_the_caches(once: dict[str, Any]) -> None:
    (violation,) = once["test_keeps_nothing[inductor]"]["violations"]

    assert (violation["name"], violation["measured"]) == ("max_warm_misses", 2)
    assert violation["facts"] == [
        ["FX graph cache: 1 looked up and not found"],
        ["AOTAutograd cache: 1 looked up and not found"],
    ]


def test_a_forward_that_torch_never_kept_is_told_as_that(once: dict[str, Any]) -> None:
    (violation,) = once["test_needs_a_backward_and_has_none[inductor]"]["violations"]

    assert (violation["name"], violation["measured"]) == ("max_warm_misses", 1)
    assert violation["facts"] == [
        ["AOTAutograd cache: 1 looked up and not found"],
        [
            "the first process kept 0 of 1 graph there: torch keeps one that needs gradients only once its backward "
            "is compiled, as compile_lane.train does"
        ],
    ]


def test_a_second_process_that_compiles_something_else_holds_no_limit(once: dict[str, Any]) -> None:
    entry = once["test_compiles_something_else[inductor]"]

    assert [each["name"] for each in entry["violations"]] == ["max_warm_misses", "max_warm_seconds"]
    assert "the second process compiled something else: graphs, graph breaks differ" in entry["reason"]


def test_a_second_process_that_fails_holds_no_limit(once: dict[str, Any]) -> None:
    entry = once["test_fails_the_second_time[inductor]"]

    assert [each["name"] for each in entry["violations"]] == ["max_warm_misses", "max_warm_seconds"]
    assert "the second process failed: AssertionError: only once" in entry["reason"]


def test_a_second_process_begins_with_the_variables_that_the_first_began_with(once: dict[str, Any]) -> None:
    entry = once["test_leaves_a_variable[inductor]"]

    assert (entry["verdict"], entry["reason"]) == ("held", "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the first process has not asked")
def test_second_processes_are_told_what_the_first_has_found_out_of_the_processor(
    once: dict[str, Any], made: Path
) -> None:
    asked = (made / "processor.log").read_text(encoding="utf-8").split()

    assert len(asked) == 1


def test_a_test_that_compiles_by_itself_is_started_again_too(once: dict[str, Any]) -> None:
    entry = once["test_compiles_by_itself[body]"]

    assert entry["verdict"] == "held"
    assert entry["measurement"]["warm"]["caches"]["aot_autograd_hit"] == 1


def test_nothing_is_started_again_that_nobody_asked_for(once: dict[str, Any]) -> None:
    measured = once["test_asks_for_nothing[inductor]"]["measurement"]

    assert measured["warm"] is None
    assert "warm" not in measured["unmeasured"]


def test_a_backend_that_is_slower_than_the_limit_each_time_violates_it(repeated: dict[str, Any]) -> None:
    slow, fast = repeated["test_is_too_slow[slow]"], repeated["test_is_fast_enough[slow]"]
    (violation,) = slow["violations"]

    assert (slow["verdict"], fast["verdict"]) == ("violated", "held")
    assert (violation["limit"], violation["bound"]) == ("max_cold_seconds=0.1", 0.1)
    assert "s in 3 repeats, median" in violation["measured"]
    assert slow["spread"]["compile_seconds"][0] >= 0.5


def test_each_repeat_is_started_again_from_its_own_caches(repeated: dict[str, Any]) -> None:
    entry = repeated["test_restarts_too_slowly[inductor]"]

    # Of a machine that is busy, the repeats may be too far apart to tell.
    assert entry["verdict"] in ("violated", "unverified")
    assert entry["reason"].startswith("max_warm_seconds=0.0001: ")
    assert "s in 3 repeats, median" in entry["reason"]
    assert entry["measurement"]["caches"]["fx_graph_miss"] == 1
    assert {*entry["spread"]} >= {"compile_seconds", "warm_seconds"}
