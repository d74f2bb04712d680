"""Finishing a session after all tests: its receipt, its baselines, and what the terminal shows."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_compilecontract.baselines.gone import gone
from pytest_compilecontract.compare.waivers import from_here
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import plain, printed
from pytest_compilecontract.facts.receipt import PAGE, RECEIPT, Receipt, environment_key
from pytest_compilecontract.regular import is_folder
from pytest_compilecontract.report.baselines import baseline_lines, record_lines
from pytest_compilecontract.report.comparison import waiving
from pytest_compilecontract.report.facts import fact_lines
from pytest_compilecontract.report.gone import gone_lines
from pytest_compilecontract.report.terminal import Line, headline, summary_lines
from pytest_compilecontract.wording import counted

from .collect import Collecting
from .elsewhere import elsewhere_lines, given_paths, not_found_lines
from .gather import gathered
from .history import History, Summary
from .run_page import write_run_page
from .session import UNKNOWN, Session
from .started import session_command

if TYPE_CHECKING:
    from pytest_compilecontract.baselines.store import Recorded


class Finishing:
    """The part of the plugin that writes and reports what was measured; only in the controller."""

    def __init__(
        self, session: Session, history: History, collecting: Collecting, worker: str, start: Sequence[str]
    ) -> None:
        self._session = session
        self._settings = session.settings
        self._history = history
        self._collecting = collecting
        self._worker = worker
        self._start = start
        self._held: Summary | None = None
        self._recorded: Recorded | None = None
        self._gone: tuple[str, ...] = ()
        self._problem = ""
        self._receipt: Receipt | None = None
        self._page_problem = ""
        # Whether the tests came to their end; they also do where a failure is to be the last (`-x`).
        self._over = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        try:
            result = yield
        except pytest.Session.Failed:
            self._over = True
            raise
        self._over = True
        return result

    # Last, when pytest-xdist has ended the workers.
    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._worker or self._settings.rest is not None or session.config.option.collectonly:
            return
        self._session.cut_off = self._cut_off(session.exitstatus)
        if self._session.cut_off:
            self._session.receive_late()
        self._problem = "\n".join(filter(None, (self._write(), self._nothing_measured())))
        self._write_page()
        if self._problem and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _cut_off(self, exitstatus: int) -> str:
        """Why the session was cut off; empty if it was not."""
        if exitstatus == pytest.ExitCode.INTERNAL_ERROR:
            return "pytest had an internal error"
        # A second Ctrl+C while pytest tells of the first leaves the status that it had before.
        told = exitstatus in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.USAGE_ERROR)
        stopped = not self._over and (bool(self._session.running) or not told)
        return "it was interrupted" if stopped or exitstatus == pytest.ExitCode.INTERRUPTED else ""

    def _write(self) -> str:
        """Write all files; return problems, one line each."""
        try:
            self._receipt = self._gathered(self._session.write_report())
            return self._hold_to_history()
        except ReceiptError as error:
            return str(error)

    def _gathered(self, own: Receipt | None) -> Receipt | None:
        """The receipt of this process; if it is one of several ranks, that of all ranks so far."""
        settings = self._settings
        if own is None or not settings.launch or settings.report is None:
            return own
        shared = settings.report.parent if settings.rank else settings.report
        made = gathered(shared, settings.rank, own)
        if settings.rank:
            # That of rank 0 has the ranks that ended before it.
            self._page_problem = write_run_page(shared / PAGE, made, settings.root, {}, self._start)
            return own
        return made

    def _write_page(self) -> None:
        """Write the receipt as a page, if there is one; a failure here changes nothing else."""
        if self._receipt is not None and self._settings.report is not None:
            drifted = self._history.drifted(self._held)
            page = self._settings.report / PAGE
            problem = write_run_page(page, self._receipt, self._settings.root, drifted, self._start)
            self._page_problem = self._page_problem or problem

    def _nothing_measured(self) -> str:
        why = "" if self._settings.allow_unmeasured else self._session.nothing_measured()
        return f"{why} (--contract-allow-unmeasured accepts that)" if why else ""

    def _hold_to_history(self) -> str:
        entries, environments = self._session.entries.values(), self._session.environments
        # Before recording, which would make this run its own baseline.
        self._held = self._history.summary(entries, environments, self._session.defaults)
        if not self._settings.rank:
            self._recorded = self._history.record(entries, environments, self._session.defaults)
        self._gone = self._find_gone()
        problems = [plain(line) for line in self._history.stale(self._held)]
        compared = any(each.lane.compared for each in self._held.held)
        if self._settings.asked_for_baselines and self._settings.record is None and not compared:
            problems.append(f"nothing was compared with the baselines in {self._settings.baselines}")
        if self._settings.record is not None and not entries:
            problems.append("no contract ran, so there was nothing to record")
        return "\n".join(problems)

    def _find_gone(self) -> tuple[str, ...]:
        """Contracts in the baselines that no longer exist; removed if this run records everything."""
        collected = self._collecting.collected
        if collected is None:
            return ()
        baselines, root = self._history.baselines, self._settings.root
        keys = {environment_key(each) for name, each in self._session.environments.items() if name != UNKNOWN}
        found = {key: gone(baselines, key, collected, root) for key in sorted(keys)}
        if self._trims:
            for key, contracts in found.items():
                baselines.remove(key, contracts)
        return tuple(dict.fromkeys(contract for contracts in found.values() for contract in contracts))

    @property
    def _trims(self) -> bool:
        """Whether this run recorded everything: no part of the tests, no part of the lanes."""
        whole = self._settings.record == "all" and not self._settings.rank
        return whole and not self._collecting.deselected and not self._settings.asked_for_lanes

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if terminalreporter.config.option.collectonly:
            return
        rows = self._history.marked(self._session.rows(), self._held)
        terminalreporter.write_sep("=", headline(rows, self._session.torch_versions()))
        config = terminalreporter.config
        session = session_command(config, given_paths(config))
        told = gone_lines(self._gone, str(self._settings.baselines), removed=self._trims, session=session)
        facts = fact_lines(self._session.entries.values(), every=False) if terminalreporter.verbosity > 1 else []
        lines = (*summary_lines(rows, terminalreporter.verbosity), *facts, *self._history_lines(config), *told)
        for text, markup in (
            *lines,
            *elsewhere_lines(config),
            *not_found_lines(config, self._collecting.not_found),
            *self._surroundings(),
            *self._closing(),
        ):
            terminalreporter.write_line(printed(text), **markup)

    def _history_lines(self, config: pytest.Config) -> list[Line]:
        session = session_command(config, given_paths(config), choice=True)
        if self._recorded is not None:
            asked = self._settings.record or "all"
            return record_lines(self._recorded, str(self._settings.baselines), asked, session)
        if self._held is None or not is_folder(self._settings.baselines):
            return []
        held = self._held.held
        lanes = [(each.found, each.lane) for each in held]
        mode = next((each.record for each in held if each.lane.verdict == "improved"), "changed")
        return baseline_lines(lanes, len(self._held.new), self._held.known, mode, session)

    def _surroundings(self) -> list[Line]:
        """Notes on how this run differs from an ordinary one."""
        lines: list[Line] = []
        if overrides := self._settings.overrides:
            said = ", ".join(f"{name}={value!r}" for name, value in overrides.items())
            lines.append((f"non-default torch settings, so baselines are not compared: {said}", {"yellow": True}))
        if self._settings.repeat > 1 and self._session.entries:
            climbed = any(entry.frontier is not None for entry in self._session.entries.values())
            once = ", each ladder climbed once" if climbed else ""
            lines.append((f"each lane was measured {self._settings.repeat} times{once}", {}))
        if shard := self._session.shard:
            lines.append((f"{shard}: {counted(len(shard.tests), 'test')}", {}))
        lines += [(f"set differently in the lane: {note}", {"yellow": True}) for note in self._session.notes]
        if self._settings.rank and (self._settings.report is not None or self._settings.record is not None):
            own = "what this process measured goes to a folder of its own, and to the receipt of all ranks beside it"
            ranks = [own] if self._settings.report else []
            ranks += ["the baselines are those of rank 0, which records them"] if self._settings.record else []
            lines.append((f"RANK={self._settings.rank}: {'; '.join(ranks)}", {}))
        return lines

    def _closing(self) -> list[Line]:
        error: list[Line] = [(f"ERROR: {self._problem}", {"red": True})] if self._problem else []
        if self._settings.report is None or (error and self._receipt is None):
            return [*error, *self._page_line()]
        nothing = " (nothing was measured: an existing one is left unchanged)"
        kept = "" if self._session.entries else nothing
        return [
            *error,
            (f"receipt: {self._settings.report / RECEIPT}{kept}", {}),
            *self._page_line(),
            *self._waiving(self._settings.report),
        ]

    def _waiving(self, report: Path) -> list[Line]:
        """The command that waives drifted lanes, as an alternative to recording them."""
        if self._held is None or self._recorded is not None:
            return []
        keys = {each.found.key for each in self._held.held if each.lane.verdict == "drifted"}
        folder = self._settings.baselines
        return [(line, {}) for key in sorted(keys) for line in waiving(from_here(folder / key), from_here(report))]

    def _page_line(self) -> list[Line]:
        if self._receipt is None or self._settings.report is None:
            return []
        if self._page_problem:
            return [(f"no page was written: {self._page_problem}", {"yellow": True})]
        return [(f"page: {self._settings.report / PAGE}", {})]
