"""The course of a run, as its events tell it: what has run, what is running, and what was measured. No files here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_compilecontract.facts.receipt import Entry, Environment

from .receipt import entry_from_data, environment_from_data

EVENTS_OPTION = "--contract-events"
# The environment of a test whose process died before any could say.
UNKNOWN = "unknown"


def event_from(line: bytes) -> dict[str, Any] | None:
    """What a line says; None for the half line that a process leaves where it dies."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


@dataclass(kw_only=True, slots=True)
class Course:
    """What the events have told so far."""

    count: int | None = None
    begun: int = 0
    done: int = 0
    running: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    environments: dict[str, Environment] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    ended: bool = False

    def take(self, event: dict[str, Any]) -> None:
        """One event."""
        kind = event.get("event")
        if kind == "collected":
            self.count = self.done + int(event["count"])
        elif kind == "problem":
            problem = f"{event['where']} could not be collected: {event['reason']}"
            if problem not in self.problems:
                self.problems.append(problem)
        elif kind == "start":
            self.begun += 1
            self.running[event["test"]] = event.get("subject")
        elif kind == "finish":
            self.done += 1
            self.running.pop(event["test"], None)
        elif kind == "entry":
            entry = entry_from_data(event["entry"])
            self.entries[entry.test] = entry
            self.environments[entry.environment] = environment_from_data(event["environment"])
        elif kind == "end":
            self.ended = True

    def lose(self, reason: str, *, broken: bool) -> None:
        """What was running did not come to its end: the tests are over, each for this reason."""
        for test, subject in self.running.items():
            self.done += 1
            if subject is None or test in self.entries:
                continue
            self.entries[test] = Entry(
                test=test,
                verdict="broken" if broken else "unmeasured",
                reason=reason,
                environment=UNKNOWN,
                **subject,
            )
        self.running.clear()

    def settle(self, otherwise: Environment) -> None:
        """Give what was lost the environment of what was not, or else what is known of it without a test."""
        lost = [test for test, entry in self.entries.items() if entry.environment == UNKNOWN]
        if not lost:
            return
        if not self.environments:
            self.environments[UNKNOWN] = otherwise
        name = next(iter(self.environments))
        for test in lost:
            self.entries[test] = replace(self.entries[test], environment=name)
