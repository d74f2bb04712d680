"""The lines below a violated limit: the facts, in a line or two each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from pytest_compilecontract.facts.measurement import (
    EagerFrame,
    GraphBreak,
    LimitHit,
    Location,
    Measurement,
    Raised,
    Recompile,
    StateChange,
    StepOperators,
)
from pytest_compilecontract.facts.verdict import Facts
from pytest_compilecontract.wording import after_break, counted, first_line, repeated

# What torch's guards call values of a frame that goes on after a graph break.
STACK = "___stack: a value that was on the stack when the graph broke, such as what the call there returned"

# What stands in the place of a line where the project has none.
NOWHERE = "outside the project's code"
# A reason of torch's that is no more than an exception's type: what it said is the explanation.
_RAISED = re.compile(r"[\w/]*(Error|Exception)(?![-\w])")


def told_breaks(breaks: Sequence[GraphBreak]) -> Facts:
    return tuple(
        (told_line(each.location), *_why(each), *(f"hint: {first_line(hint)}" for hint in each.hints[:1]))
        for each in breaks
    )


def _why(found: GraphBreak) -> tuple[str, ...]:
    reason, said = first_line(found.reason) or found.kind, first_line(found.explanation)
    return (reason, said) if said and said != reason and _RAISED.match(reason) else (reason,)


def told_recompiles(recompiles: Sequence[Recompile]) -> Facts:
    facts: list[tuple[str, ...]] = []
    for each in recompiles:
        after = after_break(continuation=each.continuation)
        module = f" of {each.module}" if each.module else ""
        fact = [f"{each.frame}{module}{after}: {each.kind} recompile"]
        fact += [f"guard: {first_line(each.guard)}" if each.guard else "torch reports no guard"]
        if each.meaning:
            fact += [each.meaning]
        if "___stack" in each.guard:
            fact += [STACK]
        if each.location is not None:
            fact += [f"at {told_line(each.location)}"]
        if each.used:
            fact += [each.used]
        if each.hint:
            fact += [f"hint: {each.hint}"]
        facts.append(tuple(fact))
    return tuple(facts)


def told_eager(frames: Sequence[EagerFrame]) -> Facts:
    facts: list[tuple[str, ...]] = []
    for each, times in Counter(frames).items():
        after = after_break(continuation=each.continuation)
        fact = [f"{each.frame}{after}: ran in eager, {each.cause}{repeated(times)}"]
        if each.reason:
            fact += [first_line(each.reason)]
        if each.location is not None and each.location != each.frame:
            fact += [f"at {told_line(each.location)}"]
        facts.append(tuple(fact))
    return tuple(facts)


def tolerated(limit: str, seen: Measurement) -> tuple[str, ...]:
    """What a limit above 0 tolerates of a measurement, each thing in one sentence: "that GPT.forward runs in eager"."""
    found: list[str] = []
    if limit == "max_graph_breaks":
        found = [f"a graph break at {told_line(each.location)}" for each in seen.graph_breaks or ()]
    elif limit == "max_recompiles":
        for each in seen.compiled_again or ():
            found.append(f"that {_named(each.frame)} is compiled again: {first_line(each.guard) or each.kind}")
    elif limit == "max_eager_frames":
        for frame in seen.frames_run_eager or ():
            at = f", {told_line(frame.location)}" if frame.location is not None else ""
            found.append(f"that {_named(frame.frame)} runs in eager: {frame.cause}{at}")
    elif limit == "allow_recompile_limit":
        found = [f"that {_named(each.frame)} reaches {each.limit}" for each in seen.limit_hits or ()]
    return tuple(found)


def _named(frame: Location) -> str:
    name = f"{frame.scope}.{frame.function}" if frame.scope else frame.function
    return f"{name} ({frame.file}:{frame.line})"


def told_operators(found: StepOperators | None) -> Facts:
    facts: list[tuple[str, ...]] = []
    for each in found.groups if found is not None else ():
        place = each.location or each.frame
        where = told_line(place) if place is not None else NOWHERE
        facts.append((where, each.told, f"in {each.name}" if each.name else "the call that broke the graph"))
    return tuple(facts)


def told_nothing(seen: Measurement) -> Facts:
    """What to report for a test in which Dynamo had nothing to do."""
    if seen.graphs or seen.first_compiles or seen.recompiles or seen.limit_hits:
        return ()
    if seen.elsewhere:
        return ((f"nothing was compiled in this process; {seen.elsewhere}",),)
    return (("nothing was compiled: no compiled function was called, or none that computes with tensors",),)


def told_limit_hits(hits: Sequence[LimitHit]) -> Facts:
    return tuple(
        (
            f"{each.frame}: {each.limit}",
            first_line(each.reason),
            *((f"guard: {first_line(each.guard)}",) if each.guard else ()),
        )
        for each in hits
    )


def told_raised(raised: Raised) -> Facts:
    message = first_line(raised.message)
    said = f"{raised.type}: {message}" if message else raised.type
    return ((said, *((f"at {told_line(raised.location)}",) if raised.location is not None else ())),)


def told_state(change: StateChange) -> Facts:
    prefix = _common_prefix(change)
    if prefix:
        lines = [f"{counted(len(change.keys_added), 'key')} now prefixed with {prefix!r}"]
    else:
        lines = [f"key added: {key}" for key in change.keys_added]
        lines += [f"key removed: {key}" for key in change.keys_removed]
    if change.type_changed:
        lines += [f"type changed: {change.type_changed}"]
    return tuple((line,) for line in lines)


def _common_prefix(change: StateChange) -> str:
    """The prefix that every removed key has now, such as the `_orig_mod.` of torch.compile's wrapper."""
    if not change.keys_removed or len(change.keys_added) != len(change.keys_removed):
        return ""
    prefix = change.keys_added[0].removesuffix(change.keys_removed[0])
    moved = all(now == prefix + was for now, was in zip(change.keys_added, change.keys_removed, strict=True))
    return prefix if moved else ""


def told_line(location: Location) -> str:
    return f"{location}: {location.source.strip()}" if location.source.strip() else str(location)
