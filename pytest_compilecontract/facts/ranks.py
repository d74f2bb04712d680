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
    """How one rank ended, `seconds` after all were started: what it said, and in which phase of its test.

    `exception` is the type of what it raised. `connection`: that is no more than another rank's end as its neighbour
    sees it.
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
        """What it said, and of an exception its type."""
        return f"{self.exception}: {self.said}" if self.exception else self.said or self.kind

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMeasured:
    """What one rank of a lane measured, and why that does not hold; `reason` is empty where it does."""

    rank: int
    measurement: Measurement | None = None
    reason: str = ""
