"""Ladders: a contract with a frontier runs once per rung, each from a clean start, as one test with one verdict.

Elsewhere: what a ladder is (`facts.ladder`), how a walk is judged (`judged`), and how a rung is measured (`run`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from pytest_compilecontract.facts.ladder import Rung, Step, completed, lacking, rung
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.verdict import lines_of

from .expected import expect, expected
from .item import Contract
from .judged import Judged, over_walk, unmeasured
from .results import Results, failure_of
from .run import Run, Turn


@dataclass(frozen=True, kw_only=True, slots=True)
class Climbed:
    """The outcome of one rung: what it measured, or why it was skipped; `unusable` if it cannot run here.

    `ended` says that the test itself ended the walk, and `trained` whether anything was trained.
    """

    judged: Judged | None = None
    skipped: str | None = None
    unusable: bool = False
    ended: bool = False
    trained: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """How far a contract climbed: its steps so far, and what the rungs measured.

    `cannot_climb`: a rung cannot run here, and nothing else ended the walk. `ended`: the test itself ended it.
    """

    steps: tuple[Step, ...] = ()
    runs: tuple[Judged, ...] = ()
    cannot_climb: bool = False
    ended: bool = False


NOTHING_TRAINED = "nothing was trained: from this rung on, compile_lane.run trains"


def climbed(
    names: Sequence[str], known: Mapping[str, Lane], climb: Callable[[Rung, tuple[Step, ...]], Climbed]
) -> Walk:
    """The walk up a ladder: `climb` runs a rung above the steps below it. The first rung that fails is the last."""
    steps: list[Step] = []
    runs: list[Judged] = []
    below: list[str] = []
    cannot, left_out = False, False
    for name in names:
        if needed := lacking((*below, name), known):
            reason = f"it needs {needed!r} below it, which was not measured"
            steps.append(Step(name=name, verdict="unmeasured", reason=reason))
            continue
        found = climb(rung((*below, name), known), tuple(steps))
        if found.skipped is not None:
            steps.append(Step(name=name, verdict="unmeasured", reason=found.skipped))
            cannot, left_out = cannot or found.unusable, left_out or not found.unusable
            continue
        if found.ended or found.judged is None:
            # Its own failure, which says what it was; or pytest was told to set up or show, and not to run.
            return Walk(steps=tuple(steps), runs=tuple(runs), ended=True)
        step = _step(name, found, trains=rung((*below, name), known).trains)
        steps.append(step)
        if step.verdict == "unmeasured":
            continue
        runs.append(found.judged)
        if step.verdict == "failed":
            break
        below.append(name)
    # By a mark, by --contract-lanes or by the test itself: then nothing was to be measured.
    return Walk(steps=tuple(steps), runs=tuple(runs), cannot_climb=cannot and not (left_out and not runs))


def _step(name: str, found: Climbed, *, trains: bool) -> Step:
    assert found.judged is not None
    if trains and not found.trained:
        return Step(name=name, verdict="unmeasured", reason=NOTHING_TRAINED)
    if not found.judged.failed:
        return Step(name=name, verdict="held")
    entry = found.judged.entry
    details = lines_of(fact for each in entry.violations for fact in each.facts)
    return Step(name=name, verdict="failed", reason=entry.reason, details=details)


def ended_by_itself(run: Run) -> bool:
    """Whether the test failed on a rung by itself, and not because the lane of the rung does not hold."""
    # A subtest may have caught what the lane raised.
    by_lane = run.judged is not None and run.judged.failed
    return any(each.failed for each in run.reports) or (run.state.failed_within and not by_lane)


class Climbing:
    """The strategy that climbs ladders."""

    def __init__(self, known: Mapping[str, Lane], results: Results) -> None:
        self._known = known
        self._results = results

    def takes(self, contract: Contract) -> bool:
        """Whether the contract has a ladder to run."""
        if not contract.ladder:
            return False
        mark = expected(contract.item)
        return mark is None or mark.run

    def reports(self, turn: Turn) -> list[pytest.TestReport]:
        """The reports of a walk; an xfail mark applies to the whole walk, not to a rung."""
        mark = expected(turn.contract.item)
        option = turn.contract.item.config.option
        before, option.runxfail = option.runxfail, True
        try:
            reports = self._walked(turn)
        finally:
            option.runxfail = before
        if mark is not None:
            expect(mark, reports)
        return reports

    def _walked(self, turn: Turn) -> list[pytest.TestReport]:
        """The reports of the highest rung that ran, with the verdict over the walk."""
        shown: list[Run] = []

        def climb(wanted: Rung, steps: tuple[Step, ...]) -> Climbed:
            run = turn.run_once(wanted.lane, rung=wanted, steps=steps)
            left_out = run.skipped is not None and not run.failed
            if not left_out or not shown:
                shown[:] = [run]
            return Climbed(
                judged=run.judged,
                skipped=run.skipped if left_out else None,
                unusable=run.unusable,
                ended=ended_by_itself(run),
                trained=run.trained,
            )

        walk = climbed(turn.contract.ladder, self._known, climb)
        reports = [*shown[0].reports] if shown else []
        if not walk.ended:
            self._judge(turn, walk, shown[0], reports)
        return reports

    def _judge(self, turn: Turn, walk: Walk, top: Run, reports: list[pytest.TestReport]) -> None:
        """Judge a finished walk, on the report of the highest rung that ran."""
        contract = turn.contract
        walked = completed(walk.steps, contract.ladder)
        # In the lane that the whole ladder comes to, whichever of its rungs ran last.
        climber = replace(top.state.subject(turn.process), lane=contract.lane)
        report = next((each for each in reports if each.when == "call"), reports[-1])
        if not walk.runs:
            entry = replace(unmeasured(climber, walked.left_out()), frontier=walked)
            turn.conclude(replace(top.state, steps=walk.steps))
            self._results.attach(report, entry, unusable=walk.cannot_climb)
            return
        found = over_walk(climber, walk.runs, walked)
        drifted = self._results.drift(found)
        over = replace(top.state, lane=contract.lane, rung=None, steps=walk.steps, judged=found, drifted=drifted)
        turn.conclude(over)
        said = [failure_of(over)] if found.failed else []
        if said and contract.item.config.getoption("--contract-bisect"):
            said.append("where it broke: not searched in a ladder: its failing rung names what was added")
        if drifted:
            said.append(drifted)
        if said:
            report.outcome, report.longrepr = "failed", "\n".join(said)
        self._results.attach(report, found.entry, over, unusable=walk.cannot_climb)
