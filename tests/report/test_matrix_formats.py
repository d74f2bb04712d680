"""The matrix as JSON, JUnit XML and HTML: what is written is what was found, and no text of a receipt is obeyed."""

from __future__ import annotations

import datetime
import html
import json
import re
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.receipts import (
    BREAK,
    CONTRACT,
    HOLDING,
    OLD,
    RECOMPILE,
    VIOLATION,
    WORSENED,
    a_receipt,
    after,
    an_entry,
    before,
)

import pytest_compilecontract
from pytest_compilecontract.baselines.store import Baselines
from pytest_compilecontract.cli.main import main
from pytest_compilecontract.compare.gate import answer
from pytest_compilecontract.compare.matrix import Known, Matrix, matrix
from pytest_compilecontract.compare.policy import Policy
from pytest_compilecontract.compare.waivers import Waiver
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.facts.receipt import Environment, Receipt
from pytest_compilecontract.facts.versions import version_range
from pytest_compilecontract.files.receipt import write_receipt
from pytest_compilecontract.report import document
from pytest_compilecontract.report.junit import junit
from pytest_compilecontract.report.matrix import MOST_CHARACTERS, UNFOLDED_ROWS, markdown
from pytest_compilecontract.report.page import MOST_ROWS, page

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202egnp.\u2028\x00\x1b[31m]]>&amp;\ud800"
MIDDLE = replace(OLD, torch="2.13.0")
# Each verdict that a cell may have, from two entries.
VERDICTS: dict[str, tuple[Any, Any]] = {
    "held": (an_entry(), an_entry()),
    "improved": (an_entry(WORSENED["recompiles"]), an_entry()),
    "drifted": (an_entry(), an_entry(WORSENED["recompiles"])),
    "broken": (an_entry(), an_entry(None, verdict="broken", reason="the test failed in call: ValueError: no")),
    "broken before too": (
        an_entry(None, verdict="broken", reason="the test failed in call: ValueError: no"),
        an_entry(None, verdict="broken", reason="the test failed in call: ValueError: no"),
    ),
    "unmeasured": (an_entry(), an_entry(None, verdict="unmeasured", reason="no CUDA device here")),
    "unverified": (an_entry(), an_entry(replace(HOLDING, recompiles=None))),
    "new": (None, an_entry()),
    "missing": (an_entry(), None),
    "over its limits": (
        an_entry(verdict="violated", violations=(VIOLATION,), reason="max_graphs=1: 2"),
        an_entry(verdict="violated", violations=(VIOLATION,), reason="max_graphs=1: 2"),
    ),
}


def of(name: str, policy: Policy | None = None) -> Matrix:
    old, new = VERDICTS[name]
    return matrix([before(*[old] * bool(old)), after(*[new] * bool(new))], policy or Policy())


def a_hostile_matrix() -> Matrix:
    found = replace(BREAK, reason=HOSTILE, hints=(HOSTILE,), location=replace(BREAK.location, source=HOSTILE))
    new = an_entry(
        replace(HOLDING, graph_breaks=(found,), backend=HOSTILE, unmeasured={"calls": HOSTILE}, calls=None),
        contract=HOSTILE,
        lane=HOSTILE,
        test=HOSTILE,
        reason=HOSTILE,
    )
    environment = Environment(torch=HOSTILE, device=HOSTILE, variables={HOSTILE: HOSTILE})
    old = an_entry(contract=HOSTILE, lane=HOSTILE, test=HOSTILE)
    return matrix([a_receipt(old, environment=environment), a_receipt(new, environment=environment)])


def rendered(found: Matrix) -> str:
    answered = answer(found.comparisons[-1]) if found.comparisons else None
    return page(found, answered, plugin="0.1.0", created="2026-01-31 12:00 UTC")


def data_of(text: str) -> dict[str, Any]:
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert block is not None
    data: dict[str, Any] = json.loads(block[1])
    return data


def cases(text: str) -> dict[tuple[str, str], ElementTree.Element]:
    root = ElementTree.fromstring(text)
    return {(suite.get("name", ""), case.get("name", "")): case for suite in root for case in suite.iter("testcase")}


