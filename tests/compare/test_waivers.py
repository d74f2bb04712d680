"""Waivers: a known drift is tolerated, named and dated, and a waiver that rots fails."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import pytest
from support.receipts import BREAK, HOLDING, NEW, RAISED, WORSENED, a_receipt, after, an_entry, before

from pytest_compilecontract.cli.main import main
from pytest_compilecontract.compare.comparison import compare
from pytest_compilecontract.compare.drift import Comparison
from pytest_compilecontract.compare.gate import answer
from pytest_compilecontract.compare.waivers import Waiver, read_waivers, stale, waived
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.files.receipt import write_receipt

TODAY = datetime.date(2026, 6, 15)
WAIVER = """
[[waiver]]
contract = "tests/test_block.py::*"
lane = "aot"
metric = "numerics"
torch = ">=2.12"
issue = "https://github.com/pytorch/pytorch/issues/1"
owner = "someone"
expires = 2026-06-15
kind = "open-risk"
note = "the last bit"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "waivers.toml"


def waivers(file: Path, *changes: tuple[str, str]) -> tuple[Waiver, ...]:
    text = WAIVER
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    return read_waivers(file)


def compared(*new: Measurement, lanes: tuple[str, ...] = ("aot", "capture")) -> Comparison:
    old = [an_entry(lane=lane) for lane in lanes]
    return compare(before(*old), after(*(an_entry(each, lane=lane) for each, lane in zip(new, lanes, strict=True))))


def test_what_is_waived_is_shown_as_waived_and_does_not_block(file: Path) -> None:
    comparison = waived(compared(WORSENED["numerics"], HOLDING), waivers(file), TODAY)

    assert [lane.verdict for lane in comparison.lanes] == ["waived", "held"]
    assert comparison.lanes[0].reason == (
        "open-risk, https://github.com/pytorch/pytorch/issues/1 (someone, until 2026-06-15): the last bit"
    )
    assert answer(comparison).outcome == "yes"
    assert stale(comparison, waivers(file), TODAY, whole=True) == ()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(("tests/test_block.py::*", "tests/test_other.py::*"), id="another-contract"),
        pytest.param(('lane = "aot"', 'lane = "capture"'), id="another-lane"),
        pytest.param(('"numerics"', '"recompiles"'), id="another-metric"),
        pytest.param((">=2.12", "<2.12"), id="another-torch"),
        pytest.param((">=2.12", ">2.15"), id="a-later-torch"),
        pytest.param(("2026-06-15", "2026-06-14"), id="expired"),
    ],
)
def test_what_it_does_not_speak_of_is_drift(file: Path, change: tuple[str, str]) -> None:
    comparison = waived(compared(WORSENED["numerics"], HOLDING), waivers(file, change), TODAY)

    assert comparison.lanes[0].verdict == "drifted"


def test_one_drift_of_two_that_is_waived_is_marked_and_the_lane_drifted(file: Path) -> None:
    both = replace(WORSENED["numerics"], recompiles=WORSENED["recompiles"].recompiles)

    lane = waived(compared(both, HOLDING), waivers(file), TODAY).lanes[0]

    assert lane.verdict == "drifted"
    assert {drift.metric: bool(drift.waived) for drift in lane.drifts} == {"recompiles": False, "numerics": True}


@pytest.mark.parametrize(
    "metric",
    ['["numerics", "recompiles"]', '["recompiles", "numeric differences"]', '"*"'],
    ids=["a list", "as a drift calls it", "all"],
)
def test_one_waiver_tolerates_several_metrics(file: Path, metric: str) -> None:
    both = replace(WORSENED["numerics"], recompiles=WORSENED["recompiles"].recompiles)
    found = waivers(file, ('"numerics"', metric))

    comparison = waived(compared(both, HOLDING), found, TODAY)

    assert comparison.lanes[0].verdict == "waived"
    assert stale(comparison, found, TODAY, whole=True) == ()


def test_a_waiver_of_several_metrics_is_stale_once_none_of_them_drifts(file: Path) -> None:
    found = waivers(file, ('"numerics"', '["numerics", "recompiles"]'))

    one = waived(compared(WORSENED["recompiles"], HOLDING), found, TODAY)
    (said,) = stale(compared(HOLDING, HOLDING), found, TODAY, whole=True)

    assert stale(one, found, TODAY, whole=True) == ()
    assert "numerics, recompiles is no longer needed" in said


