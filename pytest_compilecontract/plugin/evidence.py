"""Evidence: `--contract-evidence` reruns a lane that is not held with torch's structured trace enabled.

The verdict and the counts come from the runs before it, which are not affected. The last run only leaves files for
debugging: `files.evidence` has its folder, `measure.probes.evidence` fills it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import one_line, printed
from pytest_compilecontract.facts.evidence import Evidence, folder_name, kind_of, lacking
from pytest_compilecontract.facts.ladder import Rung, Step, rung
from pytest_compilecontract.facts.metrics import METRICS, count_of
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.rerun import rerun_command
from pytest_compilecontract.files.codec import plain
from pytest_compilecontract.files.evidence import Folder, clear
from pytest_compilecontract.files.receipt import entry_from_data

from .current import State
from .item import Contract
from .results import add_to_entry
from .run import Run, Strategy, Turn, strategy_of
from .settings import Settings
from .started import as_started
from .workers import ENTRY

# The backend at which nothing but Dynamo has had a part.
CAPTURE = "eager"
# What a run for evidence has to show as often as the one before it.
_SAME_AGAIN = ("graphs", "graph_breaks", "recompiles", "eager_frames")


class Evidencing:
    """The strategy around all others: their reports, with evidence if a lane is not held."""

    def __init__(self, inner: Sequence[Strategy], settings: Settings) -> None:
        assert settings.evidence is not None
        self._inner = inner
        self._settings = settings
        self._root: Path = settings.evidence

    def takes(self, contract: Contract) -> bool:
        """Whether a strategy takes it, or it would be run once."""
        return strategy_of(self._inner, contract) is not None or not contract.ladder

    def reports(self, turn: Turn) -> list[pytest.TestReport]:
        """The reports of the contract, which name its evidence."""
        contract = turn.contract
        folder = self._root / folder_name(contract.item.nodeid, contract.lane.name)
        clear(folder)
        inner = strategy_of(self._inner, contract)
        reports = inner.reports(turn) if inner is not None else [*turn.run_once(contract.lane).reports]
        report = next((each for each in reports if each.failed and vars(each).get(ENTRY)), None)
        if report is None or (entry := _not_held(report)) is None:
            return reports
        with turn.more(reports):
            found, why = self._left(turn, turn.state, folder, entry)
        _tell(report, f"evidence: {folder}" if found is not None else f"no evidence: {why}")
        if found is not None:
            for each in reports:
                add_to_entry(each, evidence=plain(found))
        return reports

    def _left(self, turn: Turn, state: State, path: Path, entry: Entry) -> tuple[Evidence | None, str]:
        """The evidence of one more run, or why there is none."""
        if turn.process.lost:
            return None, "the process has lost its CUDA device"
        if turn.contract.item.config.option.usepdb:
            return None, "not with --pdb, which would stop a second time"
        folder = Folder(path)
        if not folder.open():
            return None, "; ".join(folder.problems)
        from pytest_compilecontract.measure.probes.evidence import Evidence as Traced
        from pytest_compilecontract.measure.recorder import Measuring

        ran = self._rung(turn, state)
        lane = ran.lane if ran is not None else turn.contract.lane
        turn.say("evidence: running once more with torch's structured trace on")
        with Traced(folder, Measuring.going_on) as traced:
            # With empty caches: of what a cache has, torch traces no graphs.
            run = turn.run_once(
                replace(lane, cache="lane"), rung=ran, steps=_below(state) if ran is not None else (), noted=False
            )
        trouble = [each for each in (traced.missing, traced.problem) if each]
        shown = _shown(run, entry)
        left_out = [*lacking({kind_of(each) for each in folder.files}, lane.backend), *trouble]
        if why := self._minified(turn, folder):
            left_out.append(f"minified program: {why}")
        command = str(as_started(turn.contract.item.config, rerun_command(entry)).logging(lane.backend))
        facts: dict[str, object] = {
            "contract": entry.contract,
            "lane": entry.lane,
            "test": entry.test,
            "verdict": entry.verdict,
            "reason": entry.reason,
            "shown": shown,
            "live": command,
        }
        folder.close(facts, left_out, _readme(entry, shown, command))
        base = self._settings.report or self._root.parent
        found = Evidence(
            folder=Path(os.path.relpath(path, base)).as_posix(),
            shown=shown,
            files=tuple(folder.files),
            left_out=(*left_out, *folder.all_problems()),
        )
        return found, ""

    def _minified(self, turn: Turn, folder: Folder) -> str:
        """Add the program that torch's minifier makes of a failing stage; returns why there is none, or ""."""
        if turn.broke is None:
            return "" if turn.contract.bare else "--contract-bisect names no stage that fails"
        if turn.broke.lane.backend == CAPTURE:
            return f"{turn.broke.told} fails, before there is a graph"
        if turn.process.lost:
            return "the process has lost its CUDA device"
        from pytest_compilecontract.measure.probes.minifier import SECONDS, minified, settings

        try:
            scratch = folder.scratch()
            lane, asked = turn.broke.lane, settings(scratch, numbers=turn.broke.numbers)
            turn.run_once(replace(lane, cache="lane", dynamo={**lane.dynamo, **asked}), noted=False)
            turn.say(f"evidence: torch's minifier, {SECONDS:.0f} s at most")
            text, inputs, why = minified(scratch)
        except OSError as error:
            return f"{error.strerror or error}"
        if text:
            folder.add("minified", "", "py", text)
            folder.add_inputs(inputs)
        return why

    def _rung(self, turn: Turn, state: State) -> Rung | None:
        """The rung of a ladder that did not hold, to be rerun in the same way."""
        if not turn.contract.ladder:
            return None
        if state.rung is not None:
            return state.rung
        climbed = [each.name for each in state.steps if each.verdict == "held"]
        failed = [each.name for each in state.steps if each.verdict == "failed"]
        # Where none failed, what is not held is how far it climbs, or its baseline: then its top is to be seen.
        return rung([*climbed, *failed] or turn.contract.ladder[:1], self._settings.known)


