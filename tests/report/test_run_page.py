"""The page of a run as data: marks, their places, what does not hold, modules; and what is in the page itself."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.receipts import BREAK, COPY, DIFFERENCE, HOLDING, ITEM, OLD, SKIPPED, WORSE_ON_A_GPU, a_receipt, a_walk
from support.runs import (
    AGAIN,
    BROKE_DEEP,
    BROKEN,
    DEEP,
    HOSTILE,
    MODEL,
    MOVED,
    RAN,
    SOURCES,
    a_large_run,
    a_run,
    entry,
    page_of,
    seen_in,
    violated,
)

from pytest_compilecontract.compare.drift import Drift, LaneComparison
from pytest_compilecontract.facts.measurement import (
    Call,
    CompileFailure,
    Difference,
    EagerFrame,
    EagerOps,
    Hunted,
    LimitHit,
    Measurement,
    Numerics,
    Raised,
    RaisedInBoth,
    Recompile,
    StepOperators,
)
from pytest_compilecontract.facts.metrics import combined
from pytest_compilecontract.facts.receipt import Receipt, Setup
from pytest_compilecontract.facts.rerun import PYTEST
from pytest_compilecontract.facts.verdict import Violation
from pytest_compilecontract.files.sources import Source
from pytest_compilecontract.report.run_causes import Cause, causes_of, source_of
from pytest_compilecontract.report.run_marks import KINDS, NOUNS, TAGS, Mark, marks_of, moved
from pytest_compilecontract.report.run_page import run_page
from pytest_compilecontract.report.run_view import (
    WEIGHTS,
    FileView,
    lane_notes,
    module_rows,
    named_files,
    run_view,
    violation_words,
)
from pytest_compilecontract.report.terminal import row_of


def only(seen: Measurement) -> Mark:
    ((mark, _),) = marks_of(seen)
    return mark


def file_of(receipt: Receipt, name: str = "model.py", sources: dict[str, Source] | None = None) -> FileView:
    return next(each for each in seen_in(receipt, sources).files if each.name == name)


# Marks


def test_each_kind_has_its_words_and_weight() -> None:
    assert set(TAGS) == set(NOUNS) == set(WEIGHTS) == set(KINDS)


def test_a_graph_break_has_torchs_reason_hint_and_id_and_who_called() -> None:
    mark = only(Measurement(graph_breaks=(BREAK,)))

    assert (mark.kind, mark.title, mark.at) == ("break", "copy.deepcopy() is not supported", COPY)
    assert mark.said == (
        ("kind", "copy.deepcopy()"),
        ("hint", "Avoid calling copy.deepcopy()"),
        ("registry id", "GB0179"),
    )
    assert mark.more == (("called from", "train.py:9 in step"),)


def test_a_recompile_says_from_what_to_what_and_by_which_guard() -> None:
    mark = only(Measurement(recompiles=(AGAIN,)))

    assert (mark.kind, mark.title) == ("recompile", MOVED)
    assert mark.said == (
        ("changed", "8 → 9"),
        ("kind", "dynamic: a size or number that had been specialized became dynamic"),
    )


@pytest.mark.parametrize(
    ("guard", "change"),
    [
        pytest.param(MOVED, ("8", "9"), id="size"),
        pytest.param("tensor 'x' dtype mismatch. expected Float, actual Half", ("Float", "Half"), id="dtype"),
        pytest.param("tensor 'x' requires_grad mismatch. expected requires_grad=0", None, id="only what was expected"),
        pytest.param("s == 1.0", None, id="another guard"),
        pytest.param("", None, id="none"),
    ],
)
def test_what_a_guard_says_moved(guard: str, change: tuple[str, str] | None) -> None:
    assert moved(guard) == change


@pytest.mark.parametrize(
    ("seen", "kind", "title"),
    [
        pytest.param(
            Measurement(eager_frames=(EagerFrame(frame=COPY, cause="error", reason="no"),)),
            "eager",
            "forward runs in eager: error",
            id="eager frame",
        ),
        pytest.param(
            Measurement(limit_hits=(LimitHit(frame=COPY, limit="recompile_limit", reason="reached (8)"),)),
            "limit",
            "recompile_limit: from here on, calls that match no compiled code run in eager",
            id="limit",
        ),
        pytest.param(
            Measurement(operators_run=StepOperators(compiled=1, eager=8, groups=(SKIPPED,))),
            "skipped",
            "Sequential.forward, called here, runs in eager: 4 linear, 4 relu",
            id="skipped library frame",
        ),
        pytest.param(
            Measurement(backend_failures=(CompileFailure(frame=COPY, type="torch.X", message="no\nmore"),)),
            "error",
            "compiling failed: X: no",
            id="backend failure",
        ),
        pytest.param(
            Measurement(raised=Raised(type="torch.X", message="", location=COPY)),
            "error",
            "raises X, and eager does not",
            id="exception",
        ),
        pytest.param(
            WORSE_ON_A_GPU["host_syncs"][1].measurement, "sync", "the CPU waits for the device here", id="host sync"
        ),
        pytest.param(WORSE_ON_A_GPU["cuda_graphs"][1].measurement, "cudagraph", "mutated inputs", id="CUDA graph skip"),
    ],
)
def test_what_is_said_beside_a_line(seen: Measurement, kind: str, title: str) -> None:
    found = [mark for mark, _ in marks_of(seen)]

    assert (found[0].kind, found[0].title) == (kind, title)


def test_eager_operators_are_counted_and_not_named_apart() -> None:
    group = EagerOps(why="graph break", operators={"is_nonzero": 2}, location=ITEM)

    ((mark, times),) = marks_of(Measurement(operators_run=StepOperators(compiled=1, eager=2, groups=(group,))))

    assert (mark.title, times) == ("is_nonzero", 2)


# Places


def test_lanes_that_agree_have_one_mark() -> None:
    view = seen_in(a_receipt(violated("test_model"), violated("test_model", "inductor")))

    found = [each for each in view.marks if each.mark.kind == "break"]

    assert [each.seen for each in found] == [((0, 1), (1, 1))]


def test_callers_that_differ_make_no_second_mark() -> None:
    alone = replace(HOLDING, graph_breaks=(replace(BREAK, stacks=((COPY,),)),))

    view = seen_in(a_receipt(violated("test_a"), violated("test_b", measurement=alone)))

    (found,) = (each for each in view.marks if each.mark.kind == "break")
    assert len(found.seen) == 2
    assert found.more == (("called from", "train.py:9 in step"),)


def test_a_break_in_a_library_is_shown_on_the_line_that_leads_there() -> None:
    seen = replace(HOLDING, graph_breaks=(BROKE_DEEP,))

    view = seen_in(a_receipt(entry("test_a", measurement=seen)), {**SOURCES, DEEP.file: Source(outside=True)})

    assert [(each.place, each.mark.at) for each in view.marks] == [(ITEM, DEEP)]
    assert [each.name for each in view.files] == ["model.py"]


def test_a_library_that_no_line_leads_to_has_its_own_place() -> None:
    seen = replace(HOLDING, graph_breaks=(replace(BROKE_DEEP, stacks=()),))

    view = seen_in(a_receipt(entry("test_a", measurement=seen)), {DEEP.file: Source(outside=True, problem="no")})

    assert [(each.name, each.outside, each.problem) for each in view.files] == [(DEEP.file, True, "no")]


def test_a_line_that_changed_is_told_apart_and_what_ran_there_is_left_out() -> None:
    changed = Source(lines=(*MODEL[:40], "        pass", *MODEL[41:]))

    view = seen_in(a_receipt(violated("test_model")), {**SOURCES, "model.py": changed})

    assert {(each.place and each.place.line, each.moved) for each in view.marks if each.mark.kind == "break"} == {
        (41, True)
    }
    (file,) = (each for each in view.files if each.name == "model.py")
    assert (file.changed, file.ran) == (True, {})


def test_a_file_that_lost_its_end_has_changed() -> None:
    seen = replace(HOLDING, operators_run=RAN)

    file = file_of(a_receipt(entry("test_a", measurement=seen)), sources={"model.py": Source(lines=MODEL[:44])})

    assert file.changed


def test_a_file_written_after_the_run_is_said() -> None:
    sources = {name: replace(each, written="2026-02-01T00:00:00Z") for name, each in SOURCES.items()}

    file = file_of(a_receipt(violated("test_model")), sources=sources)

    assert (file.changed, file.written_after) == (False, True)


def test_a_checkout_of_the_same_commit_is_the_source_of_the_run() -> None:
    sources = {name: replace(each, written="2026-02-01T00:00:00Z") for name, each in SOURCES.items()}

    same = run_view(a_run(), sources, checkout=("a" * 40, False))
    dirty = run_view(a_run(), sources, checkout=("a" * 40, True))
    other = run_view(a_run(), sources, checkout=("b" * 40, False))

    assert [any(each.written_after for each in view.files) for view in (same, dirty, other)] == [False, True, True]
    assert (same.source_note, dirty.source_note) == ("", "")
    assert other.source_note == "The source shown is from commit bbbbbbbbbbbb, but the run measured aaaaaaaaaaaa."


def test_what_ran_is_by_line_with_its_lanes() -> None:
    receipt = a_receipt(entry("test_a", measurement=BROKEN), entry("test_b", measurement=BROKEN))

    file = file_of(receipt)

    assert file.ran == {41: ((0, 2, 0), (1, 2, 0)), 45: ((0, 2, 1), (1, 2, 1)), 47: ((0, 1, 0), (1, 1, 0))}


def test_what_hurts_most_is_the_first_file() -> None:
    view = seen_in(a_run())

    assert [each.name for each in view.files] == ["model.py", "train.py"]
    assert named_files(a_run()) == ("model.py", "train.py")


def test_what_a_lane_fails_by_hurts_more_than_what_is_tolerated() -> None:
    here, there = (replace(COPY, file=name) for name in ("tolerated.py", "wrong.py"))
    seen = [
        replace(HOLDING, graph_breaks=(replace(BREAK, location=each, stacks=((each,),)),)) for each in (here, there)
    ]
    receipt = a_receipt(
        entry("test_a", measurement=seen[0]),
        entry("test_b", measurement=seen[0]),
        violated("test_c", measurement=seen[1]),
    )

    view = seen_in(receipt, {})

    assert [each.name for each in view.files] == ["wrong.py", "tolerated.py"]


def test_no_mark_is_lost_by_a_line_that_nobody_knows() -> None:
    seen = replace(HOLDING, raised=Raised(type="X", message="no"))

    view = seen_in(a_receipt(entry("test_a", measurement=seen)))

    assert [(each.place, each.mark.title) for each in view.marks] == [(None, "raises X: no, and eager does not")]


# The answer


@pytest.mark.parametrize(
    ("receipt", "outcome", "sentence"),
    [
        pytest.param(a_receipt(), "not known", "No contract was measured.", id="nothing"),
        pytest.param(a_receipt(entry("test_a")), "yes", "The one contract holds.", id="one"),
        pytest.param(a_receipt(entry("test_a"), entry("test_b")), "yes", "All 2 contracts hold.", id="all"),
        pytest.param(a_run(), "no", "2 of 4 contracts hold: 1 is broken, 1 is violated.", id="some"),
        pytest.param(a_receipt(violated("test_a")), "no", "The one contract is violated.", id="one that does not"),
        pytest.param(
            a_receipt(violated("test_a"), violated("test_b")), "no", "All 2 contracts are violated.", id="none"
        ),
        pytest.param(
            a_receipt(violated("test_a"), entry("test_b", measurement=None, verdict="broken")),
            "no",
            "None of 2 contracts holds: 1 is broken, 1 is violated.",
            id="none, for two reasons",
        ),
        pytest.param(
            a_receipt(entry("test_a"), entry("test_a", "cudagraphs", None, verdict="unmeasured", reason="no GPU")),
            "yes",
            "The one contract holds. 1 lane could not be measured here.",
            id="a lane unmeasured",
        ),
        pytest.param(
            a_receipt(entry("test_a", "cudagraphs", None, verdict="unmeasured", reason="no GPU")),
            "not known",
            "The one contract is unmeasured. 1 lane could not be measured here.",
            id="all unmeasured",
        ),
        pytest.param(
            replace(a_receipt(entry("test_a")), setup=Setup(asked="torch 2.11.0", not_finished="it was interrupted")),
            "no",
            "torch 2.11.0: the tests did not run to their end: it was interrupted. The one contract holds.",
            id="cut off",
        ),
    ],
)
def test_the_answer_in_words(receipt: Receipt, outcome: str, sentence: str) -> None:
    view = seen_in(receipt)

    assert (view.outcome, view.sentence) == (outcome, sentence)


def test_what_holds_all_the_same_is_said() -> None:
    view = seen_in(a_receipt(entry("test_a", measurement=BROKEN), violated("test_b")))

    assert view.tolerated == "The contracts that hold tolerate 1 graph break, 1 skipped frame and 1 recompile."
    assert seen_in(a_receipt(violated("test_b"))).tolerated == ""


def test_a_drift_is_no_holding() -> None:
    receipt = a_receipt(entry("test_a"))

    view = run_view(receipt, SOURCES, a_drift(receipt, "graph_breaks"))

    assert (view.outcome, view.sentence) == ("no", "The one contract has drifted.")
    assert [each.said for each in view.troubles] == [((("aot",), "graph breaks 0 -> 1"),)]


def test_eager_frames_are_told_apart_where_a_limit_and_a_baseline_count_others() -> None:
    lost = EagerFrame(frame=COPY, cause="graph break", reason="in a loop")
    seen = replace(HOLDING, eager_frames=(lost,), operators_run=StepOperators(compiled=1, eager=8, groups=(SKIPPED,)))
    over = (Violation(limit="max_eager_frames=0 (default)", measured=2),)
    receipt = a_receipt(entry("test_a", measurement=seen, verdict="violated", violations=over))

    view = run_view(receipt, SOURCES, a_drift(receipt, "eager_frames"))

    (((_, words),),) = (each.said for each in view.troubles)
    assert words == (
        "eager frames: 2, at most 0 (1 that Dynamo gave up on, 1 in libraries that it skips)"
        "; drifted: eager frames that Dynamo gave up on 0 -> 1"
    )


@pytest.mark.parametrize(
    ("numerics", "note"),
    [
        pytest.param(Numerics(method="fp64", compared=15), "agrees with eager by fp64: 15 tensors compared", id="same"),
        pytest.param(
            Numerics(method="fp64", compared=2, differences=(DIFFERENCE,)),
            "differs from eager by fp64: 2 tensors compared",
            id="differs",
        ),
        pytest.param(
            Numerics(method="bitwise", compared=2), "agrees with eager bit for bit: 2 tensors compared", id="same bits"
        ),
        pytest.param(
            Numerics(method="bitwise", compared=2, differences=(DIFFERENCE,)),
            "differs from eager by bitwise: 2 tensors compared",
            id="same bits, and another fact",
        ),
        pytest.param(
            Numerics(method="fp64"), "not known to agree with eager by fp64: 0 tensors compared", id="nothing compared"
        ),
    ],
)
def test_whether_it_agrees_with_eager_is_said(numerics: Numerics, note: str) -> None:
    assert lane_notes(entry("test_a", measurement=replace(HOLDING, numerics=numerics))) == (note,)


def test_a_recompile_by_a_guard_names_no_other_guard() -> None:
    mark = only(Measurement(recompiles=(replace(AGAIN, kind="guard", guard="self.steps == 0"),)))

    assert ("kind", "guard: the one above failed") in mark.said


def test_what_does_not_hold_is_told_once_for_lanes_that_agree_the_worst_first() -> None:
    view = seen_in(a_run())

    assert [(each.verdict, each.said) for each in view.troubles] == [
        ("broken", ((("aot",), "the test failed in call: no"),)),
        ("violated", ((("aot", "inductor"), "graph breaks: 1, at most 0; recompiles: 1, at most 0"),)),
    ]


# Causes


def changing(*values: float, line: int = 41) -> tuple[Recompile, ...]:
    """Recompiles by a guard on one value, at a line."""
    here = replace(COPY, line=line, source="self.scale *= 0.99")
    return tuple(replace(AGAIN, guard=f"self.scale == {each}", location=here) for each in values)


def told(receipt: Receipt) -> list[tuple[str, list[str], list[str], list[int], list[str]]]:
    """Each cause: its title, kinds of marks, kinds of those that come of it, lanes, and the limits broken."""
    view = seen_in(receipt)

    def kinds(numbers: tuple[int, ...]) -> list[str]:
        return [view.marks[each].mark.kind for each in numbers]

    return [
        (each.title, kinds(each.marks), kinds(each.follows), [lane for lane, _ in each.lanes], limits_of(each))
        for each in causes_of(view.lanes, view.marks)
    ]


def limits_of(found: Cause) -> list[str]:
    return list(dict.fromkeys(limit for _, limits in found.lanes for limit in limits))


def test_a_cause_of_many_contracts_is_one_and_what_one_has_alone_is_another() -> None:
    alone = replace(BREAK, location=ITEM, reason="Tensor.item()", stacks=((ITEM,),))
    both = replace(BROKEN, graph_breaks=(BREAK, alone), recompiles=())
    shared = replace(BROKEN, recompiles=())

    found = told(a_receipt(violated("test_a", measurement=shared), violated("test_b", measurement=both)))

    assert found == [
        ("copy.deepcopy() is not supported", ["break"], [], [0, 1], ["max_graph_breaks=0"]),
        ("Tensor.item()", ["break"], [], [1], ["max_graph_breaks=0"]),
    ]


def test_what_a_lane_that_holds_tolerates_is_no_cause() -> None:
    assert told(a_receipt(entry("test_a", measurement=BROKEN))) == []


def test_guards_on_one_source_are_one_cause_wherever_their_lines_are() -> None:
    seen = replace(HOLDING, recompiles=(*changing(1.0, 0.99, line=40), *changing(0.98)))

    (found,) = told(a_receipt(violated("test_a", measurement=seen)))

    assert found == ("`self.scale` changes", ["recompile"] * 3, [], [0], ["max_recompiles=0"])


def test_guards_on_two_sources_are_two_causes() -> None:
    other = replace(AGAIN, guard="self.steps == 1")
    seen = replace(HOLDING, recompiles=(*changing(1.0), other))

    assert [each[0] for each in told(a_receipt(violated("test_a", measurement=seen)))] == [
        "`self.steps` changes",
        "`self.scale` changes",
    ]


def test_a_local_variable_of_another_function_is_another_cause() -> None:
    there = replace(AGAIN, frame=replace(AGAIN.frame, line=9, function="step"))
    seen = replace(HOLDING, recompiles=(AGAIN, there))

    assert [each[0] for each in told(a_receipt(violated("test_a", measurement=seen)))] == [MOVED, MOVED]


def test_what_runs_eager_because_of_a_break_is_folded_under_it() -> None:
    lost = EagerFrame(frame=ITEM, location=BREAK.location, cause="graph break", reason="in a loop")
    skipped = replace(SKIPPED, broke=BREAK.location)
    seen = replace(
        HOLDING,
        graph_breaks=(BREAK,),
        eager_frames=(lost,),
        operators_run=StepOperators(compiled=1, eager=8, groups=(skipped,)),
    )
    over = (Violation(limit="max_eager_frames=0 (default)", measured=2),)

    found = told(a_receipt(entry("test_a", measurement=seen, verdict="violated", violations=over)))

    title = "copy.deepcopy() is not supported"
    assert found == [(title, ["break"], ["eager", "skipped"], [0], ["max_eager_frames=0 (default)"])]


def test_wrong_numbers_are_the_first_cause_with_what_differs() -> None:
    output = Difference(at="call 0 output", kind="value", detail="1.01 times float64 in all elements; worst at [2]")
    others = tuple(replace(output, at=f"call {index} output") for index in range(1, 9))
    numerics = Numerics(method="fp64", compared=9, differences=(output, *others))
    over = (
        Violation(limit="max_graph_breaks=0", measured=1),
        Violation(limit="numerics='fp64' (default)", measured="9 differences"),
    )
    seen = replace(BROKEN, recompiles=(), numerics=numerics)
    receipt = a_receipt(entry("test_a", measurement=seen, verdict="violated", violations=over))

    first, second = told(receipt)

    title = "call 0 output: value: 1.01 times float64 in all elements"
    assert first == (title, ["numbers"], [], [0], ["numerics='fp64' (default)"])
    assert second[1] == ["break"]
    (mark,) = (each for each in seen_in(receipt).marks if each.mark.kind == "numbers")
    assert mark.place is None
    assert mark.mark.said == (("more", "worst at [2]"),)
    assert [label for label, _ in mark.more] == ["also"] * 4


def test_a_frame_that_no_break_explains_is_a_cause_itself() -> None:
    seen = replace(HOLDING, operators_run=StepOperators(compiled=1, eager=8, groups=(SKIPPED,)))
    over = (Violation(limit="max_eager_frames=0 (default)", measured=1),)

    (found,) = told(a_receipt(entry("test_a", measurement=seen, verdict="violated", violations=over)))

    assert found[1:] == (["skipped"], [], [0], ["max_eager_frames=0 (default)"])


@pytest.mark.parametrize(
    ("guard", "source"),
    [
        pytest.param("self.steps == 0", "self.steps", id="equal"),
        pytest.param("self.mode != 'a'", "self.mode", id="a text"),
        pytest.param("x is None", "x", id="is"),
        pytest.param("2 <= x.size()[0] <= 10", "x.size()[0]", id="a range"),
        pytest.param("len(self.layers['a == b']) == 3", "", id="a comparison in quotes"),
        pytest.param("all(a == b for a in c)", "", id="a comparison in brackets"),
        pytest.param("len(self.layers[f(1)]) == 3", "len(self.layers[f(1)])", id="brackets"),
        pytest.param(MOVED, "tensor 'x' size mismatch at index 0", id="a size"),
        pytest.param("the module was changed in place", "", id="a sentence"),
        pytest.param("___check_type_id(x, 1)", "", id="no comparison"),
        pytest.param("", "", id="none"),
    ],
)
def test_what_a_guard_is_about(guard: str, source: str) -> None:
    assert source_of(guard) == source


@pytest.mark.parametrize(
    ("violation", "words"),
    [
        (Violation(limit="max_graph_breaks=0", measured=1), "graph breaks: 1, at most 0"),
        (Violation(limit="min_ops_captured=1 (default)", measured=0), "ops captured: 0, at least 1"),
        (
            Violation(limit="numerics='fp64' (default)", measured="3 differences"),
            "numerics='fp64' (default): 3 differences",
        ),
    ],
    ids=["at most", "at least", "neither"],
)
def test_a_violation_in_words(violation: Violation, words: str) -> None:
    assert violation_words(violation) == words


def test_modules_are_a_tree_with_sums_and_layer_ten_after_two() -> None:
    rows = module_rows(RAN.modules)

    assert [(row.path, row.depth, row.compiled, row.eager) for row in rows] == [
        ("", 0, 5, 3),
        ("head", 1, 1, 2),
        ("layers", 1, 3, 1),
        ("layers.2", 2, 2, 1),
        ("layers.2.mlp", 3, 2, 1),
        ("layers.10", 2, 1, 0),
        ("layers.10.mlp", 3, 1, 0),
    ]
    assert module_rows({}) == ()


def test_a_hostile_receipt_takes_no_long_time() -> None:
    deep = {".".join("a" * 50_000): (1, 0)}
    again = replace(AGAIN, guard="expected " * 100_000)
    odd = {"model.py": (1, 0), ":3": (1, 0), "model.py:0": (1, 0), "model.py:x": (1, 0), "model.py:99999999": (1, 0)}
    ran = StepOperators(compiled=1, eager=0, lines=odd, modules=deep)
    here = replace(COPY, line=-3, file="../../etc/passwd")
    seen = replace(
        HOLDING,
        recompiles=(again,),
        operators_run=ran,
        graph_breaks=(replace(BREAK, location=here, stacks=()),),
        calls=(Call(phase="cold", seconds=float("inf"), graphs_executed=None),),
    )
    started = time.perf_counter()

    page = page_of(a_receipt(entry("test_a", measurement=seen)))

    assert time.perf_counter() - started < 5
    assert len(page) < 300_000


def test_what_else_is_said_of_a_lane() -> None:
    both = RaisedInBoth(type="ValueError", message="no", at="call 2")
    numerics = Numerics(method="allclose", note="float64 cannot run", compared=1, uncompared=("output[1]: a string",))
    seen = replace(HOLDING, numerics=numerics, raised_in_both=both, cut_short="a skip", processes=("fork",))

    notes = lane_notes(entry("test_a", measurement=seen, repeats=3, frontier=a_walk("held", "failed")))

    assert notes == (
        "holds up to capture (rung 1 of 2); aot does not: max_graph_breaks=0: 1",
        "measured 3 times",
        "agrees with eager by allclose: 1 tensor compared (float64 cannot run)",
        "not compared: output[1]: a string",
        "eager raises in call 2, as compiled does: ValueError: no",
        "cut short: a skip",
        "processes were started (fork), and what they compile is not counted here",
    )
    assert lane_notes(entry("test_a", measurement=None)) == ()


# The page


def test_the_page_says_what_each_lane_is() -> None:
    own = replace(entry("test_a", "mine"), lane_settings={"backend": "aot_eager", "dynamic": True})
    data = data_of(page_of(a_receipt(entry("test_a", "aot"), own)))

    words = {data["texts"][name]: data["texts"][text] for name, text in data["laneWords"]}

    assert words == {
        "aot": "AOTAutograd traces the captured graphs, backward too, and eager runs them",
        "mine": "backend='aot_eager', dynamic=True",
    }


def data_of(page: str) -> dict[str, list[list[int]]]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    assert found is not None
    data: dict[str, list[list[int]]] = json.loads(found[1])
    return data


def test_a_lane_says_where_it_ran_if_not_all_ran_there() -> None:
    elsewhere = replace(OLD, torch="2.15.0", device=None)
    receipt = a_receipt(entry("test_fine"), replace(entry("test_far"), environment="there", worker="gw1"))
    both = replace(receipt, environments={**receipt.environments, "there": elsewhere})

    told = [text for text in data_of(page_of(both))["texts"] if "ran in environment" in str(text)]

    assert told == ["ran in environment there: torch 2.15.0, gw1", "ran in environment here: torch 2.11.0, A processor"]
    assert "ran in environment" not in page_of(receipt)


def test_the_page_answers_before_anything_else() -> None:
    page = page_of(replace(a_run(), command="pytest --compile-contracts"))

    top = page[: page.index("</header>")]
    for told in (
        "2 of 4 contracts hold",
        OLD.torch,
        OLD.device,
        "2026-01-31 12:00:00 UTC",
        "a" * 12,
        "pytest --compile-contracts",
    ):
        assert str(told) in top


def test_a_receipt_without_a_command_says_so() -> None:
    assert '<dd class="mono">not in the receipt</dd>' in page_of(a_run())


def test_hostile_text_is_in_no_place_html() -> None:
    page = page_of(a_run())

    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page
    assert "\u202e" not in page
    assert HOSTILE.replace("\u202e", "\\u202e") in "".join(map(str, data_of(page)["texts"]))


def test_the_page_asks_for_nothing() -> None:
    page = page_of(a_run())

    assert "default-src 'none'" in page
    assert re.findall(r"(?:https?:)?//[a-z]", re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)) == []


def test_tabs_of_source_are_spaces() -> None:
    (file,) = (each for each in data_of(page_of(a_run()))["files"] if each[1] and len(each[1]) == 50)

    assert file[1][46] == "    return x"


def test_500_contracts_and_200_files_are_made_in_reasonable_time_and_size() -> None:
    receipt, sources = a_large_run(500, 200)
    started = time.perf_counter()

    named_files(receipt)
    page = page_of(receipt, sources)

    # A fifth of it on a machine that does nothing else.
    assert time.perf_counter() - started < 15
    assert len(page) < 8_000_000


# What is not seen at first


def test_a_violation_does_not_hide_that_the_lane_drifted() -> None:
    receipt = a_receipt(violated("test_a", "aot"), entry("test_b"))
    drifted = a_drift(receipt, "recompiles")

    view = run_view(receipt, SOURCES, drifted)

    (lane,) = [each for each in view.lanes if each.entry.verdict == "violated"]
    (trouble,) = [each for each in view.troubles if each.contract == lane.entry.contract]
    assert (lane.verdict, lane.drift) == ("violated", drifted[lane.entry.contract, lane.entry.lane])
    assert trouble.said[0][1].endswith("; drifted: recompiles 0 -> 1")
    assert "differs from its baseline: recompiles 0 -\\u003e 1" in page_data(receipt, drifted)


def test_what_ended_a_hunt_is_told() -> None:
    hunted = Hunted(sequences=12, calls=40, ended="after 60 s")
    found = entry("test_a", measurement=replace(HOLDING, hunted=hunted))
    whole = entry("test_a", measurement=replace(HOLDING, hunted=replace(hunted, ended="")))

    assert "hunted 12 sequences of calls, ended after 60 s" in lane_notes(found)
    assert row_of(found).reason == "hunted 12 sequences of calls, ended after 60 s"
    assert "hunted 12 sequences of calls" in lane_notes(whole)
    assert row_of(whole).reason == ""


def test_a_doubt_of_several_parts_is_kept_once() -> None:
    part = replace(HOLDING, doubts=("a thread compiled",), disagreements=("graphs: 1, 2",))

    whole = combined((part, replace(part, doubts=("a thread compiled", "another"))))

    assert whole.doubts == ("a thread compiled", "another")
    assert whole.disagreements == ("graphs: 1, 2",)


def test_a_command_on_the_page_starts_pytest_as_where_it_is_read() -> None:
    receipt = replace(a_receipt(violated("test_a", "aot")), command="python -m pytest --compile-contracts")
    start = (".venv/bin/python", "-m", "pytest")

    page = page_data(receipt, start=start)

    assert ".venv/bin/python -m pytest --compile-contracts --contract-lanes=aot" in page
    assert '"python -m pytest --compile-contracts"' not in page


def a_drift(receipt: Receipt, metric: str) -> dict[tuple[str, str], LaneComparison]:
    """The first lane of a receipt, with one more of this metric than its baseline has."""
    contract, lane = receipt.entries[0].contract, receipt.entries[0].lane
    drift = Drift(contract=contract, lane=lane, metric=metric, direction="worse", before=0, after=1, gates=True)
    compared = LaneComparison(
        contract=contract, lane=lane, verdict="drifted", before="held", after="held", drifts=(drift,)
    )
    return {(contract, lane): compared}


def page_data(
    receipt: Receipt,
    drifted: dict[tuple[str, str], LaneComparison] | None = None,
    start: Sequence[str] = PYTEST,
) -> str:
    """All that a page is made of."""
    view = run_view(receipt, SOURCES, drifted)
    return run_page(view, receipt, root="root", plugin="0.1.0", created="2026-01-31T12:00:00Z", start=start)
