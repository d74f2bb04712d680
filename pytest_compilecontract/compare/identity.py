"""Identity: when two facts, measured on two torch releases, are the same. torch's wording and numbering do not count.

A fact is identified by the user's code that caused it. torch's name and number for it, the line that it has moved to
and the sizes that it saw are shown and not compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from pytest_compilecontract.facts.measurement import (
    CompileFailure,
    Difference,
    EagerFrame,
    EagerOps,
    GraphBreak,
    LimitHit,
    Location,
    Recompile,
)

Key = tuple[object, ...]
WRAPPER = "wrapper"

_RESUME = re.compile(r"torch_dynamo_resume_in_(?P<function>.+?)_at_\d+$")
_RESUME_INSIDE = re.compile(r"(?:torch_dynamo_resume_in_)+(\w+?)(?:_at_\d+)+\b")
# In this order: what is taken away first must not be read as a size.
_REWORDED: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^\s*\d+/\d+:\s*"), ""),  # the compile id that torch puts ahead
    (re.compile(r"\s{2,}#.*$"), ""),  # the source and line that torch puts behind
    (re.compile(r"\s+"), " "),
    # What follows is advice, which torch 2.13 replaced by both backends with their ids.
    (re.compile(r"^(BACKEND_MATCH failure)\b.*$"), r"\1"),
    (_RESUME_INSIDE, r"\1"),
    (re.compile(r"\b0x(?:[0-9a-fA-F]+|\.\.\.)"), "ADDRESS"),
    (re.compile(r"(___check_\w+_id\(.*?, ?)(?:\d+|\.\.\.)"), r"\1ID"),
    # The object that was expected, or its type: which of them torch tells differs, and neither is whose guard it is.
    (re.compile(r"^(___check_\w+_id\(.*, ?ID\)), type=.*$"), r"\1"),
    (re.compile(r"^(expected type of '.+' to be) .*$"), r"\1"),
    (re.compile(r"(\bid\([^()]*\) == )(?:\d+|\.\.\.)"), r"\1ID"),
    (re.compile(r"\b___as_tensor\((.+?)\)\.item\(\)"), r"\1"),  # how torch 2.11 reads a float that it made symbolic
    (re.compile(r"\bL\['(\w+)'\]"), r"\1"),
    (re.compile(r"\bG\['(\w+)'\]"), r"\1"),
    (re.compile(r"\b(___stack)\d+"), r"\1"),
    # Up to torch 2.11 a number is guarded by way of a tensor.
    (re.compile(r"___as_tensor\((.+?)\)\.item\(\)"), r"\1"),
    (re.compile(r"\b([su])\d+\b"), r"\1N"),
    # A number that stands for itself; not one inside a name, nor one that says which item or dimension.
    (re.compile(r"(?<![\w\['\".])(?<!index )-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w'\"\]])"), "N"),
)
_TENSOR = re.compile(
    r"^tensor '(?P<tensor>[^']*(?:'\w*'[^']*)*)' (?P<property>[\w ]+?) mismatch\b(?P<index> at index \d+)?"
)
_RELATION = re.compile(r"(?P<left>.+?) (?P<relation>==|!=|<=|>=|<|>) (?P<right>.+)")
_ARITHMETIC = re.compile(r"(?:\*\*|//|[-+*/%()]|\s)+")
_NUMBER = re.compile(r"\bN\b")
_LIBRARIES_OF_TORCH = ("torch/", "torch\\", "<")
# What Dynamo unwraps to reach the user's function. No file of a project can have such a name and Python still start.
_WRAPPERS = ("contextlib.py", "functools.py")


def break_keys(found: GraphBreak) -> tuple[Key, ...]:
    """The break under each of its inlined stacks.

    A break in an inlined callee also breaks its caller, on some releases of torch and not on others: a stack that is
    the end of a longer one is not a fact of its own. If all lines are in torch and in Python's wrappers, only the file
    identifies the break: at which of its lines Dynamo gives up depends on torch.
    """
    if wrapper := _wrapper_of(found):
        return ((WRAPPER, wrapper),)
    stacks = dict.fromkeys(_stack_key(until(found.location, stack)) for stack in found.stacks)
    own = _location_key(found.location)
    longest = [stack for stack in stacks if not any(_is_end_of(stack, other) for other in stacks)]
    return tuple((own, stack) for stack in longest) or ((own, (own,)),)


def until(place: Location, stack: Sequence[Location]) -> Sequence[Location]:
    """A stack down to the place of the break: the frames of torch below it may change with torch."""
    line = (place.file, place.line)
    last = max((at for at, frame in enumerate(stack) if (frame.file, frame.line) == line), default=len(stack) - 1)
    return stack[: last + 1]


def _wrapper_of(found: GraphBreak) -> str:
    """The standard library file of a break without user code on any stack; empty if there is other code."""
    files = dict.fromkeys(frame.file for stack in (*found.stacks, (found.location,)) for frame in stack)
    others = [file for file in files if not file.startswith(_LIBRARIES_OF_TORCH)]
    return others[0] if others and all(file in _WRAPPERS for file in others) else ""


def recompile_key(found: Recompile) -> Key:
    """The frame, and the expression that torch guards."""
    return (*_frame_key(found.frame), found.continuation, normalised_guard(found.guard))


def reasons_key(found: Recompile) -> Key:
    """The frame, and all guards that torch reported if there are several, whichever is shown first."""
    if len(found.guards) < 2:
        return recompile_key(found)
    return (*_frame_key(found.frame), found.continuation, tuple(sorted(map(normalised_guard, found.guards))))


def eager_key(found: EagerFrame) -> Key:
    """The function, and why it ran in eager: how much of it was compiled before a break shows in what was captured."""
    return (*_frame_key(found.frame), found.cause)


def eager_ops_key(found: EagerOps) -> Key:
    """The line that leads to the skipped frame; which function is skipped there depends on torch."""
    if found.location is not None:
        return _location_key(found.location)
    return _frame_key(found.frame) if found.frame is not None else (found.name,)


def limit_hit_key(found: LimitHit) -> Key:
    """The frame, and the limit."""
    return (*_frame_key(found.frame), found.continuation, found.limit)


def failure_key(found: CompileFailure) -> Key:
    """The frame, and the exception's type, wherever torch defines it."""
    return (*_frame_key(found.frame), found.type.rpartition(".")[2])


