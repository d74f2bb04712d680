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


def step_named(workflow: dict[Any, Any], name: str) -> dict[str, Any]:
    (found,) = [step for job in workflow["jobs"].values() for step in job["steps"] if step.get("name") == name]
    return dict(found)


def bash(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step's script as GitHub does."""
    program = shutil.which("bash")
    assert program is not None
    return subprocess.run(
        [program, "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={"PATH": f"{folder}/programs:/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_runs_the_project_may_only_read_and_what_may_write_runs_none_of_it(workflow: dict[Any, Any]) -> None:
    gate, tell = workflow["jobs"]["gate"], workflow["jobs"]["tell"]

    assert workflow["permissions"] == {"contents": "read"}
    assert "permissions" not in gate
    assert gate["steps"][0]["with"] == {"persist-credentials": False}
    assert tell["permissions"] == {"issues": "write"}
    assert not any("checkout" in step.get("uses", "") for step in tell["steps"])


def test_the_workflow_s_actions_are_pinned(workflow: dict[Any, Any]) -> None:
    used = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]

    assert len(used) == 6
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each)] == []


def test_what_somebody_types_is_no_code(workflow: dict[Any, Any]) -> None:
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]

    assert [step["run"] for step in steps if "${{" in step.get("run", "")] == []


def test_the_receipts_and_the_torches_are_kept_whatever_the_answer(workflow: dict[Any, Any]) -> None:
    gate = workflow["jobs"]["gate"]
    torches, receipts = gate["steps"][-2:]
    restored = step_named(workflow, "Both torches, if they are known from before")

    assert (receipts["if"], receipts["with"]["path"]) == ("${{ always() }}", "report/torch-upgrade/")
    assert (torches["if"], torches["with"]["key"]) == ("${{ always() }}", restored["with"]["key"])
    assert torches["with"]["path"] == restored["with"]["path"]
    assert gate["env"]["UV_CACHE_DIR"] == f"${{{{ github.workspace }}}}/{restored['with']['path']}"


def test_without_an_address_nothing_is_installed(workflow: dict[Any, Any], tmp_path: Path) -> None:
    ran = bash(step_named(workflow, "Install the gate")["run"], tmp_path, WHERE="")

    assert ran.returncode == 2
    assert ran.stdout.startswith("::error::the variable COMPILECONTRACT is not set: ")


# A stand-in for GitHub's own command: one issue at most, and every call is noted.
GH = """#!/bin/sh
printf '%s\\n' "$*" >> called
case "$1 $2" in "issue list") cat issue 2>/dev/null; exit 0;; esac
"""
LABEL = "label create torch-upgrade --force --description May we upgrade torch? The newest answer"
LIST = 'issue list --label torch-upgrade --state open --limit 1 --json number,title --jq .[] | "\\(.number) \\(.title)"'
NO = "cpu: may we upgrade from torch 2.13.0 to torch 2.15.0? no: 2 lanes drifted"


@pytest.mark.parametrize(
    ("issue", "calls"),
    [
        ("", [f"issue create --label torch-upgrade --title {NO} --body-file body.md"]),
        (f"7 {NO}", [f"issue edit 7 --title {NO} --body-file body.md"]),
        (
            "7 cpu: yes",
            [f"issue edit 7 --title {NO} --body-file body.md", f"issue comment 7 --body {NO} (https://run/1)"],
        ),
    ],
    ids=["none yet", "the same answer", "another answer"],
)
def test_one_issue_has_the_newest_answer(
    workflow: dict[Any, Any], tmp_path: Path, issue: str, calls: list[str]
) -> None:
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "gh").write_text(GH)
    (tmp_path / "programs" / "gh").chmod(0o755)
    (tmp_path / "issue").write_text(issue)
    summary = tmp_path / "answers" / "torch-upgrade-cpu" / "summary.md"
    summary.parent.mkdir(parents=True)
    summary.write_text(f"### {NO.removeprefix('cpu: ').replace('.', chr(92) + '.')}\n\n### more\n{'ü' * 40_000}\n")

    ran = bash(step_named(workflow, "One issue with the newest answer")["run"], tmp_path, RUN="https://run/1")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert (tmp_path / "called").read_text().splitlines() == [LABEL, LIST, *calls]
    body = (tmp_path / "body.md").read_text(encoding="utf-8")
    assert body.startswith("[The run](https://run/1) has the receipts.\n\n## cpu\n\n### may we upgrade")
    assert len(body) < 65_536


def test_an_issue_about_a_run_that_left_nothing_says_so(workflow: dict[Any, Any], tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "gh").write_text(GH)
    (tmp_path / "programs" / "gh").chmod(0o755)

    bash(step_named(workflow, "One issue with the newest answer")["run"], tmp_path, RUN="https://run/1")

    created = (tmp_path / "called").read_text().splitlines()[-1]
    assert created == "issue create --label torch-upgrade --title torch upgrade: no answer --body-file body.md"


def test_no_placeholder_could_be_somebody_s_name() -> None:
    """A made-up owner on a real host may be taken by anyone, and what is copied from here would install theirs."""
    root = CI.parent
    shown = [*root.glob("*.*"), *CI.rglob("*"), *root.glob("docs/*.md"), *root.glob("examples/*")]
    made_up = re.compile(r"OWNER|(?:github|gitlab)\.com/[\w.-]+/[\w.-]*compilecontract")

    found = [
        f"{file.relative_to(root)}: {match[0]}"
        for file in shown
        if file.is_file() and file.suffix not in (".png", ".pyc")
        for match in made_up.finditer(file.read_text(encoding="utf-8"))
    ]

    assert len(shown) > 40
    assert found == []


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
    (tmp_path / "ci").mkdir()
    answers = 'printf "%s\\n" "$@"; echo matrix > "$GITHUB_STEP_SUMMARY"; exit 3'
    (tmp_path / "ci" / "gate").write_text(f"#!/bin/sh\n{answers}\n")
    (tmp_path / "ci" / "gate").chmod(0o755)
    script = step_named(workflow, "May we upgrade?")["run"]

    ran = bash(script, tmp_path, TO=to, FROM=before, GITHUB_STEP_SUMMARY=str(tmp_path / "step.md"))

    assert (ran.returncode, ran.stdout.splitlines()) == (3, words)
    assert (tmp_path / "report" / "torch-upgrade" / "summary.md").read_text() == "matrix\n"
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
