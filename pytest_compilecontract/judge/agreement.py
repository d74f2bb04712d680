"""A lane held to another lane of its contract (`same_as`): the same facts of compiling, and the same results."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.verdict import Bound, Violation, violated

from .alike import OF_DEVICES, OF_LANES, differing, is_xla

SAME_AS = "same_as"
NOT_COMPARED = "results not compared"
WITHIN = "calls that hypothesis draws are compared with eager alone"


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherLane:
    """The other lane of the contract, measured in the same test: what it showed, or why there is nothing to compare.

    `unusable`: why it cannot run here; then its contract cannot be judged here either.
    """

    name: str
    measurement: Measurement | None = None
    ended: str = ""
    unusable: str = ""


def lanes_differ(other: OtherLane, lane: str, seen: Measurement) -> Violation | None:
    """How a lane differs from the other one; None if it does not."""
    bound = Bound(name=SAME_AS, allows=other.name)
    if other.measurement is None:
        return violated(bound, f"nothing to compare with: {other.ended}")
    facts_of = OF_DEVICES if any(map(is_xla, (other.measurement, seen))) else OF_LANES
    found = differing({other.name: other.measurement, lane: seen}, facts_of)
    if differences := _differences(seen):
        found["results"] = (("results differ", *differences),)
    facts = [each for told in found.values() for each in told]
    said = [f"{', '.join(found)} differ"] if found else []
    if uncompared := _uncompared(seen):
        facts.append((NOT_COMPARED, *uncompared))
        said.append(NOT_COMPARED)
    return violated(bound, "; ".join(said), facts) if said else None


def _differences(seen: Measurement) -> tuple[str, ...]:
    found = seen.beside.differences if seen.beside is not None else ()
    return tuple(f"{each.at}: {each.kind}: {each.detail}" for each in found)


def _uncompared(seen: Measurement) -> tuple[str, ...]:
    """Why results could not be compared with the other lane's, although they were with eager's."""
    if seen.beside is not None:
        return seen.beside.uncompared
    return (WITHIN,) if seen.numerics is not None else ()
