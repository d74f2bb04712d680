"""The corpus on the torch that is installed: each case shows the verdict and the counts that are expected of it.

The other releases are run by ci/torch-matrix, and benchmarks/catch_rate.py compares each with its neighbour. Lanes of
Inductor are left to it too: they take a minute.
"""

from __future__ import annotations

import copy
import fcntl
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from corpus import RELEASES, TESTS, Case, lay_out, read_cases
from support.sessions import run_session

from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.files.receipt import read_receipt
from pytest_compilecontract.measure.probes.source import Paths

pytestmark = pytest.mark.insides

ROOT = Path(__file__).parent.parent.parent
RELEASE = torch.__version__.partition("+")[0]
CASES = {
    name: replace(case, lanes=tuple(lane for lane in case.lanes if lane != "inductor"))
    for name, case in read_cases().items()
}
# Some at a time, so that pytest-xdist's workers share them. Who may take its process along is by itself.
_TOGETHER = [case for case in CASES.values() if not case.alone]
SESSIONS = [_TOGETHER[at : at + 8] for at in range(0, len(_TOGETHER), 8)]
SESSIONS += [[case] for case in CASES.values() if case.alone]
HERE = [(name, lane) for name, case in CASES.items() for lane in case.lanes]


def held(folder: Path, cases: Sequence[Case], *options: str) -> tuple[dict[tuple[str, str], Entry], str]:
    """The entries of a session that holds these cases, by case and lane, and what it printed."""
    lay_out(folder, cases)
    command = [sys.executable, "-m", "pytest", "-q", "--compile-contracts", "--contract-report=report", *options, TESTS]
    path = os.pathsep.join(each for each in (str(ROOT), os.environ.get("PYTHONPATH", "")) if each)
    surroundings = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ran = run_session(command, cwd=folder, env=surroundings, timeout=1800)
    receipt = folder / "report" / "receipt.json"
    assert receipt.is_file(), ran.stdout + ran.stderr
    return entries_in(folder, cases), ran.stdout


def entries_in(folder: Path, cases: Sequence[Case]) -> dict[tuple[str, str], Entry]:
    """The entries of the session that held these cases in a folder, by case and lane."""
    lanes = {(f"test_{case.name}", case.lane(lane)): (case.name, lane) for case in cases for lane in case.lanes}
    entries = read_receipt(folder / "report" / "receipt.json").entries
    return {lanes[each.contract.rpartition("::")[2], each.lane]: each for each in entries}


