"""Sowing: with `--contract-plant` each lane that holds is run again with one fault planted at a time.

A run without a fault comes first: it has to hold once more, and it says what there is to plant faults in. The lane's
own verdict and measurement stay as they were; what became of the faults is beside them in its entry.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol
from _pytest.skipping import evaluate_xfail_marks

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

from .repeat import forget, tear_down_the_rest

if TYPE_CHECKING:
    from pytest_compilecontract.facts.receipt import Entry
    from pytest_compilecontract.measure.planting import Looking, Planting

    from .hooks import Contract, Hooks

# Not one of the faults': the run that comes before them.
FIRST = "the run without a fault"


@dataclass(kw_only=True, slots=True)
class Again:
    """One more run of a lane: its reports, and what the test itself raised."""

    reports: list[pytest.TestReport] = field(default_factory=list)
    raised: BaseException | None = None


class Sowing:
    """The part of the plugin that is there only where `--contract-plant` asks for it."""

    def __init__(self, hooks: Hooks, faults: Sequence[Fault]) -> None:
        self._hooks = hooks
        self._faults = faults
        self._again: Again | None = None

    def takes(self, item: pytest.Item, contract: Contract) -> bool:
        """Whether the contract has one lane, and is to hold in it."""
        expected = evaluate_xfail_marks(item) is not None and not item.config.option.runxfail
        return contract.limits.frontier is None and not expected

    def reports(self, item: pytest.Item, contract: Contract, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """The reports of the lane, with what became of each fault if it holds."""
        before = len(item._report_sections), len(item.user_properties)
        with self._hooks.surrounded(contract):
            reports = runtestprotocol(item, log=False, nextitem=item.parent)  # type: ignore[arg-type]
        entry = contract.judged.entry if contract.judged is not None else None
        if entry is not None and entry.verdict == "held" and not any(report.failed for report in reports):
            sections, properties = item._report_sections[before[0] :], item.user_properties[before[1] :]
            kept = contract.judged, contract.drifted, contract.runs, contract.compile_lane
            planted = self._sown(item, contract, entry, before)
            contract.judged, contract.drifted, contract.runs, contract.compile_lane = kept
            forget(item, *before)
            item._report_sections.extend(sections)
            item.user_properties.extend(properties)
            _attach(reports, planted)
        return [*reports, *tear_down_the_rest(item, nextitem)]

    # the runs of one lane

    def _sown(
        self, item: pytest.Item, contract: Contract, entry: Entry, before: tuple[int, int]
    ) -> tuple[Planted, ...]:
        from pytest_compilecontract.measure.planting import Looking, Planting, starts_of, steady_of

        looking = Looking()
        started = time.perf_counter()
        with looking.entered(None):
            shown = self._shown(contract, self._rerun(item, contract, before))
        if why := _not_again(shown):
            seconds = time.perf_counter() - started
            return tuple(
                Planted(fault=each.name, outcome="not applicable", why=why, seconds=seconds if not at else 0.0)
                for at, each in enumerate(self._faults)
            )
        assert shown.entry is not None
        seen = shown.entry.measurement
        calls = seen.calls if seen is not None else None
        starts = starts_of(calls, looking.graphs_run)
        steady = steady_of(calls, starts)
        found: list[Planted] = []
        for fault in self._faults:
            if self._hooks.lost:
                why = "the process has lost its CUDA device"
            else:
                why = _nowhere(fault, contract, looking, starts, steady)
            if why:
                found.append(Planted(fault=fault.name, outcome="not applicable", why=why))
                continue
            planting = Planting(fault, site=looking.site(fault, starts), starts=starts, steady=steady)
            found.append(self._one(item, contract, before, planting, first=shown))
        return tuple(found)

    def _one(
        self, item: pytest.Item, contract: Contract, before: tuple[int, int], planting: Planting, *, first: Shown
    ) -> Planted:
        """What becomes of one fault."""
        fault = planting.fault
        started = time.perf_counter()
        with planting.entered(fault):
            again = self._rerun(item, contract, before)
            shown = self._shown(contract, again)
        seconds = time.perf_counter() - started
        if why := _not_planted(planting):
            return Planted(fault=fault.name, outcome="not applicable", why=why, seconds=seconds)
        outcome, by = judged(fault, shown)
        why = ""
        if outcome == "not noticed":
            skipped = next((report for report in again.reports if report.skipped), None)
            assert first.entry is not None
            why = (
                f"the test skips itself: {self._hooks.why_skipped(skipped)}"
                if skipped is not None
                else advised(fault, contract.limits, first.entry.measurement, backward=bool(planting.asked))
            )
        return Planted(fault=fault.name, outcome=outcome, by=by, why=why, seconds=seconds)

    def _rerun(self, item: pytest.Item, contract: Contract, before: tuple[int, int]) -> Again:
        forget(item, *before)
        self._again = again = Again()
        try:
            with self._hooks.surrounded(contract):
                again.reports = runtestprotocol(item, log=False, nextitem=item.parent)  # type: ignore[arg-type]
        finally:
            self._again = None
        return again

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report: pytest.TestReport = yield
        if self._again is not None and call.excinfo is not None and self._again.raised is None and report.failed:
            self._again.raised = call.excinfo.value
        return report

    def _shown(self, contract: Contract, again: Again) -> Shown:
        """What one more run showed."""
        entry = contract.judged.entry if contract.judged is not None else None
        by_us = contract.drifted or (contract.judged is not None and contract.judged.failed)
        raised = again.raised
        own = raised is not None and (not by_us or not isinstance(raised, pytest.fail.Exception))
        return Shown(
            entry=entry,
            drifted=self._drifted(entry) if contract.drifted else (),
            own=type(raised).__name__ if own else "",
            asserted=own and isinstance(raised, AssertionError),
        )

    def _drifted(self, entry: Entry | None) -> tuple[str, ...]:
        """The metrics that a lane's baseline found otherwise."""
        if entry is None:
            return ()
        try:
            held = self._hooks.history.hold(entry, self._hooks.where()[1], {})
        except ReceiptError:
            return ()
        return tuple(each.metric for each in held.lane.drifts if each.gates) if held is not None else ()

    # the session

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        entries = [*self._hooks.session.entries.values()]
        if (folder := self._hooks.session.settings.report) is not None and entries:
            for name, text in (("planted.md", markdown(entries)), ("planted.html", html(entries))):
                try:
                    write_bytes(folder / name, text.encode())
                except ReceiptError:
                    session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        if session.exitstatus == pytest.ExitCode.OK and any(survivors(each.planted) for each in entries):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        entries = [*self._hooks.session.entries.values()]
        lines = planted_lines(entries, terminalreporter.verbosity)
        terminalreporter.write_sep("=", lines[0][0])
        for text, markup in lines[1:]:
            terminalreporter.write_line(printed(text), **markup)
        if self._hooks.session.settings.report is not None and entries:
            folder = self._hooks.session.settings.report
            terminalreporter.write_line(f"every fault: {folder / RECEIPT}, planted.md and planted.html beside it")


