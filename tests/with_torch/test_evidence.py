"""Evidence in whole sessions: what a lane that is not held leaves, and that nothing else is otherwise for it."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sessions import run_session

from pytest_compilecontract.measure.probes.evidence import Evidence
from pytest_compilecontract.measure.probes.trace import LOGGER

pytestmark = pytest.mark.insides

CONTRACTS = """
import os
import sys

import torch
from torch import nn

from pytest_compilecontract import compile_contract

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        x = self.layer(x).relu()
        if "WHOLE" not in os.environ:
            torch._dynamo.graph_break()
        return x.sum()


X = torch.ones(3, 4)


@compile_contract(max_graph_breaks=0)
def test_breaks(compile_lane):
    compile_lane.train(Net(), [(X,), (torch.ones(5, 4),)])


@compile_contract()
def test_holds(compile_lane):
    compile_lane.run(nn.Linear(4, 2), (X,))


@compile_contract()
def test_fails_by_itself(compile_lane):
    compile_lane.run(nn.Linear(4, 2), (X,))
    print("said")
    assert not X.any()


RUNS = []


@compile_contract(max_graph_breaks=0)
def test_interrupted(compile_lane):
    RUNS.append(1)
    if len(RUNS) > 1:
        raise KeyboardInterrupt
    compile_lane.run(Net(), (X,))


@compile_contract(frontier=["capture", "aot"], min_frontier="aot", max_graph_breaks=0)
def test_climbs(compile_lane):
    compile_lane.run(Net(), (X,))
"""
CONFTEST = """
import sys

