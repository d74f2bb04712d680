"""The command to rerun a lane is the one that works where it is read."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_compilecontract.facts.rerun import Command
from pytest_compilecontract.plugin.started import (
    as_started,
    keep_start,
    kept_options,
    session_command,
    start,
    started_as_module,
    tell_worker,
)

LANE = ("--compile-contracts", "--contract-lanes=aot")
RERUN = Command(options=LANE, tests=("tests/test_a.py::test_it[aot]",))
COMMAND = "pytest --compile-contracts --contract-lanes=aot -- 'tests/test_a.py::test_it[aot]'"
OBSERVE = "--contract-observe"
MODULE = "/env/lib/python3.11/site-packages/pytest/__main__.py"


def config(argv: list[str], here: str = "/project", **more: str) -> Any:
    made = SimpleNamespace(
        workerinput={"mainargv": argv, **more},
        rootpath=Path("/project"),
        invocation_params=SimpleNamespace(dir=Path(here), args=tuple(argv[1:])),
        stash=pytest.Stash(),
    )
    keep_start(made)
    return made


@pytest.mark.parametrize(
    ("argv", "here", "told"),
    [
        pytest.param(["/env/bin/pytest", "-q"], "/project", COMMAND, id="by-itself"),
        pytest.param([MODULE], "/project", f"python -m {COMMAND}", id="as-a-module"),
        pytest.param(
            ["/env/bin/pytest"],
            "/project/tests",
            "pytest --compile-contracts --contract-lanes=aot -- 'test_a.py::test_it[aot]'",
            id="from-a-folder-below",
        ),
        pytest.param(
            ["/env/bin/pytest", "-c", "ci/pytest.ini", "--rootdir=.", "-x", "tests"],
            "/project",
            "pytest -cci/pytest.ini --rootdir=. --compile-contracts --contract-lanes=aot -- "
            "'tests/test_a.py::test_it[aot]'",
            id="with-its-settings",
        ),
    ],
)
def test_it_is_as_the_session_was_started(argv: list[str], here: str, told: str) -> None:
    assert str(as_started(config(argv, here), RERUN)) == told


@pytest.mark.parametrize(
    ("started_in", "test"),
    [("/project", "tests/test_a.py"), ("/project/tests", "test_a.py"), ("/", "project/tests/test_a.py")],
)
def test_of_a_worker_with_a_copy_of_the_project_it_works_where_the_session_was_started(
    started_in: str, test: str
) -> None:
    told: dict[str, Any] = {}
    tell_worker(config([], started_in), told)

    # It runs above its copy, as pytest-xdist's do.
    worker = config(["/env/bin/pytest"], "/far", **told)
    worker.rootpath = Path("/far/project")

    assert str(as_started(worker, RERUN)) == COMMAND.replace("tests/test_a.py", test)


def test_a_session_is_started_again_with_its_settings_and_its_choice() -> None:
    session = config([MODULE, "-c", "ci.ini", "-x", "--contract-lanes=aot", "tests"])
    session.getoption = {"--contract-lanes": "aot", "-k": "block", "-m": "", OBSERVE: False}.__getitem__

    whole, same = session_command(session), session_command(session, choice=True)

    assert str(whole) == "python -m pytest -cci.ini --compile-contracts"
    assert str(same) == f"{whole} --contract-lanes=aot -k=block"


@pytest.mark.parametrize("given", [[OBSERVE], []], ids=["on-the-command-line", "in-addopts"])
def test_a_session_that_observes_is_started_again_observing(given: list[str]) -> None:
    session = config(["/env/bin/pytest", *given, "tests"])
    session.getoption = {"--contract-lanes": None, "-k": "", "-m": "", OBSERVE: True}.__getitem__

    whole, same = session_command(session), session_command(session, choice=True)

    assert str(whole) == str(same) == "pytest --compile-contracts --contract-observe"


def test_only_options_that_one_test_needs_are_kept() -> None:
    given = ["-v", "-p", "myplugin", "-pno:xdist", "-p", "no:cacheprovider", "--contract-baselines", "b", "-n", "2"]
    given += ["--contract-speed", "-k", "name", "-o", "addopts=", "--token=secret", "--", "-c", "none"]

    assert list(kept_options(given)) == [
        "-pmyplugin",
        "-pno:xdist",
        "--contract-baselines=b",
        "--contract-speed",
        "-oaddopts=",
    ]
    assert start([]) == ("pytest",)


@pytest.fixture
def not_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/project/.venv/bin/python")


@pytest.mark.usefixtures("not_on_the_path")
def test_it_starts_this_interpreter_where_the_shell_would_find_another() -> None:
    rerun = as_started(config([MODULE], "/project/tests"), RERUN)

    assert str(rerun).startswith("../.venv/bin/python -m pytest --compile-contracts")
    assert rerun.as_module


@pytest.mark.usefixtures("not_on_the_path")
def test_it_is_that_of_the_shell_and_of_no_test_that_changes_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    session = config([MODULE])
    monkeypatch.setattr(sys, "executable", "/elsewhere/bin/python")

    assert as_started(session, RERUN).start[0] == ".venv/bin/python"


@pytest.mark.usefixtures("not_on_the_path")
def test_a_worker_with_another_interpreter_is_rerun_by_that_of_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}
    tell_worker(config([MODULE]), told)
    monkeypatch.setattr(sys, "executable", "/far/bin/python")

    worker = config([MODULE], **told)

    assert as_started(worker, RERUN).start == (".venv/bin/python", "-m", "pytest")


@pytest.mark.usefixtures("not_on_the_path")
def test_as_a_module_it_is_the_same_interpreter() -> None:
    found = started_as_module(config([]), RERUN)

    assert found.start == (".venv/bin/python", "-m", "pytest")
    assert found.tests == RERUN.tests
