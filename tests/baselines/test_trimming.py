"""Contracts that a baseline has and the project has no more: found where a run can tell, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.receipts import NEW, OLD, an_entry

from pytest_compilecontract.baselines.gone import collected_from, gone
from pytest_compilecontract.baselines.kept import Mode
from pytest_compilecontract.baselines.store import Baselines
from pytest_compilecontract.facts.rerun import AS_MODULE, Command
from pytest_compilecontract.facts.verdict import Verdict
from pytest_compilecontract.report.baselines import record_lines
from pytest_compilecontract.report.gone import gone_lines

KEY = "torch2.11-cpu"
HERE, MOVED, ELSEWHERE = "tests/test_a.py::test_here", "tests/test_a.py::test_moved", "tests/sub/test_b.py::test_other"


@pytest.fixture
def baselines(tmp_path: Path) -> Baselines:
    """Three contracts in two modules, which are files."""
    made = Baselines(tmp_path / "contracts/baselines", tmp_path)
    entries = [an_entry(contract=name) for name in (HERE, MOVED, ELSEWHERE)]
    made.record(entries, {"here": OLD}, "all")
    made.record(entries, {"here": NEW}, "all")
    for name in ("tests/test_a.py", "tests/sub/test_b.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return made


def found(baselines: Baselines, root: Path, *names: str, arguments: tuple[str, ...] = ("tests",)) -> tuple[str, ...]:
    return gone(baselines, KEY, collected_from(names, arguments, root=root, invocation=root), root)


def test_what_was_collected_is_there(baselines: Baselines, tmp_path: Path) -> None:
    assert found(baselines, tmp_path, HERE, MOVED, ELSEWHERE) == ()


def test_a_contract_that_its_module_has_no_more_is_gone(baselines: Baselines, tmp_path: Path) -> None:
    assert found(baselines, tmp_path, HERE, f"{HERE}[aot]", ELSEWHERE) == (MOVED,)


def test_a_module_without_a_test_may_have_been_skipped(baselines: Baselines, tmp_path: Path) -> None:
    assert found(baselines, tmp_path, HERE, MOVED) == ()


def test_a_module_whose_file_is_gone_has_none(baselines: Baselines, tmp_path: Path) -> None:
    (tmp_path / "tests/sub/test_b.py").unlink()

    assert found(baselines, tmp_path, HERE, MOVED) == (ELSEWHERE,)
    assert found(baselines, tmp_path, HERE, MOVED, arguments=(".",)) == (ELSEWHERE,)


def test_where_nobody_looked_nothing_is_gone(baselines: Baselines, tmp_path: Path) -> None:
    (tmp_path / "tests/sub/test_b.py").unlink()

    assert found(baselines, tmp_path, HERE, MOVED, arguments=("tests/test_a.py",)) == ()


def test_a_run_of_tests_by_name_cannot_tell(baselines: Baselines, tmp_path: Path) -> None:
    assert found(baselines, tmp_path, HERE, arguments=(HERE,)) == ()


def test_a_run_from_an_inner_folder_looks_there(baselines: Baselines, tmp_path: Path) -> None:
    (tmp_path / "tests/sub/test_b.py").unlink()
    collected = collected_from([HERE, MOVED], ["sub"], root=tmp_path, invocation=tmp_path / "tests")

    assert gone(baselines, KEY, collected, tmp_path) == (ELSEWHERE,)


def test_removing_leaves_all_else_and_other_environments_as_they_are(baselines: Baselines, tmp_path: Path) -> None:
    folder = tmp_path / "contracts/baselines"
    other = (folder / "torch2.15-cpu/tests/test_a.json").read_bytes()

    baselines.remove(KEY, [MOVED, ELSEWHERE])

    assert Baselines(folder, tmp_path).contracts(KEY) == (HERE,)
    assert not (folder / KEY / "tests/sub/test_b.json").exists()
    assert (folder / "torch2.15-cpu/tests/test_a.json").read_bytes() == other


def test_removing_nothing_writes_nothing(baselines: Baselines, tmp_path: Path) -> None:
    file = tmp_path / "contracts/baselines" / KEY / "tests/test_a.json"
    before = file.stat().st_mtime_ns

    baselines.remove(KEY, ["tests/test_a.py::test_never"])

    assert file.stat().st_mtime_ns == before


def test_what_is_gone_is_named_with_what_to_do() -> None:
    lines = [text for text, _ in gone_lines([MOVED, HERE], "contracts/baselines", removed=False)]

    assert lines == [
        "contracts/baselines holds 2 contracts that no longer exist",
        f"  {MOVED}",
        f"  {HERE}",
        "  to remove them: pytest --compile-contracts --contract-record (with all tests and lanes)",
    ]
    assert gone_lines([], "contracts/baselines", removed=True) == []


def test_a_command_that_records_collects_what_the_session_was_given() -> None:
    alone = Command(tests=("contracts", "a b.py")).recording("new")

    assert str(alone) == "pytest --compile-contracts --contract-record=new -- contracts 'a b.py'"
    assert str(Command().recording("all", reason=True)) == (
        'pytest --compile-contracts --contract-record --contract-accept-reason="..."'
    )


def test_a_command_that_records_starts_pytest_as_the_session_was_started() -> None:
    session = Command(start=AS_MODULE, options=("--compile-contracts", "--contract-lanes=aot"))

    assert str(session.recording("new")) == (
        "python -m pytest --compile-contracts --contract-lanes=aot --contract-record=new"
    )


@pytest.mark.parametrize(
    ("mode", "known", "verdict", "said"),
    [
        (
            "changed",
            False,
            "held",
            ["nothing recorded: no lane has a baseline", "  1 lane without a baseline; to record:"],
        ),
        ("changed", True, "held", ["nothing recorded: no lane has changed"]),
        ("new", True, "held", ["nothing recorded: every lane has a baseline"]),
        ("all", True, "held", ["nothing recorded: no lane is new or changed"]),
        ("all", False, "unmeasured", ["nothing recorded: no lane was measured"]),
    ],
)
def test_that_nothing_was_recorded_has_its_reason(
    mode: Mode, known: bool, verdict: Verdict, said: list[str], tmp_path: Path
) -> None:
    entries = [replace(an_entry(contract="test_a.py::test_a"), verdict=verdict)]
    if known:
        Baselines(tmp_path, tmp_path).record(entries, {"here": OLD}, "all")

    recorded = Baselines(tmp_path, tmp_path).record(entries, {"here": OLD}, mode)

    found = [text.partition(" pytest")[0] for text, _ in record_lines(recorded, "contracts/baselines", mode)]
    assert found == said


@pytest.mark.parametrize(
    ("verdicts", "offered"),
    [
        (["violated"], ["to record them anyway:"]),
        (["violated", "broken"], ["to record those that were measured anyway:"]),
        (["broken"], []),
    ],
    ids=["measured", "some", "nothing measured"],
)
def test_a_reason_is_asked_for_only_where_it_records(tmp_path: Path, verdicts: list[str], offered: list[str]) -> None:
    entries = [
        replace(an_entry(contract=f"test_a.py::test_{each}"), verdict=each)
        if each == "violated"
        else replace(an_entry(contract=f"test_a.py::test_{each}"), verdict=each, measurement=None)
        for each in verdicts
    ]

    recorded = Baselines(tmp_path, tmp_path).record(entries, {"here": OLD}, "all")

    anyway = [text for text, _ in record_lines(recorded, "contracts/baselines") if "anyway" in text]
    command = 'pytest --compile-contracts --contract-record --contract-accept-reason="..."'
    assert anyway == [f"  {each} {command}" for each in offered]
