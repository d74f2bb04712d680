"""The course of a run, from its log: what has run, what is running, and what was measured. No file access here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.facts.receipt import Entry, Environment
from pytest_compilecontract.facts.shards import Shard

from .codec import value_from_data
from .receipt import entry_from_data, environment_from_data
from .run_log import Event
from .sense import entry_faults

# The log of a run for whoever started it: the option that asks for it, and what the file is called.
EVENTS_OPTION, EVENTS = "--contract-events", "events.jsonl"
# The environment of a test whose process died before any could say.
UNKNOWN = "unknown"


@dataclass(kw_only=True, slots=True)
class Course:
    """The state of a run from its events so far. `running` are the tests that have started and not ended, each with the
    entry to use if it never ends; None for a test that is not a contract. `finished` are those that have ended."""

    plugin: str = ""
    created: str = ""
    count: int | None = None
    done: int = 0
    running: dict[str, Entry | None] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    entries: dict[str, Entry] = field(default_factory=dict)
    environments: dict[str, Environment] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    ended: bool = False
    shard: Shard | None = None

    def take(self, event: Event) -> None:
        """Take one event; an unknown kind is ignored.

        Raises:
            ReceiptError: it lacks something that events of its kind have.
        """
        try:
            _TAKES.get(str(event["event"]), _nothing)(self, event)
        except KeyError as error:
            raise ReceiptError("missing", at=str(error.args[0])) from error

    def lose(self, reason: str, *, broken: bool) -> dict[str, Entry]:
        """End all running tests for this reason, since they did not finish. Returns their entries.

        An empty reason keeps the one of each entry. Without `broken`, tests that were stopped are unmeasured.
        """
        lost: dict[str, Entry] = {}
        for test, entry in self.running.items():
            self.done += 1
            if entry is None:
                continue
            measured = self.entries.get(test)
            if broken:
                lost[test] = unfinished(entry, measured, reason or entry.reason)
            elif measured is None:
                lost[test] = replace(entry, verdict="unmeasured", reason=reason)
        self.entries |= lost
        self.running.clear()
        return lost

    def settle(self, otherwise: Environment) -> None:
        """Give lost entries the environment of the others, or else what is known of it without a test."""
        lost = [test for test, entry in self.entries.items() if entry.environment == UNKNOWN]
        if not lost:
            return
        if not self.environments:
            self.environments[UNKNOWN] = otherwise
        name = next(iter(self.environments))
        for test in lost:
            self.entries[test] = replace(self.entries[test], environment=name)


def unfinished(begun: Entry, measured: Entry | None, reason: str) -> Entry:
    """The entry of a test that started and did not finish: never held, with what it had measured."""
    if measured is None:
        return replace(begun, verdict="broken", reason=reason)
    if measured.verdict not in ("held", "reference", "unmeasured"):
        return measured
    return replace(measured, verdict="broken", reason=f"{measured.verdict}, but its teardown never finished: {reason}")


def _session(course: Course, event: Event) -> None:
    course.plugin, course.created = _text(event, "plugin"), _text(event, "created")


def _collected(course: Course, event: Event) -> None:
    count = event["count"]
    if isinstance(count, bool) or not isinstance(count, int):
        raise ReceiptError(f"expected an int, got {count!r}", at="count")
    course.count = course.done + count


def _cut(course: Course, event: Event) -> None:
    course.shard = value_from_data(event["shard"], Shard, name="shard")


def _problem(course: Course, event: Event) -> None:
    problem = f"{event['where']} could not be collected: {event['reason']}"
    if problem not in course.problems:
        course.problems.append(problem)


def _start(course: Course, event: Event) -> None:
    entry, test = event.get("entry"), _text(event, "test")
    begun = None if entry is None else _entry(entry)
    course.running[test] = begun
    if begun is not None and "environment" in event:
        course.environments.setdefault(begun.environment, environment_from_data(event["environment"]))
    # The result of an earlier run is not the result of this one.
    course.entries.pop(test, None)
    course.finished.discard(test)


def _finish(course: Course, event: Event) -> None:
    course.done += 1
    course.running.pop(_text(event, "test"), None)
    course.finished.add(_text(event, "test"))


def _measured(course: Course, event: Event) -> None:
    entry = _entry(event["entry"])
    course.environments[entry.environment] = environment_from_data(event["environment"])
    course.entries[entry.test] = entry


def _end(course: Course, _event: Event) -> None:
    course.ended = True


def _nothing(_course: Course, _event: Event) -> None:
    pass


_TAKES: dict[str, Callable[[Course, Event], None]] = {
    "session": _session,
    "collected": _collected,
    "shard": _cut,
    "problem": _problem,
    "start": _start,
    "finish": _finish,
    "entry": _measured,
    "end": _end,
}


def _entry(data: object) -> Entry:
    entry = entry_from_data(data)
    for at, fault in entry_faults(entry):
        raise ReceiptError(fault, at=at)
    return entry


def _text(event: Event, name: str) -> str:
    value: object = event[name]
    if not isinstance(value, str):
        raise ReceiptError(f"expected a str, got {type(value).__name__}", at=name)
    return value
