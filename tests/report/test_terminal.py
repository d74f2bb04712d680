"""The terminal's text: short, aligned, and obeyed by no terminal."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.receipts import HOLDING, an_entry

from pytest_compilecontract.escaping import printed
from pytest_compilecontract.facts.measurement import EagerFrame, Location, Measurement, WarmStart
from pytest_compilecontract.facts.verdict import Verdict, Violation
from pytest_compilecontract.report.terminal import (
    Row,
    counts_of,
    failure_text,
    headline,
    plain,
    row_of,
    summary_lines,
)

COUNTS: dict[str, int | None] = {"graphs": 2, "graph_breaks": 1, "recompiles": 0, "eager_frames": 0, "ops_captured": 34}
BLOCK = "tests/test_block.py::test_block"
RERUN = "pytest --compile-contracts -- 'tests/test_block.py::test_block[inductor]'"


def rows_of(contract: str, verdicts: dict[str, Verdict], reason: str = "") -> list[Row]:
    return [
        Row(
            contract=contract,
            lane=lane,
            verdict=verdict,
            counts={} if verdict == "unmeasured" else COUNTS,
            reason="" if verdict == "held" else reason,
        )
        for lane, verdict in verdicts.items()
    ]


def texts(rows: list[Row], verbosity: int) -> list[str]:
    return [text for text, _ in summary_lines(rows, verbosity)]


def breaks(count: int) -> tuple[str, ...]:
    return tuple(
        line
        for number in range(count)
        for line in (f"model.py:{number} in forward: x.item()", "  reason", "  hint: do not")
    )


@pytest.mark.parametrize("verbosity", [0, 1])
def test_limits_that_a_lane_holds_without_being_judged_by_them_are_in_one_line(verbosity: int) -> None:
    limits = {"max_kernels": 5, "max_host_syncs": 0, "max_graph_breaks": 0}
    seen = Measurement(unmeasured={"kernels": "no CUDA device", "host_syncs": "no CUDA device"})
    held = an_entry(seen, limits=limits)
    broken = replace(held, lane="capture", verdict="violated")

    rows = [row_of(held), row_of(replace(held, lane="inductor")), row_of(broken), row_of(an_entry(lane="dynamic"))]

    told = [line for line in texts(rows, verbosity) if "judged" in line]
    assert told == ["held, but not judged here in 2 lanes: max_kernels, max_host_syncs (no CUDA device)"]


# A failure


def test_a_failure_in_full() -> None:
    violations = [
        Violation(limit="max_graph_breaks=0", measured=1, details=breaks(1)),
        Violation(limit="max_recompiles=0", measured="cannot be measured on torch 2.16.0: its tap is gone"),
    ]

    text = failure_text(BLOCK, "inductor", violations, ["two independent counts disagree: graphs"], RERUN)

    assert text.splitlines() == [
        "max_graph_breaks: 1 > 0, max_recompiles: cannot be measured on torch 2.16.0: its tap is gone",
        "compile contract violated: tests/test_block.py::test_block, lane inductor (2 violations)",
        "  max_graph_breaks=0: measured 1",
        "    model.py:0 in forward: x.item()",
        "      reason",
        "      hint: do not",
        "  max_recompiles=0: cannot be measured on torch 2.16.0: its tap is gone",
        "  uncertain, so not held:",
        "    two independent counts disagree: graphs",
        "rerun this lane alone:",
        RERUN,
    ]


def test_a_lane_that_is_only_in_doubt() -> None:
    text = failure_text(BLOCK, "aot", [], ["limit_hits: cannot be measured: its tap is gone"], RERUN)

    assert text.splitlines() == [
        "limit_hits: cannot be measured: its tap is gone",
        "compile contract unverified: tests/test_block.py::test_block, lane aot",
        "  uncertain, so not held:",
        "    limit_hits: cannot be measured: its tap is gone",
        "rerun this lane alone:",
        RERUN,
    ]


def test_details_that_do_not_fit_are_counted_by_fact() -> None:
    lines = failure_text(BLOCK, "aot", [Violation(limit="a=0", measured=9, details=breaks(9))], [], RERUN).splitlines()

    assert len(lines) == 24
    assert lines[-4:] == ["      hint: do not", "    ... and 3 more", "rerun this lane alone:", RERUN]


def test_room_is_shared_so_that_no_violation_hides_another() -> None:
    violations = [
        Violation(limit="a=0", measured=40, details=breaks(40)),
        Violation(limit="b=0", measured=1, details=breaks(1)),
        Violation(limit="c=0", measured=40, details=tuple(f"{line}!" for line in breaks(40))),
    ]

    lines = failure_text(BLOCK, "aot", violations, [], RERUN).splitlines()

    assert [line for line in lines if line.startswith("  ") and not line.startswith("   ")] == [
        "  a=0: measured 40",
        "  b=0: measured 1",
        "  c=0: measured 40",
    ]
    assert lines.count("    ... and 38 more") == 2
    assert lines.count("    model.py:0 in forward: x.item()") == 1
    assert "    1 listed above" in lines
    assert len(lines) <= 25


def test_more_violations_than_lines() -> None:
    lines = failure_text(BLOCK, "aot", [Violation(limit="a=0", measured=1)] * 30, [], RERUN).splitlines()

    assert len(lines) == 25
    assert lines[-3] == "  ... and 10 more"


def test_a_hostile_line_writes_no_escape_sequence() -> None:
    details = ("m.py:1 in f: \x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J\u202etxt", "  two\nlines\r\x00")

    text = failure_text(BLOCK, "aot", [Violation(limit="a=0", measured=1, details=details)], [], RERUN)

    assert text.splitlines()[3:5] == ["    m.py:1 in f: red  txt", "      two lines"]


def test_a_long_line_goes_on_in_the_next_and_where_there_is_no_room_it_is_cut() -> None:
    command = "pytest " + "x" * 300
    hint = "    hint: " + "move the call out of the region " * 8

    def failed(details: tuple[str, ...]) -> list[str]:
        return failure_text(
            "t" * 300, "aot", [Violation(limit="a=0", measured=1, details=details)], [], command
        ).splitlines()

    lines, crowded = failed(("model.py:1 in forward: item", hint)), failed((hint,) * 30)

    assert [len(line) for line in lines[:3]] == [8, 160, 17]
    assert lines[1].endswith("ttt, lane aot (1 violation)")
    assert " ".join(map(str.strip, lines[4:6])) == hint.strip()
    assert max(map(len, lines[:-1])) <= 160
    assert crowded[3].endswith("...")
    assert max(map(len, crowded[:-1])) <= 160
    assert lines[-1] == command


def test_a_fact_is_under_the_first_limit_that_it_speaks_of() -> None:
    violations = [
        Violation(limit="max_graph_breaks=0", measured=2, details=breaks(2)),
        Violation(limit="max_graphs=1", measured=3, details=(*breaks(2), "model.py:9 in forward: guard recompile")),
    ]

    lines = failure_text(BLOCK, "aot", violations, [], RERUN).splitlines()

    assert lines[0] == "max_graph_breaks: 2 > 0, max_graphs: 3 > 1"
    assert lines[-5:-2] == [
        "  max_graphs=1: measured 3",
        "    model.py:9 in forward: guard recompile",
        "    2 more, listed above",
    ]


def test_too_little_is_said_to_be_less() -> None:
    violation = Violation(limit="min_ops_captured=1 (default)", measured=0)

    lines = failure_text(BLOCK, "aot", [violation], [], RERUN).splitlines()

    assert lines[0] == "min_ops_captured: 0 < 1"


anything = st.text(st.characters(), max_size=200)
violation = st.builds(
    Violation,
    limit=anything,
    measured=st.integers() | anything,
    details=st.lists(anything | anything.map(lambda text: "  " + text), max_size=12).map(tuple),
)


@example(
    contract="c",
    lane="l",
    violations=[Violation(limit="##[group]" * 20, measured=1), Violation(limit="::error::" * 20, measured=1)],
    doubts=[],
    rerun="::error::",
)
@given(
    contract=anything,
    lane=anything,
    violations=st.lists(violation, min_size=1, max_size=40),
    doubts=st.lists(anything, max_size=30),
    rerun=anything,
)
def test_a_failure_is_always_short_and_printable(
    contract: str, lane: str, violations: list[Violation], doubts: list[str], rerun: str
) -> None:
    lines = failure_text(contract, lane, violations, doubts, rerun).split("\n")

    assert len(lines) <= 25
    assert all(len(line) <= 160 for line in lines[:-1])
    assert all(unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for line in lines for char in line)
    assert lines[-2:] == ["rerun this lane alone:", printed(plain(rerun))]


# A summary


def test_a_line_a_contract_under_its_file() -> None:
    rows = [
        *rows_of(BLOCK, {"capture": "held", "aot": "held", "inductor": "held"}),
        *rows_of("tests/test_block.py::test_b", {"capture": "held", "aot": "held", "inductor": "held"}),
    ]

    lines = summary_lines(rows, 0)

    assert lines == [
        ("tests/test_block.py", {}),
        ("  test_block  held: capture, aot, inductor  2 graphs, 1 break, 0 recompiles", {"green": True}),
        ("  test_b      held: capture, aot, inductor  2 graphs, 1 break, 0 recompiles", {"green": True}),
        ("lanes: 6 held", {"green": True}),
    ]


def test_counts_that_differ_name_the_lane() -> None:
    rows = rows_of(BLOCK, {"capture": "held", "aot": "held"})
    counts = COUNTS | {"recompiles": 3, "graphs": None, "eager_frames": 1}
    rows.append(Row(contract=BLOCK, lane="inductor", verdict="violated", counts=counts))

    lines = summary_lines(rows, 0)

    assert lines[1:] == [
        ("  test_block  violated: inductor; held: capture, aot", {"red": True}),
        (
            "      2 graphs (inductor ?), 1 break, 0 recompiles (inductor 3), 0 eager frames (inductor 1)",
            {"red": True},
        ),
        ("lanes: 2 held, 1 violated", {"red": True}),
    ]


def test_what_is_unmeasured_is_grouped_by_reason() -> None:
    rows = [
        *rows_of(BLOCK, {"aot": "held", "cudagraphs": "unmeasured", "autotune": "unmeasured"}, "no CUDA device"),
        *rows_of("tests/test_c.py::test_c", {"cudagraphs": "unmeasured"}, "no CUDA device"),
        *rows_of("tests/test_c.py::test_d", {"vision": "unmeasured"}, "timm is not installed"),
    ]

    lines = summary_lines(rows, 0)

    assert lines == [
        ("tests/test_block.py", {}),
        ("  test_block  held: aot               2 graphs, 1 break, 0 recompiles", {"yellow": True}),
        ("tests/test_c.py", {}),
        ("  test_c      unmeasured: cudagraphs", {"yellow": True}),
        ("  test_d      unmeasured: vision", {"yellow": True}),
        ("unmeasured, so not held:", {"yellow": True}),
        ("  cudagraphs, autotune (2 contracts): no CUDA device", {"yellow": True}),
        ("  vision (tests/test_c.py::test_d): timm is not installed", {"yellow": True}),
        ("lanes: 1 held, 4 unmeasured", {"yellow": True}),
    ]


def test_tests_that_are_only_observed_are_told_together_but_for_those_that_are_not_held() -> None:
    rows = [replace(row, observed=True) for row in rows_of(BLOCK, {"body": "held"})]
    rows += [replace(row, observed=True) for row in rows_of("tests/test_b.py::test_b", {"body": "broken"}, "crashed")]

    lines = texts([*rows_of("tests/test_a.py::test_a", {"aot": "held"}), *rows], 0)

    assert lines == [
        "tests/test_a.py",
        "  test_a  held: aot     2 graphs, 1 break, 0 recompiles",
        "tests/test_b.py",
        "  test_b  broken: body  2 graphs, 1 break, 0 recompiles",
        "    broken (body): crashed",
        "observed 2 tests that compile: 4 graphs, 2 breaks, 0 recompiles",
        "lanes: 2 held, 1 broken",
    ]


def test_quiet_shows_what_is_not_held_and_the_totals() -> None:
    rows = [
        *rows_of(BLOCK, {"aot": "held", "inductor": "violated"}, "max_recompiles=0: measured 3"),
        *rows_of("tests/test_c.py::test_c", {"cudagraphs": "unmeasured"}, "no CUDA device"),
    ]

    lines = summary_lines(rows, -1)

    assert lines == [
        ("violated tests/test_block.py::test_block [inductor]: max_recompiles=0: measured 3", {"red": True}),
        ("lanes: 1 held, 1 unmeasured, 1 violated", {"red": True}),
    ]


def test_verbose_shows_a_line_a_lane() -> None:
    rows = rows_of(BLOCK, {"eager": "reference", "aot": "held", "cudagraphs": "unmeasured"}, "no CUDA device")
    rows.append(
        Row(contract=BLOCK, lane="inductor", verdict="broken", counts=COUNTS | {"graphs": 1}, reason="raised X")
    )

    lines = summary_lines(rows, 1)

    assert lines == [
        ("tests/test_block.py::test_block", {"red": True}),
        ("  reference   eager       2 graphs, 1 break, 0 recompiles, 34 ops", {}),
        ("                          no CUDA device", {}),
        ("  held        aot         2 graphs, 1 break, 0 recompiles, 34 ops", {"green": True}),
        ("  unmeasured  cudagraphs  no CUDA device", {"yellow": True}),
        ("  broken      inductor    1 graph, 1 break, 0 recompiles, 34 ops", {"red": True}),
        ("                          raised X", {"red": True}),
        ("lanes: 1 held, 1 unmeasured, 1 broken", {"red": True}),
    ]


def test_a_long_name_keeps_both_ends_and_the_columns() -> None:
    long = "tests/test_block.py::TestBlock::test_block_with_a_name_that_never_ends[bfloat16-1024-causal]"
    rows = [
        *rows_of(long, {"capture": "held", "aot": "held", "inductor": "held"}),
        *rows_of(BLOCK, {"capture": "held", "aot": "held", "inductor": "held"}),
    ]

    assert texts(rows, 0)[1:3] == [
        "  TestBlock:...[bfloat16-1024-causal]  held: capture, aot, inductor  2 graphs, 1 break, 0 recompiles",
        "  test_block                           held: capture, aot, inductor  2 graphs, 1 break, 0 recompiles",
    ]


def test_nothing_measured_says_so() -> None:
    assert summary_lines([], 0) == [("no compile contract was measured", {"yellow": True})]


@pytest.mark.parametrize(
    ("rows", "torch_version", "text"),
    [
        pytest.param([], "2.13.0", "compile contracts on torch 2.13.0: none measured", id="nothing"),
        pytest.param(
            rows_of("a::b", {"aot": "held"}) + rows_of("a::c", {"aot": "held", "inductor": "broken"}),
            "2.13.0",
            "compile contracts on torch 2.13.0: 1 of 2 held",
            id="one broken",
        ),
        pytest.param(
            rows_of("a::b", {"cudagraphs": "unmeasured"}),
            "",
            "compile contracts: 0 of 1 held, 1 lane unmeasured",
            id="unmeasured alone is not held",
        ),
    ],
)
def test_the_headline(rows: list[Row], torch_version: str, text: str) -> None:
    assert headline(rows, torch_version) == text


row = st.builds(
    Row,
    contract=anything | st.sampled_from([BLOCK, "tests/a.py::test_" + "b" * 200]),
    lane=anything | st.sampled_from(["aot", "inductor"]),
    verdict=st.sampled_from(get_args(Verdict)),
    counts=st.dictionaries(st.sampled_from(list(COUNTS)) | anything, st.none() | st.integers(0, 10**9), max_size=8),
    reason=anything,
)


@given(rows=st.lists(row, max_size=12), verbosity=st.integers(-2, 3))
def test_a_summary_is_always_narrow_and_printable(rows: list[Row], verbosity: int) -> None:
    lines = texts(rows, verbosity)

    assert lines
    assert all(len(line) <= 100 for line in lines)
    assert all(unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for line in lines for char in line)


def test_why_lanes_are_broken_or_unverified_is_said_once() -> None:
    rows = [
        Row(contract=BLOCK, lane=lane, verdict=verdict, counts={}, reason=reason)
        for lane, verdict, reason in (
            ("capture", "broken", "the test failed in call: ValueError: no"),
            ("aot", "broken", "the test failed in call: ValueError: no"),
            ("inductor", "unverified", "graphs: 1 or 2"),
            ("dynamic", "violated", "max_graphs=1: 2"),
        )
    ]

    lines = [line for line, _ in summary_lines(rows, 0)]

    assert lines[-3:-1] == [
        "    broken (capture, aot): the test failed in call: ValueError: no",
        "    unverified (inductor): graphs: 1 or 2",
    ]


def test_counts_of_a_measurement() -> None:
    frame = Location(file="a.py", line=1, function="f")
    eager = (
        EagerFrame(frame=frame, cause="error", reason=""),
        EagerFrame(frame=frame, cause="nothing to compile", reason=""),
    )

    assert counts_of(Measurement(graphs=1, recompiles=(), eager_frames=eager)) == {
        "graphs": 1,
        "graph_breaks": None,
        "recompiles": 0,
        "eager_frames": 1,
        "limit_hits": None,
        "resets": None,
        "ops_captured": None,
        "graphs_executed": None,
        "backward_graphs": None,
    }


def test_what_a_warm_start_took_is_shown_lane_by_lane() -> None:
    warm = WarmStart(stage_seconds={"dynamo": 1.25, "inductor": 0.5}, caches={"fx_graph_hit": 2}, cache_bypasses=())
    measured = {"a": replace(HOLDING, warm=warm), "b": HOLDING}
    rows = [row_of(an_entry(seen, lane=lane)) for lane, seen in measured.items()]

    shown = texts(rows, 1)

    assert len(shown) == 5
    assert shown[2].strip() == "warm start: a second process took 1.75 s from its caches, with 0 cache misses"


def test_a_name_that_fits_is_whole_where_only_what_is_not_held_is_shown() -> None:
    contract = "contracts/test_attention.py::test_attention_with_a_mask"
    rows = rows_of(contract, {"capture": "violated"}, reason="max_graph_breaks=0: 1; max_recompiles=4: 5")

    (line,) = texts(rows, -1)[:-1]

    assert line.startswith(f"violated {contract} [capture]: max_graph_breaks")
