"""The gate: may we upgrade? Yes, no, or not known, with reasons. Not known is never yes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .drift import Comparison, LaneComparison
from .policy import DEFAULT_POLICY, Policy

Outcome = Literal["yes", "no", "not known"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """`against` are the lanes that make it no, `open` those that are not known; `note` is a reason that is not a lane.

    `stale` are the waivers to delete or to extend; they make it no as well.
    """

    outcome: Outcome
    against: tuple[LaneComparison, ...] = ()
    open: tuple[LaneComparison, ...] = ()
    note: str = ""
    stale: tuple[str, ...] = ()


def answer(comparison: Comparison, policy: Policy = DEFAULT_POLICY, stale: tuple[str, ...] = ()) -> Answer:
    """The answer for all lanes of a comparison that was made with the same policy."""
    against = tuple(lane for lane in comparison.lanes if lane.verdict == "drifted" or lane.newly_broken)
    unknown = tuple(lane for lane in comparison.lanes if why_open(lane, policy) and lane not in against)
    if against or stale:
        return Answer(outcome="no", against=against, open=unknown, stale=stale)
    compared = any(lane.compared for lane in comparison.lanes)
    note = "; ".join(comparison.stopped) if comparison.stopped else "" if compared else _nothing(comparison)
    if comparison.mixed and not note:
        note = f"each lane ran on one of torch {', '.join(comparison.mixed)}, and says nothing of the others"
    if unknown or note:
        return Answer(outcome="not known", open=unknown, note=note)
    return Answer(outcome="yes")


def why_open(lane: LaneComparison, policy: Policy = DEFAULT_POLICY) -> str:
    """Why it is not known whether this lane held; empty if it is known, or if the policy allows the verdict."""
    if lane.verdict in policy.allow:
        return ""
    if lane.verdict in ("held", "improved"):
        # A lane that fails before and after may hide what the upgrade does to it.
        return "exceeds its limits, as before" if lane.over_its_limits else ""
    if lane.verdict in ("drifted", "waived") or lane.newly_broken:
        return ""
    return lane.reason or "no reason was given"


def _nothing(comparison: Comparison) -> str:
    if not comparison.lanes:
        return "nothing was measured on either side"
    sides = {"new": 0, "missing": 0, "other": 0}
    for lane in comparison.lanes:
        sides[lane.verdict if lane.verdict in sides else "other"] += 1
    if sides["other"]:
        return "no lane was measured on both sides"
    if not sides["missing"]:
        return "nothing was measured before"
    return "the two runs have no lane in common" if sides["new"] else "nothing was measured after"
