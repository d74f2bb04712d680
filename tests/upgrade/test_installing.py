"""`compilecontract bump --matrix`: how far each environment comes, by release, Python and build. No test is run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.upgrades import Bench, a_plan

from pytest_compilecontract.cli.main import main

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the interpreters are scripts")

OLD, NEW = a_plan("2.11.0+cpu"), a_plan("2.12.1+cpu")
BROKEN = a_plan(None)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(folder=tmp_path)
    monkeypatch.chdir(made.project)
    monkeypatch.setenv("PATH", os.pathsep.join((str(made.programs), "/usr/bin", "/bin")))
    made.with_uv(v2_11_0=OLD, v2_12_1=NEW, v2_13_0=BROKEN)
    return made


def rows(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_what_can_be_had_is_yes(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["bump", "--matrix", "torch==2.11.0", "torch==2.12.1", "--python-version=3.11,3.12"])

    assert rows(capsys) == [
        ["torch", "Python", "build", "resolved", "installed", "imported"],
        ["2.11.0+cpu", "3.11", "usual", "yes", "yes", "yes"],
        ["2.11.0+cpu", "3.12", "usual", "yes", "yes", "yes"],
        ["2.12.1+cpu", "3.11", "usual", "yes", "yes", "yes"],
        ["2.12.1+cpu", "3.12", "usual", "yes", "yes", "yes"],
    ]
    assert code == 0


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["torch==9.9.9"], ["no: No solution found", "not tried", "not tried"]),
        (["torch==2.13.0", "--torch-backend=cu130"], ["yes", "no: Failed to download", "not tried"]),
        (["torch==2.13.0"], ["yes", "yes", "no: ImportError: libcuda.so.1: cannot open"]),
    ],
    ids=["no such release", "no wheel", "no import"],
)
def test_each_step_that_fails_has_its_reason(
    words: list[str], steps: list[str], bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["bump", "--matrix", *words, "--summary=out.md"])

    (row,) = (bench.project / "out.md").read_text().splitlines()[2:]
    cells = [cell.strip() for cell in row.split(" | ")][3:]
    assert [cell.startswith(step) for cell, step in zip(cells, steps, strict=True)] == [True, True, True], cells
    assert code == 1


def test_a_python_that_is_not_there_is_not_known(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["bump", "--matrix", "torch==2.11.0", "--python-version=3.99,3.11"])

    said = capsys.readouterr().out
    assert "not known: No interpreter found for Python 3.99" in said
    assert code == 3


def test_environments_are_removed_and_no_test_is_run(bench: Bench) -> None:
    main(["bump", "--matrix", "torch==2.11.0", "torch==2.13.0", "--torch-backend=cu130"])

    assert not (bench.project / ".compilecontract" / "matrix").exists()
    assert not list(bench.project.rglob("calls"))


def test_a_folder_that_is_named_keeps_them(bench: Bench) -> None:
    main(["bump", "--matrix", "torch==2.11.0", "--keep=kept"])

    (made,) = (bench.project / "kept" / "matrix").iterdir()
    assert (made / "ready").exists()


def test_builds_are_uv_s(bench: Bench) -> None:
    main(["bump", "--matrix", "torch==2.11.0", "--torch-backend=cpu,cu130", "--index-url=https://example.org/simple"])

    resolved = [call for call in bench.uv_calls() if call[:2] == ["pip", "compile"]]
    assert [call[call.index("--torch-backend") + 1] for call in resolved] == ["cpu", "cu130"]
    assert all("https://example.org/simple" in call for call in resolved)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--matrix needs releases, for example: compilecontract bump --matrix torch==2.14.1 torch==2.15.0"),
        (["torch==2.11.0", "--from", "torch==2.12.1"], "--from does nothing with --matrix, which runs no tests"),
        (["torch==2.11.0", "--", "-k", "x"], "-- does nothing with --matrix, which runs no tests"),
        (["torch==2.11.0", "--python-version=3.11,"], "--python-version: expected names separated by commas"),
    ],
    ids=["no release", "another side", "arguments of pytest", "an empty name"],
)
def test_what_cannot_be_asked_is_one_line(
    words: list[str], said: str, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["bump", "--matrix", *words])

    assert capsys.readouterr().err.startswith(f"compilecontract: {said}")
    assert code == 2
