"""What bisecting makes of the stages' outcomes: which one is named, and the command that shows it. No torch here."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_compilecontract.facts.lanes import BUILT_IN, Lane
from pytest_compilecontract.facts.measurement import (
    CompileFailure,
    Difference,
    Location,
    Measurement,
    Numerics,
    Raised,
)
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.rerun import Command
from pytest_compilecontract.facts.verdict import Violation
from pytest_compilecontract.plugin.bisect import (
    STAGES,
    Found,
    Outcome,
    Stage,
    command,
    faults,
    first_to_fail,
    is_built_in,
)
from pytest_compilecontract.plugin.started import set_options

CAPTURE, AOT, DECOMPOSITIONS, INDUCTOR = STAGES
WRONG = frozenset({"wrong numbers"})
FAILS = Outcome(faults=WRONG)
HOLDS = Outcome()
RAISES = Outcome(faults=frozenset({"ValueError"}))
FRAME = Location(file="model.py", line=3, function="forward")


def in_turn(outcomes: dict[Stage, list[Outcome]]) -> Callable[[Stage], Outcome]:
    """Each stage's outcomes, one a run; a run too many is an error."""
    left = {stage: iter(each) for stage, each in outcomes.items()}
    return lambda stage: next(left[stage])


def found_in(outcomes: dict[Stage, list[Outcome]], *, wanted: frozenset[str] = WRONG) -> Found:
    return first_to_fail((CAPTURE, AOT), DECOMPOSITIONS, wanted, in_turn(outcomes))


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        pytest.param(
            {CAPTURE: [FAILS, FAILS], DECOMPOSITIONS: [FAILS]},
            "where it broke: Dynamo's capture (backend 'eager') is the first to fail",
            id="the first stage, and the lane again",
        ),
        pytest.param(
            {CAPTURE: [HOLDS, HOLDS], AOT: [FAILS, FAILS]},
            "where it broke: AOTAutograd (backend 'aot_eager') is the first to fail; up to Dynamo's capture it holds",
            id="a later stage, and the one before it again",
        ),
        pytest.param(
            {CAPTURE: [HOLDS], AOT: [HOLDS, HOLDS], DECOMPOSITIONS: [FAILS]},
            "where it broke: decompositions (backend 'aot_eager_decomp_partition') is the first to fail; "
            "up to AOTAutograd it holds",
            id="the lane's own stage",
        ),
        pytest.param(
            {CAPTURE: [FAILS, HOLDS]},
            "where it broke: unknown, Dynamo's capture (backend 'eager') fails (wrong numbers), and then holds",
            id="a stage that fails once",
        ),
        pytest.param(
            {CAPTURE: [FAILS, RAISES]},
            "where it broke: unknown, Dynamo's capture (backend 'eager') fails (wrong numbers), "
            "and then fails (ValueError)",
            id="a stage that fails in two ways",
        ),
        pytest.param(
            {CAPTURE: [FAILS, FAILS], DECOMPOSITIONS: [HOLDS]},
            "where it broke: unknown, the lane itself fails (wrong numbers), and then holds",
            id="a lane that does not fail again",
        ),
        pytest.param(
            {CAPTURE: [HOLDS, FAILS], AOT: [FAILS, FAILS]},
            "where it broke: unknown, Dynamo's capture (backend 'eager') holds, and then fails (wrong numbers)",
            id="a stage that held once",
        ),
        pytest.param(
            {CAPTURE: [HOLDS], AOT: [RAISES]},
            "where it broke: unknown, AOTAutograd (backend 'aot_eager') fails (ValueError), "
            "where the lane failed differently (wrong numbers)",
            id="another fault than the lane's",
        ),
        pytest.param(
            {CAPTURE: [HOLDS], AOT: [HOLDS], DECOMPOSITIONS: [HOLDS]},
            "where it broke: unknown, the lane itself does not fail again",
            id="no stage at all",
        ),
        pytest.param(
            {CAPTURE: [HOLDS], AOT: [HOLDS], DECOMPOSITIONS: [Outcome(why="the test itself failed")]},
            "where it broke: unknown, the lane itself was not measured again: the test itself failed",
            id="a lane that is not measured again",
        ),
        pytest.param(
            {CAPTURE: [replace(HOLDS, backends=frozenset({"inductor"}))]},
            "where it broke: unknown, the test chooses its own backend: 'inductor' compiled instead of 'eager'",
            id="a body that names its backend, and holds",
        ),
        pytest.param(
            {CAPTURE: [replace(FAILS, backends=frozenset({"eager", "inductor"}))]},
            "where it broke: unknown, the test chooses its own backend: 'inductor' compiled instead of 'eager'",
            id="a body that names its backend in a part",
        ),
    ],
)
def test_names_a_stage_only_for_what_it_shows_twice(outcomes: dict[Stage, list[Outcome]], said: str) -> None:
    found = found_in(outcomes)

    assert found.lines() == [said]


