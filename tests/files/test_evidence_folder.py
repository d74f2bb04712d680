"""The folder of a lane's evidence: bounded, of its own, and nothing foreign touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.evidence import GRAPHS, KINDS, Evidence, folder_name, kind_of, lacking, logs
from pytest_compilecontract.files import evidence
from pytest_compilecontract.files.evidence import Folder, clear, read_graphs, refuse_foreign


def opened(tmp_path: Path, name: str = "lane") -> Folder:
    folder = Folder(tmp_path / "evidence" / name)
    assert folder.open()
    return folder


def facts(folder: Folder) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder.path / "evidence.json").read_text())
    return found


def test_files_of_one_compile_are_told_apart(tmp_path: Path) -> None:
    folder = opened(tmp_path)

    folder.add("code", "0_0", "py", "forward")
    folder.add("code", "0_0", "py", "backward")
    folder.add("minified", "", "py", "small")
    folder.close({"lane": "aot"}, ["guards: none"], ["# told"])

    assert facts(folder) == {
        "lane": "aot",
        "files": ["code-0_0.py", "code-0_0-2.py", "minified.py"],
        "left_out": ["guards: none"],
    }
    assert (folder.path / "code-0_0-2.py").read_text() == "backward"
    assert [kind_of(each) for each in folder.files] == ["code", "code", "minified"]
    assert (folder.path / "README.md").read_text() == (
        "# told\n\n- `code-0_0.py`: Inductor's output code\n- `code-0_0-2.py`: Inductor's output code\n"
        "- `minified.py`: torch's minified program\n\nLeft out:\n\n- guards: none\n"
    )


def test_sizes_are_bounded_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "LARGEST_TEXT", 1024)
    monkeypatch.setattr(evidence, "LARGEST_TRACE", 20)
    monkeypatch.setattr(evidence, "MOST_FILES", 2)
    folder = opened(tmp_path)

    folder.add("graph", "0_0", "py", "x" * 2000)
    for record in ("0123456789", "0123456789", "0"):
        folder.trace(record)
    folder.add("graph", "1_0", "py", "late")
    folder.close({}, [], [])

    assert (folder.path / "graph-0_0.py").stat().st_size < 1100
    # A record is there as a whole, and none that follows one that is not.
    assert (folder.path / "trace.log").read_text() == "0123456789\n"
    assert facts(folder)["left_out"] == [
        "the end of graph-0_0.py: it is larger than 1 KiB",
        "the end of the trace: it is larger than 0 MiB",
        "1 more files: at most 2 are kept per lane",
    ]


def test_no_more_than_so_many_lanes_leave_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "MOST_LANES", 1)
    opened(tmp_path)
    second = Folder(tmp_path / "evidence" / "second")

    assert not second.open()
    assert second.all_problems() == [f"{tmp_path / 'evidence'} already has evidence of 1 lanes, the most that is kept"]
    assert not second.path.exists()


def test_where_it_cannot_be_written_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "evidence").write_text("a file")
    folder = Folder(tmp_path / "evidence" / "lane")

    assert not folder.open()
    assert folder.all_problems() == [f"{folder.path}: cannot be written (File exists)"]


def test_only_what_is_evidence_is_cleared(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    mine = tmp_path / "evidence" / "mine"
    mine.mkdir()
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    (elsewhere / "evidence.json").write_text("{}")
    (tmp_path / "evidence" / "link").symlink_to(folder.path)

    for each in (mine, elsewhere, tmp_path / "evidence" / "link", folder.path):
        clear(each)

    assert mine.is_dir()
    assert elsewhere.is_dir()
    assert not folder.path.exists()


def test_a_folder_of_evidence_is_taken_again_and_another_is_not(tmp_path: Path) -> None:
    opened(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".gitignore").write_text("*\n")

    for fine in ("evidence", "empty", "not there"):
        refuse_foreign(tmp_path / fine)
    with pytest.raises(UsageError) as caught:
        refuse_foreign(tmp_path / "mine")

    assert str(caught.value) == (
        f"--contract-evidence: {tmp_path / 'mine'}: contains files that are not evidence (before a path, write "
        "--contract-evidence=DIR)"
    )


def test_a_folder_is_named_by_its_test_whatever_that_is_called() -> None:
    hostile = folder_name("tests/../../test_a.py::test_b[aot-<x>/../..]", "aot")

    assert "/" not in hostile
    assert ".." not in hostile
    assert len(folder_name("t.py::" + "x" * 1000, "aot")) < 100
    assert folder_name("a.py::test", "aot") != folder_name("b/a.py::test", "aot")


def test_what_is_lacking_has_its_reason() -> None:
    assert list(lacking({"graph", "guards"}, "eager")) == [
        "AOT graphs: backend 'eager' has none",
        "output code: backend 'eager' writes none",
    ]
    assert list(lacking(set(), "inductor")) == [
        "FX graphs: Dynamo handed none to a backend",
        "AOT graphs: torch traced none",
        "output code: Inductor wrote none",
        "guards: no frame was compiled to its end",
    ]
    assert logs("eager") == "graph_breaks,recompiles,guards,graph_code"
    assert logs("") == logs("inductor") == f"{logs('aot_eager')},post_grad_graphs,output_code"
    assert set(GRAPHS) < set(KINDS)


def test_graphs_are_read_from_evidence_alone(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    folder.add("graph", "0_0", "py", "forward")
    folder.add("code", "0_0", "py", "kernels")
    elsewhere = tmp_path / "mine"
    elsewhere.mkdir()
    (elsewhere / "graph-0_0.py").write_text("secret")
    (folder.path / "graph-1_0.py").symlink_to(elsewhere / "graph-0_0.py")
    files = ("graph-0_0.py", "graph-1_0.py", "code-0_0.py", "graph-9_9.py", "../../mine/graph-0_0.py")

    assert read_graphs(tmp_path, Evidence(folder="evidence/lane", files=files)) == {"graph-0_0.py": "forward"}
    assert read_graphs(tmp_path, Evidence(folder="mine", files=files)) == {}