def difference_key(found: Difference) -> Key:
    """The tensor, and the kind of difference; its size differs between any two releases of torch."""
    return (found.at, found.kind)


@lru_cache(maxsize=4096)
def normalised_guard(guard: str) -> str:
    """The guarded expression without sizes, addresses, ids, symbols and the text that torch puts around it."""
    text = next(iter(guard.strip().splitlines()), "")
    for pattern, replacement in _REWORDED:
        text = pattern.sub(replacement, text)
    tensor = _TENSOR.match(text)
    if tensor:
        return f"{tensor['tensor']} {tensor['property']}{tensor['index'] or ''}"
    relation = _RELATION.fullmatch(text.strip())
    if relation is None:
        return text.strip()
    # torch solves what it guards for a number in one release, and guards the formula of it in another.
    sides = (_of_one_source(relation["left"]), _of_one_source(relation["right"]))
    return f"{sides[0]} {relation['relation']} {sides[1]}"


def _of_one_source(side: str) -> str:
    """The source in a formula of one source and numbers; any other formula as it is."""
    operands = {each.strip() for each in _ARITHMETIC.split(side)} - {"", "N"}
    if len(operands) > 1 or not _NUMBER.search(side):
        return side
    return operands.pop() if operands else "N"


def normalised_function(name: str) -> str:
    """The user's function, for Dynamo's name of a resume function."""
    while (made := _RESUME.match(name)) is not None:
        name = made["function"]
    return name


class Function(NamedTuple):
    """A function of a file, in a key: its class, if it is in one, and its name."""

    scope: str
    name: str


def comparable(one: Sequence[Key], other: Sequence[Key]) -> tuple[list[Key], list[Key]]:
    """The keys of two sides, without classes if one side has none, as older receipts do."""
    if all(map(_names_a_class, (one, other))):
        return list(one), list(other)
    return [tuple(map(_without_classes, each)) for each in one], [tuple(map(_without_classes, each)) for each in other]


def _names_a_class(part: object) -> bool:
    if isinstance(part, Function):
        return bool(part.scope)
    return isinstance(part, (tuple, list)) and any(map(_names_a_class, part))


def _without_classes(part: object) -> object:
    if isinstance(part, Function):
        return part._replace(scope="")
    return tuple(map(_without_classes, part)) if isinstance(part, tuple) else part


def _frame_key(frame: Location) -> Key:
    return (frame.file, Function(frame.scope, normalised_function(frame.function)))


def _location_key(place: Location) -> Key:
    source = " ".join(place.source.split())
    # Without its text, a line has nothing but its number to be known by.
    return (*_frame_key(place), source or place.line)


def _stack_key(stack: Sequence[Location]) -> Key:
    """The stack without torch's own frames, which may change with torch; the whole stack if there are no others."""
    users = [frame for frame in stack if not frame.file.startswith(_LIBRARIES_OF_TORCH)]
    return tuple(_location_key(frame) for frame in users or stack)


def _is_end_of(stack: Key, other: Key) -> bool:
    return len(stack) < len(other) and other[len(other) - len(stack) :] == stack