def pytest_unconfigure():
    print("loaded:", "pytest_compilecontract.plugin.evidence" in sys.modules,
          "pytest_compilecontract.measure.probes.evidence" in sys.modules)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "test_net.py").write_text(CONTRACTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contracts(*arguments: str, lanes: str = "capture,aot") -> Any:
    lane = [f"--contract-lanes={lanes}"] if lanes else []
    command = [sys.executable, "-m", "pytest", "--compile-contracts", *lane, "-p", "no:cacheprovider", *arguments]
    return run_session([*command, "--contract-report=report"])


def entries(project: Path) -> dict[str, Any]:
    document = json.loads((project / "report" / "receipt.json").read_text())
    return {each["test"].partition("::")[2]: each for each in document["entries"]}


def folders(project: Path) -> list[str]:
    root = project / "report" / "evidence"
    return sorted(re.sub("-[0-9a-f]{8}$", "", each.name) for each in root.iterdir() if each.is_dir())


def left(project: Path, test: str) -> Path:
    """The folder that an entry names."""
    return project / "report" / entries(project)[test]["evidence"]["folder"]


def without_times(value: Any) -> Any:
    """What was measured, without what differs from run to run, and without the evidence."""
    if isinstance(value, dict):
        return {
            key: without_times(each)
            for key, each in value.items()
            if key != "evidence" and "seconds" not in key and key != "calls"
        }
    return [without_times(each) for each in value] if isinstance(value, list) else value


def test_a_lane_that_is_not_held_leaves_it_and_verdicts_and_counts_are_as_without(project: Path) -> None:
    chosen = ("-k", "breaks or holds or fails")
    alone = contracts(*chosen)
    expected = without_times(entries(project))
    ran = contracts(*chosen, "--contract-evidence")

    assert without_times(entries(project)) == expected
    assert {name: each["verdict"] for name, each in entries(project).items()} == {
        "test_breaks[capture]": "violated",
        "test_breaks[aot]": "violated",
        "test_holds[capture]": "held",
        "test_holds[aot]": "held",
        "test_fails_by_itself[capture]": "broken",
        "test_fails_by_itself[aot]": "broken",
    }
    assert folders(project) == [
        "test-net.py-test-breaks-aot",
        "test-net.py-test-breaks-capture",
        "test-net.py-test-fails-by-itself-aot",
        "test-net.py-test-fails-by-itself-capture",
    ]
    assert (alone.returncode, ran.returncode) == (1, 1)
    assert "loaded: False False" in alone.stdout
    assert "loaded: True True" in ran.stdout
    # What the first run printed is shown once, and each failure says where to look.
    assert ran.stdout.count("said\n") == 2
    assert f"evidence: {left(project, 'test_breaks[aot]').resolve()}" in ran.stdout
    assert sorted(each.name for each in project.iterdir() if not each.name.startswith((".", "__"))) == [
        "conftest.py",
        "pytest.ini",
        "report",
        "test_net.py",
    ]
    own = left(project, "test_fails_by_itself[aot]")
    assert json.loads((own / "evidence.json").read_text())["shown"] == "the test itself failed"
    assert str(own.name) in (project / "report" / "index.html").read_text()

    found = left(project, "test_breaks[aot]")
    names = {each.name for each in found.iterdir()}
    facts = json.loads((found / "evidence.json").read_text())
    assert {"README.md", "evidence.json", *facts["files"]} == names
    assert {re.sub("-[-0-9_]+", "", name) for name in facts["files"]} == {
        "trace.log",
        "graph.py",
        "aot_joint.py",
        "aot_forward.py",
        "aot_backward.py",
        "guards.txt",
        "break.txt",
        "recompiled.txt",
    }
    assert facts["shown"] == "violated, with the same counts"
    assert facts["left_out"] == [
        "output code: backend 'aot_eager' writes none",
        "minified program: --contract-bisect names no stage that fails",
    ]
    assert facts["live"].startswith(
        "TORCH_LOGS=graph_breaks,recompiles,guards,graph_code,aot_graphs python -m pytest -s --compile-contracts"
    )
    assert "torch.ops.aten" in (found / "aot_forward-0_0.py").read_text()
    assert "graph_break" in (found / "break-0_0.txt").read_text()
    # Of the second lane too, of whose names torch has numbered each by then.
    for test in ("test_breaks[capture]", "test_breaks[aot]"):
        assert_readable((left(project, test) / "trace.log").read_text())


def assert_readable(trace: str) -> None:
    """As tlparse reads it: glog's prefix and JSON, then the payload behind tabs, with its checksum; no name unknown."""
    records: list[tuple[dict[str, Any], list[str]]] = []
    for line in trace.splitlines():
        if line.startswith("\t"):
            records[-1][1].append(line[1:])
            continue
        found = re.fullmatch(r"[VIWEC]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ [^ ]+:\d+\] (\{.*\})", line)
        assert found is not None, line
        records.append((json.loads(found[1]), []))
    assert any("dynamo_output_graph" in each for each, _ in records)
    for metadata, payload in records:
        if "has_payload" in metadata:
            assert hashlib.md5("\n".join(payload).encode()).hexdigest() == metadata["has_payload"]
    named = {each["str"][1] for each, _ in records if "str" in each}
    used = {int(number) for each, _ in records for number in re.findall(r'"filename": (\d+)', json.dumps(each))}
    assert used
    assert used <= named


def test_a_ladder_leaves_that_of_the_rung_that_does_not_hold(project: Path) -> None:
    contracts("-k", "climbs", "--contract-evidence", lanes="")

    entry = entries(project)["test_climbs[frontier]"]
    assert (entry["verdict"], entry["frontier"]["steps"][0]["verdict"]) == ("violated", "failed")
    assert entry["evidence"]["shown"] == "violated, with the same counts"
    assert "AOT graphs: backend 'eager' has none" in entry["evidence"]["left_out"]


def test_a_drift_leaves_it_and_a_lane_that_holds_again_has_none(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "pyproject.toml").write_text('[tool.compilecontract]\nevidence = "report/evidence"\n')
    text = (project / "test_net.py").read_text().replace("max_graph_breaks=0", "max_graph_breaks=1")
    (project / "test_net.py").write_text(text)
    monkeypatch.setenv("WHOLE", "1")
    contracts("-k", "breaks", "--contract-record", lanes="capture")
    monkeypatch.delenv("WHOLE")

    contracts("-k", "breaks", lanes="capture")
    drifted = entries(project)["test_breaks[capture]"]
    folder = left(project, "test_breaks[capture]")
    was_there = folder.is_dir()
    monkeypatch.setenv("WHOLE", "1")
    ran = contracts("-k", "breaks", lanes="capture")

    assert (drifted["verdict"], drifted["evidence"]["shown"]) == ("held", "drifted, with the same counts")
    assert was_there
    assert ran.returncode == 0
    assert not folder.exists()
    assert (
        "evidence" not in entries(project)["test_breaks[capture]"]
        or not entries(project)["test_breaks[capture]"]["evidence"]
    )


def test_what_a_lane_showed_stays_where_the_run_for_evidence_is_interrupted(project: Path) -> None:
    ran = contracts("-k", "interrupted", "--contract-evidence", lanes="capture")

    assert ran.returncode == 2
    assert entries(project)["test_interrupted[capture]"]["verdict"] == "violated"
    assert "max_graph_breaks=0: measured 1" in ran.stdout


def test_workers_leave_it_too(project: Path) -> None:
    contracts("-k", "breaks", "--contract-evidence=kept", "-n", "1")

    entry = entries(project)["test_breaks[aot]"]
    assert entry["evidence"]["folder"].startswith("../kept/test-net.py-test-breaks-aot-")
    assert (left(project, "test_breaks[aot]") / "trace.log").is_file()


def test_a_folder_of_somebody_elses_is_refused(project: Path) -> None:
    (project / "mine").mkdir()
    (project / "mine" / "notes.txt").write_text("mine")

    ran = contracts("--contract-evidence=mine")
    file = contracts("--contract-evidence", "test_net.py")

    assert ran.returncode == file.returncode == 4
    assert f"--contract-evidence: {Path('mine').resolve()}: contains files that are not evidence" in ran.stderr
    assert "not a folder (before a path, write --contract-evidence=DIR)" in file.stderr
    assert [each.name for each in (project / "mine").iterdir()] == ["notes.txt"]


class Kept:
    """Who keeps what is traced."""

    def __init__(self, fails: bool = False) -> None:
        self.records: list[str] = []
        self.files: list[str] = []
        self._fails = fails

    def trace(self, text: str) -> None:
        if self._fails:
            raise RuntimeError("no room")
        self.records.append(text)

    def add(self, kind: str, at: str, suffix: str, text: str) -> None:
        self.files.append(f"{kind}-{at}.{suffix}")


def compiled(sink: Kept, counts: bool = True) -> Evidence:
    torch.compiler.reset()
    with Evidence(sink, lambda: counts) as traced:
        torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(2))
    return traced