# JUnit


@pytest.mark.parametrize(
    ("verdict", "tag", "message"),
    [
        pytest.param("held", None, "", id="held"),
        pytest.param("improved", None, "", id="improved"),
        pytest.param("drifted", "failure", "drifted: recompiles 0→1: x size at index 0", id="drifted"),
        pytest.param("broken", "failure", "broken: the test failed in call: ValueError: no", id="broken"),
        pytest.param(
            "broken before too",
            "failure",
            "broken: broken before too: the test failed in call: ValueError: no",
            id="broken-before-too",
        ),
        pytest.param("unmeasured", "error", "unmeasured: no CUDA device here", id="unmeasured"),
        pytest.param("unverified", "error", "unverified: recompiles: no longer measured", id="unverified"),
        pytest.param("new", "error", "new: nothing to compare with", id="new"),
        pytest.param("missing", "error", "missing: not in the newer run", id="missing"),
        pytest.param("over its limits", "error", "over its limits, as before: max_graphs=1: 2", id="over-its-limits"),
    ],
)
def test_what_is_not_known_to_hold_is_no_passing_test_case(verdict: str, tag: str | None, message: str) -> None:
    case = cases(junit(of(verdict)))["torch 2.15.0", "test_block[aot]"]

    children = [(child.tag, child.get("message")) for child in case]
    assert children == ([(tag, message)] if tag else [])


def test_an_unknown_verdict_is_no_passing_test_case() -> None:
    found = of("held")
    row = found.rows[0]
    assert row.cells[1].lane is not None
    strange = replace(row.cells[1], verdict="strange", lane=replace(row.cells[1].lane, verdict="strange"))  # type: ignore[arg-type]

    case = cases(junit(replace(found, rows=(replace(row, cells=(row.cells[0], strange)),))))[
        "torch 2.15.0", "test_block[aot]"
    ]

    assert [child.tag for child in case] == ["error"]


@pytest.mark.parametrize("verdict", ["new", "missing", "unmeasured"])
def test_what_the_policy_lets_be_is_skipped(verdict: str) -> None:
    policy = Policy(allow=frozenset((verdict,)))

    case = cases(junit(of(verdict, policy), policy))["torch 2.15.0", "test_block[aot]"]

    assert [child.tag for child in case] == ["skipped"]


def test_a_waived_drift_is_skipped_and_says_its_issue() -> None:
    waiver = Waiver(
        contract="*",
        lanes=("*",),
        metrics=("recompiles",),
        torch=version_range(">=2.13", where=""),
        issue="https://example.org/7",
        owner="someone",
        expires=datetime.date(2026, 6, 15),
        kind="workaround",
    )
    old, new = VERDICTS["drifted"]

    found = matrix([before(old), after(new)], waivers=[waiver], today=datetime.date(2026, 6, 1))

    skipped = cases(junit(found))["torch 2.15.0", "test_block[aot]"].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "waived: recompiles 0→1: x size at index 0"
    assert "https://example.org/7" in (skipped.text or "")


def test_the_first_environment_is_judged_by_the_contracts_own_limits() -> None:
    case = cases(junit(of("over its limits")))["torch 2.11.0", "test_block[aot]"]

    assert [(child.tag, child.get("message")) for child in case] == [("failure", "violated: max_graphs=1: 2")]


def test_a_suite_has_its_environment_its_counts_and_its_totals() -> None:
    entries = [an_entry(seconds=1.5), an_entry(lane="capture", seconds=2.0)]
    new = [an_entry(WORSENED["graph_breaks"]), an_entry(None, lane="capture", verdict="unmeasured", reason="no")]

    suite = ElementTree.fromstring(junit(matrix([before(*entries), after(*new)])))[1]

    properties = {each.get("name"): each.get("value") for each in suite.iter("property")}
    totals = {name: suite.get(name) for name in ("name", "tests", "failures", "errors", "skipped", "time")}
    assert totals == {
        "name": "torch 2.15.0",
        "tests": "2",
        "failures": "1",
        "errors": "1",
        "skipped": "0",
        "time": "0.000",
    }
    assert properties == {
        "installed": "yes",
        "imported": "yes",
        "torch": "2.15.0",
        "triton": "3.9.0",
        "device": "A processor",
        "python": "3.11.7",
        "commit": "a" * 40,
        f"{CONTRACT} [aot]": "graphs=1 graph_breaks=1 recompiles=0 eager_frames=0 limit_hits=0 ops_captured=100 "
        "graphs_executed=3 backward_graphs=1",
    }


