"""The command line: exit codes, one clear line, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.receipts import WORSENED, after, an_entry, before

from pytest_compilecontract.cli.main import main, parser
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.receipt import Entry, Environment, Receipt
from pytest_compilecontract.files.receipt import to_json, write_receipt

pytest.importorskip("jsonschema")

RECEIPT = Receipt(
    plugin="0.1.0",
    created="2026-01-31T12:00:00Z",
    environments={"cpu": Environment(torch="2.13.0+cpu")},
    entries=(
        Entry(
            contract="tests/test_block.py::test_block",
            lane="inductor",
            test="tests/test_block.py::test_block[inductor]",
            verdict="held",
            environment="cpu",
            measurement=Measurement(graphs=1, recompiles=(), graph_breaks=()),
        ),
    ),
)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def document() -> dict[str, Any]:
    """A receipt's document, to spoil and to `save`."""
    spoilt: dict[str, Any] = json.loads(to_json(RECEIPT))
    return spoilt


def save(document: object, name: str = "receipt.json") -> None:
    Path(name).write_text(json.dumps(document))


def test_a_receipt_matches(capsys: pytest.CaptureFixture[str]) -> None:
    write_receipt(Path("receipt.json"), RECEIPT)

    code = main(["validate", "receipt.json"])

    assert capsys.readouterr() == ("receipt.json: matches the schema (format 1, 1 entry)\n", "")
    assert code == 0


