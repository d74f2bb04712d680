"""A command that is printed starts the interpreter that printed it, whatever the shell finds first."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_compilecontract.shell import in_shell

PYTEST = ("python", "-m", "pytest", "--compile-contracts")
Install = Callable[..., Path]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make an environment, which is then that of this process; its programs, too, if they are named."""
    for name in ("UV_RUN_RECURSION_DEPTH", "TOX_ENV_NAME", "NOX_CURRENT_SESSION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["-c"])
    # As where only another interpreter is found.
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    base = sys.executable

    def made(folder: Path, *programs: str) -> Path:
        folder.mkdir(parents=True)
        python = folder / "python"
        # As in a virtual environment: the same file as in every other one of this Python.
        python.symlink_to(base)
        for each in programs:
            (folder / each).write_text("#!/bin/sh\n")
            (folder / each).chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        return folder

    return made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def test_the_interpreter_that_the_shell_finds_is_python(
    install: Install, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install(project / ".venv/bin", "pytest", "compilecontract")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    assert in_shell(PYTEST, project) == PYTEST
    assert in_shell(["pytest", "-q"], project) == ("pytest", "-q")
    assert in_shell(["compilecontract", "show"], project) == ("compilecontract", "show")


def test_an_environment_of_the_project_is_told_from_the_folder_that_the_command_is_for(
    install: Install, project: Path
) -> None:
    install(project / ".venv/bin", "pytest", "compilecontract")
    below = project / "tests"

    assert in_shell(PYTEST, project) == (".venv/bin/python", *PYTEST[1:])
    assert in_shell(PYTEST, below, project) == ("../.venv/bin/python", *PYTEST[1:])
    assert in_shell(["pytest"], project) == (".venv/bin/pytest",)
    assert in_shell(["compilecontract", "show"], project) == (".venv/bin/compilecontract", "show")
    assert in_shell(PYTEST, project / ".venv/bin")[0] == "./python"


def test_any_other_interpreter_is_told_whole(install: Install, project: Path, tmp_path: Path) -> None:
    folder = install(tmp_path / "envs/bin", "pytest")

    assert in_shell(PYTEST, project) == (str(folder / "python"), *PYTEST[1:])
    assert in_shell(["pytest"], project) == (str(folder / "pytest"),)


def test_a_program_that_has_no_script_is_started_as_a_module(install: Install, project: Path) -> None:
    install(project / ".venv/bin")

    assert in_shell(["pytest", "-q"], project) == (".venv/bin/python", "-m", "pytest", "-q")
    assert in_shell(["compilecontract"], project) == (".venv/bin/python", "-m", "pytest_compilecontract")


def test_a_link_to_the_same_python_in_another_environment_is_another_interpreter(
    install: Install, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = install(project / "other/bin")
    install(project / ".venv/bin")
    monkeypatch.setenv("PATH", str(other))

    assert in_shell(PYTEST, project)[0] == ".venv/bin/python"


@pytest.mark.parametrize("runner", ["UV_RUN_RECURSION_DEPTH", "TOX_ENV_NAME", "NOX_CURRENT_SESSION"])
def test_what_a_runner_puts_on_the_path_is_not_on_the_shells(
    install: Install, project: Path, monkeypatch: pytest.MonkeyPatch, runner: str
) -> None:
    monkeypatch.setenv("PATH", str(install(project / ".venv/bin")))
    monkeypatch.setenv(runner, "1")

    assert in_shell(PYTEST, project)[0] == ".venv/bin/python"


def test_the_script_of_this_process_is_meant_even_if_it_is_not_beside_the_interpreter(
    install: Install, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = install(project / "home/bin", "pytest")
    install(project / "usr/bin", "pytest")
    monkeypatch.setattr(sys, "argv", [str(user / "pytest")])

    assert in_shell(["pytest"], project) == ("home/bin/pytest",)


def test_other_commands_and_an_interpreter_without_a_path_are_left_as_they_are(
    install: Install, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(project / ".venv/bin")
    assert in_shell(["TORCH_LOGS=guards", "python"], project) == ("TORCH_LOGS=guards", "python")
    monkeypatch.setattr(sys, "executable", "")

    assert in_shell(PYTEST, project) == PYTEST
