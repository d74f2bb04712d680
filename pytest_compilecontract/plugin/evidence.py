"""Evidence: `--contract-evidence` reruns a lane that is not held with torch's structured trace enabled.

The verdict and the counts come from the runs before it, which are not affected. The last run only leaves files for
debugging: `files.evidence` has its folder, `measure.probes.evidence` fills it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import one_line, printed
from pytest_compilecontract.facts.evidence import Evidence, folder_name, kind_of, lacking
from pytest_compilecontract.facts.ladder import Rung, Step, rung
from pytest_compilecontract.facts.metrics import METRICS, REPEATED, count_of
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.rerun import rerun_command
from pytest_compilecontract.files.codec import plain
from pytest_compilecontract.files.evidence import Folder, clear
from pytest_compilecontract.files.receipt import entry_from_data

from .current import State
from .item import Contract
from .results import add_to_entry
from .run import Strategy, Turn, strategy_of
from .settings import Settings
from .started import as_started
from .workers import ENTRY

# The backend at which nothing but Dynamo has had a part.
CAPTURE = "eager"


class Again(Protocol):
    """One more run of a lane, for evidence."""

    @property
    def backend(self) -> str:
        """The name of the lane's backend; empty if its test chooses it."""

    def run(self) -> str:
        """Run it; returns its outcome, beside that of the run before."""

    def minified(self, folder: Folder) -> str:
        """Add torch's minified program; returns why there is none, or an empty text."""


def with_evidence(
    turn: Turn,
    settings: Settings,
    run: Callable[[], list[pytest.TestReport]],
    again: Callable[[Entry], Again],
) -> list[pytest.TestReport]:
    """The reports of a run, which name the evidence that one more run leaves, if the lane is to show some."""
    folder = _folder_of(turn.contract, settings)
    clear(folder)
    reports = run()
    if (failed := _to_show(reports, held=settings.evidence_all)) is None:
        return reports
    report, entry = failed
    with turn.more(reports):
        found, why = _leave(turn, settings, folder, entry, again(entry))
    _tell(report, folder if found is not None else None, why)
    if found is not None:
        for each in reports:
            add_to_entry(each, evidence=plain(found))
    return reports


def without_evidence(contract: Contract, settings: Settings, reports: Sequence[pytest.TestReport], why: str) -> None:
    """Say in the reports of a lane that is to show some why it leaves no evidence."""
    clear(_folder_of(contract, settings))
    if (failed := _to_show(reports, held=settings.evidence_all)) is not None:
        _tell(failed[0], None, why)


def _folder_of(contract: Contract, settings: Settings) -> Path:
    assert settings.evidence is not None
    return settings.evidence / folder_name(contract.item.nodeid, contract.lane.name)


def _leave(turn: Turn, settings: Settings, path: Path, entry: Entry, again: Again) -> tuple[Evidence | None, str]:
    """The evidence of one more run, or why there is none."""
    config = turn.contract.item.config
    if turn.process.lost:
        return None, "the process has lost its CUDA device"
    if config.option.usepdb:
        return None, "not with --pdb, which would stop a second time"
    folder = Folder(path)
    if not folder.open():
        return None, "; ".join(folder.problems)
    from pytest_compilecontract.measure.probes.evidence import Evidence as Traced
    from pytest_compilecontract.measure.recorder import Measuring

    turn.say("evidence: running once more with torch's structured trace on")
    with Traced(folder, Measuring.going_on) as traced:
        shown = again.run()
    trouble = [each for each in (traced.missing, traced.problem) if each]
    left_out = [*lacking({kind_of(each) for each in folder.files}, again.backend), *trouble]
    if why := again.minified(folder):
        left_out.append(f"minified program: {why}")
    command = str(as_started(config, rerun_command(entry)).logging(again.backend))
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
    assert settings.evidence is not None
    base = settings.report or settings.evidence.parent
    found = Evidence(
        folder=Path(os.path.relpath(path, base)).as_posix(),
        shown=shown,
        files=tuple(folder.files),
        left_out=(*left_out, *folder.all_problems()),
    )
    return found, ""


