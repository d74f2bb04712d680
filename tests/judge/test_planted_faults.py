"""Planted faults: what they are, when red is red for the right reason, and what people read of it. No torch here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.receipts import DIFFERENCE, HOLDING, RAISED, an_entry

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.faults import FAULTS, KNOWN, chosen
from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.metrics import METRICS
from pytest_compilecontract.facts.planted import Planted, survivors
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.verdict import Violation
from pytest_compilecontract.files.receipt import entry_from_data, entry_to_data
from pytest_compilecontract.judge.planted import Shown, advised, judged
from pytest_compilecontract.report.planted import html, line_of, markdown, planted_lines, title

NUMERICS = "numerics='fp64' (default)"


def violated(*limits: str, kind: str = "value") -> Entry:
    """A lane that keeps none of these limits, its numbers differing by this kind where one of them is numerics."""
    assert HOLDING.numerics is not None
    differences = (replace(DIFFERENCE, kind=kind),) if any(each.startswith("numerics") for each in limits) else ()
    seen = replace(HOLDING, numerics=replace(HOLDING.numerics, differences=differences))
    violations = tuple(Violation(limit=each, measured=1) for each in limits)
    return an_entry(seen, verdict="violated", violations=violations)


def broken(type_: str, *, asserted: bool = False) -> Entry:
    """A lane whose compiled call raises this."""
    violation = Violation(limit="no exception (default)", measured=f"raised {type_}")
    raised = replace(RAISED, type=type_, asserted=asserted)
    return an_entry(replace(HOLDING, raised=raised), verdict="broken", violations=(violation,))


# What they are


def test_each_fault_has_a_name_of_its_own_and_says_what_it_is() -> None:
    assert len({each.name for each in FAULTS}) == len({each.what for each in FAULTS}) == len(FAULTS)
    assert all(each.kinds or each.limits for each in FAULTS)


def test_metrics_of_faults_are_those_of_a_policy() -> None:
    known = {each.name for each in METRICS.values()}

    assert {metric for fault in FAULTS for metric in fault.metrics} - known == set()


def test_faults_are_chosen_by_name_in_the_order_of_all() -> None:
    assert [each.name for each in chosen(["raises", "nan-all"])] == ["nan-all", "raises"]
    assert chosen([]) == FAULTS


def test_an_unknown_fault_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        chosen(["nan"])

    assert str(caught.value) == f"unknown fault 'nan' (known faults: {', '.join(KNOWN)})"


# The right reason


@pytest.mark.parametrize(
    ("fault", "shown", "expected"),
    [
        pytest.param("factor", Shown(entry=violated(NUMERICS)), ("noticed", NUMERICS), id="numbers"),
        pytest.param("stride", Shown(entry=violated(NUMERICS, kind="stride")), ("noticed", NUMERICS), id="its kind"),
        pytest.param(
            "stride",
            Shown(entry=violated(NUMERICS, kind="dtype")),
            ("another reason", f"{NUMERICS}: dtype"),
            id="numbers that differ otherwise",
        ),
        pytest.param(
            "factor",
            Shown(entry=violated("max_recompiles=0")),
            ("another reason", "max_recompiles=0"),
            id="a limit of something else",
        ),
        pytest.param(
            "graph-break",
            Shown(entry=violated("max_graphs=1", "max_graph_breaks=0")),
            ("noticed", "max_graph_breaks=0"),
            id="the limit beside another",
        ),
        pytest.param(
            "graph-break",
            Shown(entry=violated("max_graphs=1")),
            ("another reason", "max_graphs=1"),
            id="only the other",
        ),
        pytest.param(
            "recompile",
            Shown(entry=an_entry(), drifted=("recompiles",)),
            ("noticed", "baseline: recompiles"),
            id="its baseline",
        ),
        pytest.param(
            "recompile",
            Shown(entry=an_entry(), drifted=("graph_breaks",)),
            ("another reason", "baseline: graph_breaks"),
            id="another metric of its baseline",
        ),
        pytest.param(
            "zeros",
            Shown(entry=an_entry(), own="AssertionError", asserted=True),
            ("noticed", "an assertion in the test"),
            id="the test's own assertion",
        ),
        pytest.param(
            "graph-break",
            Shown(entry=broken("AssertionError", asserted=True)),
            ("noticed", "an assertion in the test"),
            id="an assertion in what compare runs",
        ),
        pytest.param(
            "graph-break",
            Shown(entry=broken("AssertionError")),
            ("another reason", "no exception (default): AssertionError"),
            id="an assertion of torch's",
        ),
        pytest.param(
            "nan-element",
            Shown(entry=broken("RuntimeWarning")),
            ("another reason", "no exception (default): RuntimeWarning"),
            id="a warning made an error",
        ),
        pytest.param(
            "nan-element",
            Shown(entry=None, own="UserWarning"),
            ("another reason", "UserWarning in the test"),
            id="a warning made an error, in the test",
        ),
        pytest.param(
            "graph-break",
            Shown(entry=an_entry(verdict="unverified", reason="two independent counts disagree: 1, 2")),
            ("another reason", "unverified: two independent counts disagree: 1, 2"),
            id="a doubt",
        ),
        pytest.param(
            "random-drawn",
            Shown(entry=None, own="TypeError"),
            ("another reason", "TypeError in the test"),
            id="an exception that no such fault raises",
        ),
        pytest.param(
            "raises", Shown(entry=None, own="PlantedError"), ("noticed", "PlantedError in the test"), id="one that does"
        ),
        pytest.param(
            "raises",
            Shown(entry=None, own="TypeError"),
            ("another reason", "TypeError in the test"),
            id="an exception of another type",
        ),
        pytest.param(
            "graph-break",
            Shown(entry=broken("TypeError")),
            ("another reason", "no exception (default): TypeError"),
            id="a compiled call that raises otherwise",
        ),
        pytest.param(
            "graph-break",
            Shown(entry=broken("Unsupported")),
            ("noticed", "no exception (default)"),
            id="a break that torch refuses",
        ),
        pytest.param("factor", Shown(entry=an_entry()), ("not noticed", ""), id="nothing is red"),
    ],
)
def test_red_counts_by_its_reason(fault: str, shown: Shown, expected: tuple[str, str]) -> None:
    assert judged(KNOWN[fault], shown) == expected


@pytest.mark.parametrize(
    ("fault", "limits", "seen", "backward", "expected"),
    [
        ("graph-break", Limits(), HOLDING, False, "max_graph_breaks=0 would notice it"),
        ("recompile", Limits(max_recompiles=3), HOLDING, False, "max_recompiles=0 would notice it"),
        ("grad-off", Limits(), HOLDING, False, "check_grads=True would notice it"),
        (
            "nan-all",
            Limits(numerics=None),
            HOLDING,
            False,
            "nothing is compared (numerics=None): numerics='fp64' would notice it",
        ),
        (
            "nan-all",
            Limits(),
            Measurement(),
            False,
            "nothing is compared with eager: use compile_lane.run, train or compare",
        ),
        ("factor", Limits(rtol=0.1), HOLDING, False, "a smaller rtol= or atol= would notice it"),
        ("third-call", Limits(), HOLDING, False, "no limit: what the fault changed is not compared"),
        (
            "recompile-limit",
            Limits(allow_recompile_limit=True),
            HOLDING,
            False,
            "allow_recompile_limit=False would notice it",
        ),
        ("host-sync", Limits(), HOLDING, False, "max_host_syncs=0 would notice it"),
    ],
)
def test_what_would_have_noticed(fault: str, limits: Limits, seen: Measurement, backward: bool, expected: str) -> None:
    assert advised(KNOWN[fault], limits, seen, backward=backward) == expected


def test_only_what_nobody_noticed_survives() -> None:
    outcomes = ("noticed", "not noticed", "another reason", "not applicable")
    planted = [Planted(fault=each, outcome=each) for each in outcomes]

    assert [each.fault for each in survivors(planted)] == ["not noticed", "another reason"]


# What is read of it

PLANTED = (
    Planted(fault="factor", outcome="noticed", by=NUMERICS, seconds=1.5),
    Planted(fault="graph-break", outcome="not noticed", why="max_graph_breaks=0 would notice it", seconds=0.5),
    Planted(fault="zeros", outcome="another reason", by="max_recompiles=0", seconds=0.5),
    Planted(fault="kernel", outcome="not applicable", why="no CUDA device"),
)


def test_the_terminal_names_each_survivor_and_what_would_notice_it() -> None:
    lines = [text for text, _ in planted_lines([an_entry(planted=PLANTED)], 0)]

    assert lines == [
        "planted faults: 1 of 3 noticed, 2 not",
        "tests/test_block.py::test_block [aot]: 1 of 3 noticed, 1 not applicable",
        "  NOT NOTICED: graph-break: max_graph_breaks=0 would notice it",
        "  NOT NOTICED: zeros: failed for another reason: max_recompiles=0",
        "not applicable:",
        "  no CUDA device: kernel",
        "3 runs with a fault planted took 2.5 s",
    ]


def test_a_lane_that_does_not_hold_is_said_to_have_none() -> None:
    lines = [text for text, _ in planted_lines([an_entry(verdict="violated")], 0)]

    assert lines == [
        "planted faults: none could be planted",
        "nothing planted in 1 lane:",
        "  tests/test_block.py::test_block [aot]: violated",
        "0 runs with a fault planted took 0.0 s",
    ]


def test_all_noticed_is_said_with_the_number() -> None:
    assert title([an_entry(planted=PLANTED[:1])]) == "planted faults: every one was noticed (1 of 1)"


def test_a_line_of_one_fault() -> None:
    assert line_of(PLANTED[0]) == f"factor (an output times 1.01): noticed by {NUMERICS}"


def test_a_document_escapes_what_a_test_is_called() -> None:
    entry = an_entry(contract="t.py::test_x[<b>|*a*]", planted=(replace(PLANTED[1], why="<script>|x"),))

    text, page = markdown([entry]), html([entry])

    assert r"## t.py::test\_x\[&lt;b&gt;&#124;\*a\*\] \[aot\]" in text
    assert "| **not noticed** | &lt;script&gt;&#124;x |" in text
    assert "<script>" not in page
    assert "&lt;script&gt;|x" in page


def test_an_entry_keeps_what_was_planted_and_an_older_one_has_none() -> None:
    data = entry_to_data(an_entry(planted=PLANTED))
    older = entry_to_data(an_entry())
    del older["planted"]

    assert entry_from_data(data).planted == PLANTED
    assert entry_from_data(older).planted == ()
