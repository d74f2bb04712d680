"""The session: what was measured of each contract in each lane, and the receipt. No pytest here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NotRequired, TypedDict

from pytest_compilecontract import __version__
from pytest_compilecontract.errors import ReceiptError, UsageError
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.limits import OBSERVED_LIMITS, Limits
from pytest_compilecontract.facts.receipt import RECEIPT, Entry, Environment, Receipt, cut_off, defaults_key, timestamp
from pytest_compilecontract.facts.shards import Shard
from pytest_compilecontract.files.codec import Data, plain
from pytest_compilecontract.files.course import Course, unfinished
from pytest_compilecontract.files.journal import ENDED, NAME, Journal, measured_by_workers, name_of
from pytest_compilecontract.files.receipt import entry_from_data, environment_from_data, write_receipt
from pytest_compilecontract.files.run_log import is_held
from pytest_compilecontract.regular import is_folder, refuse_special, stands_there
from pytest_compilecontract.report.terminal import Row, row_of

from .judged import Subject, failed
from .settings import Settings

# The environment of a test whose process died before it could say.
UNKNOWN = "unknown"


class Sent(TypedDict):
    """An entry and its environment as a report carries them, with notes on them."""

    entry: dict[str, Data]
    environment: dict[str, Data]
    # What the lane has otherwise than its project; why what was to be measured cannot be; torch's own defaults.
    notes: NotRequired[list[str]]
    unusable: NotRequired[str]
    defaults: NotRequired[dict[str, str]]


@dataclass(kw_only=True, slots=True)
class Session:
    """What one pytest run has measured so far."""

    settings: Settings
    # As it may be shown to others.
    command: str = ""
    # Each worker runs every test, so that a test has an entry of each.
    each: bool = False
    entries: dict[str, Entry] = field(default_factory=dict)
    environments: dict[str, Environment] = field(default_factory=dict)
    defaults: dict[str, dict[str, str]] = field(default_factory=dict)
    journal: Journal | None = None
    # The part of the suite that it holds, once that is known.
    shard: Shard | None = None
    # Why the session did not come to its end; empty where it did.
    cut_off: str = ""
    # By test, why what was to be measured cannot be measured here; and what lanes had otherwise than their project.
    unusable: dict[str, str] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    # What runs now, by its test, as it is if nothing more is heard of it.
    running: dict[str, Entry] = field(default_factory=dict)

    def open_journal(self, worker: str = "") -> None:
        """If a receipt was requested, start a journal, so that nothing is lost if the session is killed.

        Raises:
            UsageError: another running session writes to the same folder, or it cannot be written.
        """
        if self.settings.report is None:
            return
        if not worker and is_held(self.settings.report / NAME):
            raise UsageError(
                f"{self.settings.report}: another session is writing there, and its receipt would be lost "
                "(--contract-report takes a folder for each session)"
            )
        if not worker:
            self._refuse_what_cannot_be_written(self.settings.report)
        self.journal = Journal(self.settings.report / name_of(worker), plugin=__version__, created=timestamp())
        if self.journal.problem and not worker:
            raise UsageError(self.journal.problem)

    def _refuse_what_cannot_be_written(self, report: Path) -> None:
        """Report an unusable folder now, and not after the tests have run for an hour."""
        if stands_there(report) and not is_folder(report):
            raise UsageError(f"{report}: not a folder (--contract-report takes one)")
        try:
            refuse_special(report / RECEIPT)
        except (OSError, ValueError) as error:
            raise UsageError(f"{report / RECEIPT}: cannot be written ({error})") from error
        if is_folder(report / RECEIPT):
            raise UsageError(f"{report / RECEIPT}: cannot be written (a folder)")

    def cut_to(self, shard: Shard) -> None:
        """Note that the session runs a part of its suite."""
        self.shard = shard
        if self.journal is not None:
            self.journal.write("shard", shard=plain(shard))

    def begin(self, subject: Subject, environment: Environment) -> None:
        """Note that a lane starts."""
        self._begin(failed(subject, ENDED, None), environment)

    def begun(self, sent: Sent) -> None:
        """Note that a lane has started in a worker, as reported by it."""
        self._begin(entry_from_data(sent["entry"]), environment_from_data(sent["environment"]))

    def _begin(self, entry: Entry, environment: Environment) -> None:
        self.running[entry.test] = entry
        known = entry.environment in self.environments
        self.environments.setdefault(entry.environment, environment)
        # The result of an earlier run is not the result of this one.
        self.entries.pop(self._name(entry), None)
        if self.journal is not None:
            self.journal.begin(entry.test, entry, None if known else environment)

    def end(self, test: str) -> None:
        """Note that a test has ended, whether anything was measured or not."""
        self.running.pop(test, None)
        if self.journal is not None:
            self.journal.end(test)

    def cut(self, test: str, reason: str) -> None:
        """Note what ended the session while this test ran."""
        if test in self.running:
            self.running[test] = replace(self.running[test], reason=reason)

    def receive(self, sent: Sent) -> None:
        """Keep the entry of a report; a test that was rerun replaces its earlier entry."""
        if self.journal is not None:
            self.journal.keep(sent)
        entry = entry_from_data(sent["entry"])
        name = self._name(entry)
        self.entries[name] = entry
        self.environments[entry.environment] = environment_from_data(sent["environment"])
        self.notes.update(dict.fromkeys(sent.get("notes", ())))
        self.unusable.pop(name, None)
        if why := sent.get("unusable"):
            self.unusable[name] = why
        if defaults := sent.get("defaults"):
            self.defaults[defaults_key(defaults)] = dict(defaults)

    def lose(self, contract: str, lane: Lane, test: str, reason: str, limits: Limits | None = None) -> None:
        """Record a lane whose process died, with everything that was known of it."""
        self.environments.setdefault(UNKNOWN, Environment())
        subject = Subject(
            contract=contract, lane=lane, test=test, limits=limits or Limits(), environment=UNKNOWN, worker=""
        )
        self.entries[test] = failed(subject, reason, None)

    def lose_running(self, test: str, reason: str) -> bool:
        """Keep that a worker died with what it was running; whether anything is known of the test."""
        entry = self.running.get(test)
        if entry is None:
            # It had ended, and what it showed is known: it is not what the worker died of.
            return not self.each and test in self.entries
        name = self._name(entry)
        self.entries[name] = unfinished(entry, self.entries.get(name), reason)
        return True

    def receive_late(self) -> None:
        """For a run that was cut off, keep what no report has sent: measurements of workers, and the running tests."""
        course = Course() if self.settings.report is None else measured_by_workers(self.settings.report)
        course.running |= {test: each for test, each in self.running.items() if test not in course.finished}
        for begun in filter(None, course.running.values()):
            if (received := self.entries.get(name := self._name(begun))) is not None:
                self.entries[name] = unfinished(begun, received, begun.reason)
        course.lose("", broken=True)
        for entry in course.entries.values():
            name = self._name(entry)
            if name not in self.entries:
                self.entries[name] = entry
                known = course.environments.get(entry.environment, Environment())
                self.environments.setdefault(entry.environment, known)

    def _name(self, entry: Entry) -> str:
        return f"{entry.test} of {entry.worker}" if self.each else entry.test

    def nothing_measured(self) -> str:
        """If no lane was measured: the lanes that cannot be measured here, and why; empty otherwise."""
        if not self.unusable or any(each.verdict not in ("unmeasured", "reference") for each in self.entries.values()):
            return ""
        lanes: dict[str, dict[str, None]] = {}
        for test, why in self.unusable.items():
            lanes.setdefault(why, {})[self.entries[test].lane] = None
        told = "; ".join(f"{', '.join(names)} ({why})" for why, names in lanes.items())
        return f"no lane could be measured, so no contract is held: {told}"

    def torch_versions(self) -> str:
        """The torch that was measured; several if workers differ."""
        known = {each.torch or "unknown" for key, each in self.environments.items() if key != UNKNOWN}
        return ", ".join(sorted(known))

    def rows(self) -> list[Row]:
        """The entries as the terminal shows them."""
        return [
            replace(row_of(each), observed=each.limits == OBSERVED_LIMITS, no_warm=self._no_warm(each))
            for each in self.entries.values()
        ]

    def _no_warm(self, entry: Entry) -> str:
        """Why no second process was started for a lane, if one was asked for."""
        seen = entry.measurement
        if not self.settings.warm or seen is None or seen.warm is not None:
            return ""
        return seen.unmeasured.get("warm", "")

    def receipt(self) -> Receipt:
        """All of it, as one document."""
        return Receipt(
            plugin=__version__,
            created=timestamp(),
            environments=dict(self.environments),
            defaults=dict(self.defaults),
            entries=tuple(self.entries.values()),
            setup=cut_off(self.environments, self.cut_off) if self.cut_off else None,
            command=self.command,
            shard=self.shard,
            launch=self.settings.launch,
        )

    def write_report(self) -> Receipt | None:
        """Write `receipt.json` if requested; if nothing was measured, an earlier receipt is not replaced.

        Returns what was written, or None.

        Raises:
            ReceiptError: the folder or file cannot be written.
        """
        if self.settings.report is None:
            return None
        path = self.settings.report / RECEIPT
        made = self.receipt() if self.entries or self.shard is not None or not path.is_file() else None
        try:
            if made is not None:
                write_receipt(path, made)
        except ReceiptError:
            if self.journal is not None:
                self.journal.close()
            raise
        if self.journal is not None:
            self.journal.leave()
        return made
