"""Source files: what is read below a folder, and what is never."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_compilecontract.files import sources as module
from pytest_compilecontract.files.sources import Source, read_sources


def read(root: Path, name: str) -> Source:
    return read_sources(root, [name])[name]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "secret.py").write_text("password = 1\n")
    return folder


def test_lines_end_where_pythons_do(root: Path) -> None:
    (root / "net.py").write_bytes(b"a\r\nb\x0cc\rd\n\ne")

    assert read(root, "net.py").lines == ("a", "b\x0cc", "d", "", "e")


def test_an_encoding_is_kept_and_what_is_none_is_replaced(root: Path) -> None:
    (root / "latin.py").write_bytes("# coding: latin-1\nx = 'é'\n".encode("latin-1"))
    (root / "odd.py").write_bytes(b"# coding: nonsense\n\xff\n")

    assert read(root, "latin.py").lines == ("# coding: latin-1", "x = 'é'")
    assert read(root, "odd.py").lines == ("# coding: nonsense", "\ufffd")


@pytest.mark.parametrize("name", ["../secret.py", "/etc/hosts", "C:\\secret.py", "a/../../secret.py", "a\0b.py"])
def test_nothing_outside_is_read(root: Path, name: str) -> None:
    assert read(root, name) == Source(problem="not in the project's folder, so it is not read", outside=True)


def test_a_name_that_hides_a_step_upward_is_not_read(root: Path) -> None:
    (root / "a::").mkdir()

    assert read(root, "a::/../../secret.py").lines is None


def test_a_link_that_leads_out_is_not_read(root: Path, tmp_path: Path) -> None:
    os.symlink(tmp_path / "secret.py", root / "net.py")

    assert read(root, "net.py").problem == "a link out of the project's folder, so it is not read"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        pytest.param("gone.py", "no such file in the project's folder", id="missing"),
        pytest.param(".env", "not a Python file, so it is not read", id="no Python"),
        pytest.param("folder.py", "not a Python file, so it is not read", id="folder"),
        pytest.param("pipe.py", "not a Python file, so it is not read", id="pipe"),
        pytest.param("loop.py", None, id="a link to itself"),
    ],
)
def test_what_cannot_be_read_is_said(root: Path, name: str, problem: str | None) -> None:
    (root / ".env").write_text("TOKEN=1")
    (root / "folder.py").mkdir()
    os.mkfifo(root / "pipe.py")
    os.symlink(root / "loop.py", root / "loop.py")

    found = read(root, name)

    assert found.lines is None
    assert found.problem == problem if problem is not None else found.problem


def test_what_is_too_large_is_left_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_BYTES", 1024)
    monkeypatch.setattr(module, "MOST_BYTES", 1500)
    for name, size in (("a.py", 1000), ("b.py", 1000), ("c.py", 2000), ("d.py", 100)):
        (root / name).write_text("#" * size)

    found = read_sources(root, ["a.py", "b.py", "c.py", "d.py"])

    assert [each.lines is not None for each in found.values()] == [True, False, False, True]
    assert found["c.py"].problem == "larger than 1 KiB, so it is left out"
    assert found["b.py"].problem.startswith("left out: the files before it already have ")


def test_when_a_file_was_written_is_as_a_receipt_has_times(root: Path) -> None:
    (root / "net.py").write_text("")
    os.utime(root / "net.py", (0, 0))

    assert read(root, "net.py").written == "1970-01-01T00:00:00Z"
