"""Verdicts: what becomes of a lane, and the limits that it did not keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_BY_DEFAULT = " (default)"
# What is held to without a limit's being given, and so is called by no limit of `facts.limits`.
NO_EXCEPTION = "no exception"
STEADY = "compiled code runs in steady calls"
Verdict = Literal["held", "violated", "broken", "unmeasured", "unverified", "unstable", "reference"]


def by_default(limit: str) -> str:
    """How a limit is called that no author gave: `max_eager_frames=0 (default)`."""
    return f"{limit}{_BY_DEFAULT}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A limit that a measurement does not keep.

    `measured` is a count, or what to say where a count says too little. `details` are lines for people: a fact starts
    at the margin, and what belongs to it follows with two spaces of indentation. They hold torch's and the user's text
    as it came.
    """

    # What the receipt's format calls it: a text that is written and read back in this module alone.
    limit: str
    measured: int | str
    details: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The limit's name, of what it is called in `limit`: `max_graph_breaks=0`, `no exception (default)`."""
        return self.limit.partition("=")[0].removesuffix(_BY_DEFAULT)

    @property
    def bound(self) -> str:
        """What the limit allows, as it is called in `limit`; empty where it has no number."""
        return self.limit.removesuffix(_BY_DEFAULT).partition("=")[2]
