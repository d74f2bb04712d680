"""A planted difference between two torches' defaults: listed with the drift, tried, and named as what explains it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sessions import run_session

from pytest_compilecontract.facts.receipt import defaults_key

CONTRACTS = """
import torch


def test_shapes(compile_lane):
    compile_lane.run(lambda x: x.sin(), *((torch.ones(size),) for size in (4, 5, 6)))


def test_same(compile_lane):
    compile_lane.run(lambda x: x.sin(), (torch.ones(4),))


def test_prints(compile_lane):
    def step(x):
        print("always")
        return x.sin()

    compile_lane.run(step, (torch.ones(4),))
"""
GUILTY = "torch._dynamo.config.assume_static_by_default"
# Settings that move nothing here, whose defaults are made to differ as well.
OTHERS = {
    "torch._dynamo.config.recompile_limit": "9",
    "torch._inductor.config.max_fusion_size": "8",
    "torch._functorch.config.unlift_effect_tokens": "True",
}
ROOT = Path(__file__).parent.parent.parent

pytestmark = [
    pytest.mark.sessions,
    pytest.mark.skipif(torch.cuda.is_available(), reason="one device is enough for what is asked here"),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    folder: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:hypothesispytest",
        }
        command = [sys.executable, "-m", *arguments]
        return run_session(command, cwd=self.folder, env=env)

    def measure(self, name: str, *options: str) -> dict[str, Any]:
        command = ["pytest", "--compile-contracts", "--contract-lanes=capture", f"--contract-report={name}"]
        ran = self.run(*command, *options)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        receipt: dict[str, Any] = json.loads(self.folder.joinpath(name, "receipt.json").read_text())
        return receipt


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with receipts of a torch of old, made from this one, and of this torch."""
    folder = tmp_path_factory.mktemp("project")
    folder.joinpath("test_block.py").write_text(CONTRACTS)
    folder.joinpath("pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    project = Project(folder=folder)
    project.measure("new")
    older = project.measure("old", f"--contract-set={GUILTY}=False")
    (environment,) = older["environments"].values()
    (table,) = older["defaults"].values()
    table |= {name: value for name, value in OTHERS.items() if name in table} | {GUILTY: "False"}
    environment |= {"overrides": {}, "torch": "2.1.0", "defaults": defaults_key(table)}
    older["defaults"] = {defaults_key(table): table}
    folder.joinpath("old/receipt.json").write_text(json.dumps(older))
    return project


def test_a_receipt_has_the_defaults_of_its_torch_once(project: Project) -> None:
    receipt = json.loads(project.folder.joinpath("new/receipt.json").read_text())

    (environment,) = receipt["environments"].values()
    (table,) = receipt["defaults"].values()
    assert environment["defaults"] == defaults_key(table)
    assert table[GUILTY] == "True"
    assert environment["settings"] == {}
    assert len(table) > 300
    assert [name for name, text in table.items() if "/" in text and os.path.isabs(text.strip("'"))] == []


def test_workers_tell_the_defaults_too(project: Project) -> None:
    receipt = project.measure("workers", "-n1")

    alone = json.loads(project.folder.joinpath("new/receipt.json").read_text())
    assert receipt["defaults"] == alone["defaults"]


def test_the_settings_whose_defaults_differ_are_listed(project: Project) -> None:
    ran = project.run("pytest_compilecontract", "compare", "old/receipt.json", "new/receipt.json", "-v")

    planted = {GUILTY: "False", **OTHERS}
    listed = [line.strip() for line in ran.stdout.splitlines() if " -> " in line and "config." in line]
    assert [line.split()[0] for line in listed] == sorted(planted)
    assert f"{GUILTY} False -> True" in listed
    assert ran.returncode == 1


def test_the_setting_that_explains_the_drift_is_named(project: Project) -> None:
    ran = project.run("pytest_compilecontract", "compare", "old/receipt.json", "new/receipt.json", "--try-settings")

    assert ran.stdout.splitlines()[-3:] == [
        "",
        "test_block.py::test_shapes [capture]",
        f"  recompiles: explained by {GUILTY}: False -> True",
    ], ran.stdout + ran.stderr
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[0] == "trial 1: test_block.py::test_shapes [capture] with nothing changed"


def test_a_run_with_settings_is_never_a_normal_one(project: Project) -> None:
    project.measure("set", f"--contract-set={GUILTY}=False")

    for sides in (("set", "new"), ("new", "set"), ("set", "set")):
        gate = project.run("pytest_compilecontract", "gate", *sides)

        # The line is cut at the terminal's width, so its start is what can be asked for.
        assert "unverified: run with non-default torch settings" in gate.stdout
        assert "--contract-set torch._dynamo.config." in gate.stdout
        assert gate.returncode == 3


def test_a_run_with_settings_says_so_and_is_not_recorded(project: Project) -> None:
    options = ("--compile-contracts", "--contract-lanes=capture", f"--contract-set={GUILTY}=False", "-k", "same")

    ran = project.run("pytest", *options)
    recorded = project.run("pytest", *options, "--contract-record")

    assert f"non-default torch settings, so baselines are not compared: {GUILTY}=False" in ran.stdout.splitlines()
    assert recorded.returncode == pytest.ExitCode.USAGE_ERROR
    assert not project.folder.joinpath("contracts").exists()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        pytest.param("torch._dynamo.config.nowhere=1", "has no setting torch._dynamo.config.nowhere", id="unknown"),
    ],
)
def test_a_setting_that_this_torch_does_not_have_measures_nothing(project: Project, given: str, reason: str) -> None:
    receipt = project.measure("nowhere", f"--contract-set={given}", "-k", "same", "--contract-allow-unmeasured")

    (entry,) = receipt["entries"]
    assert (entry["verdict"], entry["reason"]) == ("unmeasured", f"torch {torch.__version__} {reason}")


def test_a_baseline_keeps_the_defaults_beside_it(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "baselines"

    command = ["pytest", "--compile-contracts", "--contract-lanes=capture", f"--contract-baselines={folder}"]
    project.run(*command, "--contract-record", "-k", "same")

    (file,) = folder.joinpath("defaults").iterdir()
    (baseline,) = folder.glob("torch*/test_block.json")
    table = json.loads(file.read_text())
    (environment,) = json.loads(baseline.read_text())["environments"].values()
    assert environment["defaults"] == file.stem == defaults_key(table["defaults"])
    assert "_dynamo.config" not in baseline.read_text()
    assert table["torch"] == torch.__version__
    compared = project.run("pytest_compilecontract", "compare", "old", str(folder))
    assert f"settings with a changed default: {GUILTY} False -> True" in compared.stdout
    assert compared.returncode == 3