def test_a_stage_that_was_not_measured_is_told_of() -> None:
    skipped = Outcome(why="nothing was compiled")

    found = found_in({CAPTURE: [HOLDS, HOLDS], AOT: [skipped], DECOMPOSITIONS: [FAILS]})

    assert found.lines() == [
        "where it broke: decompositions (backend 'aot_eager_decomp_partition') is the first to fail of those measured; "
        "up to Dynamo's capture it holds",
        "  AOTAutograd not measured: nothing was compiled",
    ]


def test_a_lane_of_the_first_stage_needs_but_one_more_run() -> None:
    found = first_to_fail((), CAPTURE, WRONG, in_turn({CAPTURE: [FAILS]}))

    assert found == Found(stage=CAPTURE)


def entry_of(measurement: Measurement, *violations: Violation) -> Entry:
    return Entry(
        contract="t.py::test",
        lane="aot",
        test="t.py::test[aot]",
        verdict="violated",
        environment="e",
        measurement=measurement,
        violations=violations,
    )


NUMERICS = Violation(limit="numerics='fp64' (default)", measured="1 difference")


@pytest.mark.parametrize(
    ("entry", "kinds"),
    [
        pytest.param(
            entry_of(
                Measurement(
                    backend="aot_eager",
                    raised=Raised(type="BackendCompilerFailed", message="m"),
                    backend_failures=(CompileFailure(frame=FRAME, type="ValueError", message="m"),),
                )
            ),
            {"ValueError"},
            id="what the backend raised",
        ),
        pytest.param(
            entry_of(Measurement(backend="eager", raised=Raised(type="TorchRuntimeError", message="m"))),
            {"TorchRuntimeError"},
            id="what Dynamo raised",
        ),
        pytest.param(
            entry_of(
                Measurement(
                    backend="eager",
                    numerics=Numerics(method="fp64", differences=(Difference(at="o", kind="value", detail="d"),)),
                ),
                NUMERICS,
            ),
            WRONG,
            id="wrong numbers",
        ),
        pytest.param(entry_of(Measurement(backend="eager"), NUMERICS), set(), id="numbers that were not compared"),
    ],
)
def test_tells_faults_by_their_kind(entry: Entry, kinds: set[str]) -> None:
    assert faults(entry) == kinds


@pytest.mark.parametrize(
    ("lane", "same"),
    [
        pytest.param(Lane(name="mine", backend="aot_eager"), True, id="nothing but its backend"),
        pytest.param(Lane(name="mine", backend="aot_eager", dtype="float16"), False, id="a dtype"),
        pytest.param(Lane(name="mine", backend="aot_eager", options={"a": 1}), False, id="options"),
        pytest.param(Lane(name="mine", backend="aot_eager", dynamo={"a": 1}), False, id="settings of Dynamo's"),
        pytest.param(replace(BUILT_IN["cudagraphs"], backend="aot_eager", mode=None), False, id="a device"),
    ],
)
def test_a_built_in_lane_stands_for_one_that_sets_no_more(lane: Lane, same: bool) -> None:
    assert is_built_in(lane, "aot") is same


@pytest.mark.parametrize(
    ("arguments", "typed"),
    [
        pytest.param(
            ("t.py::test_x[inductor]", "test_x[inductor]", "inductor", "aot", ()),
            "--contract-lanes=aot -- 't.py::test_x[aot]'",
            id="a built-in lane",
        ),
        pytest.param(
            ("a[inductor]/it's.py::test_x[inductor-b c]", "test_x[inductor-b c]", "inductor", "aot", ()),
            "--contract-lanes=aot -- " + shlex.quote("a[inductor]/it's.py::test_x[aot-b c]"),
            id="the lane's name in the file's, and quotes",
        ),
        pytest.param(
            ("t.py::test_x[half]", "test_x[half]", "half", "", ("--contract-set=a.b=4",)),
            "--contract-lanes=half --contract-bisect --contract-set=a.b=4 -- 't.py::test_x[half]'",
            id="a lane of one's own",
        ),
        pytest.param(
            ("t.py::test_x[aot]", "test_x[aot]", "aot", "aot", ()),
            "--contract-lanes=aot --contract-bisect -- 't.py::test_x[aot]'",
            id="the lane itself",
        ),
    ],
)
def test_the_command_shows_the_same(arguments: tuple[str, str, str, str, tuple[str, ...]], typed: str) -> None:
    assert str(command(*arguments)) == f"pytest --compile-contracts {typed}"


def test_settings_are_typed_as_they_were_given() -> None:
    given = ["torch._dynamo.config.recompile_limit=4", "torch._inductor.config.x='a b'"]
    session: Any = SimpleNamespace(getoption={"--contract-set": given}.get)

    command_line = str(Command(options=set_options(session)))

    assert shlex.split(command_line) == ["pytest", *(f"--contract-set={each}" for each in given)]
