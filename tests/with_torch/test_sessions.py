"""Whole pytest sessions that hold contracts: what they print, write and return, in any order and under pytest-xdist.

One small project, run a few times: each session imports torch anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from support.sessions import run_session

from pytest_compilecontract.cli.main import main

pytestmark = pytest.mark.torch

RERUN = "python -m pytest --compile-contracts --contract-lanes=capture --"
PYPROJECT = """
[tool.compilecontract.lanes.nope]
requires = ["a_package_that_is_nowhere"]

[tool.compilecontract.lanes.far]
device = "cuda:99"

[tool.compilecontract.lanes.later]
dynamo = { a_setting_of_a_later_torch = 1 }

[tool.compilecontract.lanes.odd]
device = "tpu"

[tool.pytest.ini_options]
addopts = ["--strict-markers", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
"""

CONFTEST = """
import os

import pytest


def pytest_collection_modifyitems(items):
    # Inductor has no compiler in these sessions, so its lane is one that cannot run.
    os.environ["CXX"] = "/nonexistent"
    if os.environ.get("REVERSED"):
        items.reverse()


@pytest.fixture
def broken():
    raise RuntimeError("no fixture today")


@pytest.fixture
def breaks_down():
    yield
    raise RuntimeError("no end today")


@pytest.fixture
def measures(compile_lane):
    compile_lane.run(abs, (-1,))


@pytest.fixture
def measures_at_the_end(compile_lane):
    yield
    compile_lane.run(abs, (-1,))
"""

CONTRACTS = """
import pytest
import torch
from torch import nn

from pytest_compilecontract import compile_contract

pytestmark = compile_contract(max_graph_breaks=0, max_graphs=8, lanes=["capture"])
X = torch.ones(4)


def whole(x):
    return x.sin() + 1


def breaks(x):
    x = x.sin()
    torch._dynamo.graph_break()
    return x.cos()


def test_held(compile_lane):
    assert compile_lane.run(whole, (X,), (X,)).graphs == 1


@compile_contract(lanes=["eager", "capture", "inductor", "nope", "far", "later", "odd"])
def test_all_lanes(compile_lane):
    compile_lane.run(whole, (X,))


def test_violated(compile_lane):
    compile_lane.run(breaks, (X,), (X,))


def test_violated_and_asserts(compile_lane):
    compile_lane.run(breaks, (X,))
    assert X.sum() == 5, "my own assertion"


def test_violated_and_fails(compile_lane):
    compile_lane.run(breaks, (X,))
    pytest.fail("my own failure")


@pytest.mark.xfail(strict=True)
def test_expected_to_fail(compile_lane):
    compile_lane.run(breaks, (X,))


def test_skips_inside(compile_lane):
    compile_lane.run(whole, (X,))
    pytest.skip("not today")


def test_skips_after_a_violation(compile_lane):
    compile_lane.run(breaks, (X,))
    pytest.skip("not today")


@compile_contract(lanes=["capture", "aot"])
@pytest.mark.parametrize("which", ["1", "-1", "capture-aot"])
def test_ids(compile_lane, which):
    compile_lane.run(whole, (X,))


@pytest.mark.parametrize("size", [3, 5])
def test_sizes(compile_lane, size):
    compile_lane.run(whole, (torch.ones(size),))


def test_uses_nothing(compile_lane):
    pass


def test_without_its_fixture(compile_lane, broken):
    pass


def test_with_a_fixture_that_breaks_down(compile_lane, breaks_down):
    compile_lane.run(whole, (X,))


def test_measured_in_a_fixture(compile_lane, measures):
    pass


def test_measured_at_the_end(compile_lane, measures_at_the_end):
    compile_lane.run(whole, (X,))


def test_is_wrong(compile_lane):
    compile_lane.run(whole, 3)


def test_raises_in_eager_too(compile_lane):
    compile_lane.run(lambda x: x @ torch.ones(9), (X,))


@compile_contract(lanes=["capture", "aot"])
def test_trains(compile_lane):
    compile_lane.train(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), [(torch.rand(6, 4),)] * 3)


@compile_contract(max_recompiles=1, max_graphs=2)
class TestNearer:
    def test_class(self, compile_lane):
        compile_lane.run(whole, (X,), (torch.ones(5),), (torch.ones(6),))

    @compile_contract(max_recompiles=0)
    def test_function(self, compile_lane):
        compile_lane.run(whole, (X,), (torch.ones(5),))
