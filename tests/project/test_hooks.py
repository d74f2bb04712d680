"""What other projects use of this repository by its name: the hook of pre-commit, and the action."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.receipts import NEW, an_entry

from pytest_compilecontract.baselines.store import Baselines
from pytest_compilecontract.cli.main import main

ROOT = Path(__file__).parents[2]
yaml = pytest.importorskip("yaml")


@pytest.fixture
def hook() -> dict[str, Any]:
    (found,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    return dict(found)


@pytest.fixture
def step() -> dict[str, Any]:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    return dict(action["runs"]["steps"][-1])


@pytest.mark.parametrize(
    ("path", "chosen"),
    [
        ("contracts/baselines/torch2.15-cpu/test_block.json", True),
        ("lib/contracts/baselines/torch2.15-cpu/test_block.json", True),
        ("contracts/waivers.toml", True),
        ("contracts/baselines/torch2.15-cpu/README.md", False),
        ("mycontracts/waivers.toml", False),
        ("pyproject.toml", False),
    ],
)
def test_the_hook_is_for_baselines_and_waivers(hook: dict[str, Any], path: str, chosen: bool) -> None:
    assert bool(re.search(hook["files"], path)) is chosen


def test_the_hook_finds_a_baseline_that_was_mended_by_hand(
    hook: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Baselines(tmp_path / "contracts" / "baselines", tmp_path).record([an_entry()], {"here": NEW}, "all", "")
    files = [str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*.json")]
    chosen = [each for each in files if re.search(hook["files"], each)]
    program, command = hook["entry"].split()

    before = main([command, *chosen])
    broken = Path(chosen[0])
    broken.write_text(broken.read_text().replace('"graphs"', '"graph"'))

    assert (program, len(chosen), before) == ("compilecontract", 1, 0)
    assert main([command, *chosen]) == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ["torch"]),
        ({"TO": "2.15.0", "FROM": "2.13.0"}, ["torch==2.15.0", "--from", "torch==2.13.0"]),
        ({"BACKEND": "cpu"}, ["torch", "--torch-backend", "cpu"]),
        ({"TO": "1; touch x"}, ["torch==1; touch x"]),
    ],
    ids=["nothing", "both releases", "a build", "hostile"],
)
@pytest.mark.parametrize("code", [0, 3])
def test_the_action_asks_the_gate(
    step: dict[str, Any], given: dict[str, str], words: list[str], code: int, tmp_path: Path
) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    command = tmp_path / "programs" / "compilecontract"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > called\nexit {code}\n')
    command.chmod(0o755)
    unset = dict.fromkeys(("TO", "FROM", "BACKEND"), "")
    own = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    variables = {**own, **unset, **given, "GITHUB_ACTION_PATH": str(ROOT), "GATE_REPORT": "out"}

    ran = subprocess.run(
        [bash, "-eo", "pipefail", "-c", step["run"]],
        cwd=tmp_path,
        env={**variables, "PATH": f"{command.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (code, "")
    called = (tmp_path / "called").read_text().splitlines()
    assert called == ["bump", "--receipts", "out", "--summary", "out/summary.md", *words]


def test_what_somebody_types_is_no_code_of_the_action(step: dict[str, Any]) -> None:
    assert "${{" not in step["run"]
    assert set(step["env"]) == {"TO", "FROM", "BACKEND", "GATE_REPORT"}
