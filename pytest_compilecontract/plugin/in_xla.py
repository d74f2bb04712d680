"""The strategy of lanes that XLA compiles: the test runs in a process of its own, by the Python that has XLA.

The process is started and followed as a rank is (`launch`), and measures eager and compiled with its own torch.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.own_failure import OwnFailure

from .another import Another
from .current import Current, State
from .item import Contract
from .judged import Judged, Subject, failed, judged, unmeasured
from .launch import RankRun, launched_in_xla
from .process import environment_in
from .ranks import Launched, Ranked, cut
from .run import Turn
from .warm import started_again


class InXla(Ranked):
    """The strategy of lanes that XLA compiles."""

    def takes(self, contract: Contract) -> bool:
        """Whether its lane is one of XLA's, and not part of a ladder."""
        return contract.lane.is_xla and not contract.ladder and not contract.bare

    def whose(self, run: RankRun) -> str:
        """Whose output a process printed."""
        del run
        return "the lane's process"

    def _once(self, turn: Turn, earlier: tuple[Judged, ...]) -> Launched:
        """One process, judged together with the repeats before it."""
        contract = turn.contract
        turn.say(f"runs in a process of lane {contract.lane.name}")
        current = Current(State(contract=contract, lane=contract.lane, another=turn.another, earlier=earlier))
        with self._runs.surrounded(current):
            run = launched_in_xla(contract.item, contract.lane, turn.another, self._settings.timeout)
        current.note(*run.notes)
        torch = environment_in(self._runs.process, contract.lane).torch or ""
        measured = started_again(current.state, self._settings, cut(run))
        found = _judged(current.state.subject(self._runs.process), run, measured, turn.another, torch)
        if found.entry.verdict == "unmeasured" or found.entry.own_failure is not None:
            current.judge(found)
        else:
            current.judge_whole(found)
            current.drift(self._results.drift(current.state.judged))
        self._runs.conclude(current.state)
        blamed = run.end if found.entry.own_failure is not None else None
        return Launched(state=current.state, runs=(run,), blamed=blamed)


def _judged(
    subject: Subject, run: RankRun, measured: tuple[Measurement, ...], another: Another | None, torch: str
) -> Judged:
    """The verdict over what the process measured, or over how it ended."""
    end = run.end
    if end.kind == "skipped":
        return Judged(entry=replace(unmeasured(subject, end.said), seconds=end.seconds))
    other = another.lane if another is not None else None
    found = None
    if measured or end.kind == "passed":
        found = judged(subject, measurements=measured, seconds=end.seconds, torch_version=torch, other=other)
    if found is not None and (end.kind == "passed" or found.entry.verdict == "broken"):
        return found
    own = OwnFailure(phase=end.phase, exception=end.exception, said=end.said or end.kind)
    entry = failed(subject, f"in the process of lane {subject.lane.name}: {own}", found.entry if found else None, own)
    return Judged(entry=entry)
