"""How far a ladder is climbed: what stops a walk, what is left out, and what is below each rung. No test is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_compilecontract.facts.ladder import Rung, Step
from pytest_compilecontract.facts.lanes import BUILT_IN, Lane
from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.verdict import Violation
from pytest_compilecontract.plugin.climb import NOTHING_TRAINED, Climbed, Walk, climbed
from pytest_compilecontract.plugin.judged import Judged, Subject, judged

LADDER = ("capture", "aot", "train", "inductor")
SUBJECT = Subject(contract="c", lane=Lane(name="frontier"), test="t", limits=Limits(), environment="e", worker="")


def an_entry(verdict: str, **facts: Any) -> Judged:
    measured = judged(SUBJECT, measurements=(Measurement(graphs=1),), seconds=0.0, torch_version="2.13.0")
    entry: Entry = measured.entry
    return Judged(
        entry=Entry(**{name: getattr(entry, name) for name in Entry.__slots__} | {"verdict": verdict} | facts)
    )


HELD = Climbed(judged=an_entry("held", reason="", violations=()), trained=True)
FAILS = Climbed(
    judged=an_entry(
        "violated", reason="max_graphs=0: 1", violations=(Violation(limit="l", measured=1, details=("at",)),)
    ),
    trained=True,
)


def walked(found: Mapping[str, Climbed], names: tuple[str, ...] = LADDER) -> tuple[Walk, dict[str, tuple[str, ...]]]:
    """The walk, and by each rung that ran the steps below it."""
    below: dict[str, tuple[str, ...]] = {}

    def climb(rung: Rung, steps: tuple[Step, ...]) -> Climbed:
        below[rung.name] = tuple(step.name for step in steps)
        return found.get(rung.name, HELD)

    return climbed(names, BUILT_IN, climb), below


def verdicts(walk: Walk) -> list[str]:
    return [step.verdict for step in walk.steps]


def test_all_rungs_are_climbed_where_all_hold() -> None:
    walk, below = walked({})

    assert verdicts(walk) == ["held"] * 4
    assert (len(walk.runs), walk.cannot_climb, walk.ended) == (4, False, False)
    assert below["inductor"] == ("capture", "aot", "train")


def test_the_first_rung_that_fails_is_the_last_with_its_lines() -> None:
    walk, below = walked({"aot": FAILS})

    assert verdicts(walk) == ["held", "failed"]
    assert walk.steps[1].details == ("at",)
    assert "train" not in below


def test_a_rung_that_cannot_run_here_is_left_out_of_those_above() -> None:
    walk, below = walked({"aot": Climbed(skipped="no such backend", unusable=True)})

    assert verdicts(walk) == ["held", "unmeasured", "held", "held"]
    assert walk.steps[1].reason == "no such backend"
    assert (walk.cannot_climb, len(walk.runs)) == (True, 3)
    assert below["train"] == ("capture", "aot")


def test_what_is_skipped_throughout_by_a_mark_was_not_to_be_measured() -> None:
    skipped = Climbed(skipped="unconditional skip")
    unusable = Climbed(skipped="lane cannot run", unusable=True)

    assert walked(dict.fromkeys(LADDER, skipped))[0].cannot_climb is False
    assert walked(dict.fromkeys(LADDER, unusable))[0].cannot_climb is True
    assert walked(dict.fromkeys(LADDER, skipped) | {"aot": unusable})[0].cannot_climb is False


def test_a_rung_that_trains_nothing_is_left_out_of_those_above() -> None:
    walk, _ = walked({"train": Climbed(judged=HELD.judged, trained=False)})

    assert verdicts(walk) == ["held", "held", "unmeasured", "held"]
    assert walk.steps[2].reason == NOTHING_TRAINED
    assert len(walk.runs) == 3


@pytest.mark.parametrize(
    "ends", [Climbed(judged=HELD.judged, ended=True), Climbed()], ids=["failed by itself", "nothing"]
)
def test_a_test_that_ends_the_walk_itself_has_no_more_steps(ends: Climbed) -> None:
    walk, _ = walked({"aot": ends})

    assert (verdicts(walk), walk.ended) == (["held"], True)