"""

BARE = """
import threading
import unittest

import torch

from pytest_compilecontract import compile_contract


def compiles(size=4):
    return torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(size))


@compile_contract(max_graphs=1)
def test_bare_held():
    compiles()


@compile_contract(max_recompiles=0)
def test_bare_violated():
    compiled = torch.compile(lambda x: x.sin(), backend="eager")
    for size in (3, 4):
        compiled(torch.ones(size))


@compile_contract(max_graphs=1)
def test_bare_in_threads():
    threads = [threading.Thread(target=compiles, args=(size,)) for size in (3, 4)]
    for thread in threads:
        thread.start()
        thread.join()


@compile_contract
def test_bare_without_a_limit():
    compiles()


@compile_contract()
def test_bare_that_compiles_nothing():
    torch.ones(3).sin()


@compile_contract(max_graphs=0, min_ops_captured=0)
class TestUnit(unittest.TestCase):
    def test_violated(self):
        compiles()

    def test_violated_and_asserts(self):
        compiles()
        self.assertEqual(1, 2, "my own assertion")

    def test_skips(self):
        self.skipTest("not today")

    def test_skips_after_a_violation(self):
        compiles()
        self.skipTest("not today")

    @compile_contract(max_graphs=1)
    def test_held(self):
        compiles()


@compile_contract(max_graphs=0, min_ops_captured=0)
class TestExits:
    def test_exits_after_a_violation(self):
        compiles()
        raise SystemExit(3)
