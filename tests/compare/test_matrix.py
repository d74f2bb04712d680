"""The matrix: a cell has the one fact that matters, and nothing is claimed wider than it was checked."""

from __future__ import annotations

import datetime
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.receipts import (
    BREAK,
    CONTRACT,
    HOLDING,
    NEW,
    OLD,
    RECOMPILE,
    VIOLATION,
    WORSENED,
    a_receipt,
    after,
    an_entry,
    before,
)

from pytest_compilecontract.cli.main import main
from pytest_compilecontract.compare.matrix import matrix
from pytest_compilecontract.compare.waivers import Waiver
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.metrics import METRICS
from pytest_compilecontract.facts.receipt import Entry, Environment, Receipt, Setup
from pytest_compilecontract.facts.versions import version_range
from pytest_compilecontract.files.receipt import write_receipt
from pytest_compilecontract.report.matrix import MOST_CHARACTERS, MOST_ROWS, lists_of, markdown, terminal_lines

MIDDLE = replace(OLD, torch="2.13.0")
HOSTILE = "\x1b[31m| a `b` <script>x</script> @someone #7 [x](http://y) *z*\n\n# head"


def a_waiver(kind: str) -> Waiver:
    return Waiver(
        contract="*",
        lanes=("*",),
        metrics=("numerics",),
        torch=version_range(">=2.13", where=""),
        issue="https://example.org/7",
        owner="someone",
        expires=datetime.date(2026, 6, 15),
        kind=kind,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("worse", "cell"),
    [
        pytest.param(replace(HOLDING, graph_breaks=(BREAK, BREAK)), "drifted: breaks 0→2 at model.py:41", id="breaks"),
        pytest.param(
            replace(HOLDING, recompiles=(replace(RECOMPILE, guard="tensor 'kwargs['input_ids']' size mismatch"),)),
            "drifted: recompiles 0→1: kwargs['input_ids'] size",
            id="a-recompile-by-its-guard",
        ),
        pytest.param(
            replace(WORSENED["numerics"], graph_breaks=(BREAK,)),
            "drifted: numerics: output[0] value: worst error 3e-2 > 4e-4 (and 1 more)",
            id="a-wrong-result-before-a-slow-one",
        ),
        pytest.param(WORSENED["capture"], "drifted: capture lost: graphs executed 3 -> 0", id="capture"),
        pytest.param(WORSENED["errors"], "drifted: LoweringException: no lowering", id="an-error"),
        pytest.param(WORSENED["ops_captured"], "drifted: ops captured 100→94", id="ops"),
    ],
)
def test_a_cell_has_the_fact_that_matters_most(worse: Measurement, cell: str) -> None:
    text = markdown(matrix([before(an_entry()), after(an_entry(worse))]))

    row = next(line for line in text.splitlines() if line.startswith("| tests")).replace("\\", "").replace("&gt;", ">")
    assert row == f"| {CONTRACT} [aot] | held | {cell} |"


def test_the_other_facts_are_below_the_table() -> None:
    worse = replace(WORSENED["recompiles"], graph_breaks=(BREAK,), numerics=WORSENED["numerics"].numerics)

    found = matrix([before(an_entry()), after(an_entry(worse))])

    whole = (
        "numerics: output[0] value: worst error 3e-2 > 4e-4, breaks 0→1 at model.py:41, "
        "recompiles 0→1: x size at index 0"
    )
    assert f"  open risk: torch 2.15.0, A processor: drifted: {whole}" in terminal_lines(found)
    assert "recompiles 0→1" in markdown(found)


def test_lanes_that_held_everywhere_are_folded_and_alike_ones_share_a_row() -> None:
    lanes = ("aot", "capture", "dynamic", "inductor")
    old = [an_entry(lane=lane) for lane in lanes]
    new = [an_entry(WORSENED["recompiles"] if lane in ("aot", "capture") else HOLDING, lane=lane) for lane in lanes]

    lines = terminal_lines(matrix([before(*old), a_receipt(*old, environment=MIDDLE), after(*new)]))

    told = "4 -> 4 s (+0 %) in 4 lanes"
    assert lines == [
        f"{'':46}  torch 2.11.0  {'torch 2.13.0':26}  torch 2.15.0",
        f"{'installed':46}  yes           {'yes':26}  yes",
        f"{'imported':46}  yes           {'yes':26}  yes",
        f"{'first calls, s':46}  4 in all      {told}  {told}",
        f"tests/test_block.py::test_block [aot, capture]  held          {'held':26}  "
        "drifted: recompiles 0→1: x size at index 0",
        "2 of 4 lanes held everywhere, and are folded",
        "",
        "tests/test_block.py::test_block [aot, capture]",
        "  validated: this lane held 0 breaks, 0 recompiles, 0 eager frames over the 1 call checked on torch 2.11.0, "
        "A processor; this lane held 0 breaks, 0 recompiles, 0 eager frames over the 1 call checked on torch 2.13.0, "
        "A processor",
        "  open risk: torch 2.15.0, A processor: drifted: recompiles 0→1: x size at index 0",
    ]


