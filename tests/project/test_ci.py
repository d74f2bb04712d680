"""What a project may copy into its own CI: the gate's script passes the answer on, the workflow is safe and whole."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

CI = Path(__file__).parents[2] / "ci"
WORKFLOW = CI / "github" / "torch-upgrade.yml"


def gate(folder: Path, code: int, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ci/gate in a folder, with a compilecontract that says what it was given and ends with `code`."""
    programs = folder / "programs"
    programs.mkdir()
    command = programs / "compilecontract"
    command.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > called\nexit {code}\n')
    command.chmod(0o755)
    return run(folder, *words, PATH=f"{programs}:/usr/bin:/bin", **variables)


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    return subprocess.run(
        [str(CI / "gate"), *words], cwd=folder, env={**own, **variables}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_the_gate_ends_with_the_answer_s_code(tmp_path: Path, code: int) -> None:
    ran = gate(tmp_path, code, "torch==2.12.1")

    assert (ran.returncode, ran.stderr) == (code, "")


def test_the_gate_passes_everything_on(tmp_path: Path) -> None:
    gate(tmp_path, 0, "torch==2.12.1", "--from", "torch==2.11.0", "--", "-k", "a b")

    report = "report/torch-upgrade"
    assert (tmp_path / "called").read_text().splitlines() == [
        *("bump", "--receipts", report, "--summary", f"{report}/summary.md"),
        *("torch==2.12.1", "--from", "torch==2.11.0", "--", "-k", "a b"),
    ]


def test_the_gate_adds_to_the_summary_of_the_job(tmp_path: Path) -> None:
    summary = tmp_path / "step.md"

    gate(tmp_path, 2, "torch==2.12.1", GITHUB_STEP_SUMMARY=str(summary), GATE_REPORT="out")

    called = (tmp_path / "called").read_text().splitlines()
    assert called[1:5] == ["--receipts", "out", "--summary", str(summary)]
    assert summary.read_text() == (
        "The gate could not be evaluated: its input cannot be used. The log of this step says why.\n"
    )


def test_the_gate_without_the_package_is_one_line(tmp_path: Path) -> None:
    ran = run(tmp_path, "torch==2.12.1", PATH="/usr/bin:/bin")

    said = "gate: compilecontract is not installed: pip install '.[bump]' in a clone of pytest-compilecontract\n"
    assert (ran.returncode, ran.stderr) == (2, said)


@pytest.fixture
def workflow() -> dict[Any, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    return found


def test_the_workflow_runs_weekly_and_on_asking(workflow: dict[Any, Any]) -> None:
    # YAML 1.1 reads the key `on` as true.
    when = workflow[True]

    assert re.fullmatch(r"\d+ \d+ \* \* \d", when["schedule"][0]["cron"])
    assert set(when["workflow_dispatch"]["inputs"]) == {"torch", "from"}


def test_the_workflow_may_read_and_nothing_else(workflow: dict[Any, Any]) -> None:
    (job,) = workflow["jobs"].values()

    assert workflow["permissions"] == {"contents": "read"}
    assert "permissions" not in job
    assert job["steps"][0]["with"] == {"persist-credentials": False}


def test_the_workflow_s_actions_are_pinned(workflow: dict[Any, Any]) -> None:
    (job,) = workflow["jobs"].values()

    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert len(used) == 3
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each)] == []


def test_what_somebody_types_is_no_code(workflow: dict[Any, Any]) -> None:
    (job,) = workflow["jobs"].values()

    assert [step["run"] for step in job["steps"] if "${{" in step.get("run", "")] == []


def test_the_receipts_are_kept_whatever_the_answer(workflow: dict[Any, Any]) -> None:
    (job,) = workflow["jobs"].values()
    last = job["steps"][-1]

    assert (last["if"], last["with"]["path"]) == ("${{ always() }}", "report/torch-upgrade/")


@pytest.mark.parametrize(
    ("to", "before", "words"),
    [
        ("", "", ["torch", "--timeout", "3000"]),
        ("2.12.1", "2.11.0", ["torch==2.12.1", "--from", "torch==2.11.0", "--timeout", "3000"]),
        ("1; touch x", "", ["torch==1; touch x", "--timeout", "3000"]),
    ],
    ids=["the newest", "asked for", "hostile"],
)
def test_the_workflow_asks_the_gate(
    tmp_path: Path, workflow: dict[Any, Any], to: str, before: str, words: list[str]
) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "gate").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "ci" / "gate").chmod(0o755)
    (job,) = workflow["jobs"].values()
    (step,) = [step for step in job["steps"] if step.get("name") == "May we upgrade?"]

    ran = subprocess.run(
        [bash, "-euo", "pipefail", "-c", step["run"]],
        cwd=tmp_path,
        env={**os.environ, "TO": to, "FROM": before},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.splitlines() == words
    assert not (tmp_path / "x").exists()


# Mutants


@pytest.fixture
def mutants() -> Any:
    loader = SourceFileLoader("mutants", str(CI / "mutants"))
    spec = spec_from_loader("mutants", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_table_of_mutants_counts_each_once(mutants: Any) -> None:
    results = [
        "    pytest_compilecontract.judge.verdicts.x_verdict__mutmut_1: killed",
        "    pytest_compilecontract.judge.verdicts.x_verdict__mutmut_2: survived",
        "    pytest_compilecontract.judge.verdicts.xǁFoundǁadd__mutmut_1: timeout",
        "    pytest_compilecontract.compare.gate.x_gate__mutmut_1: no tests",
        "    pytest_compilecontract.compare.gate.x_gate__mutmut_2: not checked",
        "    pytest_compilecontract.compare.merge.x_merge__mutmut_1: not checked",
    ]

    assert mutants.table(results)[2:] == [
        "| `compare.gate` | 2 | 1 | 0 | 0 | 1 |",
        "| `judge.verdicts` | 3 | 3 | 2 | 1 | 0 |",
        "| all of these | 5 | 4 | 2 | 1 | 1 |",
    ]


def test_what_is_mutated_and_the_tests_for_it_are_there(mutants: Any) -> None:
    settings = tomllib.loads((mutants.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    tests = [each.split("=")[-1].split("::")[0] for each in settings["pytest_add_cli_args_test_selection"]]

    unfit = [each for each in settings["only_mutate"] if not list(mutants.ROOT.glob(each))]
    unfit += [each for each in (*tests, *settings["also_copy"]) if not (mutants.ROOT / each).exists()]

    assert unfit == []
