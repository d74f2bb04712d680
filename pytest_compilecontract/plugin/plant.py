"""Planting: `--contract-plant` reruns each lane that holds with one planted fault at a time.

A run without a fault comes first: it has to hold again, and it finds where faults can be planted. The lane's own
verdict and measurement stay as they were; its entry also has the outcome of each fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from _pytest.skipping import evaluate_xfail_marks

from pytest_compilecontract import clock
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import printed
from pytest_compilecontract.facts.faults import (
    DeviceFault,
    Fault,
    FrameFault,
    GradientFault,
    GraphSkipped,
    LimitReached,
    Raises,
    RandomDrawn,
    RecompileMore,
)
from pytest_compilecontract.facts.planted import Planted, survivors
from pytest_compilecontract.facts.receipt import RECEIPT
from pytest_compilecontract.files.whole import write_bytes
from pytest_compilecontract.judge.planted import Shown, advised, judged
from pytest_compilecontract.report.planted import html, markdown, planted_lines
from pytest_compilecontract.wording import counted

from .history import History
from .item import Contract
from .results import add_to_entry
from .run import Run, Turn
from .session import Session

if TYPE_CHECKING:
    from pytest_compilecontract.facts.receipt import Entry
    from pytest_compilecontract.measure.planting import Looking, Planting

# Not one of the faults': the run that comes before them.
FIRST = "the run without a fault"
# Why a fault was not planted, as the journal has it of a run that is killed before.
ENDED = "the process ended before it was planted"


class Sowing:
    """The strategy that plants faults in lanes that hold, and the session's report on them."""

    def __init__(self, faults: Sequence[Fault], session: Session, history: History) -> None:
        self._faults = faults
        self._session = session
        self._history = history

    def takes(self, contract: Contract) -> bool:
        """Whether the contract has one lane, in which it is expected to hold."""
        item = contract.item
        expected = evaluate_xfail_marks(item) is not None and not item.config.option.runxfail
        return not contract.ladder and not expected

    def reports(self, turn: Turn) -> list[pytest.TestReport]:
        """The reports of the lane, with the outcome of each fault if it holds."""
        run = turn.run_once(turn.contract.lane)
        if run.entry is not None and run.entry.verdict == "held" and not run.failed:
            with turn.more(run.reports):
                planted = self._sown(turn, run.reports)
            _attach(run.reports, planted)
        return [*run.reports]

    # the runs of one lane

    def _sown(self, turn: Turn, reports: Sequence[pytest.TestReport]) -> tuple[Planted, ...]:
        """The outcome of each fault. The outcomes so far are kept with the lane's `reports`."""
        from pytest_compilecontract.measure.planting import Looking, Planting, starts_of, steady_of

        looking = Looking()
        started = clock.seconds()
        with looking.entered(None):
            again = turn.run_once(turn.contract.lane, noted=False)
            shown = self._shown(turn, again)
        if why := _not_again(shown):
            seconds = clock.seconds() - started
            return tuple(
                Planted(fault=each.name, outcome="not applicable", why=why, seconds=seconds if not at else 0.0)
                for at, each in enumerate(self._faults)
            )
        assert shown.entry is not None
        seen = shown.entry.measurement
        calls = seen.calls if seen is not None else None
        starts = starts_of(calls, looking.graphs_run)
        steady = steady_of(calls, starts)
        whys = {each.name: _nowhere(each, again, looking, starts, steady) for each in self._faults}
        runs = counted(sum(not why for why in whys.values()), "fault")
        turn.say(f"plants {runs}, one per run; the run without a fault took {clock.seconds() - started:.1f} s")
        found: list[Planted] = []
        for number, fault in enumerate(self._faults, start=1):
            why = "the process has lost its CUDA device" if turn.process.lost else whys[fault.name]
            if why:
                found.append(Planted(fault=fault.name, outcome="not applicable", why=why))
                continue
            planting = Planting(fault, site=looking.site(fault, starts), starts=starts, steady=steady)
            found.append(self._one(turn, planting, first=shown))
            left = [Planted(fault=each.name, outcome="not applicable", why=ENDED) for each in self._faults[number:]]
            _attach(reports, (*found, *left))
            turn.keep(reports)
        return tuple(found)

    def _one(self, turn: Turn, planting: Planting, *, first: Shown) -> Planted:
        """The outcome of one fault."""
        fault = planting.fault
        started = clock.seconds()
        with planting.entered(fault):
            again = turn.run_once(turn.contract.lane, noted=False)
            shown = self._shown(turn, again)
        seconds = clock.seconds() - started
        if why := _not_planted(planting):
            return Planted(fault=fault.name, outcome="not applicable", why=why, seconds=seconds)
        outcome, by = judged(fault, shown)
        why = ""
        if outcome == "not noticed":
            assert first.entry is not None
            why = (
                f"the test skips itself: {again.skipped}"
                if again.skipped is not None
                else advised(fault, turn.contract.limits, first.entry.measurement, backward=bool(planting.asked))
            )
        return Planted(fault=fault.name, outcome=outcome, by=by, why=why, seconds=seconds)

    def _shown(self, turn: Turn, again: Run) -> Shown:
        """What one more run showed."""
        raised = again.state.raised
        own = raised is not None and (not again.state.failed or not isinstance(raised, pytest.fail.Exception))
        return Shown(
            entry=again.entry,
            drifted=self._drifted(turn, again.entry) if again.state.drifted else (),
            own=type(raised).__name__ if own else "",
            asserted=own and isinstance(raised, AssertionError),
        )

    def _drifted(self, turn: Turn, entry: Entry | None) -> tuple[str, ...]:
        """The metrics that drifted from a lane's baseline."""
        if entry is None:
            return ()
        try:
            held = self._history.hold(entry, turn.process.where()[1], {})
        except ReceiptError:
            return ()
        return tuple(each.metric for each in held.lane.drifts if each.gates) if held is not None else ()

    # the session

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        entries = [*self._session.entries.values()]
        if (folder := self._session.settings.report) is not None and entries:
            for name, text in (("planted.md", markdown(entries)), ("planted.html", html(entries))):
                try:
                    write_bytes(folder / name, text.encode())
                except ReceiptError:
                    session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        if session.exitstatus == pytest.ExitCode.OK and any(survivors(each.planted) for each in entries):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        entries = [*self._session.entries.values()]
        lines = planted_lines(entries, terminalreporter.verbosity)
        terminalreporter.write_sep("=", lines[0][0])
        for text, markup in lines[1:]:
            terminalreporter.write_line(printed(text), **markup)
        if count := sum(len(survivors(each.planted)) for each in entries):
            terminalreporter.write_line(f"exit code 1: {counted(count, 'planted fault')} not noticed", red=True)
        if (folder := self._session.settings.report) is not None and entries:
            terminalreporter.write_line(f"every fault: {folder / RECEIPT}, planted.md and planted.html beside it")


