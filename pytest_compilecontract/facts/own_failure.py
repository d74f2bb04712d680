"""Tests that failed by themselves, not by a limit: the reason in the entry, and the part of it that is compared."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FAILED = "the test failed in "
SUBTEST = "a subtest failed"
# Exceptions of what a test runs on: what it imports, files, the network, memory, the device, its time.
_OF_ENVIRONMENT = frozenset(
    (
        *("ImportError", "ModuleNotFoundError", "OSError", "FileNotFoundError", "PermissionError", "BrokenPipeError"),
        *("ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "URLError", "HTTPError"),
        *("TimeoutError", "TimeoutExpired", "MemoryError", "OutOfMemoryError", "AcceleratorError"),
        *("DistError", "DistBackendError", "DistNetworkError", "DistStoreError", "KeyboardInterrupt", "SystemExit"),
    )
)
# torch and pytest-timeout have no type of their own for these.
_WORDS = re.compile(
    r"\b(?:cuda|cudnn|nccl|gpus?|hip|driver|time-?out)\b|c\+\+ compiler|out of memory|no space left", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnFailure:
    """How a test failed by itself.

    `phase` is pytest's: setup, call or teardown. `exception` is the name of its type, empty if nothing was raised, and
    `said` one line of its message.
    """

    phase: str
    exception: str = ""
    said: str

    def __str__(self) -> str:
        said = f"{self.exception}: {self.said}" if self.exception else self.said
        return f"{_FAILED}{self.phase}: {said}"

    @property
    def of_environment(self) -> bool:
        """Whether what the test ran on may be at fault, by the exception and its message."""
        return self.exception in _OF_ENVIRONMENT or _WORDS.search(self.said) is not None

    @property
    def kind(self) -> tuple[str, str]:
        """What identifies the failure between two runs: the phase and the exception's type, not its message."""
        return (self.phase, self.exception or self.said)


def kind_of(failure: OwnFailure | None, reason: str) -> tuple[str, str]:
    """The kind of failure of a broken entry with this reason."""
    if failure is not None:
        return failure.kind
    # What an older version wrote, or the end of a whole process, has the reason alone.
    phase, _, said = reason.removeprefix(_FAILED).partition(": ")
    return (phase, said.partition(": ")[0])
