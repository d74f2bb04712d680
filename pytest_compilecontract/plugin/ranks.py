"""The strategy that runs a contract in several ranks: one process each, at the same time, judged as one lane.

Elsewhere: how ranks are started and followed (`launch`), what they do (`rank`), and the verdict (`over_ranks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from _pytest.skipping import evaluate_skip_marks

from pytest_compilecontract import clock
from pytest_compilecontract.facts.lanes import not_run_again
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.ranks import RankEnd
from pytest_compilecontract.measure.installed import no_torch, torch_version

from .current import Current, State
from .expected import expect, expected
from .item import Contract
from .judged import Judged
from .launch import RankRun, launched, turn_of
from .over_ranks import OfRank, over_ranks
from .phases import compiled_anything
from .process import no_ranks, unavailable
from .results import Results, add_to_reason, failure_of
from .run import Runs, Turn
from .settings import Settings
from .warm import started_again


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """The outcome of one launch: the state of the contract, its ranks, and the one to blame."""

    state: State
    runs: tuple[RankRun, ...]
    blamed: RankEnd | None


class Ranked:
    """The strategy of lanes with ranks that are processes."""

    def __init__(self, settings: Settings, runs: Runs, results: Results) -> None:
        self._settings = settings
        self._runs = runs
        self._results = results

    def takes(self, contract: Contract) -> bool:
        """Whether its lane has ranks and is not part of a ladder, which one process climbs."""
        return contract.lane.is_launched and not contract.ladder

    def reports(self, turn: Turn) -> list[pytest.TestReport]:
        """The reports of the lane: one for all ranks and all repeats."""
        item, lane = turn.contract.item, turn.contract.lane
        cannot = no_torch() or (no_ranks(lane) if turn.contract.bare else unavailable(lane))
        if cannot or evaluate_skip_marks(item):
            return [*turn.run_once(lane, last=True).reports]
        mark = expected(item)
        started = clock.seconds()
        over = self._repeated(turn)
        reports = self._reported(over, clock.seconds() - started)
        self._say_what_is_left_out(over, reports)
        if mark is not None:
            expect(mark, reports)
        return reports

    def whose(self, run: RankRun) -> str:
        """Whose output a process printed."""
        return f"rank {run.end.rank}"

    def _say_what_is_left_out(self, over: Launched, reports: Sequence[pytest.TestReport]) -> None:
        """Say what options ask for that needs further runs of the lane, which there are none of."""
        found, contract = over.state.judged, over.state.contract
        why = not_run_again(contract.lane.to_dict())
        if found is not None and found.failed and _is_bisected(contract):
            from .bisect import not_bisected

            add_to_reason(reports, not_bisected(found.entry, why))
        if self._settings.evidence is not None:
            from .evidence import without_evidence

            without_evidence(contract, self._settings, reports, why)

    def _repeated(self, turn: Turn) -> Launched:
        """The last of one launch per repeat, judged over all of them."""
        earlier: tuple[Judged, ...] = ()
        for _ in range(self._settings.repeat):
            turn.forget()
            over = self._once(turn, earlier)
            own = over.state.own
            if own is None or over.blamed is not None:
                return over
            earlier = (*earlier, own)
        return over

    def _once(self, turn: Turn, earlier: tuple[Judged, ...]) -> Launched:
        """One launch, judged together with the repeats before it."""
        contract = turn.contract
        lane = contract.lane
        assert lane.ranks is not None
        turn.say(f"runs in {lane.ranks} ranks")
        current = Current(State(contract=contract, lane=lane, earlier=earlier))
        with self._runs.surrounded(current), turn_of(contract.item, lane.ranks):
            began = clock.seconds()
            runs = launched(contract.item, lane, self._settings.timeout)
            seconds = clock.seconds() - began
        current.note(*dict.fromkeys(note for run in runs for note in run.notes))
        measured = [each for run in runs for each in run.measurements]
        blamed = None
        if measured or not contract.inherited or any(run.end.kind != "passed" for run in runs):
            blamed = self._judge(current, runs, seconds)
        if contract.inherited and blamed is None and not compiled_anything(measured):
            current.judge(None)
        self._runs.conclude(current.state)
        return Launched(state=current.state, runs=runs, blamed=blamed)

    def _judge(self, current: Current, runs: Sequence[RankRun], seconds: float) -> RankEnd | None:
        # No rank is started again: what is said of that, is said here.
        measured = [started_again(current.state, self._settings, cut(run)) for run in runs]
        given = [OfRank(end=run.end, measurements=each) for run, each in zip(runs, measured, strict=True)]
        subject = current.state.subject(self._runs.process)
        subject = replace(subject, gpu=", ".join(dict.fromkeys(run.gpu for run in runs if run.gpu)))
        found, blamed = over_ranks(subject, given, seconds=seconds, torch_version=torch_version())
        if blamed is None and found.entry.verdict != "unmeasured":
            current.judge_whole(found)
            current.drift(self._results.drift(current.state.judged))
        else:
            current.judge(found)
        return blamed

    def _reported(self, over: Launched, seconds: float) -> list[pytest.TestReport]:
        state = over.state
        report = _report(state.contract.item, "call", seconds)
        found = state.judged
        if found is not None and found.entry.verdict == "unmeasured":
            item = state.contract.item
            report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: {found.entry.reason}")
        elif said := [*_failed(over), *filter(None, [state.drifted])]:
            report.outcome, report.longrepr = "failed", "\n".join(said)
            report.sections += [
                (f"Output of {self.whose(run)}", run.output)
                for run in over.runs
                if len(run.output.strip()) > len(".")  # pytest's own sign for the test
            ]
        if found is not None:
            self._results.attach(report, found.entry, state)
        item = state.contract.item
        return [_report(item, "setup", 0.0), report, _report(item, "teardown", 0.0)]


def _is_bisected(contract: Contract) -> bool:
    """Whether it would be bisected in a lane that is run again."""
    return not contract.bare and bool(contract.item.config.getoption("--contract-bisect"))


def cut(run: RankRun) -> tuple[Measurement, ...]:
    """What a rank measured, with what cut it short."""
    return tuple(replace(each, cut_short=run.cut_short or each.cut_short) for each in run.measurements)


def _failed(over: Launched) -> list[str]:
    """The failure text of a lane that did not hold; empty if it did."""
    found, blamed = over.state.judged, over.blamed
    if found is None or not found.failed:
        return []
    if blamed is None or found.entry.own_failure is None:
        return [failure_of(over.state)]
    others = [f"then {run.end}" for run in over.runs if run.end.rank != blamed.rank and run.end.kind != "passed"]
    text = next(run.text for run in over.runs if run.end.rank == blamed.rank)
    return [found.entry.reason, *others, *filter(None, [text])]


def _report(item: pytest.Item, when: str, seconds: float) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="passed",
        longrepr=None,
        when=when,  # type: ignore[arg-type]
        duration=seconds,
        user_properties=[*item.user_properties],
    )
