"""Reruns: commands that run contracts, as data until they are shown; and the one that reruns a lane as it was run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_compilecontract.escaping import as_tests, typed

from .evidence import logs
from .limits import OBSERVED_LIMITS
from .receipt import Entry

# The lane of a test that compiles by itself has no backend of its own, and no option chooses it.
_BODY = ""
PYTEST = ("pytest",)
# Options that choose some of the tests or lanes; and those that have a value of their own.
_CHOOSING = (
    "--deselect",
    "--ignore",
    "--ignore-glob",
    "--lf",
    "--last-failed",
    "--sw",
    "--stepwise",
    "--contract-lanes",
)
_VALUED = ("-p", "-o", "-c", "-n", "-W", "-r")
# What is kept names no interpreter: `pytest_compilecontract.shell` says what starts it where a command is printed.
AS_MODULE = ("python", "-m", "pytest")
# For people to write their own in place of the dots.
_REASON = '--contract-accept-reason="..."'


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command that runs contracts: the words that start pytest, its options, and the tests or paths.

    `reason`: the user has to add a reason for what it records.
    """

    start: tuple[str, ...] = PYTEST
    options: tuple[str, ...] = ("--compile-contracts",)
    reason: bool = False
    tests: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The command as it is typed in a shell."""
        parts = [typed([*self.start, *self.options])]
        if self.reason:
            parts.append(_REASON)
        if self.tests:
            parts.append(typed(as_tests(*self.tests)))
        return " ".join(parts)

    def arguments(self, *more: str) -> list[str]:
        """The arguments of pytest, for a process that runs it; `more` are further options."""
        return [*self.options, *more, *(as_tests(*self.tests) if self.tests else ())]

    @property
    def as_module(self) -> bool:
        """Whether it starts pytest as a module, with the folder that it is started in on the path."""
        return self.start[1:] == AS_MODULE[1:]

    def recording(self, mode: str, *, reason: bool = False) -> Command:
        """The same command, recording in this mode."""
        whole = mode == "all" and not self.tests
        option = "--contract-record" if whole else f"--contract-record={mode}"
        return replace(self, options=(*self.options, option), reason=reason)

    def logging(self, backend: str) -> Command:
        """The same command, showing what torch logs for a lane with this backend."""
        return replace(self, start=(f"TORCH_LOGS={logs(backend)}", *self.start, "-s"))


def rerun_command(entry: Entry, start: Sequence[str] = PYTEST) -> Command:
    """The command that reruns this one lane of the contract in the same way."""
    # A ladder has its lanes in the marker, and no option chooses them.
    own = entry.lane_settings.get("backend") == _BODY or entry.frontier is not None
    lane = () if own else (f"--contract-lanes={entry.lane}",)
    observe = ("--contract-observe",) if entry.limits == OBSERVED_LIMITS else ()
    repeat = (f"--contract-repeat={entry.repeats}",) if entry.repeats > 1 else ()
    options = ("--compile-contracts", *observe, *lane, *repeat)
    return Command(start=tuple(start), options=options, tests=(entry.test,))


def whole_folders(session: str) -> tuple[str, ...]:
    """The folders of which a session ran every test, from its command in a receipt; "" for all, none if not known."""
    try:
        words = shlex.split(session)
    except ValueError:
        return ()
    begin = AS_MODULE if words[: len(AS_MODULE)] == [*AS_MODULE] else PYTEST
    given = words[len(begin) :]
    paths: list[str] = []
    for before, word in zip(("", *given), given, strict=False):
        if word.startswith(("-k", "-m")) or word.partition("=")[0] in (*_CHOOSING, "--contract-shard", "--"):
            return ()
        if not word.startswith("-") and before not in _VALUED:
            paths.append(word.removeprefix("./").rstrip("/"))
    if any(re.fullmatch(r"\w[^:]*(?<!\.py)", path) is None for path in paths):
        return ()
    return tuple(paths) or ("",)


def start_of(session: str) -> tuple[str, ...]:
    """The words that started pytest, from the command of a session in its receipt."""
    return AS_MODULE if session.startswith(" ".join(AS_MODULE)) else PYTEST