@pytest.mark.parametrize(("kind", "list_"), [("workaround", "workaround"), ("open-risk", "open risk")])
def test_a_waived_drift_is_in_the_list_of_its_kind(kind: str, list_: str) -> None:
    found = matrix(
        [before(an_entry()), after(an_entry(WORSENED["numerics"]))],
        waivers=[a_waiver(kind)],
        today=datetime.date(2026, 6, 1),
    )

    assert found.rows[0].cells[1].verdict == "waived"
    assert f"  {list_}: torch 2.15.0, A processor: {kind}, https://example.org/7 (someone, until 2026-06-15)" in (
        terminal_lines(found)
    )


def test_what_one_open_risk_tolerates_beside_workarounds_is_an_open_risk() -> None:
    others = tuple(name for name in METRICS if name != "numerics")
    waivers = [replace(a_waiver("workaround"), metrics=others), a_waiver("open-risk")]
    worse = replace(WORSENED["graph_breaks"], numerics=WORSENED["numerics"].numerics)

    found = matrix([before(an_entry()), after(an_entry(worse))], waivers=waivers, today=datetime.date(2026, 6, 1))

    lane = found.rows[0].cells[1].lane
    assert lane is not None
    assert (lane.verdict, lane.worked_around) == ("waived", False)
    assert [line for line in terminal_lines(found) if line.startswith("  workaround")] == []


def test_a_lane_over_its_limits_is_an_open_risk_even_where_nothing_drifted() -> None:
    entry = an_entry(verdict="violated", violations=(VIOLATION,), reason="max_graphs=1: 2")

    lines = terminal_lines(matrix([before(entry), after(entry)]))

    assert lines[-1] == (
        "  open risk: torch 2.11.0, A processor: violated: max_graphs=1: 2; torch 2.15.0, A processor: "
        "over its limits, as before: max_graphs=1: 2"
    )


def test_a_torch_that_does_not_import_is_another_cell_than_a_lane_that_fails() -> None:
    reason = "torch cannot be imported (libcudart.so: no such file)"
    broken = a_receipt(an_entry(None, verdict="unmeasured", reason=reason), environment=Environment())

    found = matrix([before(an_entry()), broken])

    assert [str(column.imported) for column in found.columns] == ["yes", f"no: {reason}"]
    assert found.rows[0].cells[1].verdict == "unmeasured"


def ran_on_two(*lanes: str) -> Receipt:
    """A run with two workers, each with its own torch, the newer first; `lanes` ran on both."""
    new = [replace(an_entry(WORSENED["graph_breaks"], lane=lane), environment="here", worker="gw0") for lane in lanes]
    old = [replace(an_entry(lane=lane), environment="there", worker="gw1") for lane in lanes]
    return replace(after(*new, *old), environments={"here": NEW, "there": OLD})


def test_a_run_of_every_lane_on_each_machine_has_a_column_for_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "receipt.json"
    write_receipt(file, ran_on_two("aot", "capture"))

    codes = [main(["matrix", str(file)]), main(["gate", str(file), str(file)])]

    out, err = capsys.readouterr()
    assert codes == [1, 2]
    assert out.startswith("may we upgrade from torch 2.11.0 to torch 2.15.0? no: 2 lanes drifted\n")
    assert "twice, in environments 'here' and 'there'; `compilecontract matrix` has a column for each" in err


def test_machines_with_one_torch_are_told_apart_by_their_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run" / "receipt.json"
    write_receipt(file, replace(ran_on_two("aot"), environments={"here": OLD, "there": replace(OLD, device="other")}))

    main(["matrix", str(file)])

    assert "torch 2.11.0 (run, gw0)  torch 2.11.0 (run, gw1)" in capsys.readouterr().out


