"""The session: what was measured of each contract in each lane, and the receipt of it. Knows no pytest."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from . import __version__
from .contract import Limits, Verdict, Violation, doubts, judge, undecided, verdict
from .lanes import Lane
from .measurement import Measurement, combined
from .receipt import (
    Entry,
    Environment,
    Receipt,
    entry_from_data,
    environment_from_data,
    write_receipt,
)
from .report.terminal import Row, counts_of
from .settings import Settings

# The environment of a test whose process died before it could say.
UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """Who is judged: a contract in a lane, run by a test, somewhere."""

    contract: str
    lane: Lane
    test: str
    limits: Limits
    environment: str
    worker: str
    card: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One lane of a contract, judged: the entry for the receipt, and what is to be said if it failed."""

    entry: Entry
    doubts: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return self.entry.verdict not in ("held", "unmeasured", "reference")


@dataclass(kw_only=True, slots=True)
class Session:
    """What one pytest run has measured so far."""

    settings: Settings
    entries: dict[str, Entry] = field(default_factory=dict)
    environments: dict[str, Environment] = field(default_factory=dict)

    def receive(self, sent: Mapping[str, Any]) -> None:
        """Keep what a report brought; a test that ran again replaces what it showed before."""
        entry = entry_from_data(sent["entry"])
        self.entries[entry.test] = entry
        self.environments[entry.environment] = environment_from_data(sent["environment"])

    def lose(self, contract: str, lane: Lane, test: str, reason: str) -> None:
        """Keep that a lane took its process with it, and all that was known of it."""
        self.environments.setdefault(UNKNOWN, Environment())
        subject = Subject(contract=contract, lane=lane, test=test, limits=Limits(), environment=UNKNOWN, worker="")
        self.entries[test] = failed(subject, reason, None)

    def torch_versions(self) -> str:
        """The torch that was measured; several where workers differ."""
        known = {each.torch or "unknown" for key, each in self.environments.items() if key != UNKNOWN}
        return ", ".join(sorted(known))

    def rows(self) -> list[Row]:
        """The entries as the terminal shows them."""
        return [
            Row(
                contract=each.contract,
                lane=each.lane,
                verdict=each.verdict,
                counts=counts_of(each.measurement) if each.measurement else {},
                reason=each.reason,
            )
            for each in self.entries.values()
        ]

    def receipt(self) -> Receipt:
        """All of it, as one document."""
        return Receipt(
            plugin=__version__,
            created=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            environments=dict(self.environments),
            entries=tuple(self.entries.values()),
        )

    def write_report(self) -> None:
        """Write `receipt.json`, where the session was asked for one; nothing measured replaces no earlier receipt.

        Raises:
            ReceiptError: the folder or file cannot be written.
        """
        if self.settings.report is None:
            return
        path = self.settings.report / "receipt.json"
        if self.entries or not path.is_file():
            write_receipt(path, self.receipt())


def judged(subject: Subject, *, measurements: tuple[Measurement, ...], seconds: float, torch_version: str) -> Judged:
    """Judge what one test measured in one lane."""
    measurement = combined(measurements) if measurements else None
    violations: tuple[Violation, ...] = ()
    doubted: tuple[str, ...] = ()
    outcome: Verdict = "reference"
    if measurement is None:
        outcome = "violated"
        violations = (Violation(limit="something to measure", measured="the test used nothing of compile_lane"),)
    elif not subject.lane.reference:
        violations = judge(subject.limits, measurement, torch_version=torch_version)
        doubted = tuple(dict.fromkeys(each for part in measurements for each in doubts(subject.limits, part)))
        outcome = verdict(measurement, violations, doubted)
    said = [f"{each.limit}: {each.measured}" for each in violations]
    open_limits = undecided(subject.limits, measurement) if measurement is not None else ()
    entry = _entry(
        subject,
        verdict=outcome,
        reason="; ".join([*said, *doubted, *open_limits]),
        violations=violations,
        measurement=measurement,
        seconds=seconds,
    )
    return Judged(entry=entry, doubts=doubted)


def unmeasured(subject: Subject, reason: str) -> Entry:
    """The entry of a lane that cannot run here, or whose test was skipped."""
    return _entry(subject, verdict="unmeasured", reason=reason)


def failed(subject: Subject, reason: str, measured: Entry | None) -> Entry:
    """The entry of a lane whose test failed by itself; what was measured till then is kept."""
    if measured is None:
        return _entry(subject, verdict="broken", reason=reason)
    return replace(measured, verdict="broken", reason=reason)


def _entry(subject: Subject, **facts: Any) -> Entry:
    return Entry(
        contract=subject.contract,
        lane=subject.lane.name,
        test=subject.test,
        limits=subject.limits.to_dict(),
        lane_settings=subject.lane.to_dict(),
        environment=subject.environment,
        worker=subject.worker,
        card=subject.card,
        **facts,
    )
