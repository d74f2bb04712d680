"""Outcomes: what became of one planted fault, and whether a failing lane failed because of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

# "another reason" is red, and not by what should have noticed it: nobody knows then whether that would have.
Noticed = Literal["noticed", "not noticed", "another reason", "not applicable"]
SURVIVED: tuple[Noticed, ...] = ("not noticed", "another reason")


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """One fault, planted in a lane that holds, and what became of it.

    `by` is what failed: limits, metrics of the baseline, or the test's own assertion. `why` says what would notice a
    fault that was not noticed, or why a fault could not be planted. `seconds` is how long it took.
    """

    fault: str
    outcome: Noticed
    by: str = ""
    why: str = ""
    seconds: float = 0.0

    @property
    def survived(self) -> bool:
        return self.outcome in SURVIVED


def survivors(planted: Iterable[Planted]) -> list[Planted]:
    """The faults that went unnoticed, or for which something else failed."""
    return [each for each in planted if each.survived]