def test_a_lane_is_listed_with_the_torch_that_it_ran_on() -> None:
    both = ran_on_two("aot")
    mixed = replace(both, entries=(both.entries[0], replace(an_entry(lane="mine"), environment="there")))

    found = matrix([before(an_entry(), an_entry(lane="mine")), mixed])

    told = [line for row in found.rows for lines in lists_of(row, found.columns).values() for line in lines]
    assert any(line.startswith("torch 2.15.0, A processor: drifted") for line in told)
    assert not any("torch 2.11.0, torch 2.15.0" in line for line in told)


def test_columns_of_one_torch_are_told_apart_by_their_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, receipt in (("old", before(an_entry())), ("branch", after(an_entry())), ("main", after(an_entry()))):
        (tmp_path / name).mkdir()
        write_receipt(tmp_path / name / "receipt.json", receipt)

    main(["matrix", str(tmp_path / "old"), str(tmp_path / "branch" / "receipt.json"), str(tmp_path / "main")])

    heads = next(line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("torch "))
    assert heads.split() == ["torch", "2.11.0", "torch", "2.15.0", "(branch)", "torch", "2.15.0", "(main)"]


def test_a_lane_that_one_run_does_not_have_is_said_to_be_missing_or_new() -> None:
    found = matrix([before(an_entry()), after(an_entry(lane="capture"))])

    assert [[cell.verdict for cell in row.cells] for row in found.rows] == [["held", "missing"], [None, "new"]]


def test_lanes_that_nothing_measured_for_one_reason_share_a_row_whatever_their_contract() -> None:
    reason = "no CUDA device here"
    lanes = [
        an_entry(None, contract=f"tests/test_{name}.py::test_it", lane=lane, verdict="unmeasured", reason=reason)
        for name in "abc"
        for lane in ("autotune", "cudagraphs")
    ]
    other = an_entry(None, contract="tests/test_d.py::test_it", lane="x", verdict="unmeasured", reason="no package")

    lines = terminal_lines(matrix([before(*lanes, other), after(*lanes, other)]))

    assert [line.split("  ")[0] for line in lines[3:5]] == [
        "3 contracts [autotune, cudagraphs]",
        "tests/test_d.py::test_it [x]",
    ]
    assert lines[3].count("unmeasured: no CUDA device here") == 2


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("columns", [2, 3, 6])
def test_a_matrix_is_as_wide_as_the_terminal(width: int, columns: int) -> None:
    name = "tests/models/test_transformer.py::test_a_block_with_a_rather_long_name"
    old = [an_entry(contract=name), an_entry(lane="capture", contract=name)]
    new = [an_entry(WORSENED["recompiles"], contract=name), an_entry(WORSENED["errors"], lane="capture", contract=name)]
    found = matrix([before(*old), *[a_receipt(*new, environment=NEW)] * (columns - 1)])

    lines = terminal_lines(found, width=width, answer="may we upgrade? no")
    text = " ".join(" ".join(lines).split())

    assert lines[:2] == ["may we upgrade? no", ""]
    assert max(map(len, lines)) <= width
    # Each cell is there whole: in columns, or where there is no room for those, below one another.
    assert text.count("LoweringException") >= columns - 1
    assert text.count("drifted") >= columns - 1
    if width == 200 and columns < 6:
        assert sum("drifted: recompiles 0→1: x size at index 0" in line for line in lines) >= 1


def test_verdicts_are_colored_where_colors_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    write_receipt(Path(files[0]), before(an_entry()))
    write_receipt(Path(files[1]), after(an_entry(WORSENED["errors"])))
    red, green, end = "\x1b[31m", "\x1b[32m", "\x1b[0m"

    def said(*arguments: str) -> str:
        main([*arguments])
        return capsys.readouterr().out

    colored, plain = said("--color=always", "matrix", *files), said("matrix", *files)

    assert f"{green}held{end}" in colored
    assert f"{red}drifted{end}: LoweringException" in colored
    assert colored.startswith(f"\x1b[1;31mmay we upgrade from torch 2.11.0 to torch 2.15.0? no: 1 lane drifted{end}\n")
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == plain
    assert f"\n{red}drifted{end} {CONTRACT}" in said("gate", *files, "--color=always")
    assert "\x1b" not in said("gate", *files)
    assert f"{green}" in said("show", files[0], "--color=always")


def test_text_from_a_receipt_is_no_markdown() -> None:
    entry = an_entry(contract=HOSTILE, lane=HOSTILE, verdict="unmeasured", reason=HOSTILE)
    hostile = Environment(torch=HOSTILE, device=HOSTILE)

    text = markdown(matrix([a_receipt(entry, environment=hostile), a_receipt(entry, environment=hostile)]))

    body = text.replace("<details><summary>", "").replace("</summary>", "").replace("</details>", "")
    assert re.findall(r"(?<!\\)[`\[\]]|[<>@#\x1b]", re.sub(r"&#?\w+;", "", body)) == []
    assert {len(re.findall(r"\|", line)) for line in text.splitlines() if line.startswith("|")} == {4}


