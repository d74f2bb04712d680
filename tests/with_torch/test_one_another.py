"""What tests, lanes, ranks and a project do to one another: whole sessions, each in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.sessions import run_session

from pytest_compilecontract.files.journal import Journal
from pytest_compilecontract.files.run_log import is_held

pytestmark = pytest.mark.torch

PLAIN = """
import os
import unittest

import pytest
import torch
from pytest_compilecontract import compile_contract


def f(x):
    return torch.relu(x) + 1


def compiles():
    torch.compile(f, backend="eager")(torch.ones(3))

"""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A session that has ended: its exit code, what it printed, and its entries by test."""

    code: int
    text: str
    entries: dict[str, dict[str, Any]]

    @property
    def verdicts(self) -> dict[str, str]:
        return {test.partition("::")[2]: entry["verdict"] for test, entry in self.entries.items()}


def session(folder: Path, test: str, *options: str, files: dict[str, str] | None = None, **variables: str) -> Ran:
    for name, text in {"pyproject.toml": "", "test_x.py": PLAIN + test, **(files or {})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "--compile-contracts", "--contract-report=r", "-p", "no:cacheprovider"]
    ended = run_session([*command, *options], cwd=folder, env=os.environ | variables)
    receipts = [json.loads(each.read_text()) for each in (folder / "r").rglob("receipt.json")]
    entries = {each["test"]: each for receipt in receipts for each in receipt["entries"]}
    return Ran(code=ended.returncode, text=ended.stdout + ended.stderr, entries=entries)


# Lanes


LADDERS = """
CALLS = [(torch.ones([2] * n),) for n in range(1, 11)]  # torch's limit is 8


@compile_contract(frontier=["capture", "patient"], min_frontier="capture")
def test_no_limit_of_the_top(compile_lane):
    compile_lane.run(f, *CALLS)


@compile_contract(frontier=["capture", "hasty"], min_frontier="capture")
def test_no_patience_of_the_top(compile_lane):
    compile_lane.run(f, *CALLS[:4])


@pytest.mark.parametrize("lane", ["capture", "patient"])
def test_settings_are_those_of_the_lane(compile_lane, lane):
    pytest.skip("of another lane") if compile_lane.name != lane else None
    assert torch._dynamo.config.recompile_limit == {"capture": 8, "patient": 64}[lane]
    compile_lane.run(f, (torch.ones(3),))
"""
LANES = """
[tool.compilecontract.lanes.patient]
backend = "eager"
dynamo = { recompile_limit = 64 }

[tool.compilecontract.lanes.hasty]
backend = "eager"
dynamo = { recompile_limit = 2 }
"""


@pytest.mark.parametrize("options", [(), ("--contract-repeat=2",), ("--contract-bisect",)])
def test_each_rung_has_its_own_settings(tmp_path: Path, options: tuple[str, ...]) -> None:
    ran = session(tmp_path, LADDERS, *options, "-k", "top", files={"pyproject.toml": LANES})

    steps = {
        test.partition("::")[2].partition("[")[0]: [each["verdict"] for each in entry["frontier"]["steps"]]
        for test, entry in ran.entries.items()
    }
    assert steps == {
        "test_no_limit_of_the_top": ["failed", "not reached"],
        "test_no_patience_of_the_top": ["held", "failed"],
    }
    assert ran.code == 1


KILLED = """
@pytest.mark.parametrize("x", ["bf16", "y"])
def test_f(compile_lane, x):
    if (compile_lane.name, x) in (("fast-bf16", "y"), ("fast", "bf16")):
        os._exit(1)
    compile_lane.run(f, (torch.ones(3),))


@pytest.fixture
def dies():
    os._exit(1)


def test_in_a_fixture(compile_lane, dies):
    pass
"""


