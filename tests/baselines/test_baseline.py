"""Baselines: readable in a diff, written for what ran and nothing else, and never from what is garbage."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.receipts import (
    BREAK,
    CONTRACT,
    EAGER,
    HOLDING,
    LIMIT_HIT,
    NEW,
    OLD,
    RAISED,
    RECOMPILE,
    VIOLATION,
    WORSENED,
    an_entry,
    before,
    repeated,
)

from pytest_compilecontract.baselines.document import (
    Baseline,
    BaselineLane,
    from_json,
    read_baseline,
    schema,
    schema_json,
    to_json,
)
from pytest_compilecontract.baselines.kept import Mode, kept_measurement, refusal
from pytest_compilecontract.baselines.store import Baselines, Found, compare_lane, read_folder
from pytest_compilecontract.compare.comparison import compare
from pytest_compilecontract.compare.policy import Policy
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.receipt import Entry, Environment, defaults_key, fingerprint
from pytest_compilecontract.report.baselines import drift_text

MIDDLE = replace(OLD, torch="2.13.0")
FILE = "contracts/baselines/torch2.11-cpu/tests/test_block.json"
LANE = "--compile-contracts --contract-lanes=aot"
ALONE = f"-- '{CONTRACT}[aot]'"


@pytest.fixture
def baselines(tmp_path: Path) -> Baselines:
    return Baselines(tmp_path / "contracts/baselines", tmp_path)


def record(
    baselines: Baselines, *entries: Entry, environment: Environment = OLD, mode: Mode = "all", accepted: str = ""
) -> list[str]:
    """The lanes written, then those refused with why."""
    done = baselines.record(entries, {"here": environment}, mode, accepted)
    return [lane for _, lane in done.lanes] + [f"{lane}: {why}" for _, lane, why in done.refused]


# The file


def test_a_file_is_read_in_a_diff(baselines: Baselines, tmp_path: Path) -> None:
    measured = Measurement(
        backend="aot_eager", graphs=2, recompiles=(), graph_breaks=(BREAK,), steady_seconds=0.1, caches={"hits": 1}
    )

    record(baselines, an_entry(measured, limits={"min_ops_captured": 0}))

    text = (tmp_path / FILE).read_text()
    assert text.partition('"environments"')[0] == (
        """{
  "$schema": "urn:pytest-compilecontract:baseline:1",
  "contracts": {
    "tests/test_block.py::test_block": {
      "aot": {
        "environment": "HERE",
        "lane_settings": {
          "backend": "aot_eager"
        },
        "limits": {
          "min_ops_captured": 0
        },
        "measurement": {
          "backend": "aot_eager",
          "graph_breaks": [
            {"kind": "copy.deepcopy()", "location": {"file": "model.py", "function": "forward", "line": 41, \
"source": "mask = copy.deepcopy(self.mask)"}, "reason": "copy.deepcopy() is not supported", "registry_id": "GB0179", \
"stacks": [[{"file": "train.py", "function": "step", "line": 9, "source": "loss = model(x)"}, \
{"file": "model.py", "function": "forward", "line": 41, "source": "mask = copy.deepcopy(self.mask)"}]]}
          ],
          "graphs": 2,
          "recompiles": []
        },
        "test": "tests/test_block.py::test_block[aot]",
        "verdict": "held"
      }
    }
  },
  """.replace("HERE", fingerprint(OLD))
    )


def test_the_shipped_schema_is_the_one_made_from_the_dataclasses() -> None:
    shipped = files("pytest_compilecontract").joinpath("schemas/baseline.schema.json").read_bytes()

    assert shipped == schema_json()


def test_a_file_matches_its_schema(baselines: Baselines, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    record(baselines, an_entry(), an_entry(replace(HOLDING, recompiles=(RECOMPILE,)), lane="capture"))

    errors = jsonschema.Draft202012Validator(schema()).iter_errors(json.loads((tmp_path / FILE).read_text()))

    assert list(errors) == []


@given(
    st.dictionaries(st.sampled_from(["aot", "capture"]), st.sampled_from([HOLDING, *WORSENED.values()]), max_size=3),
    st.text(max_size=8).map(lambda text: text.encode(errors="replace").decode()),
)
def test_what_was_written_is_read_back(lanes: dict[str, Measurement], text: str) -> None:
    entries = {name: an_entry(measurement, reason=text) for name, measurement in lanes.items()}
    baseline = Baseline(
        environments={"e": replace(OLD, variables={text: text})},
        contracts={
            f"t{text}": {
                name: BaselineLane(
                    test=f"t{text}",
                    verdict="held",
                    environment="e",
                    measurement=entry.measurement or HOLDING,
                    limits={"rtol": 1e-3, "lanes": [text]},
                )
                for name, entry in entries.items()
            }
        },
    )

    assert from_json(to_json(baseline), name="x.json") == baseline


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("{", "x.json: not JSON (input data was truncated)", id="cut"),
        pytest.param("{}", "x.json: format: missing", id="no-format"),
        pytest.param('{"format": 1, "lanes": 1}', "x.json: unknown key 'lanes' ", id="unknown-key"),
        pytest.param('{"format": 1, "contracts": {"a": {"b": {}}}}', "x.json: ", id="a-lane-without-its-facts"),
        pytest.param('{"format": 1, "contracts": {"a": 1}}', "x.json: ", id="no-lanes"),
    ],
)
def test_what_is_no_baseline_is_one_error(text: str, message: str) -> None:
    with pytest.raises(ReceiptError) as caught:
        from_json(text.encode(), name="x.json")

    assert str(caught.value).startswith(message)


def test_an_environment_that_is_not_in_the_file_is_refused(baselines: Baselines, tmp_path: Path) -> None:
    record(baselines, an_entry())
    document = json.loads((tmp_path / FILE).read_text())
    document["contracts"][CONTRACT]["aot"]["environment"] = "gone"

    with pytest.raises(ReceiptError) as caught:
        from_json(json.dumps(document).encode(), name="x.json")

    assert str(caught.value) == (f"x.json: contracts[{CONTRACT!r}]['aot'].environment: 'gone' is not in environments")


@pytest.mark.parametrize(
    ("contract", "file"),
    [
        pytest.param("contracts/test_block.py::test_a[1-b/c]", "torch2.11-cpu/test_block.json", id="beside-them"),
        pytest.param("contracts/gpu/test_b.py::test_a", "torch2.11-cpu/gpu/test_b.json", id="below"),
        pytest.param("tests/test_b.py::T::test_a", "torch2.11-cpu/tests/test_b.json", id="elsewhere"),
        pytest.param("../../etc/test_b.py::test_a", "torch2.11-cpu/etc/test_b.json", id="never-outside"),
        pytest.param("/etc/test_b.py::test_a", "torch2.11-cpu/etc/test_b.json", id="never-absolute"),
        pytest.param("", "torch2.11-cpu/contracts.json", id="no-name"),
    ],
)
def test_a_contract_s_file_is_named_by_its_module(baselines: Baselines, contract: str, file: str) -> None:
    assert baselines.path(contract, "torch2.11-cpu") == baselines.folder / file


# Recording


def test_a_recording_that_changes_nothing_writes_nothing(baselines: Baselines, tmp_path: Path) -> None:
    record(baselines, an_entry())
    written = (tmp_path / FILE).read_bytes()

    slower = replace(HOLDING, steady_seconds=9.0, numerics=replace(HOLDING.numerics, worst_error=3e-7))  # type: ignore[type-var]
    done = record(baselines, an_entry(slower), environment=replace(OLD, commit="b" * 40))

    assert (done, (tmp_path / FILE).read_bytes()) == ([], written)


def test_recording_touches_only_what_ran(baselines: Baselines) -> None:
    record(baselines, an_entry(), an_entry(lane="capture"), an_entry(contract="tests/test_block.py::test_other"))

    done = record(baselines, an_entry(replace(HOLDING, graphs=3)))

    kept = Baselines(baselines.folder, baselines.folder.parent.parent)
    graphs = {
        (contract.partition("::")[2], lane): found.entry.measurement and found.entry.measurement.graphs
        for contract in (CONTRACT, "tests/test_block.py::test_other")
        for lane in ("aot", "capture")
        if (found := kept.find(contract, lane, OLD))
    }
    assert done == ["aot"]
    assert graphs == {("test_block", "aot"): 3, ("test_block", "capture"): 1, ("test_other", "aot"): 1}


@pytest.mark.parametrize(
    ("mode", "written"),
    [("new", ["inductor"]), ("changed", ["aot", "capture"]), ("all", ["aot", "capture", "inductor"])],
)
def test_a_mode_says_what_is_written(baselines: Baselines, mode: Mode, written: list[str]) -> None:
    record(
        baselines,
        an_entry(replace(HOLDING, graph_breaks=(BREAK,))),
        an_entry(lane="capture"),
        an_entry(lane="dynamic"),
    )
    ran = [
        an_entry(),
        an_entry(lane="capture", limits={"max_graphs": 1}),
        an_entry(lane="dynamic"),
        an_entry(lane="inductor"),
    ]

    assert record(baselines, *ran, mode=mode) == written


def test_an_environment_that_no_lane_has_any_more_goes(baselines: Baselines, tmp_path: Path) -> None:
    record(baselines, an_entry())
    record(baselines, an_entry(replace(HOLDING, graphs=3)), environment=replace(OLD, commit="b" * 40))

    baseline = read_baseline(tmp_path / FILE)

    assert [each.commit for each in baseline.environments.values()] == ["b" * 40]


REFUSED: dict[str, tuple[Entry, str]] = {
    "over-a-limit": (
        an_entry(verdict="violated", violations=(VIOLATION,), reason="max_graphs=1: 2"),
        "violated: max_graphs=1: 2",
    ),
    "it-raised": (an_entry(Measurement(raised=RAISED), verdict="broken", reason="raised E"), "broken: raised E"),
    "counts-that-disagree": (
        an_entry(verdict="unverified", reason="two independent counts disagree"),
        "unverified: two independent counts disagree",
    ),
    "limit-hit": (an_entry(replace(HOLDING, limit_hits=(LIMIT_HIT,))), "the recompile limit was reached"),
    "lost-frames": (an_entry(replace(HOLDING, eager_frames=(EAGER,))), "frames ran in eager"),
    "nothing-captured": (an_entry(replace(HOLDING, graphs=0)), "nothing was captured"),
    "not-known-whether-captured": (an_entry(replace(HOLDING, graphs=None)), "nothing was captured"),
}


@pytest.mark.parametrize(("entry", "why"), REFUSED.values(), ids=REFUSED)
def test_garbage_is_not_recorded_without_a_reason(baselines: Baselines, entry: Entry, why: str) -> None:
    assert record(baselines, entry) == [f"aot: {why}"]
    assert not baselines.folder.exists()

    assert record(baselines, entry, accepted="known, see issue 7") == ["aot"]

    found = baselines.find(CONTRACT, "aot", OLD)
    assert found is not None
    assert found.entry.reason == "accepted: known, see issue 7"


def test_a_reason_is_not_kept_where_none_was_needed(baselines: Baselines, tmp_path: Path) -> None:
    record(baselines, an_entry(), accepted="because")

    assert "because" not in (tmp_path / FILE).read_text()


def test_a_test_that_failed_before_it_measured_is_never_recorded(baselines: Baselines) -> None:
    entry = an_entry(None, verdict="broken", reason="the test failed in call: E: x")

    assert record(baselines, entry, accepted="because") == ["aot: nothing was measured (the test failed in call: E: x)"]


@pytest.mark.parametrize("verdict", ["unmeasured", "reference"])
def test_what_did_not_run_and_what_is_no_contract_is_passed_over(baselines: Baselines, verdict: Any) -> None:
    assert record(baselines, an_entry(None if verdict == "unmeasured" else HOLDING, verdict=verdict)) == []


@pytest.mark.parametrize(
    ("changes", "limits"),
    [
        pytest.param({"limit_hits": (LIMIT_HIT,)}, {"allow_recompile_limit": True}, id="limit-hit"),
        pytest.param({"eager_frames": (EAGER,)}, {"max_eager_frames": 1}, id="lost-frames"),
        pytest.param({"graphs": 0}, {"max_graphs": 0}, id="nothing-captured"),
    ],
)
def test_what_the_contract_allows_is_recorded(changes: dict[str, Any], limits: dict[str, Any]) -> None:
    assert refusal(an_entry(replace(HOLDING, **changes), limits=limits)) == ""


# Finding and comparing


def test_a_lane_is_held_to_its_own_environment_first(baselines: Baselines) -> None:
    for environment in (OLD, MIDDLE, NEW):
        record(baselines, an_entry(), environment=environment)

    found = baselines.find(CONTRACT, "aot", MIDDLE)

    assert found is not None
    assert found.key == "torch2.13-cpu"


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        pytest.param(NEW, "torch2.9-cpu", id="the-newest-older-one"),
        pytest.param(replace(NEW, torch="2.10.1"), "torch2.9-cpu", id="by-number-not-by-text"),
        pytest.param(replace(NEW, torch="2.8.0"), None, id="never-a-newer-one"),
        pytest.param(replace(NEW, capability="9.0"), "torch2.8-cuda-sm90", id="the-same-kind-of-device"),
        pytest.param(replace(NEW, capability="8.0"), None, id="never-another-kind-of-device"),
        pytest.param(replace(NEW, torch=None), None, id="no-torch"),
    ],
)
def test_without_its_own_it_is_held_to_an_older_torch(
    baselines: Baselines, environment: Environment, key: str | None
) -> None:
    for torch, capability in (("2.8.1", "9.0"), ("2.8.1", "7.5"), ("2.9.0", None), ("2.16.0", None)):
        record(baselines, an_entry(), environment=replace(OLD, torch=torch, capability=capability))
    (baselines.folder / "notes").mkdir()

    found = baselines.find(CONTRACT, "aot", environment)

    assert (found and found.key) == key


def test_an_older_torch_is_asked_lane_by_lane(baselines: Baselines) -> None:
    record(baselines, an_entry(), an_entry(lane="capture"))
    record(baselines, an_entry(), environment=MIDDLE)

    keys = [found and found.key for lane in ("aot", "capture") if (found := baselines.find(CONTRACT, lane, NEW))]

    assert keys == ["torch2.13-cpu", "torch2.11-cpu"]


@pytest.mark.parametrize("metric", WORSENED)
def test_a_lane_that_got_worse_drifts_from_its_baseline(baselines: Baselines, metric: str) -> None:
    record(baselines, an_entry())
    found = baselines.find(CONTRACT, "aot", NEW)
    assert found is not None

    held = compare_lane(an_entry(), NEW, found)
    drifted = compare_lane(an_entry(WORSENED[metric]), NEW, found)

    assert (held.verdict, drifted.verdict) == ("held", "drifted")
    assert drifted.attribution.suspects() == ("torch",)


@pytest.mark.parametrize(
    ("changes", "accept"),
    [
        (
            {},
            ["accept it as the baseline:", f"pytest {LANE} --contract-record=changed {ALONE}"],
        ),
        (
            {"verdict": "violated", "reason": "max_graph_breaks=0: 1"},
            [
                "accept it as the baseline, with your reason (violated: max_graph_breaks=0: 1):",
                f'pytest {LANE} --contract-record=changed --contract-accept-reason="..." {ALONE}',
            ],
        ),
    ],
    ids=["held", "over its limits"],
)
def test_a_drift_tells_the_command_that_would_record_it(changes: dict[str, Any], accept: list[str]) -> None:
    entry = an_entry(WORSENED["graph_breaks"], **changes)
    found = Found(key="torch2.11-cpu", entry=an_entry(), environment=OLD)

    text = drift_text(compare_lane(entry, OLD, found), found, "changed", refusal(entry))

    lines = text.splitlines()
    assert lines[-2:] == accept
    # A lane over its limits has the command in the text of these.
    rerun = ["rerun this lane alone:", f"pytest {LANE} {ALONE}"] if entry.verdict == "held" else []
    assert lines[-2 - len(rerun) : -2] == rerun
    assert len(rerun) == 2 * sum("rerun this lane" in line for line in lines)


@given(st.sampled_from([HOLDING, *WORSENED.values()]))
def test_a_run_is_held_to_the_baseline_recorded_from_it(measured: Measurement) -> None:
    entry = an_entry(measured)
    lane = BaselineLane(test="t", verdict="held", environment="e", measurement=kept_measurement(measured))
    baseline = Baseline(environments={"e": OLD}, contracts={"c": {"aot": lane}})
    read = from_json(to_json(baseline), name="x").contracts["c"]["aot"]

    found = Found(key="k", entry=replace(entry, measurement=read.measurement), environment=OLD)

    assert compare_lane(entry, OLD, found).drifts == ()


def test_a_folder_of_baselines_is_compared_like_a_receipt(baselines: Baselines) -> None:
    record(baselines, an_entry(), an_entry(contract="tests/test_z.py::test_z"))

    receipt = read_folder(baselines.folder)

    assert [(lane.contract, lane.verdict) for lane in compare(before(an_entry()), receipt).lanes] == [
        (CONTRACT, "held"),
        ("tests/test_z.py::test_z", "new"),
    ]


def test_baselines_of_several_environments_are_not_one_receipt(baselines: Baselines) -> None:
    record(baselines, an_entry())
    record(baselines, an_entry(), environment=NEW)

    with pytest.raises(ReceiptError) as caught:
        read_folder(baselines.folder)

    assert str(caught.value) == (
        f"{baselines.folder}: baselines of several environments (torch2.11-cpu, torch2.15-cpu), "
        f"name one of them, such as {baselines.folder / 'torch2.15-cpu'}"
    )
    assert len(read_folder(baselines.folder / "torch2.15-cpu").entries) == 1


# Repeats


def test_the_band_of_the_repeats_is_kept_in_a_line_each_and_never_narrower(
    baselines: Baselines, tmp_path: Path
) -> None:
    entry = repeated(steady_seconds=(0.0012345, 0.0012345), ops_captured=(100.0, 102.0))

    record(baselines, entry)

    lane = read_baseline(tmp_path / FILE).contracts[CONTRACT]["aot"]
    assert (lane.repeats, lane.spread) == (3, {"ops_captured": (100.0, 102.0), "steady_seconds": (0.00123, 0.00124)})
    text = (tmp_path / FILE).read_text()
    assert '"steady_seconds": [0.00123, 0.00124]\n' in text
    assert '"steady_seconds": 0.001' not in text


def test_a_run_is_held_to_the_band_of_its_baseline(baselines: Baselines) -> None:
    record(baselines, repeated(steady_seconds=(0.001, 0.0012)))
    found = baselines.find(CONTRACT, "aot", OLD)
    assert found is not None
    policy = Policy(gate=frozenset({"steady_seconds"}))

    verdicts = [
        compare_lane(entry, OLD, found, policy).verdict
        for entry in (
            repeated(steady_seconds=(0.00119, 0.002)),
            repeated(steady_seconds=(0.00125, 0.002)),
            an_entry(),
        )
    ]

    assert verdicts == ["held", "drifted", "unverified"]


def test_repeats_that_disagree_are_refused_and_recorded_only_with_a_reason(baselines: Baselines) -> None:
    entry = replace(repeated(), verdict="unstable", reason="graph breaks: 0 in repeat 1, 1 in repeat 2")

    refused, accepted = record(baselines, entry), record(baselines, entry, accepted="known to vary")

    found = baselines.find(CONTRACT, "aot", OLD)
    assert refused == ["aot: unstable: graph breaks: 0 in repeat 1, 1 in repeat 2"]
    assert accepted == ["aot"]
    assert found is not None
    lane = compare_lane(an_entry(), OLD, found)
    assert (lane.verdict, lane.reason) == ("unstable", "unstable before: accepted: known to vary")


def test_a_band_is_recorded_once_and_a_single_run_does_not_take_it_away(baselines: Baselines) -> None:
    first = record(baselines, an_entry())
    with_band = record(baselines, repeated(steady_seconds=(0.001, 0.0012)))
    again = record(baselines, repeated(steady_seconds=(0.0011, 0.0013)))
    single = record(baselines, an_entry())

    assert (first, with_band, again, single) == (["aot"], ["aot"], [], [])


# torch's own defaults

TABLE = {"torch._dynamo.config.a": "True", "torch._dynamo.config.b": "8"}
KEY = defaults_key(TABLE)
KNOWN = replace(OLD, defaults=KEY)


def record_defaults(baselines: Baselines, environment: Environment = KNOWN) -> None:
    baselines.record([an_entry()], {"here": environment}, "all", "", {KEY: TABLE})


def test_torch_s_defaults_are_a_file_beside_and_read_in_a_diff(baselines: Baselines) -> None:
    record_defaults(baselines)

    (file,) = (baselines.folder / "defaults").iterdir()
    assert file.name == f"{KEY}.json"
    assert file.read_text() == (
        '{\n  "defaults": {\n    "torch._dynamo.config.a": "True",\n    "torch._dynamo.config.b": "8"\n  },\n'
        '  "format": 1,\n  "torch": "2.11.0"\n}\n'
    )


def test_torch_s_defaults_come_back_with_the_baseline(baselines: Baselines, tmp_path: Path) -> None:
    record_defaults(baselines)
    later = Baselines(tmp_path / "contracts/baselines", tmp_path)

    found = later.find(CONTRACT, "aot", KNOWN)

    assert found is not None
    assert found.defaults == TABLE
    lane = compare_lane(an_entry(), replace(NEW, defaults="x"), found, defaults=TABLE | {"torch._dynamo.config.b": "9"})
    assert lane.attribution.defaults == ("torch._dynamo.config.b 8 -> 9",)
    for folder in (later.folder, later.folder / "torch2.11-cpu"):
        assert read_folder(folder).defaults == {KEY: TABLE}


def test_a_table_that_was_changed_is_refused(baselines: Baselines, tmp_path: Path) -> None:
    record_defaults(baselines)
    file = baselines.folder / f"defaults/{KEY}.json"
    file.write_text(file.read_text().replace('"8"', '"9"'))

    with pytest.raises(ReceiptError) as caught:
        Baselines(baselines.folder, tmp_path).find(CONTRACT, "aot", KNOWN)

    assert str(caught.value) == f"{file}: does not match the digest in its name (delete it and record again)"


@pytest.mark.parametrize("key", ["../../x", "", "0" * 12, None])
def test_a_name_of_no_table_reads_nothing(key: str | None, baselines: Baselines, tmp_path: Path) -> None:
    record_defaults(baselines, replace(OLD, defaults=key))

    found = Baselines(baselines.folder, tmp_path).find(CONTRACT, "aot", OLD)

    assert found is not None
    assert found.defaults == {}
    assert not (baselines.folder / "defaults").exists()


def test_a_folder_of_baselines_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "contracts" / "baselines"
    folder.parent.mkdir()
    folder.symlink_to(folder)

    with pytest.raises(ReceiptError) as caught:
        Baselines(folder, tmp_path).find(CONTRACT, "aot", KNOWN)

    assert str(caught.value).startswith(f"{folder}: cannot be read (")


def test_a_table_of_defaults_that_cannot_be_read_is_an_error(baselines: Baselines, tmp_path: Path) -> None:
    record_defaults(baselines)
    file = baselines.folder / f"defaults/{KEY}.json"
    file.unlink()
    file.symlink_to(file)

    with pytest.raises(ReceiptError) as caught:
        Baselines(baselines.folder, tmp_path).find(CONTRACT, "aot", KNOWN)

    assert str(caught.value).startswith(f"{file}: cannot be read (")