def test_torch_traces_only_what_counts_and_its_logger_is_left_as_it_was() -> None:
    table = torch._logging.structured.INTERN_TABLE
    every, none = Kept(), Kept()

    compiled(every)
    compiled(none, counts=False)

    assert every.files == ["graph-0_0.py", "guards-0_0.txt"]
    assert none.files == []
    assert all('{"str":' in each for each in none.records)
    # torch's own takes itself off with the first record, where nobody asked for a trace.
    assert not any(type(each).__module__.startswith("pytest_") for each in logging.getLogger(LOGGER).handlers)
    assert torch._logging.structured.INTERN_TABLE is table


def test_what_cannot_be_kept_fails_no_compile() -> None:
    assert compiled(Kept(fails=True)).problem == "RuntimeError: no room"


def test_a_torch_without_its_formatter_leaves_none_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch._logging._internal.TorchLogsFormatter")
    sink = Kept()

    traced = compiled(sink)

    assert traced.missing == "torch._logging._internal has no trace_log or TorchLogsFormatter"
    assert sink.records == []


WRONG = """
import torch
from pytest_compilecontract import compile_contract

X = torch.linspace(-1, 1, 16)


def target(x):
    y = x.sin() + 1
    return (torch.relu(y * 2).cos() - y).sum()


@compile_contract(lanes=["raises", "differs"])
def test_it(compile_lane):
    compile_lane.run(target, (X,))


@compile_contract(lanes=["differs"])
def test_of_capture(compile_lane):
    compile_lane.run(lambda x: x.cos() if torch.compiler.is_dynamo_compiling() else x.sin(), (X,))
"""
# Faults that torch has for tests of its own minifier, so that another process finds them too.
BACKENDS = """
[tool.compilecontract.lanes.raises]
backend = "relu_compile_error_TESTING_ONLY"

[tool.compilecontract.lanes.differs]
backend = "relu_accuracy_error_TESTING_ONLY"
"""