def test_a_failure_ends_with_the_command_that_reruns_it() -> None:
    failure = cases(junit(of("drifted")))["torch 2.15.0", "test_block[aot]"].find("failure")

    assert failure is not None
    assert (failure.text or "").splitlines()[-1] == (
        f"rerun: pytest --compile-contracts --contract-lanes=aot -- '{CONTRACT}[aot]'"
    )


# What Jenkins' schema (junit-10) lets be inside what, and which attributes it knows.
SHAPE = {
    "testsuites": ({"testsuite"}, {"name", "time", "tests", "failures", "errors"}),
    "testsuite": (
        {"properties", "testcase"},
        {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname", "id", "package"},
    ),
    "properties": ({"property"}, set()),
    "property": (set(), {"name", "value"}),
    "testcase": ({"skipped", "error", "failure", "system-out", "system-err"}, {"name", "time", "classname", "group"}),
    "skipped": (set(), {"type", "message"}),
    "error": (set(), {"type", "message"}),
    "failure": (set(), {"type", "message"}),
}


@pytest.mark.parametrize("name", [*VERDICTS, "hostile"])
def test_the_file_is_of_the_shape_that_readers_of_junit_know(name: str) -> None:
    root = ElementTree.fromstring(junit(a_hostile_matrix() if name == "hostile" else of(name)))

    for element in root.iter():
        children, attributes = SHAPE[element.tag]
        assert {child.tag for child in element} <= children
        assert set(element.keys()) <= attributes
    assert re.fullmatch(r"\d+\.\d{3}", root[0].get("time", ""))


def test_what_xml_has_no_character_for_is_escaped() -> None:
    suites = ElementTree.fromstring(junit(a_hostile_matrix()))

    case = next(suites.iter("testcase"))
    assert r"\u202egnp.\u2028\x00\x1b[31m]]>&amp;\ud800" in case.get("name", "") + case.get("classname", "")


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=30))
def test_any_text_makes_a_file_that_is_read_back(text: str) -> None:
    old = an_entry(contract=f"a::{text}", reason=text)

    root = ElementTree.fromstring(junit(matrix([before(old), after(replace(old, verdict="unmeasured"))])))

    assert len(list(root.iter("testcase"))) == 2


# JSON