def test_a_lane_that_broke_can_be_waived(file: Path) -> None:
    broken = after(an_entry(Measurement(raised=RAISED), verdict="broken", reason="raised"))

    comparison = waived(compare(before(an_entry()), broken), waivers(file, ("numerics", "errors")), TODAY)

    assert comparison.lanes[0].verdict == "waived"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(("2026-06-15", "2026-06-14"), "expired on 2026-06-14", id="expired"),
        pytest.param(("test_block.py::*", "test_gone.py::*"), "no longer matches a lane", id="no-lane"),
        pytest.param(('"numerics"', '"recompiles"'), "is no longer needed", id="not-needed"),
    ],
)
def test_a_waiver_that_rots_is_named_with_its_line_and_says_no(file: Path, change: tuple[str, str], why: str) -> None:
    found = waivers(file, change)
    comparison = waived(compared(HOLDING, HOLDING), found, TODAY)

    lines = stale(comparison, found, TODAY, whole=True)

    assert lines == (f"{file}:2: the waiver of {found[0]} {why}: delete it",)
    assert answer(comparison, stale=lines).outcome == "no"


def test_a_waiver_is_named_from_the_current_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    found = waivers(file, ('metric = "numerics"', 'fact = ["a line", "another", "a third"]'))

    (said,) = stale(compared(HOLDING, HOLDING), found, TODAY, whole=True)

    needless = "the waiver of tests/test_block.py::* [aot] a line and 2 more is no longer needed: delete it"
    assert said == f"waivers.toml:2: {needless}"


def test_one_that_expired_and_is_still_needed_is_not_to_be_deleted(file: Path) -> None:
    found = waivers(file, ("2026-06-15", "2026-06-14"))

    (said,) = stale(waived(compared(WORSENED["numerics"], HOLDING), found, TODAY), found, TODAY, whole=True)

    assert said.endswith(" expired on 2026-06-14: the drift is still there: fix it, or set a later date")


def test_of_one_that_expired_nothing_is_known_where_its_lanes_did_not_run(file: Path) -> None:
    found = waivers(file, ("2026-06-15", "2026-06-14"), ('"aot"', '"dynamic"'))

    (said,) = stale(compared(HOLDING, HOLDING), found, TODAY, whole=False)

    assert said.endswith(" expired on 2026-06-14: delete it if its drift is gone, no lane that it is about ran")


@pytest.mark.parametrize(
    ("measured", "change"),
    [
        pytest.param(HOLDING, ("test_block.py::*", "test_gone.py::*"), id="it-may-match-what-did-not-run"),
        pytest.param(HOLDING, ("someone", "someone"), id="a-glob-may-be-needed-elsewhere"),
    ],
)
def test_a_part_of_the_tests_cannot_tell(file: Path, measured: Measurement, change: tuple[str, str]) -> None:
    assert stale(compared(measured, HOLDING), waivers(file, change), TODAY, whole=False) == ()


@pytest.mark.parametrize(
    ("command", "waived", "stales"),
    [
        ("pytest --compile-contracts", "test_block.py::*", 1),
        ("pytest --compile-contracts tests", "test_block.py::*", 1),
        ("pytest --compile-contracts tests", "test_gone.py::*", 1),
        ("pytest --compile-contracts other", "test_gone.py::*", 0),
        ("pytest --compile-contracts -k block", "test_block.py::*", 0),
    ],
)
def test_what_a_run_left_out_is_known_by_its_command(command: str, waived: str, stales: int, file: Path) -> None:
    found = waivers(file, ("test_block.py::*", waived))
    new = replace(after(an_entry()), command=command)

    assert len(stale(compare(before(an_entry()), new), found, TODAY)) == stales


@pytest.mark.parametrize("measured", [HOLDING, WORSENED["graph_breaks"], WORSENED["numerics"]])
@pytest.mark.parametrize("change", [("someone", "someone"), ("2026-06-15", "2026-06-14"), ('"numerics"', '"*"')])
def test_a_session_and_the_gate_say_the_same_of_one_lane(
    measured: Measurement, change: tuple[str, str], file: Path
) -> None:
    found = waivers(file, ("test_block.py::*", "test_block.py::test_block"), change)
    of_the_gate = compared(measured, HOLDING)
    # What a session compares with its baselines.
    of_a_session = Comparison(before="", after="", lanes=of_the_gate.lanes)

    assert stale(of_the_gate, found, TODAY) == stale(of_a_session, found, TODAY, whole=False)


def test_a_part_of_the_tests_can_tell_of_one_lane(file: Path) -> None:
    found = waivers(file, ("test_block.py::*", "test_block.py::test_block"))

    assert len(stale(compared(HOLDING, HOLDING), found, TODAY, whole=False)) == 1


def test_on_another_torch_a_waiver_does_not_rot(file: Path) -> None:
    assert stale(compared(HOLDING, HOLDING), waivers(file, (">=2.12", "<2.12")), TODAY, whole=True) == ()