"""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One session: its exit code, what it printed, the receipt it wrote."""

    code: int
    out: str
    err: str
    file: Path

    @cached_property
    def receipt(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        return document

    @cached_property
    def entries(self) -> dict[str, dict[str, Any]]:
        return {each["test"].partition("::")[2]: each for each in self.receipt["entries"]}

    def section(self, test: str) -> list[str]:
        """What pytest prints of one failed test, below its headline."""
        after = re.split(rf"^_+ {re.escape(test)} _+$", self.out, flags=re.MULTILINE)[1]
        return re.split(r"^(?:_{5,}|={5,}) ", after, flags=re.MULTILINE)[0].strip().splitlines()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for name, text in {
        "pyproject.toml": PYPROJECT,
        "conftest.py": CONFTEST,
        "test_contracts.py": CONTRACTS,
        "test_bare.py": BARE,
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def session(project: Path, name: str, *options: str, **variables: str) -> Ran:
    environment = {**os.environ, **variables}
    environment.pop("PYTEST_ADDOPTS", None)
    report = f"{name}-report"
    command = [sys.executable, "-m", "pytest", "--compile-contracts", f"--contract-report={report}", *options]
    lanes = "--contract-lanes=eager,capture,aot,inductor,nope,far,later,odd"
    ran = run_session([*command, lanes], cwd=project, env=environment, timeout=300)
    return Ran(code=ran.returncode, out=ran.stdout, err=ran.stderr, file=project / report / "receipt.json")


@pytest.fixture(scope="module")
def plain(project: Path) -> Ran:
    return session(project, "plain")


@pytest.fixture(scope="module")
def in_reverse(project: Path) -> Ran:
    return session(project, "reverse", "-q", REVERSED="1")


@pytest.fixture(scope="module")
def spread(project: Path) -> Ran:
    pytest.importorskip("xdist")
    return session(project, "spread", "-n2", "-vv")


VERDICTS = {
    "test_held[capture]": "held",
    "test_all_lanes[eager]": "reference",
    "test_all_lanes[capture]": "held",
    "test_all_lanes[inductor]": "unmeasured",
    "test_all_lanes[nope]": "unmeasured",
    "test_all_lanes[far]": "unmeasured",
    "test_all_lanes[later]": "unmeasured",
    "test_all_lanes[odd]": "unmeasured",
    "test_violated[capture]": "violated",
    "test_violated_and_asserts[capture]": "violated",
    "test_violated_and_fails[capture]": "violated",
    "test_expected_to_fail[capture]": "violated",
    "test_skips_inside[capture]": "unmeasured",
    "test_skips_after_a_violation[capture]": "violated",
    "test_ids[capture-1]": "held",
    "test_ids[capture--1]": "held",
    "test_ids[capture-capture-aot]": "held",
    "test_ids[aot-1]": "held",
    "test_ids[aot--1]": "held",
    "test_ids[aot-capture-aot]": "held",
    "test_sizes[capture-3]": "held",
    "test_sizes[capture-5]": "held",
    "test_uses_nothing[capture]": "violated",
    "test_without_its_fixture[capture]": "broken",
    "test_with_a_fixture_that_breaks_down[capture]": "broken",
    "test_measured_in_a_fixture[capture]": "broken",
    "test_measured_at_the_end[capture]": "broken",
    "test_is_wrong[capture]": "broken",
    "test_raises_in_eager_too[capture]": "violated",
    "test_trains[capture]": "held",
    "test_trains[aot]": "held",
    "TestNearer::test_class[capture]": "held",
    "TestNearer::test_function[capture]": "violated",
    "test_bare_held": "held",
    "test_bare_violated": "violated",
    "test_bare_in_threads": "violated",
    "test_bare_without_a_limit": "held",
    "test_bare_that_compiles_nothing": "violated",
    "TestUnit::test_violated": "violated",
    "TestUnit::test_violated_and_asserts": "violated",
    "TestUnit::test_skips": "unmeasured",
    "TestUnit::test_skips_after_a_violation": "violated",
    "TestUnit::test_held": "held",
    "TestExits::test_exits_after_a_violation": "violated",
}


def test_the_verdict_of_each(plain: Ran) -> None:
    assert {test: each["verdict"] for test, each in plain.entries.items()} == VERDICTS
    assert plain.code == pytest.ExitCode.TESTS_FAILED


def test_what_pytest_counts(plain: Ran) -> None:
    last = plain.out.splitlines()[-1]

    assert re.findall(r"(\d+) (failed|passed|skipped|xfailed|error)", last) == [
        ("15", "failed"),
        ("19", "passed"),
        ("7", "skipped"),
        ("1", "xfailed"),
        ("4", "error"),
    ]


@pytest.mark.parametrize(
    ("test", "limits"),
    [
        ("test_held[capture]", {"max_graph_breaks": 0, "max_graphs": 8, "lanes": ["capture"]}),
        (
            "TestNearer::test_class[capture]",
            {"max_graph_breaks": 0, "max_graphs": 2, "max_recompiles": 1, "lanes": ["capture"]},
        ),
        (
            "TestNearer::test_function[capture]",
            {"max_graph_breaks": 0, "max_graphs": 2, "max_recompiles": 0, "lanes": ["capture"]},
        ),
        ("TestUnit::test_held", {"max_graphs": 1, "min_ops_captured": 0}),
    ],
)
def test_markers_combine_and_the_nearer_wins(plain: Ran, test: str, limits: dict[str, Any]) -> None:
    assert plain.entries[test]["limits"] == limits


@pytest.mark.parametrize(
    ("lane", "reason"),
    [
        ("nope", "package 'a_package_that_is_nowhere' is not installed"),
        ("far", "no CUDA device here|no device 'cuda:99' here .*"),
        ("later", r"torch \S+ has no setting torch._dynamo.config.a_setting_of_a_later_torch"),
        ("odd", "no device 'tpu' here .*"),
        ("inductor", r"Inductor needs a C\+\+ compiler on the CPU \(looked for /nonexistent\)"),
    ],
)
def test_a_lane_that_cannot_run_is_unmeasured_with_its_reason(plain: Ran, lane: str, reason: str) -> None:
    entry = plain.entries[f"test_all_lanes[{lane}]"]

    assert re.fullmatch(reason, entry["reason"])
    assert entry["measurement"] is None
    summary = " ".join(plain.out[plain.out.index("unmeasured, so not held:") :].split())
    assert re.search(rf" {lane} \(test_contracts.py::test_all_lanes\): ({reason}) ", summary)


def test_a_skip_inside_is_unmeasured(plain: Ran) -> None:
    assert plain.entries["test_skips_inside[capture]"]["reason"] == "not today"
    assert plain.entries["TestUnit::test_skips"]["reason"] == "not today"


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("test_without_its_fixture", "the test failed in setup: RuntimeError: no fixture today"),
        ("test_with_a_fixture_that_breaks_down", "the test failed in teardown: RuntimeError: no end today"),
        (
            "test_is_wrong",
            "the test failed in call: Failed: compile_lane.run: call 0 is 'int' (expected a tuple of arguments "
            "such as `(x,)`, or call(...))",
        ),
    ],
)
def test_a_test_that_fails_by_itself_is_broken(plain: Ran, test: str, reason: str) -> None:
    assert plain.entries[f"{test}[capture]"]["reason"] == reason


