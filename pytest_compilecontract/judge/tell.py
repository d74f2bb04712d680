"""What a violation says below its limit: the facts, a line or two each."""

from __future__ import annotations

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
from pytest_compilecontract.wording import counted, first_line, repeated

# What torch's guards call values of a frame that goes on after a graph break.
STACK = "___stack: a value that was on the stack when the graph broke, such as what the call there returned"


def break_lines(breaks: Sequence[GraphBreak]) -> tuple[str, ...]:
    lines: list[str] = []
    for each in breaks:
        lines += [told_line(each.location), f"  {first_line(each.reason) or each.kind}"]
        lines += [f"  hint: {first_line(hint)}" for hint in each.hints[:1]]
    return tuple(lines)


def recompile_lines(recompiles: Sequence[Recompile]) -> tuple[str, ...]:
    lines: list[str] = []
    for each in recompiles:
        after = " after its graph break" if each.continuation else ""
        module = f" of {each.module}" if each.module else ""
        lines += [f"{each.frame}{module}{after}: {each.kind} recompile"]
        lines += [f"  guard: {first_line(each.guard)}" if each.guard else "  torch names no guard"]
        if each.meaning:
            lines += [f"  {each.meaning}"]
        if "___stack" in each.guard:
            lines += [f"  {STACK}"]
        if each.location is not None:
            lines += [f"  at {told_line(each.location)}"]
    return tuple(lines)


def eager_lines(frames: Sequence[EagerFrame]) -> tuple[str, ...]:
    lines: list[str] = []
    for each, times in Counter(frames).items():
        after = " after its graph break" if each.continuation else ""
        lines += [f"{each.frame}{after}: ran eager, {each.cause}{repeated(times)}"]
        if each.reason:
            lines += [f"  {first_line(each.reason)}"]
        if each.location is not None and each.location != each.frame:
            lines += [f"  at {told_line(each.location)}"]
    return tuple(lines)


def operator_lines(found: StepOperators | None) -> tuple[str, ...]:
    lines: list[str] = []
    for each in found.groups if found is not None else ():
        place = each.location or each.frame
        lines += [told_line(place) if place is not None else "not in a line of the project", f"  {each.told}"]
        lines += [f"  in {each.name}" if each.name else "  the call that broke the graph"]
    return tuple(lines)


def nothing_lines(seen: Measurement) -> tuple[str, ...]:
    """What to say of a test in which Dynamo had nothing to do at all."""
    if seen.graphs or seen.first_compiles or seen.recompiles or seen.limit_hits:
        return ()
    if seen.elsewhere:
        return (f"nothing was compiled in this process; {seen.elsewhere}",)
    return ("nothing was compiled: no compiled function was called, or none that computes with tensors",)


def limit_hit_lines(hits: Sequence[LimitHit]) -> tuple[str, ...]:
    lines: list[str] = []
    for each in hits:
        lines += [f"{each.frame}: {each.limit}", f"  {first_line(each.reason)}"]
        if each.guard:
            lines += [f"  guard: {first_line(each.guard)}"]
    return tuple(lines)


def raised_lines(raised: Raised) -> tuple[str, ...]:
    message = first_line(raised.message)
    lines = [f"{raised.type}: {message}" if message else raised.type]
    if raised.location is not None:
        lines += [f"  at {told_line(raised.location)}"]
    return tuple(lines)


def state_lines(change: StateChange) -> tuple[str, ...]:
    prefix = _common_prefix(change)
    if prefix:
        lines = [f"{counted(len(change.keys_added), 'key')} with a prefix now: {prefix!r}"]
    else:
        lines = [f"key added: {key}" for key in change.keys_added]
        lines += [f"key removed: {key}" for key in change.keys_removed]
    if change.type_changed:
        lines += [f"type changed: {change.type_changed}"]
    return tuple(lines)


def _common_prefix(change: StateChange) -> str:
    """What every removed key has before it now, as the `_orig_mod.` of torch.compile's wrapper."""
    if not change.keys_removed or len(change.keys_added) != len(change.keys_removed):
        return ""
    prefix = change.keys_added[0].removesuffix(change.keys_removed[0])
    moved = all(now == prefix + was for now, was in zip(change.keys_added, change.keys_removed, strict=True))
    return prefix if moved else ""


def told_line(location: Location) -> str:
    return f"{location}: {location.source.strip()}" if location.source.strip() else str(location)
