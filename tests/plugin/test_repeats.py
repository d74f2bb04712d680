"""The verdict over repeats: the worst counts, what differs is named, and what moves by itself gets its band."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.receipts import BREAK, HOLDING, OTHER_BREAK, RAISED, VIOLATION, an_entry

from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.plugin.judged import Judged, over_repeats
from pytest_compilecontract.report.terminal import failure_text

BROKEN_UP = replace(HOLDING, graph_breaks=(BREAK,))
VIOLATED = an_entry(BROKEN_UP, verdict="violated", violations=(VIOLATION,), reason="max_graphs=1: 2")


def over(*entries: Entry, ended: str = "") -> Judged:
    return over_repeats([Judged(entry=entry) for entry in entries], ended)


def timed(seconds: float | None, ops: int = 100) -> Entry:
    return an_entry(replace(HOLDING, steady_seconds=seconds, ops_captured=ops), seconds=seconds or 0.0)


def test_a_single_run_is_as_it_was_judged() -> None:
    run = Judged(entry=VIOLATED, doubts=("a doubt",))

    assert over_repeats([run]) is run


def test_repeats_that_agree_have_the_verdict_of_one_and_a_band() -> None:
    found = over(timed(2.0), timed(1.0, ops=102), timed(3.0)).entry

    assert (found.verdict, found.repeats, found.reason) == ("held", 3, "")
    assert found.spread["steady_seconds"] == (1.0, 3.0)
    assert found.spread["ops_captured"] == (100.0, 102.0)
    assert found.measurement == timed(2.0).measurement
    assert found.seconds == 3.0


def test_what_one_repeat_did_not_measure_has_no_band() -> None:
    found = over(timed(2.0), timed(None)).entry

    assert "steady_seconds" not in found.spread
    assert "cold_seconds" in found.spread


@pytest.mark.parametrize(
    ("entries", "verdict", "reason"),
    [
        pytest.param((VIOLATED, VIOLATED), "violated", "max_graphs=1: 2", id="violated-each-time"),
        pytest.param(
            (an_entry(), an_entry(BROKEN_UP)),
            "unstable",
            "fullgraph: yes in repeat 1, no in repeat 2; "
            "graph breaks: 0 in repeat 1, 1 in repeat 2 (model.py:41 in forward)",
            id="another-count",
        ),
        pytest.param(
            (an_entry(BROKEN_UP), an_entry(BROKEN_UP), an_entry(replace(HOLDING, graph_breaks=(OTHER_BREAK,)))),
            "unstable",
            "graph breaks: 1 in repeat 1, 1 in repeat 3 (model.py:45 in forward)",
            id="another-fact-of-the-same-number",
        ),
        pytest.param(
            (an_entry(), replace(VIOLATED, measurement=HOLDING)),
            "unstable",
            "limits exceeded: 0 in repeat 1, 1 in repeat 2 (max_graphs=1); max_graphs=1: 2",
            id="a-limit-exceeded-once",
        ),
        pytest.param(
            (an_entry(), an_entry(Measurement(raised=RAISED), verdict="broken", reason="raised")),
            "broken",
            "raised (in repeat 2)",
            id="broken-once",
        ),
        pytest.param(
            (an_entry(verdict="reference"), an_entry(BROKEN_UP, verdict="reference")),
            "reference",
            "",
            id="the-reference-is-not-judged",
        ),
    ],
)
def test_the_worst_of_the_repeats_counts(entries: tuple[Entry, ...], verdict: str, reason: str) -> None:
    found = over(*entries).entry

    assert (found.verdict, found.reason, found.repeats) == (verdict, reason, len(entries))


def test_a_doubt_of_any_repeat_is_a_doubt_of_all() -> None:
    runs = [Judged(entry=an_entry()), Judged(entry=an_entry(verdict="unverified"), doubts=("two ways disagree",))]

    found = over_repeats(runs)

    assert (found.entry.verdict, found.entry.reason, found.failed) == ("unverified", "two ways disagree", True)
    assert found.doubts == ("two ways disagree",)


def test_the_doubts_of_all_repeats_are_told_once_each() -> None:
    runs = [
        Judged(entry=an_entry(), doubts=("one", "two")),
        Judged(entry=an_entry(), doubts=("two", "three")),
    ]

    found = over_repeats(runs)
    unsteady = over_repeats([*runs, Judged(entry=an_entry(BROKEN_UP))])

    assert found.entry.reason == "one; two; three"
    assert found.doubts == unsteady.doubts == ("one", "two", "three")
    assert (found.entry.verdict, unsteady.entry.verdict) == ("unverified", "unstable")


def test_a_repeat_that_was_cut_short_makes_it_unstable() -> None:
    found = over(an_entry(), ended="repeat 2 was skipped: no second time")

    assert (found.entry.verdict, found.entry.reason) == ("unstable", "repeat 2 was skipped: no second time")
    assert found.failed
    # One run says nothing of how far the next is off.
    assert found.entry.spread == {}


def test_the_failure_names_what_differs_first() -> None:
    found = over(an_entry(), VIOLATED)

    text = failure_text("t.py::t", "aot", found.entry.violations, (), "pytest t.py", unsteady=found.unsteady)

    assert text.splitlines() == [
        "limits exceeded: 0 in repeat 1, 1 in repeat 2 (max_graphs=1)",
        "compile contract unstable: t.py::t, lane aot (1 violation)",
        "  its repeats disagree:",
        "    limits exceeded: 0 in repeat 1, 1 in repeat 2 (max_graphs=1)",
        "    fullgraph: yes in repeat 1, no in repeat 2",
        "    graph breaks: 0 in repeat 1, 1 in repeat 2 (model.py:41 in forward)",
        "  max_graphs=1: measured 2",
        "rerun this lane alone:",
        "pytest t.py",
    ]