def test_the_lane_is_named_in_no_contract_and_nothing_else_is_lost(plain: Ran) -> None:
    found = sorted((each["contract"], each["lane"]) for test, each in plain.entries.items() if "test_ids" in test)

    assert found == [
        (f"test_contracts.py::test_ids[{which}]", lane)
        for which in ("-1", "1", "capture-aot")
        for lane in ("aot", "capture")
    ]


def test_a_skip_does_not_hide_a_violation(plain: Ran) -> None:
    assert plain.section("test_skips_after_a_violation[capture]")[:3] == [
        "max_graph_breaks: 1 > 0",
        "compile contract violated: test_contracts.py::test_skips_after_a_violation, lane capture (1 violation)",
        "  max_graph_breaks=0: measured 1",
    ]


def test_a_skip_of_unittest_does_not_hide_a_violation(plain: Ran) -> None:
    assert plain.section("TestUnit.test_skips_after_a_violation")[1:3] == [
        "compile contract violated: test_bare.py::TestUnit::test_skips_after_a_violation, lane body (1 violation)",
        "  max_graphs=0: measured 1",
    ]


@pytest.mark.parametrize(
    "title",
    [
        "ERROR at setup of test_measured_in_a_fixture[capture]",
        "ERROR at teardown of test_measured_at_the_end[capture]",
        "test_is_wrong[capture]",
    ],
)
def test_what_a_test_asks_in_vain_is_one_line(plain: Ran, title: str) -> None:
    (line,) = plain.section(title)

    assert line.startswith("compile_lane")


def test_what_was_measured_before_the_fixture_broke_down_is_kept(plain: Ran) -> None:
    assert plain.entries["test_with_a_fixture_that_breaks_down[capture]"]["measurement"]["graphs"] == 1


def test_a_test_that_uses_nothing_of_the_lane(plain: Ran) -> None:
    assert plain.section("test_uses_nothing[capture]") == [
        "something to measure: the test measured nothing with compile_lane",
        "compile contract violated: test_contracts.py::test_uses_nothing, lane capture (1 violation)",
        "  something to measure: the test measured nothing with compile_lane",
        "rerun this lane alone:",
        f"{RERUN} 'test_contracts.py::test_uses_nothing[capture]'",
    ]


def test_a_failure_is_a_few_lines_and_no_traceback(plain: Ran) -> None:
    lines = plain.section("test_violated[capture]")

    assert lines[:4] == [
        "max_graph_breaks: 1 > 0",
        "compile contract violated: test_contracts.py::test_violated, lane capture (1 violation)",
        "  max_graph_breaks=0: measured 1",
        "    test_contracts.py:18 in breaks: torch._dynamo.graph_break()",
    ]
    assert lines[-2:] == [
        "rerun this lane alone:",
        f"{RERUN} 'test_contracts.py::test_violated[capture]'",
    ]
    assert len(lines) <= 25


def test_no_noise_of_torchs_trace(plain: Ran) -> None:
    assert "__trace" not in plain.out
    assert "pytest_compilecontract/" not in plain.out


@pytest.mark.parametrize(
    ("test", "own"),
    [
        ("test_violated_and_asserts[capture]", "E       AssertionError: my own assertion"),
        ("test_violated_and_fails[capture]", "E       Failed: my own failure"),
        ("TestUnit.test_violated_and_asserts", "E       AssertionError: 1 != 2 : my own assertion"),
        ("TestExits.test_exits_after_a_violation", "E       SystemExit: 3"),
    ],
)
def test_a_failure_of_the_tests_own_is_shown_with_the_violation(plain: Ran, test: str, own: str) -> None:
    lines = plain.section(test)

    assert own in lines
    assert [line for line in lines if line.startswith("compile contract violated: ")]


def test_a_bare_test_is_measured(plain: Ran) -> None:
    assert plain.section("test_bare_violated")[:4] == [
        "max_recompiles: 1 > 0",
        "compile contract violated: test_bare.py::test_bare_violated, lane body (1 violation)",
        "  max_recompiles=0: measured 1",
        "    test_bare.py:21 in <lambda>: dynamic recompile",
    ]


def test_a_bare_test_that_compiles_nothing_is_not_held(plain: Ran) -> None:
    assert plain.entries["test_bare_that_compiles_nothing"]["reason"] == "min_ops_captured=1 (default): 0"


def test_threads_of_a_bare_test_are_measured(plain: Ran) -> None:
    assert plain.entries["test_bare_in_threads"]["measurement"]["graphs"] == 2