def _attach(reports: Sequence[pytest.TestReport], planted: Sequence[Planted]) -> None:
    """Send the outcomes of the faults with the lane's entry."""
    from pytest_compilecontract.files.codec import plain

    for report in reports:
        add_to_entry(report, planted=plain(planted))


def _not_again(shown: Shown) -> str:
    """Why nothing can be planted in a lane, which has to hold again first."""
    entry = shown.entry
    if entry is None:
        return f"{FIRST} measured nothing"
    if entry.verdict != "held" or shown.own or shown.drifted:
        said = entry.reason or shown.own or ", ".join(shown.drifted)
        return f"{FIRST} did not hold again: {said.splitlines()[0] if said else entry.verdict}"
    return ""


def _nowhere(fault: Fault, again: Run, looking: Looking, starts: Sequence[int], steady: int | None) -> str:
    """Why a fault cannot be planted in a lane; empty if it can."""
    if looking.missing:
        return looking.missing
    if isinstance(fault, DeviceFault):
        return _not_on_device(fault, again)
    if not looking.graphs_run:
        return "no compiled graph runs"
    if isinstance(fault, FrameFault):
        if not looking.compiled:
            return "it is compiled before the test runs"
        if isinstance(fault, RecompileMore) and steady is None:
            return "no later call uses what the first has compiled"
        return "compiled code is called only once" if isinstance(fault, LimitReached) and len(starts) < 2 else ""
    if fault.calls == "third" and len(starts) < 3:
        return "there are fewer than three calls"
    if isinstance(fault, (Raises, RandomDrawn)) or looking.site(fault, starts) is not None:
        return ""
    return (
        "it would change nothing here"
        if fault.name in looking.idle
        else NOTHING_FITS.get(fault.name, "no output fits the fault")
    )


NOTHING_FITS = {
    "input-written": "no graph has a floating-point input",
    "parameter-written": "no graph has a floating-point parameter",
    "alias": "no input has the size and dtype of an output",
    "alias-lost": "no output shares memory with an input",
    "not-updated": "no graph writes to an input",
    "detached": "no output has a gradient",
    **dict.fromkeys(("grad-doubled", "grad-off", "grad-nan", "grad-missing"), "no output has a gradient"),
}


def _not_on_device(fault: Fault, again: Run) -> str:
    from pytest_compilecontract.measure.probes.device import has_cuda

    if not has_cuda():
        return "no CUDA device"
    made = again.state.compile_lane
    if made is None or made.device.type != "cuda":
        return "the lane does not run on a CUDA device"
    if isinstance(fault, GraphSkipped) and not again.state.lane.asks_for_cuda_graphs:
        return "the lane asks for no CUDA graphs"
    return ""


def _not_planted(planting: Planting) -> str:
    """Why a fault was not planted in a run; empty if it was."""
    if planting.took:
        return ""
    if planting.missing or planting.problem:
        return f"could not be planted: {planting.missing or planting.problem}"
    # A gradient that nobody asks for is one that nobody looks at: then it is not noticed.
    if isinstance(planting.fault, GradientFault) and planting.placed and not planting.asked:
        return ""
    if isinstance(planting.fault, FrameFault):
        return "nothing was compiled, or not called again"
    return "it changed nothing"