def _to_show(reports: Sequence[pytest.TestReport], *, held: bool) -> tuple[pytest.TestReport, Entry] | None:
    """The report of a lane that leaves evidence, and its entry: of one that is not held, or with `held`, of any."""
    for report in reports:
        if (sent := vars(report).get(ENTRY)) is None:
            continue
        try:
            entry = entry_from_data(sent["entry"])
        except ReceiptError:
            return None
        if entry.verdict in ("unmeasured", "reference"):
            continue
        # A test of which a subtest failed may itself pass.
        if held or report.failed or entry.verdict == "broken":
            return report, entry
    return None


def _tell(report: pytest.TestReport, path: Path | None, why: str) -> None:
    """Name the folder of the evidence in the failure, if it is one, or say why there is none."""
    line = printed(f"evidence: {path}" if path is not None else f"no evidence: {why}")
    if report.failed and isinstance(report.longrepr, str):
        report.longrepr = f"{report.longrepr}\n{line}"
    else:
        report.sections.append(("compile contract", line))


def shown(entry: Entry, before: Entry, *, drifted: bool) -> str:
    """The outcome of a run for evidence, beside the lane's own verdict."""
    now = "drifted" if drifted and entry.verdict == "held" else entry.verdict
    if entry.measurement is not None and before.measurement is not None:
        one, other = _counts(entry), _counts(before)
        if one != other:
            differs = ", ".join(f"{name} {other[name]} -> {one[name]}" for name in one if one[name] != other[name])
            return f"{now}, not as before: {differs}"
        return f"{now}, with the same counts"
    return now


class Evidencing:
    """The strategy around all others: their reports, with evidence if a lane is not held."""

    def __init__(self, inner: Sequence[Strategy], settings: Settings) -> None:
        self._inner = inner
        self._settings = settings

    def takes(self, contract: Contract) -> bool:
        """Whether a strategy takes it, or it would be run once."""
        return strategy_of(self._inner, contract) is not None or not contract.ladder

    def reports(self, turn: Turn) -> list[pytest.TestReport]:
        """The reports of the contract, which name its evidence."""

        def run() -> list[pytest.TestReport]:
            inner = strategy_of(self._inner, turn.contract)
            return inner.reports(turn) if inner is not None else [*turn.run_once(turn.contract.lane).reports]

        return with_evidence(turn, self._settings, run, partial(_OnceMore, turn, self._settings))


class _OnceMore:
    """One more run of a contract: of the rung that did not hold, if it climbs."""

    def __init__(self, turn: Turn, settings: Settings, before: Entry) -> None:
        self._turn = turn
        self._settings = settings
        self._before = before
        # Before there is one more, whose state is another.
        self._state = turn.state
        self._ran = self._rung()
        self._lane = self._ran.lane if self._ran is not None else turn.contract.lane

    @property
    def backend(self) -> str:
        return self._lane.backend

    def run(self) -> str:
        ran = self._ran
        steps = _below(self._state) if ran is not None else ()
        # With empty caches: of what a cache has, torch traces no graphs.
        run = self._turn.run_once(replace(self._lane, cache="lane"), rung=ran, steps=steps, noted=False)
        if run.entry is None:
            return f"the test was skipped: {run.skipped}" if run.skipped else "nothing was measured"
        if run.failed and not run.state.failed:
            return "the test itself failed"
        return shown(run.entry, self._before, drifted=bool(run.state.drifted))

    def minified(self, folder: Folder) -> str:
        turn = self._turn
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

    def _rung(self) -> Rung | None:
        """The rung of a ladder that did not hold, to be rerun in the same way."""
        turn, state = self._turn, self._state
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


def _counts(entry: Entry) -> dict[str, int | None]:
    assert entry.measurement is not None
    return {METRICS[name].label: count_of(name, entry.measurement) for name in REPEATED}


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
