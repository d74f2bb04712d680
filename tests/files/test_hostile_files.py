"""Files that somebody else has written: what they say is refused where it makes no sense, and obeyed nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.receipts import CONTRACT, HOLDING, OLD, WORSENED, a_receipt, an_entry

from pytest_compilecontract.baselines import document as baseline
from pytest_compilecontract.baselines.store import Baselines
from pytest_compilecontract.cli.main import main
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.facts.receipt import Receipt
from pytest_compilecontract.files.codec import decoded, document_from_json
from pytest_compilecontract.files.receipt import from_json, receipt_from_document, to_json, write_receipt
from pytest_compilecontract.files.whole import STRAY_SECONDS, clear_strays, write_bytes
from pytest_compilecontract.upgrade.changed_defaults import trial_in

STRAY = ".0123456789abcdef.tmp"
FIRST = ("entries", 0)
SEEN = (*FIRST, "measurement")


def a_document(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(to_json(a_receipt(an_entry(HOLDING, **changes))))
    return document


def put(document: Any, place: tuple[str | int, ...], value: object) -> bytes:
    """The document with another value in one place."""
    *ahead, last = place
    inner = document
    for key in ahead:
        inner = inner[key]
    inner[last] = value
    return json.dumps(document).encode()


# What makes no sense is refused


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (
            (*FIRST, "test"),
            "--junitxml=keep.txt",
            "expected a name that does not begin with '-', got '--junitxml=keep.txt'",
        ),
        ((*FIRST, "contract"), "-x", "expected a name that does not begin with '-', got '-x'"),
        ((*FIRST, "lane"), "-n", "expected a name that does not begin with '-', got '-n'"),
        ((*FIRST, "environment"), "--", "expected a name that does not begin with '-', got '--'"),
        ((*FIRST, "test"), "", "expected a name, got ''"),
        ((*FIRST, "lane"), " ", "expected a name, got ' '"),
        ((*FIRST, "seconds"), -1.5, "expected at least 0, got -1.5"),
        ((*FIRST, "seconds"), "nan", "expected a number, got 'nan'"),
        ((*SEEN, "cold_seconds"), "inf", "expected a number, got 'inf'"),
        ((*SEEN, "stage_seconds"), {"dynamo": -1.0}, "expected at least 0, got -1.0"),
        ((*SEEN, "stage_seconds"), {"dynamo": "nan"}, "expected a number, got 'nan'"),
        ((*SEEN, "steady_seconds"), 10**400, "number out of range"),
        ((*SEEN, "steady_seconds"), -1e-9, "expected at least 0, got -1e-09"),
        ((*SEEN, "calls", 0, "seconds"), -1, "expected at least 0, got -1"),
        ((*SEEN, "graphs"), 10**30, f"expected at most 1000000000, got {10**30}"),
        ((*SEEN, "ops_captured"), -1, "expected at least 0, got -1"),
        ((*SEEN, "operations"), {"add": -1}, "expected at least 0, got -1"),
        ((*SEEN, "graphs"), "nan", "expected int | null, got str"),
    ],
)
def test_a_value_that_cannot_be(place: tuple[str | int, ...], value: object, message: str) -> None:
    data = put(a_document(), place, value)

    with pytest.raises(ReceiptError) as caught:
        from_json(data, name="receipt.json")

    at = str(caught.value).removeprefix("receipt.json: ").removesuffix(message)
    assert str(caught.value).endswith(f": {message}")
    assert at.startswith("entries[0].")
    assert decoded(data, Receipt) is None


def test_a_line_that_is_before_the_first(tmp_path: Path) -> None:
    document = json.loads(to_json(a_receipt(an_entry(WORSENED["graph_breaks"]))))
    place = (*SEEN, "graph_breaks", 0, "location", "line")

    with pytest.raises(ReceiptError) as caught:
        from_json(put(document, place, -4), name="r")

    assert str(caught.value) == "r: entries[0].measurement.graph_breaks[0].location.line: expected at least 0, got -4"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"measurement": replace(HOLDING, first_compiles=1, continuations=2)},
            "entries[0].measurement.continuations: expected at most first_compiles (1), got 2",
        ),
        (
            {"repeats": 2, "spread": {"cold_seconds": (2.0, 1.0)}},
            "entries[0].spread.cold_seconds: expected the lowest and the highest value, got 2.0 and 1.0",
        ),
        (
            {"repeats": 2, "spread": {"cold_seconds": (-1.0, 1.0)}},
            "entries[0].spread.cold_seconds: expected the lowest and the highest value, got -1.0 and 1.0",
        ),
    ],
)
def test_values_that_contradict_one_another(changes: dict[str, Any], message: str) -> None:
    receipt = a_receipt(replace(an_entry(HOLDING), **changes))

    with pytest.raises(ReceiptError) as caught:
        from_json(to_json(receipt), name="r")

    assert str(caught.value) == f"r: {message}"


def test_a_baseline_is_held_to_the_same(tmp_path: Path) -> None:
    receipt = a_receipt(an_entry(HOLDING))
    kept = Baselines(tmp_path / "contracts" / "baselines", tmp_path)
    (file,) = kept.record(receipt.entries, receipt.environments, "all").files
    text = file.read_text(encoding="utf-8")

    with pytest.raises(ReceiptError, match=r"contracts: expected a name that does not begin with '-'"):
        baseline.from_json(text.replace(f'"{CONTRACT}": {{', '"--x": {').encode(), name="b")
    with pytest.raises(ReceiptError, match=r"\['aot'\]\.measurement\.graphs: expected at most 1000000000"):
        baseline.from_json(text.replace('"graphs": 1', f'"graphs": {10**30}').encode(), name="b")


VALUES = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        10**9,
        10**9 + 1,
        2**63,
        10**30,
        0.5,
        -0.5,
        1e308,
        "",
        "-x",
        " -x",
        "\n",
        "nan",
        "-inf",
        "held",
        [],
        {},
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chosen=st.integers(0, 10**6), value=VALUES)
def test_both_ways_of_reading_refuse_the_same(chosen: int, value: object) -> None:
    document = json.loads(to_json(a_receipt(an_entry(WORSENED["graph_breaks"]), an_entry(lane="inductor"))))
    places = list(_places(document))
    data = put(document, places[chosen % len(places)], value)

    try:
        slow = receipt_from_document(document_from_json(data, name="r"), name="r")
    except ReceiptError:
        slow = None
    try:
        found = from_json(data, name="r")
    except ReceiptError:
        found = None

    assert repr(found) == repr(slow)


def _places(value: Any, at: tuple[str | int, ...] = ()) -> Any:
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*at, key)
        yield from _places(value[key], (*at, key))


# What is said is obeyed nowhere


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Two runs whose every text is a command to somebody."""
    said = "::error file=x::no"
    torn = f"{'a ' * 60}{said} {'b ' * 40}##[error]no"
    worse = replace(WORSENED["graph_breaks"], backend=said)
    found = worse.graph_breaks[0]
    place = replace(found.location, file=said, source=f"{said}\r::warning::x")
    worse = replace(worse, graph_breaks=(replace(found, location=place, reason=torn, hints=(said,)),))
    entries = [
        an_entry(worse, contract=said, test="::error::x.py::t", reason=torn, verdict="violated"),
        an_entry(None, contract=f"{said}2", test="t", reason=torn, verdict="unmeasured"),
        an_entry(None, contract=f"{said}3", test="t", reason=f"{said}\n::x::y", verdict="broken"),
    ]
    held = [an_entry(contract=entry.contract, test="t") for entry in entries]
    for name, each in (("old", held), ("new", entries)):
        write_receipt(
            tmp_path / f"{name}.json", a_receipt(*each, environment=replace(OLD, torch=f"{said}{name}", device=said))
        )
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ("show", "new.json"),
        ("show", "-v", "new.json"),
        ("show", "-q", "new.json"),
        ("compare", "old.json", "new.json"),
        ("compare", "-v", "old.json", "new.json"),
        ("gate", "old.json", "new.json"),
        ("validate", "new.json"),
        *(
            ("matrix", "old.json", "new.json", f"--format={kind}")
            for kind in ("terminal", "markdown", "json", "junit", "html")
        ),
    ],
    ids=" ".join,
)
def test_no_line_is_a_command_to_a_workflow(
    hostile: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(hostile)

    main(command)

    said = capsys.readouterr()
    lines = [line for text in said for line in text.split("\n")]
    assert "error" in said.out or command[0] == "validate"
    assert [line for line in lines if line.lstrip().startswith("::") or "##[" in line or "\r" in line] == []


def test_a_document_of_it_is_one(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(hostile / name) for name in ("old.json", "new.json")]

    main(["matrix", *files, "--format=json"])
    document = json.loads(capsys.readouterr().out)
    main(["matrix", *files, "--format=junit"])
    cases = list(ElementTree.fromstring(capsys.readouterr().out).iter("testcase"))

    assert {row["contract"] for row in document["rows"]} == {f"::error file=x::no{end}" for end in ("", "2", "3")}
    assert len(cases) == 6


@pytest.mark.parametrize("test", ["../test_a.py::test_b", "/tmp/test_a.py::test_b", "test_a.py::test\0b"])
def test_a_trial_runs_no_test_of_elsewhere(test: str) -> None:
    measured = trial_in(sys.executable, lambda _: None)(an_entry(test=test), {})

    assert measured.entry is None
    assert "is not in this folder" in measured.problem


# Files that are written


def test_what_a_killed_writer_left_is_cleared(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
import pytest_compilecontract.files.whole as whole
whole.os.replace = lambda *_: os.kill(os.getpid(), 9)
whole.write_bytes(Path(sys.argv[1]), b"{}")
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "receipt.json")], check=False)
    left = [path.name for path in tmp_path.iterdir()]

    write_bytes(tmp_path / "receipt.json", b"{}")

    assert [name.endswith(".tmp") for name in left] == [True]
    assert [path.name for path in tmp_path.iterdir()] == ["receipt.json"]


