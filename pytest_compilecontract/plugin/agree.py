"""The strategy of a lane that is held to another one (`same_as`): that one runs first, in the same test.

Elsewhere: what must be the same (`judge.agreement`), and how results are compared (`measure.beside`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from _pytest.skipping import evaluate_skip_marks

from pytest_compilecontract.errors import message_of
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.metrics import combined
from pytest_compilecontract.judge.agreement import OtherLane
from pytest_compilecontract.measure.installed import no_torch
from pytest_compilecontract.wording import first_line

from .another import Another
from .item import Contract
from .judged import failed
from .process import unavailable
from .results import Results
from .run import Run, Strategy, Turn, strategy_of


class Agreeing:
    """Runs the lane that `same_as` names, and then the contract's own in the way that `strategies` have for it."""

    def __init__(self, strategies: Sequence[Strategy], known: Mapping[str, Lane], results: Results) -> None:
        self._strategies = strategies
        self._known = known
        self._results = results

    def takes(self, contract: Contract) -> bool:
        """Whether the contract is to be compared with another of its lanes, which this one is not itself."""
        other = contract.limits.same_as
        return other is not None and other != contract.lane.name and not contract.lane.reference

    def reports(self, turn: Turn) -> list[pytest.TestReport]:
        """The reports of the contract's own lane."""
        contract = turn.contract
        assert contract.limits.same_as is not None
        other = self._known[contract.limits.same_as]
        if evaluate_skip_marks(contract.item):
            return [*turn.run_once(contract.lane, last=True).reports]
        if cannot := unavailable(other) if not no_torch() else "":
            turn.another = Another(lane=OtherLane(name=other.name, unusable=cannot))
        elif not no_torch() and not unavailable(contract.lane):
            turn.say(f"runs in lane {other.name} first (same_as)")
            run = turn.run_once(other, noted=False, keeps=True)
            if turn.process.lost:
                return self._lost(turn, run)
            turn.another = _found(other, run)
        strategy = strategy_of(self._strategies, contract)
        if strategy is not None:
            return strategy.reports(turn)
        return [*turn.run_once(contract.lane, last=True).reports]

    def _lost(self, turn: Turn, run: Run) -> list[pytest.TestReport]:
        """The reports of a test that lost the device of its process in the other lane: nothing else can run here."""
        why = f"in lane {run.state.lane.name!r} (same_as): {_why_ended(run)}"
        entry = failed(replace(run.state.subject(turn.process), lane=turn.contract.lane), why, None)
        report = next(each for each in run.reports if each.failed)
        report.longrepr = why
        self._results.attach(report, entry)
        return [*run.reports]


def _found(lane: Lane, run: Run) -> Another:
    """What the other lane showed, and what it kept."""
    compile_lane, ended = run.state.compile_lane, _why_ended(run)
    if ended or compile_lane is None or not compile_lane.measurements:
        return Another(lane=OtherLane(name=lane.name, ended=ended or "it measured nothing"))
    measurement = combined(tuple(compile_lane.measurements))
    return Another(
        lane=OtherLane(name=lane.name, measurement=measurement),
        kept=tuple(each.kept for each in compile_lane.beside.turns),
    )


def _why_ended(run: Run) -> str:
    """Why the other lane shows nothing; empty if its test ran to the end, whatever it is judged."""
    if run.skipped is not None:
        return f"the test was skipped there: {run.skipped}"
    if run.state.whole and (run.entry is None or run.entry.verdict != "broken"):
        return ""
    if run.entry is not None and run.entry.verdict == "broken":
        return run.entry.reason
    if run.state.cut_short:
        return f"the test failed there: {run.state.cut_short}"
    if (raised := run.state.raised) is None:
        return "the test did not end there"
    return f"the test failed there: {type(raised).__name__}: {first_line(message_of(raised))}"
