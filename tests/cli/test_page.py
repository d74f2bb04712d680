"""`compilecontract page`: exit codes, where it writes, and one clear line for what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runs import MODEL, a_run

from pytest_compilecontract.cli.main import main
from pytest_compilecontract.files.receipt import write_receipt


@pytest.fixture(autouse=True)
def _in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text("\n".join(MODEL), encoding="utf-8")
    write_receipt(Path("out/receipt.json"), a_run())


@pytest.mark.parametrize("run", ["out", "out/receipt.json"])
def test_the_page_is_beside_the_receipt(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["page", run])

    assert capsys.readouterr() == ("wrote out/index.html\n", "")
    assert "2 of 4 contracts hold" in Path("out/index.html").read_text(encoding="utf-8")
    assert "mask = copy.deepcopy(self.mask)" in Path("out/index.html").read_text(encoding="utf-8")
    assert code == 0


def test_it_goes_where_it_is_told_and_source_is_read_there(capsys: pytest.CaptureFixture[str]) -> None:
    Path("elsewhere").mkdir()

    code = main(["page", "out", "-o", "pages/run.html", "--root", "elsewhere"])

    page = Path("pages/run.html").read_text(encoding="utf-8")
    assert capsys.readouterr() == ("wrote pages/run.html\n", "")
    assert "no such file in the project's folder" in page
    assert 'def forward(self, x):",""' not in page
    assert not Path("out/index.html").exists()
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["gone.json"], "gone.json: cannot be read (No such file or directory)", id="no file"),
        pytest.param(
            ["."], ".: contains no receipt.json (a page shows a run, not baselines)", id="no receipt in the folder"
        ),
        pytest.param(["model.py"], "model.py: not JSON*", id="no receipt"),
        pytest.param(
            ["out", "--root", "gone"], "gone: no such folder (--root expects the project's folder)", id="no root"
        ),
        pytest.param(
            ["out", "-o", "out/receipt.json"],
            "out/receipt.json: is the receipt to read, write the page to another file",
            id="over the receipt",
        ),
        pytest.param(["out", "-o", "out"], "out: cannot be written (Is a directory)", id="over a folder"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("out/receipt.json").read_bytes()

    code = main(["page", *arguments])

    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"compilecontract: {message.removesuffix('*')}")
    assert told.err.count("\n") == 1
    assert Path("out/receipt.json").read_bytes() == before
    assert code == 2


def test_a_page_of_somebody_elses_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("out/index.html").write_text("<title>mine</title>")

    code = main(["page", "out"])

    said = "compilecontract: out/index.html: exists and is not a page written by this plugin\n"
    assert capsys.readouterr().err == said
    assert Path("out/index.html").read_text() == "<title>mine</title>"
    assert code == 2


def test_a_run_that_did_not_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("out/journal.jsonl").write_text("")

    code = main(["page", "out"])

    assert "its run did not end (`compilecontract recover out` writes the receipt)" in capsys.readouterr().err
    assert code == 2