def test_what_is_being_written_and_what_is_not_ours_stay(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    kept = [".0123456789abcdef.tmp2", "0123456789abcdef.tmp", ".0123456789abcde.tmp", "notes.tmp"]
    for name in (STRAY, ".aaaaaaaaaaaaaaaa.tmp", *kept):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / ".bbbbbbbbbbbbbbbb.tmp").symlink_to(tmp_path / "notes.tmp")
    (tmp_path / ".cccccccccccccccc.tmp").mkdir()

    with (tmp_path / STRAY).open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        clear_strays(tmp_path)

    left = {path.name for path in tmp_path.iterdir()}
    assert left == {STRAY, *kept, ".bbbbbbbbbbbbbbbb.tmp", ".cccccccccccccccc.tmp"}


def test_without_locks_only_what_is_old_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_compilecontract.files.whole._lock", lambda file: None)
    for name, age in ((STRAY, STRAY_SECONDS + 60), (".aaaaaaaaaaaaaaaa.tmp", 1)):
        (tmp_path / name).write_bytes(b"")
        now = (tmp_path / name).stat().st_mtime
        os.utime(tmp_path / name, (now - age, now - age))

    clear_strays(tmp_path)
    write_bytes(tmp_path / "receipt.json", b"{}")

    assert sorted(path.name for path in tmp_path.iterdir()) == [".aaaaaaaaaaaaaaaa.tmp", "receipt.json"]