def test_torchs_minifier_shrinks_what_a_named_stage_fails_at(project: Path) -> None:
    (project / "test_net.py").write_text(WRONG)
    (project / "pyproject.toml").write_text(BACKENDS)

    contracts("--contract-evidence", "--contract-bisect", lanes="raises,differs")

    for test in ("test_it[raises]", "test_it[differs]"):
        folder = left(project, test)
        program = (folder / "minified.py").read_text()
        assert "torch.relu" in program
        assert ".sin()" not in program
        assert str(project) not in program
        assert "CACHE_DIR" not in program
        # Nothing is left of the way to it.
        assert {each.name for each in folder.iterdir() if each.is_dir()} == {"storages"}
        ran = run_session([sys.executable, "-m", "minified"], cwd=folder)
        assert ran.returncode != 0
        assert ("ReluCompileError" if "raises" in test else "AccuracyError") in ran.stderr
    lacks = entries(project)["test_of_capture[differs]"]["evidence"]["left_out"]
    assert "minified program: Dynamo's capture (backend 'eager') fails, before there is a graph" in lacks


OBSERVED = """
import os
import unittest

import pytest
import torch

DRIFT = "DRIFT" in os.environ
SET_UP = []


@pytest.fixture(scope="module", autouse=True)
def shared():
    SET_UP.append(1)
    yield
    assert len(SET_UP) == 1, "set up again for evidence"


def step(x):
    x = x.sin()
    if DRIFT:
        torch._dynamo.graph_break()
    return x.cos()


@pytest.fixture
def run():
    return torch.compile(step, backend="aot_eager")


def test_drifts(run):
    print("said")
    run(torch.ones(3))


def test_holds():
    torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(3))


def test_fails_by_itself(run):
    run(torch.ones(3))
    assert not DRIFT, "my own assertion"


def test_compiles_nothing():
    assert not DRIFT


class TestUnit(unittest.TestCase):
    def test_drifts(self):
        with self.subTest("first"):
            torch.compile(step, backend="eager")(torch.ones(3))
        with self.subTest("second"):
            self.assertFalse(DRIFT)
"""


def observed(project: Path, *arguments: str) -> Any:
    (project / "test_net.py").write_text(OBSERVED)
    return contracts("--contract-observe", *arguments, lanes="")


def test_an_observed_test_that_is_not_held_leaves_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observed(project, "--contract-record")
    monkeypatch.setenv("DRIFT", "1")
    alone = observed(project)
    expected = without_times(entries(project))
    ran = observed(project, "--contract-evidence")

    assert ran.returncode == 1
    assert without_times(entries(project)) == expected
    assert folders(project) == [
        "test-net.py-TestUnit-test-drifts-body",
        "test-net.py-test-drifts-body",
        "test-net.py-test-fails-by-itself-body",
    ]
    of_drift = entries(project)["test_drifts"]["evidence"]
    assert of_drift["shown"] == "drifted, with the same counts"
    assert entries(project)["test_fails_by_itself"]["evidence"]["shown"] == "the test itself failed"
    folder = left(project, "test_drifts")
    assert f"evidence: {folder.resolve()}" in ran.stdout
    assert {"trace.log", "graph-0_0.py", "graph-1_0.py", "aot_inference-0_0.py"} <= set(of_drift["files"])
    assert "sin" in (folder / "graph-0_0.py").read_text()
    assert_readable((folder / "trace.log").read_text())
    assert "--contract-observe" in json.loads((folder / "evidence.json").read_text())["live"]
    # The run for it fails no test, repeats no output and sets up no shared fixture again.
    assert "set up again" not in ran.stdout
    assert ran.stdout.count("\nsaid\n") == alone.stdout.count("\nsaid\n") == 1
    assert re.findall(r"\d+ failed.*(?= in )", ran.stdout) == re.findall(r"\d+ failed.*(?= in )", alone.stdout)


def test_an_observed_test_that_holds_again_has_none(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observed(project, "--contract-record", "-k", "test_drifts and not Unit")
    monkeypatch.setenv("DRIFT", "1")
    observed(project, "--contract-evidence", "-n", "1", "-k", "test_drifts and not Unit")
    was_there = left(project, "test_drifts").is_dir()
    monkeypatch.delenv("DRIFT")
    ran = observed(project, "--contract-evidence", "-k", "test_drifts and not Unit")

    assert was_there
    assert ran.returncode == 0
    assert folders(project) == []
