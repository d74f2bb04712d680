"""A test that failed by itself, and not by a limit: what its entry says of it, and what of that is compared.

An entry has one line for it, which the receipt's format fixes: written and read here alone.
"""

from __future__ import annotations

_FAILED = "the test failed in "
SUBTEST = "a subtest failed"


def failed_text(phase: str, said: str, *, exception: str = "") -> str:
    """The reason of such an entry. `phase` is pytest's: setup, call or teardown."""
    return f"{_FAILED}{phase}: {exception}: {said}" if exception else f"{_FAILED}{phase}: {said}"


def failed_by(reason: str) -> tuple[str, ...]:
    """What two runs that failed alike have in common: the phase and the exception's type, not its message."""
    phase, _, said = reason.removeprefix(_FAILED).partition(": ")
    return (phase, said.partition(": ")[0])
