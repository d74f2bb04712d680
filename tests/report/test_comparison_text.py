"""The text of a comparison: what matters, whole enough to act on, and nothing that a terminal obeys."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from support.receipts import (
    BREAK,
    DIFFERENCE,
    HOLDING,
    OTHER_BREAK,
    RECOMPILE,
    WORSENED,
    a_receipt,
    after,
    an_entry,
    before,
    repeated,
)

from pytest_compilecontract.compare.comparison import compare
from pytest_compilecontract.compare.gate import answer
from pytest_compilecontract.compare.policy import Policy
from pytest_compilecontract.facts.measurement import Location
from pytest_compilecontract.facts.receipt import Environment, Receipt, defaults_key
from pytest_compilecontract.report.comparison import MOST_GROUPS, WIDTH, answer_lines, comparison_lines

HOSTILE = "\x1b]0;title\x07\x1b[31mred\x1b[0m\u202eleft\r\n\x00end"


def test_a_graph_that_runs_again_is_said_to_be_captured_again() -> None:
    lost = an_entry(WORSENED["capture"])

    lines = comparison_lines(compare(before(lost), after(an_entry())))

    assert "improved tests/test_block.py::test_block [aot]" in lines
    assert any("captured again" in line for line in lines)
    assert not any("capture lost" in line for line in lines)


def test_what_changed_comes_first_with_its_fact_cause_and_command() -> None:
    worse = replace(HOLDING, graph_breaks=(OTHER_BREAK,), recompiles=(RECOMPILE,))
    old = before(an_entry(replace(HOLDING, graph_breaks=(BREAK,))), an_entry(lane="capture"), an_entry(lane="dynamic"))
    new = after(an_entry(worse), an_entry(lane="capture"), an_entry(None, lane="dynamic", verdict="unmeasured"))

    lines = comparison_lines(compare(old, new))

    assert lines == [
        "torch 2.11.0 -> torch 2.15.0: compared 2 of 3 lanes of 1 contract",
        "  torch: torch 2.11.0 -> 2.15.0, triton 3.6.0 -> 3.9.0",
        "",
        "drifted tests/test_block.py::test_block [aot]",
        "  graph breaks 1 -> 1 at model.py:45 in forward",
        "    + model.py:45 in forward: n = mask.sum().item()",
        "        copy.deepcopy() is not supported (GB0179)",
        "        hint: Avoid calling copy.deepcopy()",
        "    - model.py:41 in forward: mask = copy.deepcopy(self.mask)",
        "        copy.deepcopy() is not supported (GB0179)",
        "        called from train.py:9 in step",
        "  recompiles 0 -> 1",
        "    + model.py:40 in forward after its graph break: tensor 'x' size mismatch at index 0. expected 3, actual 4",
        "  rerun: pytest --compile-contracts --contract-lanes=aot -- 'tests/test_block.py::test_block[aot]'",
        "",
        "unmeasured tests/test_block.py::test_block [dynamic]",
        "  no reason was given",
        "",
        "first-call seconds (not judged): 2 -> 2 s (+0 %) in 2 lanes",
        "lanes: 1 held, 1 unmeasured, 1 drifted",
    ]


def test_lanes_that_drifted_alike_are_told_once() -> None:
    old = [an_entry(lane=lane) for lane in ("aot", "capture")]
    new = [an_entry(WORSENED["numerics"], lane=lane) for lane in ("aot", "capture")]

    lines = comparison_lines(compare(before(*old), after(*new)))

    assert lines[3:6] == [
        "drifted tests/test_block.py::test_block [aot, capture]",
        "  numeric differences 0 -> 1",
        "    + output[0]: value: worst error 3e-2 > 4e-4",
    ]


def test_what_no_policy_judges_is_shown_on_asking() -> None:
    comparison = compare(before(an_entry()), after(an_entry(replace(HOLDING, graphs=2))))

    assert comparison_lines(comparison)[2:] == [
        "",
        "first-call seconds (not judged): 1 -> 1 s (+0 %) in 1 lane",
        "lanes: 1 held",
    ]
    assert comparison_lines(comparison, everything=True)[2:5] == [
        "",
        "held tests/test_block.py::test_block [aot]",
        "  graphs 1 -> 2 (changed)",
    ]


def test_a_lane_whose_limits_changed_says_so_beside_its_drift() -> None:
    old = [an_entry(), an_entry(lane="capture"), an_entry(lane="dynamic")]
    new = [an_entry(WORSENED["numerics"], limits={"rtol": 0.1}), *old[1:]]

    lines = comparison_lines(compare(before(*old), after(*new)))

    assert "    project: limit: rtol none -> 0.1" in lines


def with_defaults(receipt: Receipt, value: str) -> Receipt:
    table = {f"torch._dynamo.config.{name}": value for name in "abc"}
    key = defaults_key(table)
    return replace(
        receipt, environments={"here": replace(receipt.environments["here"], defaults=key)}, defaults={key: table}
    )


def test_the_defaults_that_changed_are_told_and_listed_on_asking() -> None:
    comparison = compare(with_defaults(before(an_entry()), "True"), with_defaults(after(an_entry()), "False"))

    few, all_ = comparison_lines(comparison), comparison_lines(comparison, everything=True)

    assert few[2] == (
        "  3 settings with a changed default: torch._dynamo.config.a True -> False, "
        "torch._dynamo.config.b True -> False, ..."
    )
    assert all_[2:6] == [
        "  3 settings with a changed default:",
        "    torch._dynamo.config.a True -> False",
        "    torch._dynamo.config.b True -> False",
        "    torch._dynamo.config.c True -> False",
    ]


def test_a_band_is_told_on_both_sides() -> None:
    old, new = repeated(steady_seconds=(0.00101, 0.0012)), repeated(steady_seconds=(0.0021, 0.00234))
    policy = Policy(gate=frozenset({"steady_seconds"}))

    lines = comparison_lines(compare(before(old), after(new), policy))

    assert lines[4:8] == [
        "  steady-call seconds 0.001 -> 0.001",
        "    + 0.0021 to 0.00234 over 3 repeats",
        "    - 0.00101 to 0.0012 over 3 repeats",
        "  rerun: pytest --compile-contracts --contract-lanes=aot --contract-repeat=3 -- "
        "'tests/test_block.py::test_block[aot]'",
    ]


def test_repeats_that_disagree_are_told_with_both_values_and_the_command() -> None:
    said = "graph breaks: 0 in repeat 1, 1 in repeat 2"
    new = replace(repeated(), verdict="unstable", reason=said)

    lines = comparison_lines(compare(before(an_entry()), after(new)))

    assert lines[3:] == [
        "unstable tests/test_block.py::test_block [aot]",
        f"  {said}",
        "  rerun: pytest --compile-contracts --contract-lanes=aot --contract-repeat=3 -- "
        "'tests/test_block.py::test_block[aot]'",
        "",
        "first-call seconds (not judged): 1 -> 1 s (+0 %) in 1 lane",
        "lanes: 1 unstable",
    ]


def test_the_gate_says_what_is_against_what_is_open_and_the_answer() -> None:
    old = [an_entry(), an_entry(lane="capture"), an_entry(lane="dynamic")]
    comparison = compare(before(*old), after(an_entry(WORSENED["capture"])))

    lines = answer_lines(comparison, answer(comparison))

    assert lines[2:] == [
        "",
        "drifted tests/test_block.py::test_block [aot]",
        "  capture lost",
        "    + graphs executed: 3 -> 0",
        "  rerun: pytest --compile-contracts --contract-lanes=aot -- 'tests/test_block.py::test_block[aot]'",
        "",
        "not known:",
        "  tests/test_block.py::test_block [capture] and 1 more: missing: not in the newer run",
        "",
        "first-call seconds (not judged): 1 -> 1 s (+0 %) in 1 lane",
        "lanes: 2 missing, 1 drifted",
        "may we upgrade from torch 2.11.0 to torch 2.15.0? no: 1 lane drifted",
    ]


def test_the_gate_shows_everything_where_asked() -> None:
    comparison = compare(
        before(an_entry(), an_entry(lane="capture")), after(an_entry(WORSENED["capture"]), an_entry(lane="capture"))
    )

    lines = answer_lines(comparison, answer(comparison), everything=True)

    assert lines[:-1] == comparison_lines(comparison, everything=True)
    assert "held tests/test_block.py::test_block [capture]" in lines
    assert lines[-1].endswith("? no: 1 lane drifted")


def test_of_one_waiver_the_lanes_over_their_limits_are_told_apart() -> None:
    worse = WORSENED["graph_breaks"]
    lanes = [an_entry(lane="capture"), an_entry(), an_entry(lane="dynamic")]
    over = an_entry(worse, lane="dynamic", verdict="violated", reason="max_graph_breaks=0: 1")
    comparison = compare(before(*lanes), after(an_entry(worse, lane="capture"), an_entry(worse), over))
    comparison = replace(
        comparison,
        lanes=tuple(replace(lane, verdict="waived", reason="until 2027-01-31") for lane in comparison.lanes),
    )

    lines = answer_lines(comparison, answer(comparison))

    at = lines.index("waived:")
    assert lines[at + 1 : at + 4] == [
        "  tests/test_block.py::test_block [aot] and 1 more: until 2027-01-31",
        "  tests/test_block.py::test_block [dynamic]: until 2027-01-31; also over its limits",
        "",
    ]
    assert lines[-1].endswith("? yes, but pytest still fails 1 waived lane: waivers do not change limits")


def test_many_are_cut_and_counted() -> None:
    names = [f"tests/test_a.py::test_{number:03}" for number in range(MOST_GROUPS + 5)]
    old = [an_entry(contract=name) for name in names]
    new = [an_entry(WORSENED["recompiles"], contract=name) for name in names]
    comparison = compare(before(*old), after(*new))

    assert comparison_lines(comparison)[-4] == "... and 5 more (shown by -v)"
    assert "... and 5 more (shown by -v)" not in comparison_lines(comparison, everything=True)


def test_seconds_of_the_first_call_are_told_with_their_spread_and_not_judged() -> None:
    lanes = ("aot", "capture", "dynamic", "inductor", "slower")
    old = [an_entry(replace(HOLDING, cold_seconds=2.0), lane=lane) for lane in lanes[:-1]]
    new = [an_entry(replace(HOLDING, cold_seconds=2.0 + at / 8), lane=lane) for at, lane in enumerate(lanes[:-1])]
    old.append(replace(repeated(replace(HOLDING, cold_seconds=10.0), cold_seconds=(9.0, 11.5)), lane="slower"))
    new.append(replace(repeated(replace(HOLDING, cold_seconds=30.0), cold_seconds=(29.0, 31.25)), lane="slower"))
    comparison = compare(before(*old), after(*new, an_entry(lane="new")))

    assert comparison_lines(comparison)[-2:] == [
        "first-call seconds (not judged): 18 -> 38.8 s (+115 %) in 5 lanes",
        "lanes: 5 held, 1 new",
    ]
    assert comparison_lines(comparison, everything=True)[-5:-1] == [
        "first-call seconds (not judged): 18 -> 38.8 s (+115 %) in 5 lanes",
        "  tests/test_block.py::test_block [slower]: 10 -> 30 s (9 to 11.5 in 3 -> 29 to 31.2 in 3)",
        "  tests/test_block.py::test_block [inductor]: 2 -> 2.38 s",
        "  tests/test_block.py::test_block [dynamic]: 2 -> 2.25 s",
    ]
    assert answer(comparison).outcome != "no"


@pytest.mark.parametrize(
    ("before_stages", "after_stages", "told"),
    [
        (
            {"dynamo": 0.5, "code_generation": 1.5},
            {"dynamo": 0.6, "code_generation": 3.5},
            "; code generation 1.5 -> 3.5 s",
        ),
        ({"dynamo": 0.5, "code_generation": 1.5}, {"dynamo": 0.2, "code_generation": 1.6}, "; Dynamo 0.5 -> 0.2 s"),
        ({"dynamo": 0.5}, {"dynamo": 0.5}, ""),
        ({"a": 0.5}, {"b": 0.5}, ""),
        (
            {"dynamo": 1.0, "aot_autograd": 1.0, "inductor": 1.0},
            {"dynamo": 2.0, "aot_autograd": 2.0, "inductor": 2.0},
            "",
        ),
        (None, {"dynamo": 0.5}, ""),
    ],
)
def test_the_stage_of_compiling_that_moved_most_is_told(
    before_stages: dict[str, float] | None, after_stages: dict[str, float], told: str
) -> None:
    old, new = (
        an_entry(replace(HOLDING, cold_seconds=seconds, stage_seconds=stages))
        for seconds, stages in ((2.0, before_stages), (4.0, after_stages))
    )

    lines = comparison_lines(compare(before(old), after(new)), everything=True)

    assert f"  tests/test_block.py::test_block [{new.lane}]: 2 -> 4 s{told}" in lines


def test_text_from_a_receipt_is_shown_and_not_obeyed() -> None:
    place = Location(file=HOSTILE, line=1, function=HOSTILE, source=HOSTILE)
    found = replace(
        BREAK, location=place, reason=HOSTILE, hints=(HOSTILE,), registry_id=HOSTILE, stacks=((place,) * 3,)
    )
    worse = replace(
        HOLDING,
        graph_breaks=(found,),
        numerics=replace(HOLDING.numerics, differences=(replace(DIFFERENCE, at=HOSTILE, detail=HOSTILE * 90),)),  # type: ignore[type-var]
    )
    names = {"contract": HOSTILE, "lane": HOSTILE, "test": HOSTILE}
    others = {"contract": HOSTILE * 90, "lane": "other", "reason": HOSTILE}
    comparison = compare(
        a_receipt(an_entry(**names), an_entry(**others), environment=Environment(torch=HOSTILE)),
        a_receipt(
            an_entry(worse, **names),
            an_entry(**others, verdict="unverified"),
            environment=Environment(torch="2.15", libraries={HOSTILE: HOSTILE}),
        ),
    )

    lines = [*comparison_lines(comparison, everything=True), *answer_lines(comparison, answer(comparison))]

    assert [line for line in lines if {unicodedata.category(char) for char in line} & {"Cc", "Cf", "Cs"}] == []
    assert [line for line in lines if len(line) > WIDTH and not line.startswith("  rerun: ")] == []
