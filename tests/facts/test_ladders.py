"""Ladders without a run: what each rung adds, and what is refused."""

from __future__ import annotations

import pytest

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.ladder import Frontier, Step, lacking, rung
from pytest_compilecontract.facts.lanes import BUILT_IN, Lane, lanes_from_table

TABLE = {
    "mine": {"backend": "inductor"},
    "exact": {"device": "cuda", "matmul_precision": "highest"},
    "scalars": {"dynamo": {"capture_scalar_outputs": True}, "requires": ["one"]},
    "sizes": {"dynamo": {"capture_dynamic_output_shape_ops": True}, "requires": ["two"]},
    "tuned": {"mode": "max-autotune"},
    "nothing": {"disable": True},
    "two": {"ranks": 2},
}
KNOWN = BUILT_IN | lanes_from_table(TABLE, where="pyproject.toml")


def lane(*names: str) -> Lane:
    return rung(names, KNOWN).lane


def test_a_value_that_is_the_default_is_set_where_the_table_gives_it() -> None:
    assert lane("aot", "mine").backend == "inductor"
    assert lane("aot", "exact").backend == "aot_eager"


def test_tables_are_added_to_those_below() -> None:
    top = lane("capture", "scalars", "sizes")

    assert top.dynamo == {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    assert top.requires == ("one", "two")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("aot", "cudagraphs"), "frontier: 'cudagraphs' applies to Inductor only: put 'inductor' before it"),
        (("capture", "tuned"), "frontier: 'tuned' applies to Inductor only: put 'inductor' before it"),
        (("eager", "capture"), "frontier: 'eager' compiles nothing"),
        (("capture", "nothing"), "frontier: 'nothing' compiles nothing"),
        (
            ("capture", "xla-torchax"),
            "frontier: 'xla-torchax' runs in a process of its own, but a ladder runs in one process",
        ),
        (("capture", "two"), "frontier: 'two' has ranks, but a ladder runs in one process"),
    ],
)
def test_a_rung_that_would_say_nothing_is_refused(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        lane(*names)

    assert str(refused.value) == message


def test_what_inductor_reads_stands_on_inductor_of_any_name() -> None:
    assert lacking(("aot", "mine", "tuned"), KNOWN) == ""
    assert lacking(("aot", "tuned"), KNOWN) == "inductor"


def test_a_lane_of_the_projects_that_has_a_dimensions_name_is_refused_unless_it_is_that() -> None:
    same = lanes_from_table({"autocast": {"autocast": "bfloat16"}}, where="pyproject.toml")
    other = lanes_from_table({"autocast": {"autocast": "float16"}}, where="pyproject.toml")

    assert rung(["capture", "autocast"], BUILT_IN | same).lane.autocast == "bfloat16"
    with pytest.raises(UsageError, match="'autocast' is a dimension, and also a lane of the project"):
        rung(["capture", "autocast"], BUILT_IN | other)


def test_no_lane_is_called_frontier() -> None:
    with pytest.raises(UsageError, match="this name is built in"):
        lanes_from_table({"frontier": {}}, where="pyproject.toml")


def test_one_reason_that_rungs_share_is_told_once() -> None:
    left_out = [Step(name=name, verdict="unmeasured", reason="left out") for name in ("capture", "aot")]
    launcher = Step(name="distributed", verdict="unmeasured", reason="no launcher")

    alike, two = Frontier(steps=tuple(left_out)), Frontier(steps=(*left_out, launcher))
    held = Frontier(steps=(Step(name="eager", verdict="held"), *left_out))

    assert alike.told() == "no rung was measured: left out"
    assert two.told() == "no rung was measured: capture, aot: left out; distributed: no launcher"
    assert held.told() == "holds up to eager (rung 1 of 3); capture, aot not measured: left out"


def test_a_ladder_whose_first_rung_fails_holds_on_no_rung() -> None:
    failed = Step(name="capture", verdict="failed", reason="max_recompiles=0: 1")

    assert Frontier(steps=(failed,)).told() == "holds on no rung of 1; capture does not: max_recompiles=0: 1"