def test_a_killed_worker_says_which_lane_it_ran(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    lanes = "".join(f'[tool.compilecontract.lanes.{name}]\nbackend = "eager"\n' for name in ("fast", "fast-bf16"))

    ran = session(tmp_path, KILLED, "-n1", "--contract-lanes=fast-bf16,fast", files={"pyproject.toml": lanes})

    found = {(each["contract"], each["lane"]): each["verdict"] for each in ran.entries.values()}
    assert found == {
        ("test_x.py::test_f[bf16]", "fast"): "broken",
        ("test_x.py::test_f[y]", "fast"): "held",
        ("test_x.py::test_f[bf16]", "fast-bf16"): "held",
        ("test_x.py::test_f[y]", "fast-bf16"): "broken",
        ("test_x.py::test_in_a_fixture", "fast"): "broken",
        ("test_x.py::test_in_a_fixture", "fast-bf16"): "broken",
    }
    assert {each["environment"] == "unknown" for each in ran.entries.values()} == {False}


# One test and the next, and the project around them


NEXT = """
@compile_contract(lanes=["capture"])
def test_a(compile_lane):
    torch._dynamo.config.disable = True
    compile_lane.run(f, (torch.ones(3),))


@compile_contract(lanes=["capture"])
def test_b(compile_lane):
    compile_lane.run(f, (torch.ones(3),), (torch.ones(3),))
"""


def test_the_next_test_is_not_blamed(tmp_path: Path) -> None:
    ran = session(tmp_path, NEXT)

    assert ran.verdicts == {"test_a[capture]": "violated", "test_b[capture]": "held"}
    said = "torch._dynamo.config.disable, turns torch.compile off"
    assert said in ran.entries["test_x.py::test_a[capture]"]["reason"]


AMBIENT = """
@compile_contract()
def test_bare():
    assert not torch.is_grad_enabled() and torch.get_default_dtype() == torch.float64
    compiles()


@compile_contract(lanes=["capture"])
def test_lane(compile_lane):
    assert torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32
    compile_lane.run(f, (torch.ones(3),))


@compile_contract()
class TestAll:
    def test_ordinary(self):
        pass

    def test_compiles(self):
        compiles()
"""
SET = """
import torch
torch.compiler.set_stance("force_eager")
torch.set_grad_enabled(False)
torch.set_default_dtype(torch.float64)
"""


def test_what_the_project_has_set_is_a_bare_tests_own_and_a_lane_says_what_it_replaced(tmp_path: Path) -> None:
    ran = session(tmp_path, AMBIENT, files={"conftest.py": SET})

    assert ran.code == 1
    assert ran.verdicts == {"test_bare": "violated", "test_lane[capture]": "held", "TestAll::test_compiles": "violated"}
    assert ran.entries["test_x.py::test_lane[capture]"]["reason"].split("; ") == [
        "the stance is 'force_eager' outside the test and 'default' in the lane",
        "gradients are off outside the test and on in the lane",
        "the default dtype is torch.float64 outside the test and torch.float32 in the lane",
    ]
    assert "set differently in the lane: the stance is 'force_eager'" in ran.text


@pytest.mark.parametrize(
    ("replaced", "by"),
    [
        pytest.param("torch.compile = lambda f=None, **k: f", "conftest.<lambda> (conftest.py:4)", id="a no-op"),
        pytest.param("torch.compile = unittest.mock.Mock()", "a unittest.mock.Mock", id="a mock"),
        pytest.param("torch.compile = functools.partial(torch.compile)", "a functools.partial", id="a partial"),
        pytest.param(
            "torch.compile = functools.wraps(torch.compile)(lambda *a, **k: a[0])",
            "conftest.<lambda> (conftest.py:4)",
            id="what torch's name was given to",
        ),
    ],
)
def test_what_stands_in_the_place_of_torch_compile_is_named(tmp_path: Path, replaced: str, by: str) -> None:
    conftest = f"import functools\nimport torch\nimport unittest.mock\n{replaced}\n"
    test = "def test_a(compile_lane):\n    compile_lane.run(f, (torch.ones(3),))\n"

    ran = session(tmp_path, test, "--contract-lanes=capture", files={"conftest.py": conftest})

    assert (ran.code, ran.verdicts) == (1, {"test_a[capture]": "broken"})
    assert f"torch.compile has been replaced by {by}: a lane needs torch's own" in ran.text


# Names and folders


def test_two_tests_of_one_name_are_refused(tmp_path: Path) -> None:
    test = PLAIN + "@compile_contract(lanes=['capture'])\ndef test_a(compile_lane): ...\n"
    (tmp_path / "root").mkdir()
    files = {"t/test_one.py": test, "t/test_two.py": test}

    ran = session(tmp_path, "", "--rootdir=root", "t/test_one.py", "t/test_two.py", files=files)

    assert (ran.code, ran.entries) == (4, {})
    assert f"two tests have this name (in {tmp_path}/t/test_one.py and in {tmp_path}/t/test_two.py)" in ran.text


def test_ranks_write_to_folders_of_their_own(tmp_path: Path) -> None:
    test = "\ndef test_a(compile_lane):\n    compile_lane.run(f, (torch.ones(3),))\n"
    for rank in ("0", "1"):
        ran = session(
            tmp_path,
            "",
            "--contract-lanes=capture",
            "--contract-record=all",
            f"test_{rank}.py",
            files={f"test_{rank}.py": PLAIN + test},
            RANK=rank,
            WORLD_SIZE="2",
        )

    assert sorted(ran.entries) == ["test_0.py::test_a[capture]", "test_1.py::test_a[capture]"]
    assert [each.stem for each in (tmp_path / "contracts" / "baselines").rglob("test_*.json")] == ["test_0"]
    assert (
        "RANK=1: what this process measured goes to a folder of its own, and to the receipt of all ranks beside it; "
        "the baselines are those of rank 0" in ran.text
    )


def test_a_folder_that_another_session_writes_to_is_held(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    before = is_held(path)
    code = (
        "import sys\nfrom pathlib import Path\nfrom pytest_compilecontract.files.journal import Journal\n"
        f"journal = Journal(Path({str(path)!r}), plugin='1', created='now')\nprint(flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        during = is_held(path)
        other.kill()

    assert (before, during, is_held(path)) == (False, sys.platform != "win32", False)


def test_a_journal_of_ones_own_goes_with_the_receipt(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", plugin="1", created="now")
    journal.leave()

    assert not (tmp_path / "journal.jsonl").exists()


# What pytest makes of a test


OUTCOMES = """
@pytest.mark.xfail(strict=True)
def test_observed_xpass():
    compiles()


@compile_contract()
@pytest.mark.xfail(strict=True)
def test_bare_xpass():
    compiles()


@compile_contract(lanes=["capture"])
@pytest.mark.xfail(strict=True)
def test_lane_xpass(compile_lane):
    compile_lane.run(f, (torch.ones(3),))


@compile_contract(lanes=["capture"])
def test_xfail_inside(compile_lane):
    compile_lane.run(f, (torch.ones(3),))
    pytest.xfail("known")


@pytest.fixture
def skips_after():
    yield
    pytest.skip("late")


@compile_contract(lanes=["capture"])
def test_skips_late(compile_lane, skips_after):
    compile_lane.run(f, (torch.ones(3),))


@compile_contract(lanes=["capture"])
def test_fails_and_skips_late(compile_lane, skips_after):
    compile_lane.run(f, (torch.ones(3),))
    assert 0


@compile_contract(lanes=["capture"], max_graphs=0)
def test_violated_and_cut_short(compile_lane):
    compile_lane.run(f, (torch.ones(3),))
    assert 0


class TestObserved(unittest.TestCase):
    @unittest.expectedFailure
    def test_success(self):
        compiles()

    def test_sub(self):
        with self.subTest(i=1):
            compiles()
            self.fail("sub")


@compile_contract()
class TestBare(unittest.TestCase):
    @unittest.expectedFailure
    def test_success(self):
        compiles()

    @unittest.expectedFailure
    def test_failure(self):
        compiles()
        self.fail("expected")
"""


def test_a_test_that_pytest_fails_is_not_held(tmp_path: Path) -> None:
    ran = session(tmp_path, OUTCOMES, "--contract-observe")

    assert ran.verdicts == {
        "test_observed_xpass": "broken",
        "test_bare_xpass": "broken",
        "test_lane_xpass[capture]": "broken",
        "test_xfail_inside[capture]": "unmeasured",
        "test_skips_late[capture]": "held",
        "test_fails_and_skips_late[capture]": "broken",
        "test_violated_and_cut_short[capture]": "violated",
        "TestObserved::test_success": "broken",
        **({"TestObserved::test_sub": "broken"} if "TestObserved::test_sub" in ran.verdicts else {}),
        "TestBare::test_success": "broken",
        "TestBare::test_failure": "unmeasured",
    }
    cut_short = ran.entries["test_x.py::test_violated_and_cut_short[capture]"]["measurement"]["cut_short"]
    assert cut_short == "AssertionError: assert 0"


# Nothing measured


NOWHERE = """
[tool.compilecontract.lanes.nowhere]
requires = ["a_package_that_is_nowhere"]
"""
RUNS = "def test_a(compile_lane):\n    compile_lane.run(f, (torch.ones(3),))\n"
SKIPPED = "@pytest.mark.skip(reason='mine')\n" + RUNS


@pytest.mark.parametrize(
    ("test", "options", "code"),
    [
        pytest.param(RUNS, ("--contract-lanes=nowhere",), 1, id="no lane can run"),
        pytest.param(RUNS, ("--contract-lanes=nowhere,eager",), 1, id="the reference alone can"),
        pytest.param(RUNS, ("--contract-lanes=nowhere,eager", "-n1"), 1, id="in a worker"),
        pytest.param(RUNS, ("--contract-lanes=nowhere", "--contract-allow-unmeasured"), 0, id="allowed"),
        pytest.param(RUNS, ("--contract-lanes=nowhere,capture",), 0, id="beside one that was measured"),
        pytest.param(SKIPPED, ("--contract-lanes=capture",), 0, id="the tests own skip"),
        pytest.param(RUNS, ("--contract-lanes=nowhere", "-k", "nothing"), 5, id="none selected"),
    ],
)
def test_a_session_in_which_nothing_could_be_measured_fails(
    tmp_path: Path, test: str, options: tuple[str, ...], code: int
) -> None:
    if "-n1" in options:
        pytest.importorskip("xdist")

    ran = session(tmp_path, test, *options, files={"pyproject.toml": NOWHERE})

    said = (
        "ERROR: no lane could be measured, so no contract is held: nowhere (package 'a_package_that_is_nowhere' is not "
        "installed) (--contract-allow-unmeasured accepts that)"
    )
    assert (ran.code, said in ran.text) == (code, code == 1)