def _attach(reports: Sequence[pytest.TestReport], planted: tuple[Planted, ...]) -> None:
    """Send what became of the faults with the lane's entry."""
    from pytest_compilecontract.files.codec import value_to_data

    for report in reports:
        if (kept := vars(report).get("compile_contract")) is not None:
            entry = {**kept["entry"], "planted": value_to_data(planted)}
            vars(report)["compile_contract"] = {**kept, "entry": entry}


def _not_again(shown: Shown) -> str:
    """Why nothing can be planted in a lane: it has to hold once more."""
    entry = shown.entry
    if entry is None:
        return f"{FIRST} measured nothing"
    if entry.verdict != "held" or shown.own or shown.drifted:
        said = entry.reason or shown.own or ", ".join(shown.drifted)
        return f"{FIRST} did not hold again: {said.splitlines()[0] if said else entry.verdict}"
    return ""


def _nowhere(fault: Fault, contract: Contract, looking: Looking, starts: Sequence[int], steady: int | None) -> str:
    """Why a fault cannot be planted in a lane; empty where it can."""
    if looking.missing:
        return looking.missing
    if isinstance(fault, DeviceFault):
        return _not_on_device(fault, contract)
    if not looking.graphs_run:
        return "no compiled graph runs"
    if isinstance(fault, FrameFault):
        if not looking.compiled:
            return "it is compiled before the test runs"
        if isinstance(fault, RecompileMore) and steady is None:
            return "no later call uses what the first has compiled"
        return "compiled code is called once" if isinstance(fault, LimitReached) and len(starts) < 2 else ""
    if fault.calls == "third" and len(starts) < 3:
        return "there are fewer than three calls"
    if isinstance(fault, (Raises, RandomDrawn)) or looking.site(fault, starts) is not None:
        return ""
    return (
        "it changes nothing here" if fault.name in looking.idle else NOTHING_FITS.get(fault.name, "no output fits it")
    )


NOTHING_FITS = {
    "input-written": "no graph has a floating input",
    "parameter-written": "no graph has a floating parameter",
    "alias": "no input has the room and dtype of an output",
    "alias-lost": "no output shares memory with an input",
    "not-updated": "no graph writes to an input",
    "detached": "no output has a gradient",
    **dict.fromkeys(("grad-doubled", "grad-off", "grad-nan", "grad-missing"), "no output has a gradient"),
}


def _not_on_device(fault: Fault, contract: Contract) -> str:
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device"
    if contract.compile_lane is None or contract.compile_lane.device.type != "cuda":
        return "the lane does not run on a CUDA device"
    if isinstance(fault, GraphSkipped) and not contract.lane.asks_for_cuda_graphs:
        return "the lane asks for no CUDA graphs"
    return ""


def _not_planted(planting: Planting) -> str:
    """Why a run had no fault in it; empty where it had."""
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
