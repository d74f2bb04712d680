"""The workflow of docs/fleet.md: its last job makes an answer and one page of what the shards' jobs have left."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.receipts import OLD, WORSENED, a_receipt, an_entry

from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.shards import planned
from pytest_compilecontract.files.receipt import write_receipt

ROOT = Path(__file__).parents[2]
yaml = pytest.importorskip("yaml")
LANES = ("aot", "capture", "inductor", "mine")


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    page = (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
    block = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert block is not None
    return dict(yaml.safe_load(block[1])["jobs"])


def test_each_release_device_and_shard_has_a_job(jobs: dict[str, Any]) -> None:
    matrix = jobs["measure"]["strategy"]["matrix"]
    measured = next(step["run"] for step in jobs["measure"]["steps"] if "--contract-shard" in step.get("run", ""))

    assert set(matrix) == {"torch", "device", "shard"}
    assert f"--contract-shard=${{{{ matrix.shard }}}}/{max(matrix['shard'])}" in measured
    assert matrix["shard"] == [*range(1, max(matrix["shard"]) + 1)]


def leave_shards(folder: Path, jobs: dict[str, Any], newest: Measurement | None = None) -> None:
    """What the artifacts of the first job are, once they are downloaded."""
    matrix = jobs["measure"]["strategy"]["matrix"]
    for device in matrix["device"]:
        for torch in matrix["torch"]:
            environment = replace(OLD, torch=torch, capability="9.0" if device == "gpu" else None)
            worse = newest if torch == matrix["torch"][-1] and device == "gpu" else None
            made = [
                an_entry(
                    *([worse] if worse is not None else []), lane=lane, test=f"tests/test_block.py::test_block[{lane}]"
                )
                for lane in LANES
            ]
            entries = {each.test: each for each in made}
            for shard in planned(dict.fromkeys(entries, True), {}, len(matrix["shard"])):
                part = a_receipt(*(entries[test] for test in shard.tests), environment=environment)
                write_receipt(folder / f"{device}_{torch}_{shard.index}" / "receipt.json", replace(part, shard=shard))


def answered(folder: Path, jobs: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    bash = shutil.which("bash")
    assert bash is not None
    program = folder / "programs" / "compilecontract"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pytest_compilecontract "$@"\n')
    program.chmod(0o755)
    step = next(each["run"] for each in jobs["answer"]["steps"] if "merge" in each.get("run", ""))
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{program.parent}:/usr/bin:/bin",
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
    }
    return subprocess.run(
        [bash, "-eo", "pipefail", "-c", step], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


def test_shards_become_an_answer_and_one_page(jobs: dict[str, Any], tmp_path: Path) -> None:
    leave_shards(tmp_path / "shards", jobs)

    ran = answered(tmp_path, jobs)

    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "report" / "all.html").is_file()
    assert ran.stdout.count("? yes\n") == 2


def test_drift_in_one_place_is_no(jobs: dict[str, Any], tmp_path: Path) -> None:
    leave_shards(tmp_path / "shards", jobs, newest=WORSENED["graph_breaks"])

    ran = answered(tmp_path, jobs)

    assert ran.returncode == 1, ran.stderr
    assert (tmp_path / "report" / "all.html").is_file()


def test_a_shard_whose_job_left_nothing_ends_it(jobs: dict[str, Any], tmp_path: Path) -> None:
    leave_shards(tmp_path / "shards", jobs)
    lost = next((tmp_path / "shards").glob("gpu_*_2"))
    shutil.rmtree(lost)

    ran = answered(tmp_path, jobs)

    assert ran.returncode == 2
    assert "1 shard of 4 missing: 2" in ran.stderr
