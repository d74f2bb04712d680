"""The process of an XLA lane: what its Python is asked, and how a session ends where that one answers badly."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from support.sessions import run_session

from pytest_compilecontract.facts.lanes import BUILT_IN, Lane
from pytest_compilecontract.facts.receipt import Environment, environment_key
from pytest_compilecontract.measure.probes import xla_packages
from pytest_compilecontract.measure.probes.xla_packages import (
    INSTALL_TORCH_XLA,
    INSTALL_TORCHAX,
    PYTHON_OF_TORCH_XLA,
    PYTHON_OF_TORCHAX,
    environment_of,
    installed,
    no_xla,
)

pytestmark = pytest.mark.sessions

LAZY, TORCHAX = BUILT_IN["xla-lazy"], BUILT_IN["xla-torchax"]
HAS = {"torch": "2.9.0", "torch_xla": "2.9.0", "torchax": "0.0.14.dev20261026", "jax": "0.10.2"}
CONTRACT = """
import torch
from pytest_compilecontract import compile_contract

@compile_contract(max_recompiles=0)
def test_it(compile_lane):
    compile_lane.run(torch.sin, torch.ones(3))
"""


ANSWERS = 'print(json.dumps({{"format": 1, "event": {}}}))'


def a_python(folder: Path, *, answer: object = None, then: str = "exit 0") -> str:
    """A program that answers as a Python with these packages does, and then does something else as pytest."""
    text = answer if isinstance(answer, str) else json.dumps(answer)
    (folder / "answer").write_text(text, encoding="utf-8")
    file = folder / "python"
    file.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then cat "{folder / "answer"}"; exit 0; fi\n{then}\n', encoding="utf-8"
    )
    file.chmod(0o755)
    return str(file)


def with_packages(**packages: str) -> dict[str, object]:
    return {"python": "3.11.7", "packages": packages, "plugin": True}


@pytest.mark.parametrize(
    ("lane", "packages", "said"),
    [
        (TORCHAX, {"torch": "2.13.0"}, f"torchax and jax not installed; to install: {INSTALL_TORCHAX}"),
        (TORCHAX, {**HAS, "jax": ""}, f"jax not installed; to install: {INSTALL_TORCHAX}"),
        (
            TORCHAX,
            {**HAS, "torchax": "0.0.13"},
            f"torchax 0.0.13 is older than 0.0.14.dev20261026; to install: {INSTALL_TORCHAX}",
        ),
        (
            LAZY,
            {"torch": "2.13.0"},
            f"torch_xla not installed, which needs torch 2.9 and so an environment of its own: {INSTALL_TORCH_XLA}",
        ),
        (
            LAZY,
            {"torch": "2.13.0", "torch_xla": "2.9.0"},
            f"torch 2.13.0 and torch_xla 2.9.0 are not of one release: {INSTALL_TORCH_XLA}",
        ),
        (TORCHAX, HAS, None),
        (LAZY, HAS, None),
    ],
)
def test_what_is_absent_is_said_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lane: Lane, packages: dict[str, str], said: str | None
) -> None:
    python = a_python(tmp_path, answer=with_packages(**{name: each for name, each in packages.items() if each}))
    monkeypatch.setenv(PYTHON_OF_TORCHAX, python)
    monkeypatch.setenv(PYTHON_OF_TORCH_XLA, python)

    assert no_xla(lane) == said
    assert said is None or "\n" not in said


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "{",
        "[]",
        '{"python": "3.11"}',
        '{"python": "3.11", "packages": [], "plugin": true}',
        '{"python": "3.11", "packages": {"torch": 2.9}, "plugin": true}',
        '{"python": "3.11", "packages": {"torch": "2.9\\n"}, "plugin": true}',
        '{"python": "3.11", "packages": {}, "plugin": true, "more": 1}',
        '{"python": "3.11", "packages": {}, "plugin": true}\n{"python": "3.12", "packages": {}, "plugin": true}',
        "[" * 100_000,
        "3",
    ],
)
def test_an_answer_that_is_not_ours_is_said(tmp_path: Path, answer: str) -> None:
    python = a_python(tmp_path, answer=answer)

    assert installed(python).why == f"{python} cannot say what is installed there (its answer is no JSON of ours)"


def test_what_a_python_prints_beside_its_answer_is_passed_over(tmp_path: Path) -> None:
    python = a_python(tmp_path, answer=f"a .pth file speaks\n{json.dumps(with_packages(**HAS))}\n[1]\n")

    assert (installed(python).why, installed(python).version("torch")) == ("", "2.9.0")


def test_a_python_that_prints_without_end_is_not_read_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = a_python(tmp_path, answer=f"{'a' * 100}\n{json.dumps(with_packages())}")
    monkeypatch.setattr(xla_packages, "ANSWER_BYTES", 100)

    assert installed(python).why.endswith("(its answer is no JSON of ours)")


def test_what_a_python_starts_keeps_nobody_waiting(tmp_path: Path) -> None:
    python = a_python(tmp_path, answer=with_packages())
    file = Path(python)
    file.write_text(file.read_text(encoding="utf-8").replace("cat ", "sleep 30 & cat "), encoding="utf-8")
    began = time.monotonic()

    assert installed(python).why == ""
    assert time.monotonic() - began < 15


def test_a_python_that_is_not_there_is_said(tmp_path: Path) -> None:
    python = str(tmp_path / "none")

    assert installed(python).why == f"{python} cannot be run (No such file or directory)"


def test_a_python_that_fails_is_said(tmp_path: Path) -> None:
    python = a_python(tmp_path)
    Path(python).write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")

    assert installed(python).why == f"{python} cannot say what is installed there (it ended with code 3)"


def test_a_python_that_hangs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = a_python(tmp_path)
    Path(python).write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    monkeypatch.setattr(xla_packages, "ASK_SECONDS", 0.2)

    assert installed(python).why == f"{python} did not answer in 0.2 seconds"


@pytest.mark.parametrize(
    ("lane", "said"),
    [
        (
            Lane(name="mine", backend="torchax", device="cpu", mode="default", fullgraph=True),
            "backend 'torchax' is not torch.compile's, and takes none of its settings: mode, fullgraph",
        ),
        (
            Lane(name="mine", backend="openxla", device="cuda"),
            "backend 'openxla' runs on PJRT's CPU plugin alone: device has to be 'cpu'",
        ),
    ],
)
def test_a_lane_of_the_project_that_cannot_be_is_said(lane: Lane, said: str) -> None:
    assert no_xla(lane) == said


def test_the_environment_is_that_of_the_other_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON_OF_TORCH_XLA, a_python(tmp_path, answer=with_packages(**HAS)))
    own = Environment(torch="2.13.0+cu130", cuda="13.0", capability="9.0", python="3.12.1", processor="a processor")

    found = environment_of(LAZY, own)

    assert (found.torch, found.python, found.cuda, found.capability) == ("2.9.0", "3.11.7", None, None)
    assert found.libraries == {"torch_xla": "2.9.0", "pjrt": "cpu"}
    assert environment_key(found) == "torch2.9-pjrt-cpu"


def test_torchax_beside_the_suite_keeps_its_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON_OF_TORCHAX, sys.executable)
    own = Environment(torch="2.13.0+cpu", settings={"a": "1"})

    found = environment_of(TORCHAX, own)

    assert (found.torch, found.settings, found.libraries["pjrt"]) == ("2.13.0+cpu", {"a": "1"}, "cpu")


# Whole sessions


def a_session(folder: Path, python: str, *options: str) -> tuple[int, str, dict[str, str]]:
    (folder / "test_it.py").write_text(CONTRACT, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "--compile-contracts", "--contract-lanes=xla-lazy"]
    variables = {**os.environ, PYTHON_OF_TORCH_XLA: python}
    ran = run_session([*command, "--contract-report=report", *options], cwd=folder, env=variables, timeout=240)
    receipt = json.loads((folder / "report" / "receipt.json").read_text(encoding="utf-8"))
    return (
        ran.returncode,
        ran.stdout,
        {"verdict": receipt["entries"][0]["verdict"], "reason": receipt["entries"][0]["reason"]},
    )


def test_absent_packages_leave_a_lane_unmeasured_and_not_held(tmp_path: Path) -> None:
    code, printed, entry = a_session(tmp_path, a_python(tmp_path, answer=with_packages(torch="2.13.0")))

    assert code == pytest.ExitCode.TESTS_FAILED
    assert entry["verdict"] == "unmeasured"
    assert entry["reason"].endswith(INSTALL_TORCH_XLA)
    assert "no lane could be measured" in printed


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        ("kill -SEGV $$", "died (SIGSEGV) without a report"),
        ("exit 0", "ended with code 0 without a report"),
        ("exit 4", "ended with code 4 without a report"),
    ],
)
def test_a_process_that_dies_breaks_the_lane(tmp_path: Path, then: str, reason: str) -> None:
    code, _, entry = a_session(tmp_path, a_python(tmp_path, answer=with_packages(**HAS), then=then))

    assert code == pytest.ExitCode.TESTS_FAILED
    assert entry == {
        "verdict": "broken",
        "reason": f"in the process of lane xla-lazy: the test failed in call: {reason}",
    }


def test_a_process_that_hangs_is_ended(tmp_path: Path) -> None:
    says_it_began = 'for each in "$@"; do case $each in --contract-rank=0:*) folder=${each#*0:};; esac; done\n'
    say = "import json, time; " + ANSWERS.format('"begins", "at_seconds": time.perf_counter(), "report": None')
    says_it_began += f"""{sys.executable} -SEc '{say}' > "$folder/rank0.jsonl"; trap '' USR1; exec sleep 600"""
    python = a_python(tmp_path, answer=with_packages(**HAS), then=says_it_began)

    code, _, entry = a_session(tmp_path, python, "--contract-timeout=1")

    assert code == pytest.ExitCode.TESTS_FAILED
    assert entry["verdict"] == "broken"
    assert "did not end in time" in entry["reason"]


def test_a_report_that_cannot_be_read_breaks_the_lane(tmp_path: Path) -> None:
    writes = 'for each in "$@"; do case $each in --contract-rank=0:*) folder=${each#*0:};; esac; done\n'
    writes += """printf '{"event": "measured", "outco' > "$folder/rank0.jsonl"; exit 0"""

    code, printed, entry = a_session(tmp_path, a_python(tmp_path, answer=with_packages(**HAS), then=writes))

    assert code == pytest.ExitCode.TESTS_FAILED
    assert entry == {
        "verdict": "broken",
        "reason": "in the process of lane xla-lazy: the test failed in call: "
        "its report cannot be read: its last line has no end",
    }
    assert "INTERNALERROR" not in printed