def test_recording_clears_every_folder_of_the_baselines(tmp_path: Path) -> None:
    folder = tmp_path / "contracts" / "baselines"
    for inner in (folder, folder / "torch2.11-cpu" / "deep"):
        inner.mkdir(parents=True, exist_ok=True)
        (inner / STRAY).write_bytes(b"{")

    Baselines(folder, tmp_path).record([], {}, "new")

    assert list(folder.rglob("*.tmp")) == []


def test_no_baseline_is_written_through_a_link_that_leads_out(tmp_path: Path) -> None:
    folder, mine = tmp_path / "contracts" / "baselines", tmp_path / "mine.txt"
    mine.write_text("mine", encoding="utf-8")
    (folder / "torch2.11-cpu").mkdir(parents=True)
    (folder / "torch2.11-cpu" / "tests").symlink_to(tmp_path)
    receipt = a_receipt(an_entry(HOLDING))

    with pytest.raises(ReceiptError, match="is outside the baselines folder, so it was not written"):
        Baselines(folder, tmp_path).record(receipt.entries, receipt.environments, "all")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["contracts", "mine.txt"]


def test_no_baseline_is_removed_through_a_link_that_leads_out(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "contracts" / "baselines", tmp_path / "elsewhere"
    receipt = a_receipt(an_entry(HOLDING))
    Baselines(folder, tmp_path).record(receipt.entries, receipt.environments, "all")
    (key,) = [path.name for path in folder.iterdir() if path.name != "defaults"]
    (folder / key).rename(elsewhere)
    (folder / key).symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in elsewhere.rglob("*.json")}

    with pytest.raises(ReceiptError, match="is outside the baselines folder, so it was not written"):
        Baselines(folder, tmp_path).remove(key, [each.contract for each in receipt.entries])

    assert {path: path.read_bytes() for path in elsewhere.rglob("*.json")} == before
    assert before


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(os.mkfifo, "not a regular file", id="a pipe"),
        pytest.param(os.mkdir, "Is a directory", id="a folder"),
        pytest.param(lambda path: os.symlink("nothing", path), "No such file or directory", id="a link to nothing"),
    ],
)
def test_what_stands_in_place_of_a_baseline_is_not_passed_over(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    folder = tmp_path / "contracts" / "baselines"
    receipt = a_receipt(an_entry(HOLDING))
    (entry,) = receipt.entries
    environment = receipt.environments[entry.environment]
    (file,) = Baselines(folder, tmp_path).record([entry], receipt.environments, "all").files
    file.unlink()
    make(file)

    with pytest.raises(ReceiptError) as caught:
        Baselines(folder, tmp_path).find(entry.contract, entry.lane, environment)

    assert str(caught.value) == f"{file}: cannot be read ({said})"