def test_a_lane_that_was_not_measured_cannot_tell(file: Path) -> None:
    skipped = a_receipt(an_entry(None, verdict="unmeasured"), environment=NEW)

    assert stale(compare(before(an_entry()), skipped), waivers(file), TODAY, whole=True) == ()


def test_a_lane_that_broke_off_cannot_tell(file: Path) -> None:
    broken = after(an_entry(None, verdict="broken", reason="the test failed in call: E: x"))

    assert stale(compare(before(an_entry()), broken), waivers(file), TODAY, whole=True) == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(("owner =", "own ="), "unknown key 'own' (known keys: contract, lane, ", id="unknown-key"),
        pytest.param(('owner = "someone"\n', ""), "owner: missing", id="no-owner"),
        pytest.param(('"someone"', '" "'), "owner: expected a string, got ' '", id="an-empty-owner"),
        pytest.param(('"numerics"', '"graphs"'), "metric: unknown metric 'graphs', did", id="no-metric-that-gates"),
        pytest.param(('"open-risk"', '"fine"'), "kind: expected 'workaround' or 'open-risk', got 'fine'", id="kind"),
        pytest.param(("https://", "see "), "issue: expected a URL, got 'see github", id="no-url"),
        pytest.param(
            ("2026-06-15", '"2026-06-15"'),
            "expires: expected a date such as 2027-01-31 without quotes, got '2026-06-15'",
            id="a-date-in-quotes",
        ),
        pytest.param(
            (">=2.12", "2.12"),
            "torch: expected a version range such as '>=2.12,<2.14' or '==2.13.*', got '2.12'",
            id="no-range",
        ),
    ],
)
def test_a_waiver_that_cannot_mean_anything_is_refused(file: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        waivers(file, change)

    assert str(caught.value).startswith(f"{file}:2: {message}")


@pytest.mark.parametrize("text", ["waiver = 1", "[[waivers]]", "x", "[waiver]", "\x00"])
def test_a_file_that_is_no_waivers_is_one_error(file: Path, text: str) -> None:
    file.write_text(text)

    with pytest.raises(UsageError) as caught:
        read_waivers(file)

    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_the_gate_takes_waivers_and_names_those_to_delete(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waivers(file, ("2026-06-15", "2999-01-01"))
    old, worse, same = (str(tmp_path / name) for name in ("old.json", "worse.json", "same.json"))
    write_receipt(Path(old), before(an_entry()))
    write_receipt(Path(worse), after(an_entry(WORSENED["numerics"])))
    write_receipt(Path(same), after(an_entry()))

    codes = [main(["gate", old, new, f"--waivers={file}"]) for new in (worse, same)]

    out = capsys.readouterr().out
    assert codes == [0, 1]
    assert f"{file}:2: the waiver of tests/test_block.py::* [aot] numerics is no longer needed: delete it" in out
    assert out.endswith("? no: 1 stale waiver\n")


def test_what_both_runs_have_needs_its_waiver_elsewhere(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waivers(file, ("2026-06-15", "2999-01-01"), ('"numerics"', '"graph_breaks"'))
    broken = an_entry(replace(HOLDING, graph_breaks=(BREAK,)))
    old, new, mended = (str(tmp_path / name) for name in ("old.json", "new.json", "mended.json"))
    write_receipt(Path(old), before(broken))
    write_receipt(Path(new), after(broken))
    write_receipt(Path(mended), after(an_entry()))

    commands = [
        [name, old, each, f"--waivers={file}"] for name in ("compare", "gate", "matrix") for each in (new, mended)
    ]

    codes = [main(command) for command in commands]

    assert codes == [0, 1] * 3, capsys.readouterr().out


@pytest.mark.parametrize(("line", "code"), [(BREAK.location.source, 0), ("print(x[0])", 1)])
def test_what_both_runs_have_needs_the_waiver_of_its_line_alone(
    line: str, code: int, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waivers(file, ("2026-06-15", "2999-01-01"), ('metric = "numerics"', f'fact = "{line}"'))
    broken = an_entry(replace(HOLDING, graph_breaks=(BREAK,)))
    old, new = str(tmp_path / "old.json"), str(tmp_path / "new.json")
    write_receipt(Path(old), before(broken))
    write_receipt(Path(new), after(broken))

    assert main(["compare", old, new, f"--waivers={file}"]) == code, capsys.readouterr().out


def test_a_break_that_is_waived_still_shows(file: Path) -> None:
    worse = replace(HOLDING, graph_breaks=(BREAK,))
    text = "".join(WAIVER.replace('"numerics"', f'"{metric}"') for metric in ("graph_breaks", "fullgraph"))
    file.write_text(text)

    lane = waived(compared(worse, HOLDING), read_waivers(file), TODAY).lanes[0]

    assert lane.verdict == "waived"
    assert next(drift.came for drift in lane.drifts if drift.metric == "graph_breaks")


BY_LINE = ('metric = "numerics"', f'fact = "{BREAK.location.source}"')
BROKEN_TWICE = replace(
    WORSENED["graph_breaks"],
    graph_breaks=(BREAK, replace(BREAK, location=replace(BREAK.location, line=99, source="print(x[0])"))),
)


def test_a_waiver_that_names_a_line_tolerates_what_comes_of_it(file: Path) -> None:
    found = waivers(file, BY_LINE)

    comparison = waived(compared(WORSENED["graph_breaks"], HOLDING), found, TODAY)

    assert {drift.metric for drift in comparison.lanes[0].drifts if drift.gates} == {"fullgraph", "graph_breaks"}
    assert comparison.lanes[0].verdict == "waived"
    assert stale(comparison, found, TODAY, whole=True) == ()


@pytest.mark.parametrize(
    "fact",
    ["{0.location}", "{0.location}: {0.location.source}", "*{0.location.function}: *"],
    ids=["its place", "as it is printed", "a glob"],
)
def test_a_line_is_named_as_a_drift_tells_it(file: Path, fact: str) -> None:
    found = waivers(file, ('metric = "numerics"', f'fact = "{fact.format(BREAK)}"'))

    assert waived(compared(WORSENED["graph_breaks"], HOLDING), found, TODAY).lanes[0].verdict == "waived"


def test_another_line_is_still_drift(file: Path) -> None:
    found = waivers(file, BY_LINE)

    comparison = waived(compared(BROKEN_TWICE, HOLDING), found, TODAY)

    assert comparison.lanes[0].verdict == "drifted"
    assert not any(drift.waived for drift in comparison.lanes[0].drifts)


def test_a_waiver_for_each_line_tolerates_both(file: Path) -> None:
    first = WAIVER.replace(*BY_LINE)
    file.write_text(
        first + WAIVER.replace('metric = "numerics"', 'fact = "print(x[0])"').replace("issues/1", "issues/2")
    )
    found = read_waivers(file)

    lane = waived(compared(BROKEN_TWICE, HOLDING), found, TODAY).lanes[0]

    assert lane.verdict == "waived"
    assert "issues/1" in lane.reason
    assert "issues/2" in lane.reason


def test_a_line_says_nothing_of_wrong_numbers(file: Path) -> None:
    both = replace(WORSENED["graph_breaks"], numerics=WORSENED["numerics"].numerics)

    lane = waived(compared(both, HOLDING), waivers(file, BY_LINE), TODAY).lanes[0]

    assert lane.verdict == "drifted"
    assert {drift.metric for drift in lane.drifts if drift.gates and not drift.waived} == {"numerics"}


def test_a_waiver_of_a_line_is_stale_once_the_line_is_gone(file: Path) -> None:
    found = waivers(file, BY_LINE)

    (said,) = stale(compared(WORSENED["recompiles"], HOLDING), found, TODAY, whole=True)

    assert f"[aot] {BREAK.location.source} is no longer needed: delete it" in said


def test_validate_reads_waivers(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(WAIVER)

    code = main(["validate", str(file)])

    assert capsys.readouterr() == (f"{file}: 1 waiver, no errors\n", "")
    assert code == 0


def test_validate_finds_the_waivers_of_a_folder_and_says_what_is_wrong(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(WAIVER.replace('"numerics"', '"numeric"'))

    code = main(["validate", str(file.parent)])

    said = capsys.readouterr()
    assert said.out.startswith(f"{file}:2: metric: unknown metric 'numeric', did you mean 'numerics'?")
    assert (said.err, code) == ("", 1)


def test_validate_cannot_read_waivers_that_are_not_there(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["validate", str(file)])

    assert capsys.readouterr().err == f"compilecontract: {file}: cannot be read (No such file or directory)\n"
    assert code == 2


def test_the_gate_prints_the_command_that_waives_what_drifted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, measured in (("old", HOLDING), ("new", WORSENED["graph_breaks"]), ("same", HOLDING)):
        made = (before if name == "old" else after)(an_entry(measured))
        write_receipt(tmp_path / f"{name} run" / "receipt.json", made)

    main(["gate", str(tmp_path / "old run"), str(tmp_path / "new run")])
    printed = capsys.readouterr().out.splitlines()
    main(["gate", str(tmp_path / "old run"), str(tmp_path / "same run")])

    command = printed[printed.index("to waive this drift until a date:") + 1]
    assert command == (
        f"compilecontract waive '{tmp_path}/old run' '{tmp_path}/new run' --owner ... --issue ... --expires ... "
        ">> contracts/waivers.toml"
    )
    assert "waive" not in capsys.readouterr().out
