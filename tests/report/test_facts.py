"""Facts that no limit forbids, as a terminal shows them."""

from __future__ import annotations

from dataclasses import replace

from support.receipts import BREAK, CONTRACT, HOLDING, OTHER_BREAK, RECOMPILE, WORSENED, an_entry

from pytest_compilecontract.facts.measurement import Call
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.verdict import Violation
from pytest_compilecontract.report.facts import fact_lines, stages_told

SEEN = replace(HOLDING, graph_breaks=(BREAK,), recompiles=(RECOMPILE,))
OVER = an_entry(SEEN, verdict="violated", violations=(Violation(limit="max_graph_breaks=0", measured=1),))
BROKE = [
    "    graph break: model.py:41 in forward: mask = copy.deepcopy(self.mask)",
    "      copy.deepcopy() is not supported",
    "      hint: Avoid calling copy.deepcopy()",
]
AGAIN = [
    "    recompile: model.py:40 in forward after its graph break: dynamic recompile",
    "      guard: tensor 'x' size mismatch at index 0. expected 3, actual 4",
]


def told(*entries: Entry, every: bool = False) -> list[str]:
    return [text for text, _ in fact_lines(entries, every=every)]


def test_each_fact_has_its_line_reason_guard_and_hint_once_for_lanes_that_agree() -> None:
    lines = told(an_entry(SEEN), an_entry(SEEN, lane="inductor"))

    assert lines == ["2 facts that no limit forbids:", CONTRACT, "  in aot, inductor:", *BROKE, *AGAIN]


def test_lanes_that_differ_are_told_apart() -> None:
    lines = told(an_entry(SEEN), an_entry(replace(SEEN, graph_breaks=(BREAK, OTHER_BREAK)), lane="inductor"))

    assert [line for line in lines if line.startswith("  in ")] == ["  in aot, inductor:", "  in inductor:"]


def test_what_a_violation_says_is_not_said_again() -> None:
    assert told(OVER) == ["1 fact that no limit forbids:", CONTRACT, "  in aot:", *AGAIN]
    assert told(OVER, every=True) == ["2 facts:", CONTRACT, "  in aot:", *BROKE, *AGAIN]


def test_what_was_seen_several_times_is_told_once() -> None:
    lines = told(an_entry(replace(HOLDING, recompiles=(RECOMPILE, RECOMPILE))))

    assert lines[3:] == [f"{AGAIN[0]} (2 times)", AGAIN[1]]


def test_an_eager_frame_and_a_recompile_limit_are_facts_too() -> None:
    lines = told(an_entry(replace(WORSENED["eager_frames"], limit_hits=WORSENED["limit_hits"].limit_hits)))

    assert lines[3:] == [
        "    eager frame: model.py:40 in forward: ran in eager, graph break",
        "      a loop",
        "      at model.py:45 in forward: n = mask.sum().item()",
        "    recompile limit: model.py:40 in forward: recompile_limit",
        "      recompile_limit reached (8)",
    ]


def test_a_lane_all_of_whose_calls_compiled_says_so() -> None:
    calls = [Call(phase=phase, seconds=1.0, graphs_executed=1) for phase in ("cold", "warm-up", "warm-up", "steady")]

    lines = told(an_entry(replace(HOLDING, calls=tuple(calls[:3]))))

    assert lines[3:] == ["    calls: all 3 compiled, so none was steady"]
    two = told(an_entry(replace(HOLDING, calls=tuple(calls[:2]))))
    assert two[3:] == ["    calls: both compiled, so none was steady"]
    assert told(an_entry(replace(HOLDING, calls=tuple(calls)))) == []
    assert told(an_entry(replace(HOLDING, calls=tuple(calls[:1])))) == []


def test_nothing_to_tell_is_nothing() -> None:
    assert told(an_entry(), an_entry(None)) == []


def test_a_long_or_hostile_text_is_one_line_that_no_terminal_obeys() -> None:
    hostile = replace(BREAK, reason="\x1b[31mred " + "x" * 500, hints=())

    lines = told(an_entry(replace(HOLDING, graph_breaks=(hostile,))))

    assert lines[-1].startswith("      red xxx")
    assert lines[-1].endswith("xxx...")
    assert max(map(len, lines)) == 160


def test_what_compiling_took_is_told_by_stage() -> None:
    stages = {"dynamo": 0.25, "aot_autograd": 0.0001, "inductor": 0.75, "code_generation": 11.0}

    assert stages_told(replace(SEEN, stage_seconds=stages)) == (
        "compiling took 12 s: Dynamo 0.25 s, Inductor 0.75 s, code generation 11 s"
    )
    assert stages_told(replace(SEEN, stage_seconds=dict.fromkeys(stages, 0.0))) == ""
    assert stages_told(replace(SEEN, stage_seconds=None)) == ""