def _below(state: State) -> tuple[Step, ...]:
    """The steps below the one that failed."""
    verdicts = [each.verdict for each in state.steps]
    return state.steps[: verdicts.index("failed")] if "failed" in verdicts else state.steps


def _not_held(report: pytest.TestReport) -> Entry | None:
    """The entry of a lane that is not held, by its limits or by its baseline."""
    try:
        entry = entry_from_data(vars(report)[ENTRY]["entry"])
    except ReceiptError:
        return None
    return entry if entry.verdict not in ("unmeasured", "reference") else None


def _shown(run: Run, before: Entry) -> str:
    """The outcome of the evidence run, beside the lane's own verdict."""
    entry = run.entry
    if entry is None:
        return f"{'the test was skipped: ' + run.skipped if run.skipped else 'nothing was measured'}"
    if run.failed and not run.state.failed:
        return "the test itself failed"
    now = "drifted" if run.state.drifted and entry.verdict == "held" else entry.verdict
    if entry.measurement is not None and before.measurement is not None:
        one, other = _counts(entry), _counts(before)
        if one != other:
            differs = ", ".join(f"{name} {other[name]} -> {one[name]}" for name in one if one[name] != other[name])
            return f"{now}, not as before: {differs}"
        return f"{now}, with the same counts"
    return now


def _counts(entry: Entry) -> dict[str, int | None]:
    assert entry.measurement is not None
    return {METRICS[name].label: count_of(name, entry.measurement) for name in _SAME_AGAIN}


def _readme(entry: Entry, shown: str, command: str) -> list[str]:
    reason = f" ({one_line(entry.reason)})" if entry.reason else ""
    return [
        f"# {one_line(entry.contract)}, lane {one_line(entry.lane)}",
        "",
        f"{entry.verdict}{reason}. One more run, with torch's structured trace on: {one_line(shown)}.",
        "",
        "To see the same while it runs:",
        "",
        f"    {command}",
    ]


def _tell(report: pytest.TestReport, line: str) -> None:
    """Name the evidence folder in the failure."""
    if isinstance(report.longrepr, str):
        report.longrepr = f"{report.longrepr}\n{printed(line)}"
    else:
        report.sections.append(("compile contract", printed(line)))
