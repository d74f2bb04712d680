"""Verdicts: what becomes of a lane, and the limits that it did not keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["held", "violated", "broken", "unmeasured", "unverified", "unstable", "reference"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A limit that a measurement does not keep.

    `measured` is a count, or what to say where a count says too little. `details` are lines for people: a fact starts
    at the margin, and what belongs to it follows with two spaces of indentation. They hold torch's and the user's text
    as it came.
    """

    limit: str
    measured: int | str
    details: tuple[str, ...] = ()