@pytest.mark.parametrize("name", [*VERDICTS, "hostile"])
def test_the_document_matches_its_schema_and_is_read_back(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    found = a_hostile_matrix() if name == "hostile" else of(name)

    data = json.loads(document.to_json(found, outcome="no", plugin="0.1.0"))

    assert list(jsonschema.Draft202012Validator(document.schema()).iter_errors(data)) == []
    read = document.document_from_data(data, name="matrix.json")
    assert [[cell.verdict for cell in row.cells] for row in read.rows] == [
        [cell.verdict for cell in row.cells] for row in found.rows
    ]


def test_the_document_says_what_changed_and_what_is_open() -> None:
    data = json.loads(document.to_json(of("drifted"), outcome="no", plugin="0.1.0"))

    row = data["rows"][0]
    cell = row["cells"][1]
    change = cell["changes"][0]
    assert (data["answer"], row["held_everywhere"], cell["verdict"], cell["own"]) == ("no", False, "drifted", "held")
    assert (cell["fact"], cell["counts"]["recompiles"]) == ("recompiles 0→1: x size at index 0", 1)
    assert (change["metric"], change["direction"], change["before"], change["after"], change["gates"]) == (
        "recompiles",
        "worse",
        0,
        1,
        True,
    )
    assert change["came"][0]["reason"] == RECOMPILE.guard
    assert cell["rerun"] == f"pytest --compile-contracts --contract-lanes=aot -- '{CONTRACT}[aot]'"
    assert row["open_risk"] == ["torch 2.15.0, A processor: drifted: recompiles 0→1: x size at index 0"]
    assert data["columns"][1]["environments"]["here"]["torch"] == "2.15.0"


def test_the_shipped_schema_is_the_one_that_the_dataclasses_make() -> None:
    folder = Path(next(iter(pytest_compilecontract.__path__)))

    assert (folder / "schemas" / "matrix.schema.json").read_bytes() == document.schema_json()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        pytest.param(
            lambda data: data["rows"][0]["cells"].pop(),
            "matrix.json: rows[0].cells: 1 cells for 2 columns",
            id="a-cell-too-few",
        ),
        pytest.param(
            lambda data: data["rows"][0]["cells"][1].update(environment="there"),
            "matrix.json: rows[0].cells[1].environment: 'there' is not in environments of the column",
            id="an-environment-that-is-not-there",
        ),
        pytest.param(
            lambda data: data["rows"][0].update(colour=1),
            "matrix.json: rows[0]: unknown key 'colour' (known keys: cells, contract, held_everywhere, lane, "
            "open_risk, validated, workaround)",
            id="an-unknown-key",
        ),
    ],
)
def test_a_document_that_contradicts_itself_is_refused(spoil: Any, message: str) -> None:
    data = json.loads(document.to_json(of("held"), outcome="yes", plugin="0.1.0"))
    spoil(data)

    with pytest.raises(ReceiptError) as caught:
        document.document_from_data(data, name="matrix.json")

    assert str(caught.value) == message


# HTML


def test_the_page_s_data_is_what_was_found() -> None:
    found = of("drifted")

    data = data_of(rendered(found))

    texts, row = data["texts"], data["rows"][0]
    cell = row[2][1]
    assert [texts[column["name"]] for column in data["columns"]] == ["torch 2.11.0", "torch 2.15.0"]
    assert [data["columns"][1]["verdicts"], texts[row[0]], texts[row[1]]] == [{"drifted": 1}, CONTRACT, "aot"]
    assert [each[0] for each in row[2]] == ["held", "drifted"]
    assert texts[cell[1]] == "recompiles 0→1: x size at index 0"
    assert texts[cell[8]] == f"pytest --compile-contracts --contract-lanes=aot -- '{CONTRACT}[aot]'"
    lines = {
        data["metrics"][line[0]][1]: texts[line[1]]
        for line in map(data["lines"].__getitem__, data["measured"][cell[4]])
    }
    assert (lines["recompiles"], lines["graph breaks"], lines["graphs"]) == ("1", "0", "1")
    assert lines["compared with eager by"] == "fp64, 1 compared"
    drift = data["changes"][cell[6]][0][0]
    assert (drift[0], texts[drift[1]], drift[2], drift[3]) == ("recompiles", "recompiles 0 -> 1", "worse", 1)


def test_a_metric_that_was_not_measured_says_so_and_why() -> None:
    entry = an_entry(replace(HOLDING, recompiles=None, unmeasured={"recompiles": "no tap here"}), verdict="unverified")

    data = data_of(rendered(matrix([before(entry), after(entry)])))

    assert "not measured: no tap here" in data["texts"]


def test_no_text_of_a_receipt_is_read_as_html() -> None:
    text = rendered(a_hostile_matrix())

    # Two scripts, ours, and no element that is not the template's.
    assert len(re.findall(r"<script\b", text)) == 2
    assert len(re.findall(r"</script", text)) == 2
    assert "<img" not in text
    assert "onerror=alert(2)" not in html.unescape(re.sub(r"<[^>]*>", "", re.sub(r">[^<]*<", "><", text)))
    assert not any(char in text for char in "\u202e\u2028\x00\x1b\ud800")
    texts = data_of(text)["texts"]
    assert any(r"</script><img src=x onerror=alert(2)>\u202egnp." in each for each in texts)
    assert any(r"\x00\x1b[31m]]>&amp;\ud800" in each for each in texts)


def test_the_command_to_copy_has_nothing_that_a_terminal_obeys() -> None:
    data = data_of(rendered(a_hostile_matrix()))

    command = data["texts"][data["rows"][0][2][1][8]]
    assert command.startswith("pytest --compile-contracts '--contract-lanes=</script>")
    assert command.isprintable()


