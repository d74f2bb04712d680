"""The gate, by the command line: each harmful change has its verdict and its exit code, and unknown is never yes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.receipts import (
    BREAK,
    HOLDING,
    OTHER_BREAK,
    RAISED,
    VIOLATION,
    WORSENED,
    a_receipt,
    after,
    an_entry,
    before,
)

from pytest_compilecontract.cli.main import main
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.receipt import Entry, Receipt, Setup
from pytest_compilecontract.files.receipt import to_json, write_receipt

YES, NO, UNUSABLE, NOT_KNOWN = 0, 1, 2, 3
NOTHING = replace(HOLDING, graphs=0, ops_captured=0, graphs_executed=0, backward_graphs=0)
WAIVER = """
[[waiver]]
contract = "*"
lane = "*"
metric = "graph_breaks"
torch = ">=2.15"
issue = "https://example.org/1"
owner = "someone"
expires = 2199-01-31
kind = "open-risk"
"""
SKIPPED = an_entry(None, verdict="unmeasured", reason="needs CUDA")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def elsewhere(new: Receipt, torch: str) -> Receipt:
    """The same run, with one more lane that ran on another machine."""
    there = replace(new.environments["here"], torch=torch)
    lane = replace(an_entry(lane="capture"), environment="there", worker="gw1")
    return replace(new, environments={**new.environments, "there": there}, entries=(*new.entries, lane))


@pytest.mark.parametrize(
    ("torch", "measured", "code"),
    [
        ("2.15.1", HOLDING, 0),
        ("2.14.0", HOLDING, 3),
        ("2.14.0", WORSENED["graph_breaks"], 1),
    ],
)
def test_lanes_that_ran_on_other_releases_say_nothing_of_this_one(
    torch: str, measured: Measurement, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    old = before(an_entry(), an_entry(lane="capture"))

    assert gate(old, elsewhere(after(an_entry(measured)), torch)) == code
    if code == 3:
        assert capsys.readouterr().out.endswith(
            "not known: each lane ran on one of torch 2.14.0, 2.15.0, and says nothing of the others\n"
        )


def gate(old: Receipt, new: Receipt, *options: str) -> int:
    write_receipt(Path("old/receipt.json"), old)
    write_receipt(Path("new.json"), new)
    return main(["gate", "old", "new.json", *options])


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1].removeprefix("may we upgrade from torch 2.11.0 to torch 2.15.0? ")


def test_what_holds_may_be_upgraded(capsys: pytest.CaptureFixture[str]) -> None:
    code = gate(before(an_entry()), after(an_entry()))

    assert (code, last_line(capsys)) == (YES, "yes")


@pytest.mark.parametrize("side", ["old", "new"])
def test_a_run_that_was_cut_off_is_not_known_though_all_that_ran_held(
    side: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {"old": before(an_entry()), "new": after(an_entry())}
    runs[side] = replace(runs[side], setup=Setup(asked="torch 2.14.1", not_finished="cut off after 60 s"))

    code = gate(runs["old"], runs["new"])

    said = "not known: torch 2.14.1: the tests did not run to their end: cut off after 60 s"
    assert (code, last_line(capsys)) == (NOT_KNOWN, said)


def test_a_run_that_was_cut_off_says_no_where_what_ran_drifted() -> None:
    stopped = replace(after(an_entry(WORSENED["errors"])), setup=Setup(asked="torch", not_finished="cut off"))

    assert gate(before(an_entry()), stopped) == NO


def test_a_policy_that_allows_missing_lanes_does_not_allow_a_torch_that_was_never_installed(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('allow = ["missing"]\n')
    stopped = replace(after(), environments={}, setup=Setup(asked="torch 2.15.0", not_installed="no such version"))

    assert gate(before(an_entry()), stopped, "--policy=policy.toml") == NOT_KNOWN


def test_a_waiver_of_a_lane_that_a_cut_off_run_did_not_reach_is_not_stale(tmp_path: Path) -> None:
    (tmp_path / "waivers.toml").write_text(WAIVER)
    stopped = replace(after(), environments={}, setup=Setup(asked="torch 2.15.0", not_installed="no such version"))

    assert gate(before(an_entry()), stopped, "--waivers=waivers.toml") == NOT_KNOWN


def test_an_improvement_never_blocks() -> None:
    assert gate(before(an_entry(replace(HOLDING, graph_breaks=(BREAK,)))), after(an_entry())) == YES


@pytest.mark.parametrize("metric", WORSENED)
def test_each_metric_that_got_worse_says_no(metric: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = gate(before(an_entry()), after(an_entry(WORSENED[metric])))

    assert (code, last_line(capsys)) == (NO, "no: 1 lane drifted")


HARMFUL: dict[str, tuple[tuple[Entry, ...], tuple[Entry, ...], int, str]] = {
    "one-break-for-another": (
        (an_entry(replace(HOLDING, graph_breaks=(BREAK,))),),
        (an_entry(replace(HOLDING, graph_breaks=(OTHER_BREAK,))),),
        NO,
        "no: 1 lane drifted",
    ),
    "capture-lost": ((an_entry(),), (an_entry(NOTHING),), NO, "no: 1 lane drifted"),
    "it-raises": (
        (an_entry(),),
        (an_entry(Measurement(raised=RAISED), verdict="broken", reason="raised"),),
        NO,
        "no: 1 lane broke",
    ),
    "one-drifted-and-one-broke": (
        (an_entry(), an_entry(lane="capture"), an_entry(lane="inductor")),
        (
            an_entry(None, verdict="broken", reason="the test failed in call: E: x"),
            an_entry(WORSENED["recompiles"], lane="capture"),
            an_entry(lane="inductor"),
        ),
        NO,
        "no: 1 lane drifted, 1 lane broke",
    ),
    "a-lane-missing": (
        (an_entry(), an_entry(lane="inductor")),
        (an_entry(),),
        NOT_KNOWN,
        "not known: 1 lane left open",
    ),
    "a-lane-new": ((an_entry(),), (an_entry(), an_entry(lane="inductor")), NOT_KNOWN, "not known: 1 lane left open"),
    "drift-beside-a-missing-lane": (
        (an_entry(), an_entry(lane="inductor")),
        (an_entry(WORSENED["graph_breaks"]),),
        NO,
        "no: 1 lane drifted",
    ),
    "both-empty": ((), (), NOT_KNOWN, "not known: nothing was measured on either side"),
    "empty-before": ((), (an_entry(),), NOT_KNOWN, "not known: nothing was measured before"),
    "empty-after": ((an_entry(),), (), NOT_KNOWN, "not known: nothing was measured after"),
    "nothing-in-common": (
        (an_entry(),),
        (an_entry(lane="inductor"),),
        NOT_KNOWN,
        "not known: the two runs have no lane in common",
    ),
    "all-skipped-after": (
        (an_entry(),),
        (SKIPPED,),
        NOT_KNOWN,
        "not known: no lane was measured on both sides",
    ),
    "all-skipped-on-both": ((SKIPPED,), (SKIPPED,), NOT_KNOWN, "not known: no lane was measured on both sides"),
    "nothing-captured-on-both": (
        (an_entry(NOTHING),),
        (an_entry(NOTHING),),
        NOT_KNOWN,
        "not known: no lane was measured on both sides",
    ),
    "counts-that-disagree": (
        (an_entry(), an_entry(lane="capture")),
        (an_entry(verdict="unverified"), an_entry(lane="capture")),
        NOT_KNOWN,
        "not known: 1 lane left open",
    ),
    "over-its-limits-as-before": (
        (an_entry(verdict="violated", violations=(VIOLATION,)),),
        (an_entry(verdict="violated", violations=(VIOLATION,)),),
        NOT_KNOWN,
        "not known: 1 lane left open",
    ),
    "broken-as-before": (
        (an_entry(Measurement(raised=RAISED), verdict="broken"), an_entry(lane="capture")),
        (an_entry(Measurement(raised=RAISED), verdict="broken"), an_entry(lane="capture")),
        NOT_KNOWN,
        "not known: 1 lane left open",
    ),
    "references-alone": (
        (an_entry(lane="eager", verdict="reference"),),
        (an_entry(lane="eager", verdict="reference"),),
        NOT_KNOWN,
        "not known: nothing was measured on either side",
    ),
}


@pytest.mark.parametrize(("old", "new", "code", "said"), HARMFUL.values(), ids=HARMFUL)
def test_what_harms_has_its_exit_code(
    old: tuple[Entry, ...], new: tuple[Entry, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = gate(before(*old), after(*new))

    assert (found, last_line(capsys)) == (code, said)


@pytest.mark.parametrize(("old", "new", "code", "said"), HARMFUL.values(), ids=HARMFUL)
def test_compare_has_the_gate_s_exit_code(old: tuple[Entry, ...], new: tuple[Entry, ...], code: int, said: str) -> None:
    write_receipt(Path("old.json"), before(*old))
    write_receipt(Path("new.json"), after(*new))

    assert main(["compare", "old.json", "new.json"]) == code


def test_a_policy_lets_be_what_it_names() -> None:
    Path("policy.toml").write_text('allow = ["new", "missing", "unmeasured"]\ngate = ["recompiles"]\n')
    old = before(an_entry(), an_entry(lane="inductor"), replace(SKIPPED, lane="cudagraphs"))
    new = after(an_entry(WORSENED["graph_breaks"]), an_entry(lane="capture"), replace(SKIPPED, lane="cudagraphs"))

    assert gate(old, new) == NO
    assert gate(old, new, "--policy=policy.toml") == YES
    assert gate(old, after(an_entry(WORSENED["recompiles"])), "--policy=policy.toml") == NO


def test_a_policy_that_lets_all_be_does_not_make_nothing_a_yes() -> None:
    Path("policy.toml").write_text('allow = ["new", "missing", "unmeasured"]\n')

    assert gate(before(), after(an_entry()), "--policy=policy.toml") == NOT_KNOWN
    assert gate(before(SKIPPED), after(SKIPPED), "--policy=policy.toml") == NOT_KNOWN


def test_a_policy_that_gates_nothing_knows_nothing() -> None:
    Path("policy.toml").write_text("gate = []\n")

    assert gate(before(an_entry()), after(an_entry(WORSENED["errors"])), "--policy=policy.toml") == NOT_KNOWN


# Input that cannot be used


@pytest.mark.parametrize("command", ["compare", "gate"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        pytest.param(
            lambda: Path("old.json").unlink(), "old.json: cannot be read (No such file or directory)", id="gone"
        ),
        pytest.param(
            lambda: Path("old.json").write_text("{"), "old.json: not JSON (input data was truncated)", id="cut"
        ),
        pytest.param(
            lambda: write_receipt(Path("old.json"), before(an_entry(), an_entry(test="x"))),
            "tests/test_block.py::test_block, lane aot: twice, in environment 'here'",
            id="a-lane-twice",
        ),
        pytest.param(
            lambda: (Path("old.json").unlink(), Path("old.json").mkdir()),
            "old.json: contains neither receipt.json nor a baseline",
            id="an-empty-folder",
        ),
        pytest.param(
            lambda: (Path("old.json").unlink(), Path("old.json/baselines/defaults").mkdir(parents=True)),
            "old.json: contains no receipt.json (its baselines are in old.json/baselines)",
            id="above-the-baselines",
        ),
    ],
)
def test_unusable_input_is_one_line_and_exit_code_2(
    command: str, spoil: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_receipt(Path("old.json"), before(an_entry()))
    write_receipt(Path("new.json"), after(an_entry()))
    spoil()

    code = main([command, "old.json", "new.json"])

    assert capsys.readouterr() == ("", f"compilecontract: {message}\n")
    assert code == UNUSABLE


def test_an_unusable_policy_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    Path("policy.toml").write_text("grate = []\n")

    code = gate(before(an_entry()), after(an_entry()), "--policy=policy.toml")

    message = "compilecontract: policy.toml: unknown key 'grate' (known keys: allow, band, gate)\n"
    assert (code, capsys.readouterr().err) == (UNUSABLE, message)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def spoilt(draw: st.DrawFn) -> object:
    """A receipt's document with one of its values replaced by anything."""
    document: Any = json.loads(to_json(before(an_entry(replace(HOLDING, graph_breaks=(BREAK,))))))
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return document
        key = draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and draw(st.booleans()):
            place = place[key]
            continue
        place[key] = draw(ANY)
        return document


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.one_of(ANY, spoilt()), st.booleans())
@example({"format": 1, "plugin": "x", "created": "2026-01-31T12:00:00Z", "entries": []}, False)
def test_any_document_gives_a_result_or_one_clear_error(
    capsys: pytest.CaptureFixture[str], document: object, newer: bool
) -> None:
    write_receipt(Path("good.json"), before(an_entry()))
    Path("any.json").write_text(json.dumps(document))

    code = main(["gate", *(("good.json", "any.json") if newer else ("any.json", "good.json"))])

    out, err = capsys.readouterr()
    if code == UNUSABLE:
        assert (out, err.count("\n")) == ("", 1)
    else:
        assert (code in (YES, NO, NOT_KNOWN), err) == (True, "")
        assert out.splitlines()[-1].startswith("may we upgrade from ")


def test_it_needs_no_torch() -> None:
    write_receipt(Path("receipt.json"), a_receipt(an_entry()))
    program = (
        "import sys; sys.modules.update(torch=None, numpy=None, pytest=None)\n"
        "from pytest_compilecontract.cli import main\n"
        "sys.exit(main(['gate', 'receipt.json', 'receipt.json']))"
    )

    ran = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )

    assert ran.returncode == YES