def test_a_long_matrix_fits_a_comment_and_says_what_it_leaves_out() -> None:
    names = [f"tests/test_a.py::test_{'x' * 80}_{number}" for number in range(1000)]
    old = [an_entry(contract=name) for name in names]
    new = [an_entry(WORSENED["recompiles"], contract=name) for name in names]
    found = matrix([before(*old), after(*new)])

    text, lines = markdown(found), terminal_lines(found)

    assert MOST_CHARACTERS // 2 < len(text) <= MOST_CHARACTERS
    assert re.search(r"^\.\.\. and \d+ lanes more|^\.\.\. and \d+ lanes", text, re.MULTILINE)
    assert f"... and {1000 - MOST_ROWS} lanes more that did not hold everywhere" in lines


@pytest.mark.parametrize(
    ("runs", "code"),
    [
        pytest.param([before(an_entry()), after(an_entry())], 0, id="held"),
        pytest.param([before(an_entry()), after(an_entry(WORSENED["errors"]))], 1, id="drifted"),
        pytest.param(
            [before(an_entry()), a_receipt(an_entry(WORSENED["errors"]), environment=MIDDLE), after(an_entry())],
            0,
            id="mended-since",
        ),
        pytest.param([before(an_entry()), after()], 3, id="nothing-measured"),
        pytest.param([before(an_entry())], 3, id="one-run-alone"),
        pytest.param([before(), after()], 3, id="empty"),
    ],
)
@pytest.mark.parametrize("format_", ["terminal", "markdown"])
def test_the_exit_code_is_the_gate_s_from_the_first_to_the_last(
    tmp_path: Path, runs: list[Receipt], code: int, format_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / f"{number}.json") for number in range(len(runs))]
    for file, receipt in zip(files, runs, strict=True):
        write_receipt(Path(file), receipt)

    found = main(["matrix", *files, f"--format={format_}"])

    assert (found, capsys.readouterr().err) == (code, "")


@pytest.mark.parametrize(
    ("why", "installed", "imported"),
    [
        pytest.param({"not_installed": "no such version"}, "no: no such version", "not tried", id="not-installed"),
        pytest.param({"not_imported": "no libcuda"}, "yes", "no: no libcuda", id="not-imported"),
        pytest.param({"not_finished": "cut off"}, "yes", "yes", id="cut-off"),
    ],
)
def test_an_environment_that_could_not_be_measured_has_a_column(
    why: dict[str, str], installed: str, imported: str
) -> None:
    stopped = Receipt(plugin="0.1.0", created="2026-01-31T12:00:00Z", setup=Setup(asked="torch 2.15.0", **why))

    found = matrix([before(an_entry()), stopped])

    column = found.columns[1]
    assert (column.name, str(column.installed), str(column.imported)) == ("torch 2.15.0", installed, imported)
    (row,) = found.rows
    assert stopped.setup is not None
    assert (row.cells[1].verdict, row.cells[1].fact) == ("missing", stopped.setup.failure)


def test_what_stopped_a_run_is_said_whole_below_the_table() -> None:
    reason = "no | version " * 30
    setup = Setup(asked="torch 2.15.0", not_installed=reason)
    stopped = Receipt(plugin="0.1.0", created="2026-01-31T12:00:00Z", setup=setup)

    found = matrix([before(an_entry()), stopped])

    assert f"torch 2.15.0: could not be installed: {reason}" in terminal_lines(found)
    assert f"torch 2.15.0: could not be installed: {reason}".replace("|", "&#124;") in markdown(found).splitlines()


def test_unusable_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["matrix", str(tmp_path / "gone.json")])

    message = f"compilecontract: {tmp_path / 'gone.json'}: cannot be read (No such file or directory)\n"
    assert (code, capsys.readouterr()) == (2, ("", message))


def test_entries_are_those_of_their_column() -> None:
    entries: list[Entry] = [an_entry(replace(HOLDING, graphs=number)) for number in (1, 2)]

    found = matrix([before(entries[0]), after(entries[1])])

    graphs = [cell.entry.measurement.graphs for cell in found.rows[0].cells if cell.entry and cell.entry.measurement]
    assert graphs == [1, 2]
    assert [cell.environment for cell in found.rows[0].cells] == [OLD, NEW]
