"""The contract suite's own baselines on a CPU: what they keep holds on any machine, and a drift from them is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_compilecontract.baselines.document import read_baseline, to_json
from pytest_compilecontract.baselines.store import Baselines, Found, compare_lane, read_folder
from pytest_compilecontract.cli.main import main
from pytest_compilecontract.facts.measurement import GraphBreak, Location
from pytest_compilecontract.facts.receipt import Entry, Receipt

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "contracts" / "baselines"
KEY = "torch2.13-cpu"
# Of a measurement: what kernels, memory and time depend on is the processor, its vector width and its threads.
OF_THE_MACHINE = ("kernels", "memory", "speed", "host_syncs", "cuda_graphs", "stage_seconds", "calls", "caches")


@pytest.fixture(scope="module")
def own() -> Receipt:
    return read_folder(FOLDER / KEY)


def test_they_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(FOLDER)]) == 0


def test_they_keep_nothing_that_depends_on_the_machine(own: Receipt) -> None:
    kept = [entry.measurement for entry in own.entries if entry.measurement is not None]

    assert len(kept) == len(own.entries) > 200
    assert {name for each in kept for name in OF_THE_MACHINE if getattr(each, name)} == set()
    assert {each.device_count for each in own.environments.values()} == {0}
    assert {name for entry in own.entries for name in entry.spread} == set()


def test_they_were_recorded_from_a_commit_and_name_no_folder(own: Receipt) -> None:
    texts = [file.read_text(encoding="utf-8") for file in (FOLDER / KEY).rglob("*.json")]

    assert {each.dirty for each in own.environments.values()} == {False}
    assert [text for text in texts if str(Path.home()) in text or str(ROOT) in text] == []
    assert {entry.verdict for entry in own.entries} == {"held"}


def test_none_is_of_a_contract_that_is_gone(own: Receipt) -> None:
    """By the name of its function: which parameters it has, a run of the suite finds out."""
    gone = [
        entry.contract
        for entry in own.entries
        if f"def {entry.contract.partition('::')[2].partition('[')[0]}("
        not in (ROOT / entry.contract.partition("::")[0]).read_text(encoding="utf-8")
    ]

    assert gone == []


def test_one_graph_break_more_is_drift_in_every_lane(own: Receipt) -> None:
    baselines = Baselines(FOLDER, ROOT)
    come = GraphBreak(
        kind="Data-dependent branching",
        reason="a branch",
        location=Location(file="contracts/models/stem.py", line=1, function="forward", source="if x.sum() > 0:"),
    )

    verdicts = set()
    for entry in own.entries:
        environment = own.environments[entry.environment]
        found = baselines.find(entry.contract, entry.lane, environment)
        assert found is not None
        assert found.key == KEY
        verdicts.add((compared(entry, found), compared(worse(entry, come), found)))

    assert verdicts == {("held", "drifted")}


def worse(entry: Entry, come: GraphBreak) -> Entry:
    assert entry.measurement is not None
    breaks = (*(entry.measurement.graph_breaks or ()), come)
    return replace(entry, measurement=replace(entry.measurement, graph_breaks=breaks))


def compared(entry: Entry, found: Found) -> str:
    return compare_lane(entry, found.environment, found).verdict


def test_each_file_is_as_it_would_be_recorded_again() -> None:
    """Nobody has edited one by hand."""
    files = sorted((FOLDER / KEY).rglob("*.json"))

    assert [file.name for file in files if to_json(read_baseline(file)) != file.read_bytes()] == []
