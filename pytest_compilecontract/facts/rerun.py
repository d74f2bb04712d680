"""Reruns: the command that reruns one lane of a contract in the same way."""

from __future__ import annotations

from pytest_compilecontract.escaping import as_tests, typed

from .evidence import logs
from .limits import OBSERVED_LIMITS
from .receipt import Entry

# The lane of a test that compiles by itself has no backend of its own, and no option chooses it.
_BODY = ""


AS_MODULE = ("python", "-m", "pytest")


def rerun_command(entry: Entry, run: str = "") -> str:
    """The command that runs this one lane of the contract; `run` is that of its session, where it is known."""
    start = AS_MODULE if run.startswith(" ".join(AS_MODULE)) else ("pytest",)
    return typed([*start, *options_of(entry), *as_tests(entry.test)])


def options_of(entry: Entry) -> tuple[str, ...]:
    """The options that have this one lane of the contract measured as it was, beside its test."""
    # A ladder has its lanes in the marker, and no option chooses them.
    own = entry.lane_settings.get("backend") == _BODY or entry.frontier is not None
    lane = () if own else (f"--contract-lanes={entry.lane}",)
    observe = ("--contract-observe",) if entry.limits == OBSERVED_LIMITS else ()
    repeat = (f"--contract-repeat={entry.repeats}",) if entry.repeats > 1 else ()
    return ("--compile-contracts", *observe, *lane, *repeat)


def logged(command: str, backend: str) -> str:
    """A command of pytest's that shows live what torch logs of a lane with this backend."""
    return f"TORCH_LOGS={logs(backend)} {command.replace('pytest ', 'pytest -s ', 1)}"