class Shown:
    """The entries of all cases. Each session is run once, by the first of pytest-xdist's workers that asks for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries: dict[tuple[str, str], Entry] = {}

    def __getitem__(self, key: tuple[str, str]) -> Entry:
        if key not in self._entries:
            together = next(cases for cases in SESSIONS if any(case.name == key[0] for case in cases))
            self._entries |= self._entries_of(together)
        return self._entries[key]

    def _entries_of(self, cases: Sequence[Case]) -> dict[tuple[str, str], Entry]:
        folder = self._folder / cases[0].name
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "ended").exists():
                # A worker of pytest-xdist is what may die.
                held(folder, cases, *(("-n", "1") if cases[0].alone else ()))
                (folder / "ended").touch()
        return entries_in(folder, cases)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    if RELEASE not in RELEASES:
        pytest.skip(f"no expectations of torch {RELEASE} (of {', '.join(RELEASES)})")
    own = tmp_path_factory.getbasetemp()
    return Shown((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "corpus")


@pytest.mark.parametrize(("name", "lane"), HERE, ids=[f"{name}-{lane}" for name, lane in HERE])
def test_a_case_shows_what_is_expected(name: str, lane: str, shown: Shown) -> None:
    entry = shown[name, lane]

    expected = CASES[name].expected[lane]
    release = RELEASES.index(RELEASE)
    assert (entry.verdict, entry.reason) == (expected.verdicts[release], entry.reason)
    seen = entry.measurement
    counts = {key: getattr(seen, key) for key in expected.counts}
    assert {key: len(value) if isinstance(value, tuple) else value for key, value in counts.items()} == {
        key: values[release] for key, values in expected.counts.items()
    }


def test_an_internal_error_of_dynamos_names_the_users_line(shown: Shown) -> None:
    if RELEASE == "2.11.0":
        pytest.skip("torch 2.11 traces an Enum's ValueError")

    seen = shown["enum_bad_value_in_try", "aot"].measurement

    assert seen is not None
    assert seen.raised is not None
    assert seen.raised.message == "ValueError: 7 is not a valid Mode (in call 0; eager does not raise)"
    assert str(seen.raised.location) == "cases/enum_bad_value_in_try.py:27 in f"
    assert seen.raised.location is not None
    assert seen.raised.location.source == "m = Mode(v)"


def test_a_break_inside_pythons_library_is_the_line_that_calls_it(shown: Shown) -> None:
    seen = shown["deepcopy_inside", "aot"].measurement

    assert seen is not None
    assert seen.graph_breaks is not None
    assert [each.location.source for each in seen.graph_breaks] == ["other = copy.deepcopy(table)"]


def test_pythons_library_is_told_from_the_packages_in_it_and_from_the_project() -> None:
    paths = Paths(ROOT)

    assert [paths.is_pythons(file) for file in (copy.__file__, pytest.__file__, __file__)] == [True, False, False]


# Cases that cannot be used

UNUSABLE = {
    "cannot_be_imported": (
        "def build(:\n",
        "broken",
        "the test failed in call: Failed: case cannot_be_imported cannot be imported: "
        "SyntaxError: invalid syntax (cannot_be_imported.py, line 1)",
    ),
    "raises_when_imported": (
        "1 / 0\n",
        "broken",
        "the test failed in call: Failed: case raises_when_imported cannot be imported: "
        "ZeroDivisionError: division by zero",
    ),
    "needs_a_package": (
        "import a_package_that_is_nowhere\n",
        "unmeasured",
        "case needs_a_package needs the package 'a_package_that_is_nowhere'",
    ),
    "has_no_build": ("", "broken", "the test failed in call: Failed: case has_no_build has no build()"),
    "gives_nonsense": (
        "def build():\n    return 3\n",
        "broken",
        "the test failed in call: Failed: case gives_nonsense: build() gave 'int', not (target, calls)",
    ),
    "dies_in_build": (
        "def build():\n    raise RuntimeError('no today')\n",
        "broken",
        "the test failed in call: Failed: case dies_in_build: build() raised RuntimeError: no today",
    ),
}
GOOD = "import torch\n\n\ndef build():\n    return torch.sin, [(torch.ones(2),)]\n"
DEADLY = "import os\n\n\ndef build():\n    os._exit(3)\n"


def cases_in(folder: Path, programs: dict[str, str]) -> list[Case]:
    folder.mkdir()
    for name, program in programs.items():
        (folder / f"{name}.py").write_text(program, encoding="utf-8")
    return [replace(case, lanes=("capture",)) for case in read_cases(folder, None).values()]


def test_a_case_that_cannot_be_used_is_one_verdict_and_the_others_run(tmp_path: Path) -> None:
    programs = {name: program for name, (program, _, _) in UNUSABLE.items()}
    cases = cases_in(tmp_path / "cases", {**programs, "works": GOOD})

    entries, _ = held(tmp_path / "project", cases)

    assert {name: (entry.verdict, entry.reason) for (name, _), entry in entries.items()} == {
        **{name: (verdict, reason) for name, (_, verdict, reason) in UNUSABLE.items()},
        "works": ("held", ""),
    }


def test_a_case_that_ends_its_process_is_one_verdict_and_the_others_run(tmp_path: Path) -> None:
    cases = cases_in(tmp_path / "cases", {"a_dies": DEADLY, "works": GOOD})

    entries, _ = held(tmp_path / "project", cases, "-n", "1")

    assert {name: (entry.verdict, entry.reason) for (name, _), entry in entries.items()} == {
        "a_dies": ("broken", "worker 'gw0' crashed while running 'test_corpus.py::test_a_dies[capture]'"),
        "works": ("held", ""),
    }
