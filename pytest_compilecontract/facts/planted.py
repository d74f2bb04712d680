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

    `by` is what turned red: limits, metrics of the baseline, or the test's own assertion. `why` is, of a fault that was
    not noticed, what would notice it; of one that was not planted, why it could not be. `seconds` is what it took.
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
    """Those that nobody noticed, or that turned something else red."""
    return [each for each in planted if each.survived]
