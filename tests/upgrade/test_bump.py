"""`compilecontract bump`: each way that one of the two runs can go wrong has its cell, its reason and its exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.receipts import BREAK, HOLDING, WORSENED
from support.upgrades import (
    Bench,
    a_course,
    a_plan,
    a_run,
    a_test,
    an_event,
    finished,
    started,
)

from pytest_compilecontract.cli.main import main
from pytest_compilecontract.facts.evidence import Evidence
from pytest_compilecontract.facts.receipt import Receipt
from pytest_compilecontract.files.receipt import read_receipt
from pytest_compilecontract.upgrade import bump as command
from pytest_compilecontract.upgrade import sides

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the interpreters are scripts")

YES, NO, UNUSABLE, NOT_KNOWN = 0, 1, 2, 3
HELD_OLD = a_plan("2.11.0")
HELD_NEW = a_plan("2.12.1")
CONTRACT = "tests/test_block.py::test_block"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(folder=tmp_path)
    monkeypatch.chdir(made.project)
    # The uv of this machine is not asked.
    monkeypatch.setenv("PATH", os.pathsep.join((str(made.programs), "/usr/bin", "/bin")))
    return made


def bumped(bench: Bench, old: dict[str, Any], new: dict[str, Any], *options: str) -> int:
    """What bump answers for two interpreters that do as these plans say."""
    pythons = [bench.interpreter("old", old), bench.interpreter("new", new)]
    return main(["bump", "--from-python", str(pythons[0]), "--python", str(pythons[1]), *options])


def receipt(bench: Bench, name: str) -> Receipt:
    return read_receipt(bench.project / ".compilecontract" / "receipts" / name / "receipt.json")


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


# Interpreters that are there


def test_a_lane_that_drifted_is_rerun_on_the_interpreter_that_it_drifted_on(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    drifted = a_plan("2.12.1", a_run(a_course("2.12.1", WORSENED["graph_breaks"])))

    bumped(bench, HELD_OLD, drifted, "--html=matrix.html")

    reruns = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  rerun: ")]
    assert reruns
    for line in reruns:
        python, words = line.removeprefix("rerun: ").split(" -m ", 1)
        assert Path(bench.project, python).resolve().is_file()
        assert "new" in python
        assert words.startswith("pytest --compile-contracts --contract-lanes=")
    assert f"{python} -m {words}".partition(" -- ")[0] in (bench.project / "matrix.html").read_text()


def test_what_holds_may_be_upgraded(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    code = bumped(bench, HELD_OLD, HELD_NEW)

    out, err = capsys.readouterr()
    assert out == (
        "may we upgrade from torch 2.11.0 to torch 2.12.1? yes\n"
        "receipts: .compilecontract/receipts/torch-2.11.0/receipt.json "
        ".compilecontract/receipts/torch-2.12.1/receipt.json\n"
        "\n"
        "                torch 2.11.0  torch 2.12.1\n"
        "installed       yes           yes\n"
        "imported        yes           yes\n"
        "first calls, s  2 in all      2 -> 2 s (+0 %) in 2 lanes\n"
        "2 of 2 lanes held everywhere, and are folded\n"
        "\n"
        "torch 2.11.0 -> torch 2.12.1: compared 2 of 2 lanes of 1 contract\n"
        "  torch: torch 2.11.0 -> 2.12.1\n"
        "\n"
        "first-call seconds (not judged): 2 -> 2 s (+0 %) in 2 lanes\n"
        "lanes: 2 held\n"
        "may we upgrade from torch 2.11.0 to torch 2.12.1? yes\n"
    )
    assert err.splitlines() == [
        "bump: the project is not in a git checkout: changes to it during the run are not detected",
        "bump: torch 2.11.0: running 2 tests",
        "bump: torch 2.11.0: 2 tests in 0 s, lanes: 2 held",
        "bump: torch 2.12.1: running 2 tests",
        "bump: torch 2.12.1: 2 tests in 0 s, lanes: 2 held",
    ]
    assert code == YES


def test_drift_is_no(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    worse = replace(HOLDING, graph_breaks=(BREAK,))

    code = bumped(bench, HELD_OLD, a_plan("2.12.1", a_run(a_course("2.12.1", worse), 1)))

    said = "may we upgrade from torch 2.11.0 to torch 2.12.1? no: 2 lanes drifted"
    assert (code, last_line(capsys)) == (NO, said)


def a_lane_with_evidence(torch: str, graph: str) -> dict[str, Any]:
    """A run of one lane that leaves a graph."""
    left = Evidence(folder="evidence/block", files=("graph-0_0.py",))
    event = an_event("aot", torch=torch, evidence=left)
    folder = f".compilecontract/receipts/torch-{torch}/again/evidence/block"
    writes = {f"{folder}/evidence.json": "{}", f"{folder}/graph-0_0.py": graph}
    return a_run([{"event": "collected", "count": 1}, event, {"event": "end", "code": 0}], writes=writes)


def test_lanes_that_changed_are_run_again_for_their_graphs(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    course = a_course("2.12.1", replace(HOLDING, graph_breaks=(BREAK,)), ("aot",))
    course[0] = {"event": "collected", "count": 2}
    course[1:1] = [started("capture"), an_event("capture", torch="2.12.1"), finished("capture")]
    old = a_plan("2.11.0", a_run(a_course("2.11.0")), a_lane_with_evidence("2.11.0", "x = a.sin()\n"))
    new = a_plan("2.12.1", a_run(course, 1), a_lane_with_evidence("2.12.1", "x = a.cos()\n"))
    (bench.project / "tests").mkdir()

    bumped(bench, old, new, "--evidence", "--html=matrix.html", "--", "-k", "tests", "-x", "--tb=short", "tests")

    first, again = bench.pytest_calls(bench.folder / "new" / "python")
    assert "--contract-evidence-all" not in first
    assert again[-8:] == [
        *("-k", "tests", "-x", "--tb=short"),
        f"--contract-evidence={bench.project}/.compilecontract/receipts/torch-2.12.1/again/evidence",
        "--contract-evidence-all",
        *("--", f"{CONTRACT}[aot]"),
    ]
    page = (bench.project / "matrix.html").read_text()
    assert "-x = a.sin()" in page
    assert "+x = a.cos()" in page
    kept = {entry.lane: entry.evidence for entry in receipt(bench, "torch-2.12.1").entries}
    assert kept["capture"] is None
    assert kept["aot"] is not None
    assert kept["aot"].folder == "again/evidence/block"
    # The receipts alone show it too.
    capsys.readouterr()
    folders = [f".compilecontract/receipts/torch-{torch}" for torch in ("2.11.0", "2.12.1")]
    main(["matrix", *folders, "--html=later.html"])
    assert "-x = a.sin()" in (bench.project / "later.html").read_text()


def test_pytest_is_given_the_arguments_behind_the_dashes(bench: Bench) -> None:
    bumped(bench, HELD_OLD, HELD_NEW, "--", "-k", "block", "tests")

    (words,) = bench.pytest_calls(bench.folder / "new" / "python")
    assert words[:4] == ["-m", "pytest", "-p", "pytest_compilecontract.plugin.events"]
    assert {"--compile-contracts", "--continue-on-collection-errors", "--maxfail=0"} < set(words)
    assert words[-3:] == ["-k", "block", "tests"]


def test_a_torch_that_cannot_be_imported_has_its_cell(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    code = bumped(bench, HELD_OLD, a_plan(None, packages={"torch": "2.12.1"}))

    lines = capsys.readouterr().out.splitlines()
    said = "torch 2.12.1: could not be imported: ImportError: libcuda.so.1: cannot open"
    assert [line.split()[:3] for line in lines[3:6]] == [
        ["torch", "2.11.0", "torch"],
        ["installed", "yes", "yes"],
        ["imported", "yes", "no:"],
    ]
    assert said in lines
    assert lines[-1] == f"may we upgrade from torch 2.11.0 to torch 2.12.1? not known: {said}"
    assert code == NOT_KNOWN


def test_a_torch_that_takes_the_process_along_cannot_be_imported(bench: Bench) -> None:
    plan = a_plan("2.12.1", probe_dies=True)
    plan["probe"] = plan["probe"][:2]

    code = bumped(bench, HELD_OLD, plan)

    setup = receipt(bench, "python-3.11.7").setup
    assert setup is not None
    assert (code, setup.not_imported) == (NOT_KNOWN, "the process died (SIGSEGV)")


def test_a_lane_that_takes_its_process_along_is_broken_and_the_run_goes_on(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    dies = a_run([{"event": "collected", "count": 2}, started("aot"), '{"event": "entr'], -signal.SIGSEGV)
    goes_on = a_run(a_course("2.12.1", lanes=("capture",)))

    code = bumped(bench, HELD_OLD, a_plan("2.12.1", dies, goes_on))

    out, err = capsys.readouterr()
    verdicts = {entry.lane: (entry.verdict, entry.reason) for entry in receipt(bench, "torch-2.12.1").entries}
    assert verdicts == {"aot": ("broken", "the process died (SIGSEGV) while this ran"), "capture": ("held", "")}
    assert f"bump: torch 2.12.1: the process died (SIGSEGV) in {a_test('aot')}; continuing after it" in err.splitlines()
    assert out.splitlines()[-1] == "may we upgrade from torch 2.11.0 to torch 2.12.1? no: 1 lane broke"
    assert code == NO


def test_a_lane_that_dies_on_either_side_is_not_known(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    def plan(torch: str) -> dict[str, Any]:
        dies = a_run([{"event": "collected", "count": 2}, started("aot")], -signal.SIGABRT)
        return a_plan(torch, dies, a_run(a_course(torch, lanes=("capture",))))

    code = bumped(bench, plan("2.11.0"), plan("2.12.1"))

    said = "may we upgrade from torch 2.11.0 to torch 2.12.1? not known: 1 lane left open"
    assert (code, last_line(capsys)) == (NOT_KNOWN, said)


def test_a_process_that_dies_before_any_test_is_not_known(bench: Bench) -> None:
    dies = a_run([], -signal.SIGSEGV, says="Fatal Python error: Segmentation fault")

    code = bumped(bench, HELD_OLD, a_plan("2.12.1", dies))

    setup = receipt(bench, "torch-2.12.1").setup
    assert setup is not None
    assert setup.not_finished == "the process died (SIGSEGV): Fatal Python error: Segmentation fault"
    assert (code, len(bench.pytest_calls(bench.folder / "new" / "python"))) == (NOT_KNOWN, 1)


def test_a_process_that_dies_in_test_after_test_is_given_up(bench: Bench) -> None:
    runs = [a_run([started(f"lane{number}")], -signal.SIGKILL) for number in range(9)]

    code = bumped(bench, HELD_OLD, a_plan("2.12.1", *runs))

    found = receipt(bench, "torch-2.12.1")
    assert [entry.verdict for entry in found.entries] == ["broken"] * 6
    assert found.setup is not None
    assert found.setup.not_finished == "the process died (SIGKILL) once more"
    # Which lane it is that dies, nobody knows of a run that dies in each; of those that held before, two are missing.
    assert code == NOT_KNOWN


def test_a_run_past_its_time_is_cut_off_and_not_known(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    events = [{"event": "collected", "count": 2}, started("aot"), an_event("aot", torch="2.12.1"), finished("aot")]

    code = bumped(
        bench, HELD_OLD, a_plan("2.12.1", a_run([*events, started("capture")], seconds=60)), "--timeout", "1.5"
    )

    found = receipt(bench, "torch-2.12.1")
    verdicts = {entry.lane: (entry.verdict, entry.reason) for entry in found.entries}
    assert verdicts == {"aot": ("held", ""), "capture": ("unmeasured", "cut off after 2 s")}
    said = "not known: torch 2.12.1: the tests did not run to their end: cut off after 2 s"
    assert last_line(capsys) == f"may we upgrade from torch 2.11.0 to torch 2.12.1? {said}"
    assert code == NOT_KNOWN


def test_both_sides_cut_short_in_the_same_way_is_never_yes(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    def plan(torch: str) -> dict[str, Any]:
        problem = {"event": "problem", "where": "tests/test_moe.py", "reason": "ImportError: no module"}
        return a_plan(torch, a_run([problem, *a_course(torch)], 1))

    code = bumped(bench, plan("2.11.0"), plan("2.12.1"))

    said = "the tests did not run to their end: tests/test_moe.py could not be collected: ImportError: no module"
    assert last_line(capsys) == (
        f"may we upgrade from torch 2.11.0 to torch 2.12.1? not known: torch 2.11.0: {said}; torch 2.12.1: {said}"
    )
    assert code == NOT_KNOWN


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (a_run([{"event": "collected", "count": 0}, {"event": "end", "code": 5}], 5), "no tests were collected"),
        (
            a_run([{"event": "end", "code": 3}], 3, says="INTERNALERROR> Traceback\nINTERNALERROR> KeyError: 1"),
            "pytest had an internal error: KeyError: 1",
        ),
        (a_run([{"event": "end", "code": 2}], 2, says="!!!"), "pytest was interrupted: "),
        (
            a_run([{"event": "end", "code": 4}], 4, says="ImportError while loading conftest\nE   OSError: no libfoo"),
            "pytest ended with a usage error: OSError: no libfoo",
        ),
    ],
    ids=["no tests", "an internal error", "interrupted", "a conftest that does not import"],
)
def test_a_candidate_whose_tests_do_not_run_is_not_known(bench: Bench, run: dict[str, Any], reason: str) -> None:
    code = bumped(bench, HELD_OLD, a_plan("2.12.1", run))

    setup = receipt(bench, "torch-2.12.1").setup
    assert setup is not None
    assert (code, setup.not_finished) == (NOT_KNOWN, reason)


def test_no_tests_on_either_side_is_not_known(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = a_run([{"event": "collected", "count": 0}, {"event": "end", "code": 5}], 5)

    code = bumped(bench, a_plan("2.11.0", nothing), a_plan("2.12.1", nothing))

    assert "? not known: " in last_line(capsys)
    assert code == NOT_KNOWN


@pytest.mark.parametrize("program", ["__main__.py", "python -m pytest"])
@pytest.mark.parametrize("events", [[], [{"event": "end", "code": 4}]], ids=["before it told its end", "after"])
def test_arguments_that_pytest_does_not_take_are_unusable(
    bench: Bench, program: str, events: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    refuses = a_run(events, 4, says=f"ERROR: usage: pytest\n{program}: error: unrecognized arguments: --fast")

    code = bumped(bench, a_plan("2.11.0", refuses), HELD_NEW, "--", "--fast")

    said = "compilecontract: pytest ended with a usage error: unrecognized arguments: --fast\n"
    assert (code, capsys.readouterr().err.splitlines(keepends=True)[-1]) == (UNUSABLE, said)


def test_a_receipt_of_an_earlier_run_is_never_read_again(bench: Bench) -> None:
    bumped(bench, HELD_OLD, HELD_NEW)
    fails = a_plan("2.12.1", a_run([{"event": "end", "code": 3}], 3))
    (bench.folder / "new" / "plan.json").write_text(json.dumps(fails))
    pythons = [str(bench.folder / side / "python") for side in ("old", "new")]

    code = main(["bump", "--from-python", pythons[0], "--python", pythons[1]])

    assert (code, receipt(bench, "torch-2.12.1").entries) == (NOT_KNOWN, ())


def test_libraries_that_differ_unasked_are_told(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    libraries = {"numpy": "2.4.0", "triton": "3.7.1", "nvidia-cublas": "13.1"}

    bumped(bench, HELD_OLD, a_plan("2.12.1", packages=libraries))

    answered, note, *_, last = capsys.readouterr().out.splitlines()
    assert note == "besides what was requested, these differ: numpy 2.3.5 -> 2.4.0"
    assert answered == last == "may we upgrade from torch 2.11.0 to torch 2.12.1? yes"


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        (
            {"numpy": "2.4.0", "sympy": "1.14"},
            "numpy 2.3.5 -> 2.4.0; 1 package on one side only: sympy none -> 1.14",
        ),
        (
            {"numpy": "2.4.0", **{f"lone-{number}": "1" for number in range(93)}},
            "numpy 2.3.5 -> 2.4.0; 93 packages on one side only (packages.txt beside each receipt has all)",
        ),
    ],
)
def test_many_packages_that_differ_are_folded(
    packages: dict[str, str], said: str, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bumped(bench, HELD_OLD, a_plan("2.12.1", packages=packages))

    note = capsys.readouterr().out.splitlines()[1]
    assert note == f"besides what was requested, these differ: {said}"
    assert (bench.project / ".compilecontract/receipts/torch-2.12.1/packages.txt").is_file()


def test_an_upgrade_to_the_same_is_told(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    code = bumped(bench, HELD_OLD, HELD_OLD)

    note = capsys.readouterr().out.splitlines()[1]
    assert (code, note) == (YES, "both sides have torch 2.11.0 and the same packages: nothing was upgraded")


def test_the_summary_is_markdown_added_to_a_file(bench: Bench) -> None:
    file = bench.folder / "summary.md"
    file.write_text("before\n")

    bumped(
        bench, HELD_OLD, a_plan("2.12.1", a_run(a_course("2.12.1", WORSENED["numerics"]), 1)), "--summary", str(file)
    )

    text = file.read_text()
    assert text.startswith(
        "before\n### may we upgrade from torch 2.11.0 to torch 2.12.1? no: 2 lanes drifted\n\n| lane | torch 2.11.0 |"
    )
    assert "<pre>torch 2.11.0 -&gt; torch 2.12.1: compared 2 of 2 lanes of 1 contract\n" in text


# The commit


def test_the_matrix_is_written_in_other_forms(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    drifted = a_plan("2.12.1", a_run(a_course("2.12.1", WORSENED["graph_breaks"])))

    code = bumped(bench, HELD_OLD, drifted, "--html=out/a.html", "--junit=out/a.xml", "--json=out/a.json")

    out = bench.project / "out"
    assert code == NO
    assert json.loads((out / "a.json").read_text())["answer"] == "no"
    assert (out / "a.html").read_text().lower().startswith("<!doctype html>")
    assert "<failure" in (out / "a.xml").read_text()
    assert main(["validate", str(out / "a.json")]) == YES
    assert "wrote out/a.html" in capsys.readouterr().err


def test_a_folder_is_no_file_to_write_to(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    code = bumped(bench, HELD_OLD, HELD_NEW, "--html=.")

    assert capsys.readouterr().err == "compilecontract: .: is a folder, the matrix is written to a file\n"
    assert code == UNUSABLE


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--policy=p.toml", "--html=p.toml"), "p.toml: is also read, write the matrix to another file"),
        (("--html=out/a", "--junit=out/../out/a"), "out/../out/a: is named twice, write the matrix to another file"),
    ],
    ids=["a policy", "one file for two"],
)
def test_nothing_is_written_over(
    bench: Bench, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = bench.project / "p.toml"
    policy.write_text("")

    code = bumped(bench, HELD_OLD, HELD_NEW, *options)

    assert capsys.readouterr().err == f"compilecontract: {said}\n"
    assert (code, policy.read_text()) == (UNUSABLE, "")


def test_a_commit_is_told_and_a_change_under_way_leaves_it_open(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    model = bench.project / "model.py"
    model.write_text("x = 1\n")
    git(bench.project, "init", "-q")
    git(bench.project, "add", "model.py")
    git(bench.project, "commit", "-qm", "start")
    changes = a_run(a_course("2.12.1"), writes={str(model): "x = 2\n"})

    code = bumped(bench, HELD_OLD, a_plan("2.12.1", changes))

    out, err = capsys.readouterr()
    head = git(bench.project, "rev-parse", "HEAD")[:12]
    assert err.splitlines()[0] == f"bump: commit {head}"
    assert out.splitlines()[-1] == (
        "may we upgrade from torch 2.11.0 to torch 2.12.1? not known: the project's files changed while it was "
        "measured (model.py), so the two sides ran different code"
    )
    assert code == NOT_KNOWN
    assert git(bench.project, "status", "--porcelain") == "M model.py"


def test_uncommitted_changes_are_told_and_compared(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    git(bench.project, "init", "-q")
    git(bench.project, "commit", "-qm", "start", "--allow-empty")
    (bench.project / "model.py").write_text("x = 1\n")
    git(bench.project, "add", "model.py")

    code = bumped(bench, HELD_OLD, HELD_NEW)

    head = git(bench.project, "rev-parse", "HEAD")[:12]
    said = f"bump: commit {head} with uncommitted changes: both sides run the files as they are now"
    assert (code, capsys.readouterr().err.splitlines()[0]) == (YES, said)


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=someone", "-c", "user.email=someone@example.org")
    ran = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


# Environments that are made


def test_both_environments_are_made_and_the_second_keeps_to_the_first(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.with_uv(v2_11_0=HELD_OLD, v2_12_1=HELD_NEW)

    code = main(["bump", "torch==2.12.1", "--from", "torch==2.11.0", "--with", "einops"])

    kept = bench.project / ".compilecontract"
    (old,) = kept.glob("environments/torch-2.11.0-*")
    (new,) = kept.glob("environments/torch-2.12.1-*")
    assert (old / "wanted.txt").read_text().splitlines()[0] == "torch==2.11.0"
    assert (new / "wanted.txt").read_text().splitlines()[-1] == "einops"
    assert (new / "locked.txt").read_text() == "numpy==2.3.5\npytest==8.4.0\ntorch==2.12.1\n"
    assert (kept / ".gitignore").read_text() == "*\n"
    assert "may we upgrade from torch 2.11.0 to torch 2.12.1? yes" in capsys.readouterr().out
    assert code == YES


def test_an_environment_that_wants_the_same_is_used_again(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.with_uv(v2_11_0=HELD_OLD, v2_12_1=HELD_NEW)
    words = ["bump", "torch==2.12.1", "--from", "torch==2.11.0"]
    main(words)
    made = len(bench.uv_calls())

    code = main(words)

    assert (code, len(bench.uv_calls())) == (YES, made)
    assert ", which an earlier run created" in capsys.readouterr().err
    main([*words, "--with", "einops"])
    assert len(bench.uv_calls()) > made


def test_a_torch_that_cannot_be_installed_has_its_cell(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.with_uv(v2_11_0=HELD_OLD)

    code = main(["bump", "torch==9.9.9", "--from", "torch==2.11.0", "-v"])

    reason = (
        "No solution found when resolving dependencies: Because there is no version of torch==9.9.9 and you require "
        "torch==9.9.9, we can conclude that your requirements are unsatisfiable."
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[3:6]] == [
        ["torch", "2.11.0", "torch"],
        ["installed", "yes", "no:"],
        ["imported", "yes", "not"],
    ]
    assert f"torch 9.9.9: could not be installed: {reason}" in lines
    assert lines[-1] == (
        f"may we upgrade from torch 2.11.0 to torch 9.9.9? not known: torch 9.9.9: could not be installed: {reason}"
    )
    assert code == NOT_KNOWN
    setup = receipt(bench, "torch-9.9.9").setup
    assert setup is not None
    assert setup.not_installed == reason


def test_tests_are_not_run_where_one_side_alone_could_be(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.with_uv()
    old = bench.interpreter("old", HELD_OLD)

    main(["bump", "torch==9.9.9", "--from-python", str(old)])

    assert not (old.parent / "calls").exists()
    assert receipt(bench, "torch-2.11.0").entries == ()


def test_a_made_environment_keeps_to_the_one_that_is_there_on_either_side(bench: Bench) -> None:
    bench.with_uv(v2_11_0=HELD_OLD)
    new = bench.interpreter("new", a_plan("2.12.1", packages={"einops": "0.8.1", "triton": "3.7.1"}))

    main(["bump", "--python", str(new), "--from", "torch==2.11.0"])

    (locked,) = bench.project.glob(".compilecontract/environments/*/locked.txt")
    assert locked.read_text() == "einops==0.8.1\nnumpy==2.3.5\npytest==8.4.0\ntorch==2.11.0\n"


def test_the_older_environment_keeps_to_the_project_s_lock(bench: Bench) -> None:
    bench.with_uv(v2_11_0=HELD_OLD)
    packages = (("torch", "2.10.0"), ("numpy", "2.2.0"))
    text = "".join(f'[[package]]\nname = "{name}"\nversion = "{version}"\n' for name, version in packages)
    (bench.project / "uv.lock").write_text(text)

    main(["bump", "torch==9.9.9", "--from", "torch==2.11.0"])

    (locked,) = bench.project.glob(".compilecontract/environments/torch-2.11.0-*/locked.txt")
    assert locked.read_text() == "numpy==2.2.0\ntorch==2.11.0\n"


def test_what_the_matrix_says_of_it_is_in_the_receipt(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.with_uv(v2_11_0=HELD_OLD)
    main(["bump", "torch==9.9.9", "--from", "torch==2.11.0"])
    capsys.readouterr()
    receipts = [f".compilecontract/receipts/torch-{version}" for version in ("2.11.0", "9.9.9")]

    code = main(["matrix", *receipts])

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("may we upgrade from torch 2.11.0 to torch 9.9.9? not known")
    assert lines[2].split() == ["torch", "2.11.0", "torch", "9.9.9"]
    assert lines[3].startswith("installed")
    assert "no: No solution found" in lines[3]
    assert code == NOT_KNOWN


def test_several_packages_are_upgraded_together_and_the_rest_stays(bench: Bench) -> None:
    bench.with_uv(v2_11_0=HELD_OLD)

    main(["bump", "transformers==5.24.0", "--from", "torch==2.11.0", "transformers==5.20.0"])

    folder = bench.project / ".compilecontract" / "environments"
    wanted = [path.read_text().splitlines()[:2] for path in sorted(folder.glob("*/wanted.txt"))]
    assert sorted(wanted) == [["torch==2.11.0", "transformers==5.20.0"], ["torch==2.11.0", "transformers==5.24.0"]]


def test_indexes_and_builds_are_uv_s(bench: Bench) -> None:
    bench.with_uv(v2_11_0=HELD_OLD, v2_12_1=HELD_NEW)

    main(
        [
            *("bump", "torch==2.12.1", "--from", "torch==2.11.0"),
            *("--index-url", "https://a.example.org", "--extra-index-url", "https://b.example.org"),
            *("--torch-backend", "cpu"),
        ]
    )

    call = next(words for words in bench.uv_calls() if words[:2] == ["pip", "compile"])
    at = call.index("--default-index")
    assert call[at : at + 8] == [
        *("--default-index", "https://a.example.org", "--index", "https://b.example.org"),
        *("--index-strategy", "unsafe-best-match", "--torch-backend", "cpu"),
    ]


def test_without_uv_one_line_says_what_to_do(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(bench.folder))
    monkeypatch.setattr("pytest_compilecontract.upgrade.environments.sys.executable", str(bench.folder / "python"))

    code = main(["bump", "torch==2.12.1", "--from", "torch==2.11.0"])

    assert (code, capsys.readouterr().err) == (
        UNUSABLE,
        "compilecontract: uv creates the environments, and is not installed: pip install "
        "uv "
        "(or name interpreters that have everything the tests need: --python and --from-python)\n",
    )


# What to upgrade from


@pytest.fixture
def _without_torch_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "_version_here", lambda name: None)


@pytest.mark.usefixtures("_without_torch_here")
def test_the_project_s_pin_is_what_to_upgrade_from(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.with_uv(v2_11_0=HELD_OLD, v2_12_1=HELD_NEW)
    (bench.project / "pyproject.toml").write_text('[dependency-groups]\ntest = ["torch==2.11.0"]\n')

    code = main(["bump", "torch==2.12.1"])

    said = "may we upgrade from torch 2.11.0 to torch 2.12.1? yes"
    assert (code, last_line(capsys)) == (YES, said)


@pytest.mark.usefixtures("_without_torch_here")
def test_nothing_to_upgrade_from_is_one_line(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["bump", "torch==2.12.1"])

    assert (code, capsys.readouterr().err) == (
        UNUSABLE,
        "compilecontract: nothing to upgrade from: this Python has no torch, the project pins none, and there is no "
        "baseline; name it, for example: --from torch==2.11.0\n",
    )


def test_the_torch_of_this_python_is_what_to_upgrade_from(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "_version_here", {"torch": "2.11.0"}.get)
    bench.with_uv(v2_12_1=HELD_NEW)
    monkeypatch.setattr(command.sys, "executable", str(bench.interpreter("here", HELD_OLD)))

    code = main(["bump", "torch==2.12.1"])

    assert (code, len(bench.pytest_calls(bench.folder / "here" / "python"))) == (YES, 1)


# What cannot be used


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [],
            "nothing to upgrade to: name it before all options, for example: compilecontract bump torch==2.12.1; or an "
            "interpreter that has it: --python PATH",
        ),
        (["torch=2.12.1"], "bump: expected a requirement such as torch==2.12.1, got 'torch=2.12.1'"),
        (
            ["new/bin/python"],
            "bump: expected a requirement such as torch==2.12.1, got 'new/bin/python' (an interpreter is named with "
            "--python)",
        ),
        (
            ["torch==2.12.1", "--from", "torch==2.12.1"],
            "both sides are torch 2.12.1: nothing is upgraded",
        ),
        (
            ["torch==2.12.1", "--from-python", "gone"],
            "--from-python gone: no such file (expected an interpreter such as .venv/bin/python)",
        ),
        (["torch==2.12.1", "--project", "gone"], "--project gone: no such folder"),
        (
            ["torch==2.12.1", "--from", "torch==2.11.0", "--", "--contract-record=all"],
            "--contract-record=all: cannot be used with bump, which runs the tests twice to compare, "
            "and records nothing",
        ),
        (
            ["torch==2.12.1", "--from", "torch==2.11.0", "--group", "docs"],
            "--group docs: not in {}/pyproject.toml (there is no dependency-groups table)",
        ),
    ],
    ids=[
        "nothing",
        "a wrong pin",
        "an interpreter",
        "the same",
        "no interpreter",
        "no project",
        "recording",
        "no group",
    ],
)
def test_what_cannot_be_used_is_one_line(
    bench: Bench, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["bump", *words])

    said = f"compilecontract: {message.format(bench.project)}\n"
    assert (code, capsys.readouterr()) == (UNUSABLE, ("", said))


def test_an_interpreter_with_another_torch_is_one_line(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    code = bumped(bench, HELD_OLD, HELD_NEW, "torch==2.13.0")

    python = bench.folder / "new" / "python"
    said = f"compilecontract: {python}: has torch 2.12.1, but torch==2.13.0 was requested"
    assert (code, capsys.readouterr().err.splitlines()[-1]) == (UNUSABLE, said)


def test_an_interpreter_without_the_plugin_is_one_line(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    plan = a_plan("2.11.0")
    plan["probe"][1] = {"plugin": "ModuleNotFoundError: No module named 'pytest_compilecontract'"}

    code = bumped(bench, plan, HELD_NEW)

    said = (
        f"compilecontract: {bench.folder / 'old' / 'python'}: pytest-compilecontract cannot be loaded there "
        "(ModuleNotFoundError: No module named 'pytest_compilecontract')"
    )
    assert (code, capsys.readouterr().err.splitlines()[-1]) == (UNUSABLE, said)


@pytest.mark.parametrize("side", [0, 1], ids=["the older", "the newer"])
def test_an_interpreter_whose_pytest_does_not_load_the_plugin_is_known_before_the_tests_run(
    bench: Bench, capsys: pytest.CaptureFixture[str], side: int
) -> None:
    plans = [a_plan("2.11.0"), a_plan("2.12.1")]
    plans[side]["probe"][1] |= {"entered": False}

    code = bumped(bench, *plans)

    python = bench.folder / ("old", "new")[side] / "python"
    said = f"compilecontract: {python}: pytest does not load pytest-compilecontract there: install it with pip"
    assert (code, capsys.readouterr().err.splitlines()[-1]) == (UNUSABLE, said)
    assert not (bench.folder / "old" / "calls").exists()


@pytest.mark.parametrize("how", ["an argument", "a setting"])
def test_a_project_may_load_the_plugin_by_itself(bench: Bench, how: str) -> None:
    plans = [a_plan("2.11.0"), a_plan("2.12.1")]
    for plan in plans:
        plan["probe"][1] |= {"entered": False}
    if how == "a setting":
        (bench.project / "pytest.ini").write_text("[pytest]\naddopts = -p pytest_compilecontract.plugin\n")
    words = ["--", "-p", "pytest_compilecontract.plugin"] if how == "an argument" else []

    assert bumped(bench, *plans, *words) != UNUSABLE


def test_a_folder_that_another_run_has_is_one_line(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    kept = bench.project / ".compilecontract"
    with command.claimed(kept):
        code = bumped(bench, HELD_OLD, HELD_NEW)

    said = f"compilecontract: {kept}: in use by another run (--keep DIR chooses another folder)\n"
    assert (code, capsys.readouterr().err) == (UNUSABLE, said)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_time_limit_is_seconds(bench: Bench, seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bump", "torch==2.12.1", f"--timeout={seconds}"])

    assert caught.value.code == UNUSABLE
    assert f"argument --timeout: expected a number of seconds such as 600, got '{seconds}'" in capsys.readouterr().err


# Giving up


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "asked to end"])
def test_who_gives_up_leaves_nothing_running(bench: Bench, number: signal.Signals) -> None:
    endless = a_run([{"event": "collected", "count": 2}, started("aot")], seconds=600)
    pythons = [bench.interpreter("old", a_plan("2.11.0", endless)), bench.interpreter("new", HELD_NEW)]
    words = ["bump", "--from-python", str(pythons[0]), "--python", str(pythons[1])]
    package = Path(command.__file__).parents[2]
    child = subprocess.Popen(
        [sys.executable, "-m", "pytest_compilecontract", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(package)},
    )
    calls = pythons[0].parent / "calls"
    deadline = time.monotonic() + 60
    while not calls.exists() and time.monotonic() < deadline:
        time.sleep(0.05)

    child.send_signal(number)
    out, err = child.communicate(timeout=60)

    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert (child.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert str(pythons[0]) not in running