def test_the_summary(plain: Ran) -> None:
    summary = plain.out[plain.out.index("= compile contracts on torch ") :].splitlines()

    assert re.fullmatch(r"=+ compile contracts on torch \S+: 12 of 34 held, 7 lanes unmeasured =+", "=" + summary[0])
    assert "unmeasured, so not held:" in summary
    assert "lanes: 16 held, 7 unmeasured, 15 violated, 5 broken" in summary
    assert any(line.startswith("receipt: ") and line.endswith("plain-report/receipt.json") for line in summary)
    assert any(line.startswith("page: ") and line.endswith("plain-report/index.html") for line in summary)


def test_the_page_has_the_users_own_lines(plain: Ran, project: Path) -> None:
    page = (project / "plain-report" / "index.html").read_text(encoding="utf-8")

    assert "12 of 34 contracts hold" in page
    assert "python -m pytest --compile-contracts" in page
    assert '"def test_violated(compile_lane):"' in page


def test_quiet_is_shorter_and_verbose_says_more(plain: Ran, in_reverse: Ran, spread: Ran) -> None:
    quiet = in_reverse.out[in_reverse.out.index("= compile contracts on torch ") :]
    verbose = spread.out[spread.out.index("= compile contracts on torch ") :]

    assert "violated test_contracts.py::test_violated [capture]: max_graph_breaks=0: 1" in quiet.splitlines()
    assert "test_held" not in quiet
    assert "  held        capture   1 graph, 0 breaks, 0 recompiles, 2 ops, 2 executed" in verbose
    assert re.search(r"^\d+ facts? that no limit forbids:$", verbose, flags=re.MULTILINE)


def test_the_receipt_matches_its_schema(plain: Ran, spread: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["validate", str(plain.file), str(spread.file)])

    assert capsys.readouterr().out.count("matches the schema (format 1, 44 entries)") == 2
    assert code == 0


def test_the_receipt_names_its_environment(plain: Ran) -> None:
    import torch

    (environment,) = plain.receipt["environments"].values()
    assert environment["torch"] == torch.__version__
    assert str(Path.home()) not in plain.file.read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------------------
# The same, whatever the order and the process


def without_times(entry: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in entry.items() if name not in ("seconds", "worker")}
    if kept["measurement"] is not None:
        measurement = {name: value for name, value in kept["measurement"].items() if not name.endswith("_seconds")}
        for each in measurement["calls"] or ():
            each["seconds"] = 0
        kept["measurement"] = measurement
    return kept


def differing(one: Ran, other: Ran) -> dict[str, list[tuple[str, Any, Any]]]:
    """By test of `other`, the facts in which the two receipts differ."""
    found: dict[str, list[tuple[str, Any, Any]]] = {}
    for test, theirs in other.entries.items():
        ours, theirs = _flat(without_times(one.entries[test])), _flat(without_times(theirs))
        facts = [
            (at, ours.get(at), theirs.get(at)) for at in sorted({*ours, *theirs}) if ours.get(at) != theirs.get(at)
        ]
        if facts:
            found[test] = facts
    return found


def _flat(entry: dict[str, Any]) -> dict[str, Any]:
    measurement = entry.pop("measurement") or {}
    return {**entry, **{f"measurement.{name}": value for name, value in measurement.items()}}


def test_in_reverse_order_nothing_differs(plain: Ran, in_reverse: Ran) -> None:
    assert in_reverse.entries.keys() == plain.entries.keys()
    assert differing(plain, in_reverse) == {}


def test_on_two_workers_nothing_differs(plain: Ran, spread: Ran) -> None:
    assert spread.entries.keys() == plain.entries.keys()
    assert differing(plain, spread) == {}
    assert spread.code == plain.code


def test_on_two_workers_the_receipt_names_them(plain: Ran, spread: Ran) -> None:
    assert {each["worker"] for each in plain.entries.values()} == {""}
    assert set(Counter(each["worker"] for each in spread.entries.values())) == {"gw0", "gw1"}


@pytest.mark.parametrize("test", ["test_contracts.py::TestNearer::test_function[capture]"])
def test_alone_nothing_differs(project: Path, plain: Ran, test: str) -> None:
    alone = session(project, "alone", test)

    assert list(alone.entries) == [test.partition("::")[2]]
    assert differing(plain, alone) == {}