def test_the_page_lets_nothing_in_and_asks_for_nothing() -> None:
    text = rendered(of("drifted"))

    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]
    assert re.findall(r"\b(?:src|href)=\"(?!data:)", text) == []
    assert re.findall(r"https?://|@import|url\(", text) == []


def without_script(text: str) -> list[list[str]]:
    """The rows of the table that a browser without JavaScript shows, as text."""
    block = re.search(r"<noscript>(.*?)</noscript>", text, re.DOTALL)
    assert block is not None
    rows = re.findall(r"<tr>(.*?)</tr>", block[1], re.DOTALL)
    return [[html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdicts_are_in_the_page_without_javascript(name: str) -> None:
    found = of(name)

    head, row = without_script(rendered(found))

    assert head[1:] == [column.name for column in found.columns]
    assert row[0] == f"{found.rows[0].contract} [{found.rows[0].lane}]"
    assert name in row[-1] or name == "reference"
    assert len(row) == len(head)


def test_without_javascript_the_lanes_that_drifted_come_first_and_the_others_are_counted() -> None:
    entries = [an_entry(contract=f"tests/test_a.py::test_{number:03}") for number in range(MOST_ROWS + 5)]
    worse = replace(entries[-1], measurement=WORSENED["graph_breaks"])

    text = rendered(matrix([before(*entries), after(*entries[:-1], worse)]))

    _, first, *others = without_script(text)
    assert first[0].startswith(worse.contract)
    assert "drifted" in first[-1]
    assert len(others) == MOST_ROWS - 1
    assert "The lanes that are not in this table: 5." in text


def test_an_environment_that_stopped_says_why_at_the_top() -> None:
    found = of("held")
    first, last = found.columns
    stopped = replace(
        last, installed=Known("no", "<no> such release"), imported=Known("not tried"), cut_off="the time was up"
    )

    text = rendered(replace(found, columns=(first, stopped)))

    assert re.findall(r'<p class="stale">(.*?)</p>', text) == [
        "torch 2.15.0: could not be installed: &lt;no&gt; such release",
        "torch 2.15.0: the tests did not run to their end: the time was up",
    ]
    assert {"no: <no> such release", "not tried"} <= set(data_of(text)["texts"])


def test_one_environment_alone_is_no_answer() -> None:
    text = rendered(matrix([before(an_entry())]))

    assert '<p class="answer not-known">' in text
    assert "Only one environment: nothing to compare it with." in text


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=30))
def test_any_text_makes_a_page_whose_data_is_read_back(text: str) -> None:
    entry = an_entry(contract=f"a::{text}", reason=text, lane=text)

    data = data_of(rendered(matrix([before(entry), after(entry)])))

    found = {unicodedata.category(char) for char in "".join(data["texts"]).replace("\n", "")}
    assert found & {"Cc", "Cf", "Cs", "Zl", "Zp"} == set()


def test_equal_measurements_are_in_the_page_once() -> None:
    entries = [an_entry(contract=f"a::{number}", test=f"a::{number}[aot]") for number in range(200)]

    text = rendered(matrix([before(*entries), after(*entries)]))

    assert len(data_of(text)["measured"]) == 1


# Markdown


def test_a_long_table_is_folded_and_one_too_long_says_where_it_was_cut() -> None:
    names = [f"tests/test_a.py::test_{'x' * 80}_{number}" for number in range(1000)]
    few = names[: UNFOLDED_ROWS + 1]
    old, new = ([an_entry(measured, contract=name) for name in names] for measured in (HOLDING, WORSENED["errors"]))

    whole = markdown(matrix([before(*old), after(*new)]))
    folded = markdown(matrix([before(*old[: len(few)]), after(*new[: len(few)])]))

    assert "<details><summary>21 lanes that did not hold everywhere</summary>" in folded
    assert "cut" not in folded
    told = r"^The table was cut at (\d+) of 1000 rows to fit a comment; the receipts have all rows\.$"
    cut = re.search(told, whole, re.M)
    assert cut is not None
    assert whole.count("\n| tests/") == int(cut[1])
    assert whole.count("<details>") == whole.count("</details>") == 2
    assert len(whole) <= MOST_CHARACTERS


