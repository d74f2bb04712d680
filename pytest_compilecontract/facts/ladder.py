"""Frontiers: a ladder of lanes, each rung adding one dimension to those below, and how far up a contract holds.

A rung that cannot be measured here is left out of those above it. The first that does not hold is where the walk stops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from pytest_compilecontract.errors import UsageError

from .lanes import XLA, Lane

NAME = "frontier"
TRAIN = "train"
DISTRIBUTED = "distributed"
StepVerdict = Literal["held", "failed", "unmeasured", "not reached"]

# What each dimension sets of a lane; one that is not here is a lane of the project's, by what that sets.
_DIMENSIONS: dict[str, dict[str, object]] = {
    "capture": {"backend": "eager"},
    "aot": {"backend": "aot_eager"},
    "inductor": {"backend": "inductor"},
    TRAIN: {},
    "autocast": {"autocast": "bfloat16"},
    "dynamic": {"dynamic": True},
    "cudagraphs": {"mode": "reduce-overhead", "device": "cuda"},
    DISTRIBUTED: {},
}
# What Inductor alone reads; any other backend leaves it alone, silently.
_INDUCTORS = ("mode", "options", "inductor")
# Fields that rungs add to, where others replace what is below.
_ADDED_TO = ("dynamo", "inductor", "options", "requires")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One lane of a ladder: the dimension that it adds, whether it trains, and why it cannot run anywhere, if so."""

    name: str
    lane: Lane
    trains: bool = False
    missing: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One rung of a walk: its verdict; if it did not hold, the reason and the lines of its facts."""

    name: str
    verdict: StepVerdict
    reason: str = ""
    details: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Frontier:
    """How far a contract holds on its ladder, rung by rung, the lowest first."""

    steps: tuple[Step, ...]

    @property
    def height(self) -> int:
        """The number of the highest rung that held, from 1; 0 where none did."""
        return max((number for number, step in enumerate(self.steps, start=1) if step.verdict == "held"), default=0)

    @property
    def reached(self) -> str:
        """The highest rung that held; "none" where none did."""
        return self.steps[self.height - 1].name if self.height else "none"

    @property
    def climbed(self) -> tuple[str, ...]:
        """The rungs that held, of which the highest lane is composed."""
        return tuple(step.name for step in self.steps if step.verdict == "held")

    @property
    def failed(self) -> Step | None:
        """The rung that the walk stopped at."""
        return next((step for step in self.steps if step.verdict == "failed"), None)

    def told(self) -> str:
        """One line: how far, of how many rungs, and what stopped it."""
        if all(step.verdict == "unmeasured" for step in self.steps):
            return f"no rung was measured: {self.left_out()}"
        text = f"holds up to {self.reached} (rung {self.height} of {len(self.steps)})"
        if not self.height:
            text = f"holds on no rung of {len(self.steps)}"
        if self.failed is not None:
            text += f"; {self.failed.name} does not: {self.failed.reason}"
        left_out = [f"{names} not measured: {reason}" for reason, names in self._left_out().items()]
        return "; ".join([text, *left_out])

    def left_out(self) -> str:
        """Why rungs were not measured; the rungs are named if they do not share one reason."""
        reasons = self._left_out()
        if len(reasons) == 1:
            return next(iter(reasons))
        return "; ".join(f"{names}: {reason}" for reason, names in reasons.items())

    def _left_out(self) -> dict[str, str]:
        names: dict[str, list[str]] = {}
        for step in self.steps:
            if step.verdict == "unmeasured":
                names.setdefault(step.reason, []).append(step.name)
        return {reason: ", ".join(each) for reason, each in names.items()}


def faults(names: Sequence[str], least: str | None) -> tuple[str, ...]:
    """Contradictions in a ladder."""
    found = [f"frontier: {name!r} is given twice" for name in dict.fromkeys(names) if list(names).count(name) > 1]
    if least is not None and least not in names:
        found.append(f"min_frontier={least!r} is not a rung of frontier")
    return tuple(found)


def rung(names: Sequence[str], known: Mapping[str, Lane]) -> Rung:
    """The lane with every dimension named; the last is the one that it adds.

    Raises:
        UsageError: an unknown dimension, one that needs another below it, or one that compiles nothing.
    """
    values: dict[str, Any] = {"backend": "eager"}
    for number, name in enumerate(names):
        if needed := lacking(names[: number + 1], known):
            raise UsageError(f"frontier: {name!r} applies to Inductor only: put {needed!r} before it")
        for key, value in _set_by(name, known).items():
            values[key] = _added(values[key], value) if key in _ADDED_TO and values.get(key) else value
        if values.get("disable"):
            raise UsageError(f"frontier: {name!r} compiles nothing")
        if values["backend"] in XLA:
            raise UsageError(f"frontier: {name!r} runs in a process of its own, but a ladder runs in one process")
        if values.get("ranks"):
            raise UsageError(f"frontier: {name!r} has ranks, but a ladder runs in one process")
    missing = "its ranks cannot be launched here" if names[-1] == DISTRIBUTED else ""
    return Rung(name=names[-1], lane=Lane(name=NAME, **values), trains=TRAIN in names, missing=missing)


def lacking(names: Sequence[str], known: Mapping[str, Lane]) -> str:
    """What the last dimension needs below it and lacks; "" if nothing is missing."""
    backend = "eager"
    for name in names:
        backend = _set_by(name, known).get("backend", backend)
    needs = any(key in _INDUCTORS for key in _set_by(names[-1], known))
    return "inductor" if needs and backend != "inductor" else ""


def _added(below: Any, above: Any) -> object:
    return {**below, **above} if isinstance(below, Mapping) else (*below, *above)


def _set_by(name: str, known: Mapping[str, Lane]) -> dict[str, Any]:
    if name in _DIMENSIONS:
        lane, given = known.get(name), _DIMENSIONS[name]
        if lane is not None and lane.given and {key: getattr(lane, key) for key in lane.given} != given:
            raise UsageError(f"frontier: {name!r} is a dimension, and also a lane of the project: rename the lane")
        return given
    if name not in known:
        names = sorted({*_DIMENSIONS, *known} - {"eager"})
        raise UsageError(f"frontier: unknown rung {name!r} (known rungs: {', '.join(names)})")
    lane, bare = known[name], Lane(name=name)
    return {
        each.name: getattr(lane, each.name)
        for each in fields(Lane)
        if each.name != "given" and (each.name in lane.given or getattr(lane, each.name) != getattr(bare, each.name))
    }


def completed(steps: Sequence[Step], names: Sequence[str]) -> Frontier:
    """The walk with the rungs that it did not reach."""
    rest = tuple(Step(name=name, verdict="not reached") for name in names[len(steps) :])
    return Frontier(steps=(*steps, *rest))


def without_details(walked: Frontier) -> Frontier:
    """The part of a walk that is kept for later comparisons."""
    return Frontier(steps=tuple(replace(step, details=()) for step in walked.steps))