def test_a_contract_that_takes_its_process_with_it_is_broken(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (tmp_path / "test_dies.py").write_text(
        "import os\n\n\ndef test_dies(compile_lane):\n    os._exit(3)\n", encoding="utf-8"
    )

    died = session(tmp_path, "died", "-n1", "-k", "capture", "--max-worker-restart=0")

    (entry,) = died.receipt["entries"]
    reason = "worker 'gw0' crashed while running 'test_dies.py::test_dies[capture]'"
    assert (entry["contract"], entry["lane"]) == ("test_dies.py::test_dies", "capture")
    assert (entry["verdict"], entry["reason"]) == ("broken", reason)
    assert ": 0 of 1 held =" in died.out
    assert died.code != pytest.ExitCode.OK


def test_it_stops_at_the_first_failure_without_a_terminal(project: Path) -> None:
    stopped = session(project, "stopped", "-x", "-p", "no:terminal", "-k", "test_held or test_violated or test_sizes")

    assert (stopped.out, stopped.code) == ("", pytest.ExitCode.TESTS_FAILED)
    verdicts = {test: each["verdict"] for test, each in stopped.entries.items()}
    assert list(verdicts.values()).count("violated") == 1
    assert len(verdicts) < 4


DIES = """
import os
import time

import torch


def test_held(compile_lane):
    compile_lane.run(torch.sin, (torch.ones(2),))


def test_dies(compile_lane):
    os._exit(3)


def test_hangs(compile_lane):
    for _ in range(600):
        time.sleep(0.1)
"""


def test_a_run_that_is_killed_names_the_lane_and_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (tmp_path / "test_dies.py").write_text(DIES, encoding="utf-8")

    died = session(tmp_path, "died", "-p", "no:xdist", "-k", "capture")

    assert died.code == 3
    assert not died.file.exists()
    assert main(["recover", str(died.file.parent)]) == 0
    assert "the process ended while this lane ran: test_dies.py::test_dies[capture]\n" in capsys.readouterr().out
    assert {name: each["verdict"] for name, each in died.entries.items()} == {
        "test_held[capture]": "held",
        "test_dies[capture]": "broken",
    }


@pytest.mark.parametrize("how", ["os._exit(3)", "pytest.exit('enough')"], ids=["killed", "interrupted"])
def test_a_run_whose_first_lane_ends_it_says_on_which_torch(tmp_path: Path, how: str) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    contracts = f"import os, pytest\n\n\ndef test_ends_it(compile_lane):\n    {how}\n"
    (tmp_path / "test_ends.py").write_text(contracts, encoding="utf-8")

    ended = session(tmp_path, "ended", "-p", "no:xdist", "-k", "capture")

    if not ended.file.exists():
        assert main(["recover", str(ended.file.parent)]) == 0
    (entry,) = ended.entries.values()
    assert ended.receipt["environments"][entry["environment"]]["torch"].startswith("2.")


def test_a_lane_that_hangs_is_broken_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (tmp_path / "test_hangs.py").write_text(DIES, encoding="utf-8")

    hung = session(tmp_path, "hung", "--contract-timeout=8", "-k", "capture and not test_dies")

    assert {name: each["verdict"] for name, each in hung.entries.items()} == {
        "test_held[capture]": "held",
        "test_hangs[capture]": "broken",
    }
    assert hung.entries["test_hangs[capture]"]["reason"] == (
        "the test failed in call: Failed: did not end within 8 s (--contract-timeout), "
        "at test_hangs.py:18 in test_hangs"
    )
    assert hung.code == pytest.ExitCode.TESTS_FAILED


WITHOUT_NUMPY = """
import sys

sys.modules["numpy"] = None
"""
NEEDS_NOTHING = """
import torch
from torch import nn


def test_dropout(compile_lane):
    seen = compile_lane.run(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), (torch.ones(2, 4),), (torch.ones(2, 4),))

    assert seen.graphs == 1


def test_training(compile_lane):
    compile_lane.train(nn.Linear(4, 4), [(torch.ones(2, 4),)] * 2)


def test_numpy_is_not_there():
    try:
        torch.ones(1).numpy()
    except RuntimeError:
        return
    raise AssertionError("NumPy is there")
"""


def test_torch_without_numpy_is_enough(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(WITHOUT_NUMPY, encoding="utf-8")
    (tmp_path / "test_model.py").write_text(NEEDS_NOTHING, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "--compile-contracts", "--contract-lanes=capture,aot"]

    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)

    assert ran.returncode == 0, ran.stdout
    assert "5 passed" in ran.stdout
