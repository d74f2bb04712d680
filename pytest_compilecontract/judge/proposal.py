"""Proposals: the contract that a measurement would pass today, as a line to paste. Data in, data out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from pytest_compilecontract.facts.limits import LIMITS, Limits
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.metrics import count_of
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.verdict import Facts

from .limits import judge
from .tell import tolerated
from .verdicts import doubts

# The limits that a proposal may name. Not `max_graphs`: another number of graphs with no other break and no other
# recompile is nothing to block an upgrade for.
_NAMED = ("max_graph_breaks", "max_recompiles", "max_eager_frames")
# What a proposal loosens is told against this.
_NOTHING = Limits(max_graph_breaks=0, max_recompiles=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """The tightest limits that hold in `lanes`, and why no limits hold in `refused`; `alike`: no lane was left out.

    `facts` are the facts behind `refused`. `calls` is how many calls each lane checked, `steady` how many of them
    compiled nothing in the lane with the fewest. `allowed` has each fact that a stricter contract would not allow, as
    a limit with the lines below it, and the lanes that show it. `tolerates` has what each limit above 0 is for.
    """

    limits: Limits
    lanes: tuple[str, ...]
    refused: dict[str, str]
    facts: dict[str, Facts]
    calls: int
    steady: int
    allowed: dict[tuple[str, Facts], tuple[str, ...]]
    tolerates: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def decorator(self) -> str:
        """The decorator to paste above a test."""
        return f"@compile_contract({', '.join(self.arguments().values())})"

    def arguments(self) -> dict[str, str]:
        """The arguments of the decorator, as Python, by the name of the limit."""
        shown = self.limits if self.refused else replace(self.limits, lanes=None)
        unsaid = Limits()
        return {
            each.name: f"{each.name}={_written(getattr(shown, each.name))}"
            for each in fields(shown)
            if getattr(shown, each.name) != getattr(unsaid, each.name)
        }


def proposed(entries: Sequence[Entry], *, torch_version: str) -> Proposal:
    """The contract that these lanes of one sample would pass; each was measured without limits of its own.

    A lane in which no contract can hold is refused, with its reason: compiled raised, differs from eager, or is
    uncertain. Lanes that cannot run here are left out.
    """
    refused: dict[str, str] = {}
    facts: dict[str, Facts] = {}
    sound: dict[str, Measurement] = {}
    for entry in entries:
        if entry.verdict in ("unmeasured", "reference"):
            continue
        seen = entry.measurement
        if seen is None or entry.verdict == "broken":
            refused[entry.lane] = entry.reason or entry.verdict
            facts[entry.lane] = tuple(fact for each in entry.violations for fact in each.facts)
            continue
        limits = _limits([seen])
        kept_not = judge(limits, seen, torch_version=torch_version)
        if why := [*(f"{each.limit}: {each.measured}" for each in kept_not), *doubts(limits, seen)]:
            refused[entry.lane] = "; ".join(why)
            facts[entry.lane] = tuple(fact for each in kept_not for fact in each.facts)
        else:
            sound[entry.lane] = seen
    limits = replace(_limits(list(sound.values())), lanes=tuple(sound))
    calls = max((len(seen.calls or ()) for seen in sound.values()), default=0)
    steady = min((sum(call.phase == "steady" for call in seen.calls or ()) for seen in sound.values()), default=0)
    allowed = _allowed(sound, torch_version=torch_version)
    return Proposal(
        limits=limits,
        lanes=tuple(sound),
        refused=refused,
        facts=facts,
        calls=calls,
        steady=steady,
        allowed=allowed,
        tolerates=_tolerates(limits, list(sound.values())),
    )


def _allowed(sound: Mapping[str, Measurement], *, torch_version: str) -> dict[tuple[str, Facts], tuple[str, ...]]:
    found: dict[tuple[str, Facts], tuple[str, ...]] = {}
    for lane, seen in sound.items():
        for each in judge(_NOTHING, seen, torch_version=torch_version):
            if not each.facts:  # such as a count that this torch cannot give
                continue
            fact = (each.name, each.facts)
            found[fact] = (*found.get(fact, ()), lane)
    return found


def _tolerates(limits: Limits, seen: Sequence[Measurement]) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(dict.fromkeys(said for each in seen for said in tolerated(name, each)))
        for name in (*_NAMED, "allow_recompile_limit")
        if getattr(limits, name)
    }


def _limits(seen: Sequence[Measurement]) -> Limits:
    """The tightest counts with which all of these hold; an allowance is only written if one of them needs it."""
    given: dict[str, int] = {}
    for name in _NAMED:
        counts = [count_of(LIMITS[name].metric, each) for each in seen]
        known = [each for each in counts if each is not None]
        if known and len(known) == len(counts):
            given[name] = max(known)
    if not given.get("max_eager_frames"):
        given.pop("max_eager_frames", None)
    hit = any(each.limit_hits for each in seen)
    return Limits(
        max_graph_breaks=given.get("max_graph_breaks"),
        max_recompiles=given.get("max_recompiles"),
        max_eager_frames=given.get("max_eager_frames"),
        allow_recompile_limit=True if hit else None,
    )


def _written(value: object) -> str:
    return repr(list(value)) if isinstance(value, tuple) else repr(value)