def test_each_mismatch_is_a_line_with_its_place(document: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    entry = document["entries"][0]
    entry["verdict"] = "fine"
    entry["seconds"] = "slow"
    entry["measurement"]["graphs"] = "one"
    entry["measurement"]["calls"] = [{"phase": "hot\n", "seconds": 1, "graphs_executed": None}]
    entry["measurement"]["matrix"] = 1
    del document["plugin"]
    document["created"] = "now"
    save(document)

    code = main(["validate", "receipt.json"])

    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == [
        "receipt.json: 'plugin' is a required property",
        "receipt.json: created: expected pattern ^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$, got 'now'",
        r"receipt.json: entries[0].measurement.calls[0].phase: expected 'cold' or 'steady' or 'warm-up', got 'hot\n'",
        "receipt.json: entries[0].measurement.graphs: expected integer or null, got 'one'",
        "receipt.json: entries[0].measurement: Additional properties are not allowed ('matrix' was unexpected)",
        "receipt.json: entries[0].seconds: expected number or 'nan' or 'inf' or '-inf', got 'slow'",
        "receipt.json: entries[0].verdict: expected 'broken' or 'held' or 'reference' or 'unmeasured' or 'unstable' "
        "or 'unverified' or 'violated', got 'fine'",
    ]
    assert code == 1


def test_at_most_20_mismatches_of_a_file_are_shown(
    document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    document["entries"] = [1] * 30
    save(document)

    code = main(["validate", "receipt.json"])

    lines = capsys.readouterr().out.splitlines()
    assert lines[19] == "receipt.json: entries[19]: expected object, got 1"
    assert lines[20:] == ["receipt.json: more than 20 errors, the others are not shown"]
    assert code == 1


def test_what_no_schema_can_say_is_a_mismatch_too(document: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    document["entries"][0]["environment"] = "gpu"
    save(document)

    code = main(["validate", "receipt.json"])

    assert capsys.readouterr().out == "receipt.json: entries[0].environment: 'gpu' is not in environments\n"
    assert code == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read (No such file or directory)"),
        ("{", "not JSON (input data was truncated)"),
        ("[]", "expected an object, got array"),
        ("[" * 100_000, "nested deeper than 64 levels"),
        ('{"format": 2}', "format 2 is newer than this version reads (1); upgrade pytest-compilecontract"),
    ],
    ids=["missing", "truncated", "an array", "hostile", "newer"],
)
@pytest.mark.parametrize("command", ["validate", "show"])
def test_what_cannot_be_read_is_one_line(
    command: str, text: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        Path("receipt.json").write_text(text)

    code = main([command, "receipt.json"])

    assert capsys.readouterr() == ("", f"compilecontract: receipt.json: {message}\n")
    assert code == 2


def test_the_worst_file_decides_and_every_file_is_reported(
    document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    save(document, "good.json")
    save({**document, "plugin": 1}, "bad.json")

    codes = [main(["validate", "none.json", "bad.json", "good.json"]), main(["validate", "bad.json", "good.json"])]

    both = "bad.json: plugin: expected string, got 1\ngood.json: matches the schema (format 1, 1 entry)\n"
    assert capsys.readouterr() == (
        both + both,
        "compilecontract: none.json: cannot be read (No such file or directory)\n",
    )
    assert codes == [2, 1]


def test_show_says_that_a_receipt_knows_no_drift(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a lane that drifted pytest says so, and its receipt has what it measured."""
    write_receipt(Path("receipt.json"), RECEIPT)
    command = "compilecontract compare contracts/baselines receipt.json"
    said = f"held means within its limits; to compare with the baselines: {command}"

    main(["show", "receipt.json"])
    without = capsys.readouterr().out
    Path("contracts/baselines").mkdir(parents=True)
    main(["show", "receipt.json"])

    assert said not in without
    assert capsys.readouterr().out == f"{without}{said}\n"


def test_show_prints_the_summary_of_pytest(capsys: pytest.CaptureFixture[str]) -> None:
    write_receipt(Path("receipt.json"), RECEIPT)

    code = main(["show", "receipt.json"])

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "compile contracts on torch 2.13.0+cpu: 1 of 1 held"
    assert any("test_block" in line and "inductor" in line for line in lines[1:])
    assert code == 0


def test_show_keeps_environments_apart(capsys: pytest.CaptureFixture[str]) -> None:
    other = replace(RECEIPT.entries[0], environment="old", verdict="violated")
    environments = {**RECEIPT.environments, "old": Environment(torch="2.11.0")}
    write_receipt(Path("receipt.json"), replace(RECEIPT, environments=environments, entries=(*RECEIPT.entries, other)))

    main(["show", "receipt.json"])

    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("compile contracts")] == [
        "compile contracts on torch 2.13.0+cpu: 1 of 1 held",
        "compile contracts on torch 2.11.0: 0 of 1 held",
    ]


def test_show_tells_the_facts_with_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    write_receipt(Path("receipt.json"), before(an_entry(WORSENED["graph_breaks"])))
    write_receipt(Path("fine.json"), RECEIPT)

    codes = [main(["show", "--facts", name]) for name in ("receipt.json", "fine.json")]

    lines = capsys.readouterr().out.splitlines()
    assert "    graph break: model.py:41 in forward: mask = copy.deepcopy(self.mask)" in lines
    assert lines[-1] == "no facts to show"
    assert codes == [0, 0]


def test_show_says_so_where_nothing_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    write_receipt(Path("receipt.json"), replace(RECEIPT, entries=()))

    code = main(["show", "receipt.json"])

    assert capsys.readouterr().out == "compile contracts: none measured\nno compile contract was measured\n"
    assert code == 0


@pytest.mark.parametrize(
    "arguments",
    [[], ["approve"], ["validate"], ["show"], ["show", "-v", "-q", "receipt.json"]],
    ids=["nothing", "an unknown command", "no file to validate", "no file to show", "louder and quieter"],
)
def test_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert capsys.readouterr().err.startswith("usage: compilecontract")
    assert caught.value.code == 2


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": path, **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-m", "pytest_compilecontract", *arguments], env=variables, check=False, **options
    )


def test_the_module_is_the_command() -> None:
    ran = run("--version", capture_output=True)

    assert ran.stdout.decode().startswith("compilecontract ")
    assert ran.returncode == 0


def test_a_reader_that_has_gone_is_no_traceback() -> None:
    write_receipt(Path("receipt.json"), RECEIPT)
    reading, writing = os.pipe()
    os.close(reading)

    with open(writing, "wb") as nowhere:
        ran = run("show", "receipt.json", stdout=nowhere, stderr=subprocess.PIPE)

    assert ran.stderr == b""
    assert ran.returncode == 2


def test_an_output_that_is_closed_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    write_receipt(Path("receipt.json"), RECEIPT)
    monkeypatch.setattr(sys, "stdout", None)

    assert main(["show", "receipt.json"]) == 2


def test_a_terminal_that_is_not_utf_8_is_no_traceback() -> None:
    write_receipt(Path("caf\u00e9.json"), RECEIPT)

    ran = run("validate", "caf\u00e9.json", capture_output=True, env={"PYTHONIOENCODING": "ascii"})

    assert ran.stdout.decode() == "caf\\xe9.json: matches the schema (format 1, 1 entry)\n"
    assert ran.returncode == 0


def test_the_command_does_not_need_torch() -> None:
    write_receipt(Path("receipt.json"), RECEIPT)
    code = (
        "import sys; from pytest_compilecontract.cli import main\n"
        "main(['show', 'receipt.json']); main(['validate', 'receipt.json']); assert 'torch' not in sys.modules"
    )
    root = str(Path(__file__).parents[2])

    ran = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, check=False)

    assert ran.returncode == 0


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("run/receipt.json", "belongs to run, one of the runs"),
        ("policy.toml", "is also read"),
        ("loop", "a symlink loop"),
    ],
    ids=["in the folder of a run", "the policy", "a loop"],
)
def test_no_input_is_written_over(output: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    write_receipt(Path("run/receipt.json"), RECEIPT)
    Path("policy.toml").write_text("")
    Path("loop").symlink_to("loop")

    code = main(["matrix", "run", "run", "--policy=policy.toml", f"--html={output}"])

    end = "" if output == "loop" else ", write the matrix to another file"
    assert capsys.readouterr() == ("", f"compilecontract: {output}: {why}{end}\n")
    assert code == 2


def test_a_pipe_is_no_file_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    write_receipt(Path("receipt.json"), RECEIPT)
    os.mkfifo("pipe")

    code = main(["matrix", "receipt.json", "receipt.json", "--html=pipe"])

    assert capsys.readouterr().err == "compilecontract: pipe: cannot be written (not a regular file)\n"
    assert Path("pipe").is_fifo()
    assert code == 2


def test_a_link_stays_one(tmp_path: Path) -> None:
    write_receipt(Path("receipt.json"), RECEIPT)
    Path("real.html").write_text("old")
    Path("link.html").symlink_to("real.html")

    main(["matrix", "receipt.json", "receipt.json", "--html=link.html"])

    assert Path("link.html").is_symlink()
    assert Path("real.html").read_text().startswith("<!doctype html>")


def test_a_name_that_is_too_long_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a" * 5000

    code = main(["gate", name, name])

    # Which of the two it is said of depends on the Python: from 3.14 on, such a file does not exist.
    assert "File name too long" in capsys.readouterr().err
    assert code == 2


def test_waive_prints_what_gate_then_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    write_receipt(old, before(an_entry()))
    write_receipt(new, after(an_entry(WORSENED["graph_breaks"])))
    words = ["--owner=someone", "--issue=https://example.org/1", "--expires=2100-01-31"]

    nothing = main(["waive", str(old), str(old), *words])
    assert capsys.readouterr() == ("", "compilecontract: nothing to waive: no lane drifted\n")
    code = main(["waive", str(old), str(new), *words])
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / "waivers.toml").write_text(capsys.readouterr().out)

    assert (nothing, code) == (1, 0)
    assert main(["gate", str(old), str(new)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("waived:") + 1] == (
        "  tests/test_block.py::test_block [aot]: workaround, https://example.org/1 (someone, until 2100-01-31)"
    )
    assert main(["waive", str(old), str(new), *words]) == 1
    assert capsys.readouterr() == ("", "compilecontract: nothing to waive: what drifted is waived already\n")


def test_waive_says_which_lanes_pytest_still_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    over = an_entry(WORSENED["graph_breaks"], verdict="violated", reason="max_graph_breaks=0: 1")
    write_receipt(old, before(an_entry()))
    write_receipt(new, after(over))

    main(["waive", str(old), str(new), "--owner=me", "--issue=https://example.org/1", "--expires=2100-01-31"])

    out, err = capsys.readouterr()
    assert "[[waiver]]" in out
    assert err == (
        "compilecontract: 1 lane also over the limits of the contract, which waivers do not change: pytest fails there "
        "until the limits are changed\n"
    )


def test_waive_takes_no_day_that_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    write_receipt(path, before(an_entry()))

    code = main(["waive", str(path), str(path), "--owner=me", "--issue=https://example.org/1", "--expires=2020-01-31"])

    said = "compilecontract: --expires: expected a day to come, got 2020-01-31\n"
    assert (code, *capsys.readouterr()) == (2, "", said)


def test_what_exceeds_its_limits_before_and_after_is_nothing_to_waive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    write_receipt(path, before(an_entry(verdict="violated", reason="max_graph_breaks=0: 1")))
    words = ["--owner=someone", "--issue=https://example.org/1", "--expires=2100-01-31"]

    code = main(["waive", str(path), str(path), *words])

    said = (
        "compilecontract: nothing drifted, so nothing can be waived; tests/test_block.py::test_block [aot]: "
        "exceeds its limits, as before\n"
    )
    assert (code, *capsys.readouterr()) == (1, "", said)


@pytest.mark.parametrize("kind", ["receipt", "baseline", "matrix"])
def test_the_schema_of_a_document_is_printed(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["schema", kind])

    assert json.loads(capsys.readouterr().out)["$id"] == f"urn:pytest-compilecontract:{kind}:1"
    assert code == 0


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("compilecontract me", {"merge "}),
        ("compilecontract schema ba", {"baseline "}),
        ("compilecontract gate --po", {"--policy "}),
    ],
    ids=["a command", "a choice", "an option"],
)
def test_a_shell_is_told_how_words_go_on(typed: str, offered: set[str], tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    answer = tmp_path / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": typed,
        "COMP_POINT": str(len(typed)),
    }

    ran = subprocess.run(
        [sys.executable, "-m", "pytest_compilecontract"], env={**os.environ, **asked}, capture_output=True, check=False
    )

    assert (ran.returncode, set(answer.read_text().split("\n"))) == (0, offered)


def test_every_command_says_what_its_exit_codes_mean(capsys: pytest.CaptureFixture[str]) -> None:
    inner = next(each.choices for each in parser()._actions if isinstance(each.choices, dict))

    for words in ([], *([name] for name in inner)):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        assert "xit code" in capsys.readouterr().out, words
