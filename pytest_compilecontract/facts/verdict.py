"""Verdicts: the outcome of a lane, and the limits that it exceeded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

T = TypeVar("T", covariant=True)

# What is held to without a limit's being given, and so is called by no limit of `facts.limits`.
NO_EXCEPTION = "no exception"
STEADY = "compiled code runs in steady calls"
AGREE = "ranks agree"
Verdict = Literal["held", "violated", "broken", "unmeasured", "unverified", "unstable", "reference"]
# Facts as lines for people: of each the line that says it, and those that belong to it.
Facts = tuple[tuple[str, ...], ...]

_BY_DEFAULT = " (default)"
_INDENT = "  "


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound(Generic[T]):
    """What a lane is held to: a limit with what it allows, None if its name says it all.

    `also` are limits that belong to it, such as tolerances to the rule of numerics. `given`: the author wrote it.
    """

    name: str
    allows: T
    also: Mapping[str, object] = field(default_factory=dict)
    given: bool = True

    def __str__(self) -> str:
        """As an author writes it: `max_graph_breaks=0`, `no exception (default)`."""
        values = {} if self.allows is None else {self.name: self.allows, **self.also}
        text = ", ".join(f"{name}={value!r}" for name, value in values.items()) or self.name
        return text if self.given else f"{text}{_BY_DEFAULT}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A limit that a measurement exceeds.

    `limit` is the limit as an author writes it, `name` its name, and `bound` the number that it allows, if it is one.
    `measured` is a count, or a text where a count says too little. `facts` are lines to show, with torch's and the
    user's text unchanged: for each fact its line, then the lines that belong to it. `details` are the same lines in
    one list, the latter indented by two spaces.
    """

    limit: str
    measured: int | str
    details: tuple[str, ...] = ()
    name: str = ""
    bound: int | float | None = None
    facts: Facts = ()

    def __post_init__(self) -> None:
        # What an older version wrote has `limit` and `details` alone.
        if not self.name:
            name, _, allowed = self.limit.removesuffix(_BY_DEFAULT).partition("=")
            object.__setattr__(self, "name", name)
            object.__setattr__(self, "bound", _number(allowed))
        if not self.facts:
            object.__setattr__(self, "facts", _grouped(self.details))


def violated(bound: Bound[object], measured: int | str, facts: Sequence[tuple[str, ...]] = ()) -> Violation:
    """The violation of a bound by a measurement."""
    number = bound.allows if isinstance(bound.allows, int | float) and not isinstance(bound.allows, bool) else None
    return Violation(
        limit=str(bound),
        name=bound.name,
        bound=number,
        measured=measured,
        facts=tuple(facts),
        details=lines_of(facts),
    )


def lines_of(facts: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Facts in one list of lines."""
    return tuple(line for first, *rest in facts for line in (first, *(f"{_INDENT}{each}" for each in rest)))


def _number(text: str) -> int | float | None:
    if re.fullmatch("[0-9]{1,18}", text, re.ASCII):
        return int(text)
    return float(text) if re.fullmatch(r"[0-9]{1,18}(\.[0-9]+)?(e[-+]?[0-9]{1,2})?", text, re.ASCII) else None


def _grouped(details: Sequence[str]) -> Facts:
    facts: list[list[str]] = []
    for line in details:
        if line.startswith(_INDENT) and facts:
            facts[-1].append(line.removeprefix(_INDENT))
        else:
            facts.append([line])
    return tuple(map(tuple, facts))