def test_what_an_installer_said_is_cut() -> None:
    found = of("held")
    stopped = replace(found.columns[1], installed=Known("no", "x" * 100_000))

    text = markdown(replace(found, columns=(found.columns[0], stopped)))

    assert len(text) < 2000
    assert "torch 2.15.0: could not be installed: xxx" in text


# The command


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    receipts: list[Receipt] = [
        before(an_entry()),
        a_receipt(an_entry(), environment=MIDDLE),
        after(*VERDICTS["drifted"][1:]),
    ]
    for name, receipt in zip("abc", receipts, strict=True):
        write_receipt(Path(f"{name}.json"), receipt)
    return ["a.json", "b.json", "c.json"]


def test_several_files_are_written_at_once_beside_what_is_printed(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["matrix", *runs, "--html", "m.html", "--junit", "m.xml", "--json", "out/m.json", "--markdown", "m.md"])

    said = capsys.readouterr()
    assert code == 1
    assert said.out.startswith("may we upgrade from torch 2.11.0 to torch 2.15.0? no: 1 lane drifted\n")
    assert said.err == "wrote m.md\nwrote out/m.json\nwrote m.xml\nwrote m.html\n"
    assert Path("m.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert Path("m.md").read_text(encoding="utf-8").splitlines()[2].startswith("| lane | torch 2.11.0 |")
    assert len(cases(Path("m.xml").read_text(encoding="utf-8"))) == 3
    assert main(["validate", "out/m.json"]) == 0
    assert capsys.readouterr().out == "out/m.json: matches the schema (format 1, 1 lane, 3 environments)\n"


@pytest.mark.parametrize(
    ("format_", "start"),
    [
        ("json", "{\n"),
        ("junit", "<?xml"),
        ("html", "<!doctype html>"),
        ("markdown", "**may we upgrade"),
        ("terminal", "may we "),
    ],
)
def test_a_format_is_printed_or_written(
    format_: str, start: str, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    printed = main(["matrix", *runs, "--format", format_]), capsys.readouterr()
    written = main(["matrix", *runs, "--format", format_, "--output", "m"]), capsys.readouterr()

    assert (printed[0], written[0]) == (1, 1)
    assert printed[1].out.startswith(start)
    assert (written[1].out, written[1].err) == ("", "wrote m\n")
    if format_ != "html":  # which has the time in it
        assert Path("m").read_text(encoding="utf-8") == printed[1].out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            ["--html", "c.json"], "c.json: is one of the runs, write the matrix to another file", id="over-a-run"
        ),
        pytest.param(
            ["--html", "m", "--junit", "./m"], "m: is named twice, write the matrix to another file", id="twice"
        ),
        pytest.param(["--html", "."], ".: cannot be written (Is a directory)", id="a-folder"),
    ],
)
def test_what_cannot_be_written_is_one_line(
    arguments: list[str], message: str, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Path("c.json").read_bytes()

    code = main(["matrix", *runs, *arguments])

    assert (code, capsys.readouterr()) == (2, ("", f"compilecontract: {message}\n"))
    assert Path("c.json").read_bytes() == kept


def test_a_baseline_is_validated_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "contracts" / "baselines"
    recorded = Baselines(folder, tmp_path).record([an_entry()], {"here": OLD}, "all")

    code = main(["validate", str(recorded.files[0])])

    assert (code, capsys.readouterr().out) == (0, f"{recorded.files[0]}: matches the schema (format 1, 1 lane)\n")


def test_a_matrix_of_another_shape_is_told_where(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["matrix", *runs, "--json", "m.json"])
    data = json.loads(Path("m.json").read_text())
    data["rows"][0]["cells"][0]["verdict"] = "fine"
    Path("m.json").write_text(json.dumps(data))
    capsys.readouterr()

    code = main(["validate", "m.json"])

    assert code == 1
    assert capsys.readouterr().out.startswith("m.json: rows[0].cells[0].verdict: expected ")
