"""Environments: what an interpreter has, what another is to keep to, and a reason in one line whatever uv prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from support.upgrades import Bench, a_plan

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.processes import death, watched
from pytest_compilecontract.upgrade.checkout import checkout_of
from pytest_compilecontract.upgrade.environments import (
    differing,
    plugin_lines,
    preferences,
    probe,
    reason_of,
    variables_of,
)
from pytest_compilecontract.upgrade.progress import Progress, duration
from pytest_compilecontract.upgrade.requirements import Wanted

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the interpreters are scripts")

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "Using Python 3.11.7 environment at: v\nerror: Request failed after 3 retries\n"
            "  cause: Failed to fetch: https://user:secret@example.org/six/\n  cause: Connection refused\n",
            "Request failed after 3 retries: Failed to fetch: https://example.org/six/: Connection refused",
        ),
        (
            "  × No solution found when resolving dependencies:\n"  # noqa: RUF001
            "  ╰─▶ Because there is no version of torch==9 and\n      you require torch==9, no.\n\n"
            "      hint: pre-releases\n      are off",
            "No solution found when resolving dependencies: Because there is no version of torch==9 and you require "
            "torch==9, no.",
        ),
        (
            "Traceback (most recent call last):\n  File x\nOSError: [Errno 28] No space left",
            "OSError: [Errno 28] No space left",
        ),
        ("", ""),
    ],
    ids=["causes", "a tree", "a traceback", "nothing"],
)
def test_a_reason_is_one_line(said: str, reason: str) -> None:
    assert reason_of(said) == reason


def test_another_environment_keeps_to_all_but_what_was_asked_for_and_what_follows_from_it() -> None:
    packages = {"torch": "2.11.0", "triton": "3.6.0", "nvidia-nccl-cu13": "2", "cuda-toolkit": "13", "numpy": "2.3.5"}
    packages |= {
        "torchvision": "0.26.0",
        "transformers": "5.20",
        "pytest-compilecontract": "0.1.0",
        "torchmetrics": "1",
    }

    kept = preferences(packages, {"torch": "", "transformers": ""})

    assert kept == {"numpy": "2.3.5", "torchmetrics": "1"}


def test_what_differs_unasked_is_named() -> None:
    before = {"torch": "2.11.0", "triton": "3.6.0", "numpy": "2.3.5", "einops": "0.8"}
    after = {"torch": "2.12.1", "triton": "3.7.1", "numpy": "2.4.0", "rich": "15"}

    found = [str(each) for each in differing(before, after, {"torch": ""})]
    assert found == ["einops 0.8 -> none", "numpy 2.3.5 -> 2.4.0", "rich none -> 15"]


def test_the_plugin_comes_along_as_it_is_installed_here() -> None:
    assert plugin_lines(Wanted()) == [f"-e {ROOT}"]


def test_the_plugin_is_not_installed_twice_where_it_is_the_project() -> None:
    assert plugin_lines(Wanted(editable=(ROOT,))) == []


def test_this_interpreter_has_the_plugin_and_says_what_else() -> None:
    found = probe(Path(sys.executable), ROOT, {**variables_of(Path(sys.executable)), "PYTHONPATH": str(ROOT)})

    assert (found.plugin, found.entered) == ("", True)
    assert "pytest" in found.packages
    assert (found.torch is None) == bool(found.failed)


def test_what_is_no_python_is_one_line(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'error: no' >&2\nexit 3\n")
    program.chmod(0o755)

    with pytest.raises(UsageError) as caught:
        probe(program, tmp_path, os.environ)

    assert str(caught.value) == f"{program}: not a working Python (no)"


def test_what_cannot_be_started_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("")

    with pytest.raises(UsageError) as caught:
        probe(tmp_path / "python", tmp_path, os.environ)

    assert str(caught.value) == f"{tmp_path / 'python'}: not a working Python (Permission denied)"


def test_what_an_interpreter_prints_by_itself_does_not_hide_what_it_has(tmp_path: Path) -> None:
    plan = a_plan("2.12.1")
    python = Bench(folder=tmp_path).interpreter("noisy", plan)
    python.write_text(python.read_text().replace("for facts", 'print("hello {", end="")\n    for facts'))

    found = probe(python, tmp_path, os.environ)

    assert (found.torch, found.packages["numpy"]) == ("2.12.1", "2.3.5")


def test_the_environment_of_an_interpreter_is_as_if_it_were_activated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "pyvenv.cfg").write_text("")
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    monkeypatch.setenv("VIRTUAL_ENV", "/other")

    variables = variables_of(tmp_path / "bin" / "python")

    assert variables["PATH"].split(os.pathsep)[0] == str(tmp_path / "bin")
    assert variables["VIRTUAL_ENV"] == str(tmp_path)
    assert "PYTHONHOME" not in variables


# Children


def test_what_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    # No other session of these tests has one of so many seconds.
    asleep = f"{3000 + os.getpid()}.3213"
    program = f"import subprocess, sys; subprocess.Popen(['sleep', '{asleep}']); print('on', flush=True)\n"
    program += "import time; time.sleep(600)"
    told: list[int] = []

    code = watched(
        [sys.executable, "-c", program],
        log=tmp_path / "log",
        cwd=tmp_path,
        variables=os.environ,
        meanwhile=lambda: told.append(1),
        seconds=2,
    )

    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert (code, (tmp_path / "log").read_text()) == (None, "on\n")
    assert told
    assert f"sleep {asleep}" not in running


@pytest.mark.parametrize(
    ("code", "said"), [(3, "ended with code 3"), (-signal.SIGSEGV, "died (SIGSEGV)"), (-99, "died (signal 99)")]
)
def test_a_death_has_its_name(code: int, said: str) -> None:
    assert death(code) == said


# Progress


def test_a_terminal_has_one_line_that_changes() -> None:
    stream = StringIO()
    progress = Progress(stream=stream, prefix="bump", live=True)

    progress.now("1 of 2 \x1b[31m tests")
    time.sleep(0.25)
    progress.now("2 of 2")
    progress.stage("done")

    assert stream.getvalue() == "\r\x1b[K1 of 2  tests\r\x1b[K2 of 2\r\x1b[Kbump: done\n"


def test_what_is_no_terminal_has_a_line_a_stage() -> None:
    stream = StringIO()
    progress = Progress(stream=stream, prefix="bump")

    progress.now("1 of 2")
    progress.stage("done")

    assert stream.getvalue() == "bump: done\n"


@pytest.mark.parametrize(("seconds", "said"), [(0.4, "0 s"), (99.4, "99 s"), (185, "3 min 5 s")])
def test_a_duration_is_said_as_people_do(seconds: float, said: str) -> None:
    assert duration(seconds) == said


# The checkout


def test_a_checkout_is_the_same_till_a_file_that_python_reads_changes(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=someone", "-c", "user.email=someone@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    git("init", "-q")
    git("commit", "-qm", "start", "--allow-empty")
    seen = [checkout_of(tmp_path)]
    (tmp_path / "notes.txt").write_text("left by a run")
    seen.append(checkout_of(tmp_path))
    (tmp_path / "new.py").write_text("x = 1")
    seen.append(checkout_of(tmp_path))
    git("add", "new.py")
    git("commit", "-qm", "new")
    seen.append(checkout_of(tmp_path))

    assert seen[0] == seen[1]
    assert len(set(seen)) == 3


def test_the_files_that_changed_are_named_and_what_an_install_writes_is_none(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=someone", "-c", "user.email=someone@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    git("init", "-q")
    project = tmp_path / "one of several"
    info = project / "src/it.egg-info/SOURCES.txt"
    for file in (info, project / "src/it.py", project / "ä.py", project / "gone.py", tmp_path / "other.py"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")
    git("add", ".")
    git("commit", "-qm", "start")
    (project / "src/it.py").write_text("x = 2\n")
    before = checkout_of(project)
    assert before is not None

    info.write_text("it.py\n")
    (tmp_path / "other.py").write_text("x = 2\n")
    assert checkout_of(project) == before
    (project / "src/it.py").write_text("x = 3\ndiff --git a/no.py b/no.py\n")
    (project / "ä.py").write_text("x = 2\n")
    (project / "gone.py").unlink()
    (project / "new.py").write_text("x = 1\n")
    after = checkout_of(project)

    assert after is not None
    assert after.changed_since(before) == ("gone.py", "new.py", "src/it.py", "ä.py")


def test_a_folder_that_git_does_not_know_is_none(tmp_path: Path) -> None:
    assert checkout_of(tmp_path) is None
