"""Ranks: what each process of a lane with several ranks measured, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .measurement import Measurement

# `lost`: it ended without a report, by a signal or by itself. `hung`: it had not ended when its time was over;
# `waited`: the same, inside torch, as who waits for another rank. `stopped`: it was ended since another had failed.
Kind = Literal["passed", "skipped", "failed", "lost", "hung", "waited", "stopped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEnd:
    """How one rank ended, `seconds` after all were started: its message, and the phase of its test.

    `exception` is the type of what it raised. `connection`: it only lost the connection to a rank that ended first.
    """

    rank: int
    kind: Kind
    seconds: float = 0.0
    said: str = ""
    exception: str = ""
    phase: str = "call"
    connection: bool = False

    @property
    def reason(self) -> str:
        """Its message, with the type of an exception."""
        return f"{self.exception}: {self.said}" if self.exception else self.said or self.kind

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMeasured:
    """What one rank of a lane measured; `reason` says why it does not hold, and is empty if it does."""

    rank: int
    measurement: Measurement | None = None
    reason: str = ""
