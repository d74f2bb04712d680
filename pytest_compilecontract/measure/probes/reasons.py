"""Reasons: the guard failures that torch gives for a recompile, one for each older entry, and which one explains it.

Most entries fail for a reason that does not explain the recompile: they were made in another grad mode, for another
backend or another module, or guard a size that is dynamic in a later entry. The explanation is why the newest of the
others did not match. torch has no name for it, and keeps the reason of the entry that was used last.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pytest_compilecontract.errors import message_of

from . import dispatch_keys
from .protocols import Node

# In the order in which torch compares a tensor with an entry's (`TensorCheck::check_verbose`,
# torch/csrc/dynamo/guards.cpp): what fails first is all that it tells.
_CHECKS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("type", re.compile(r"expected type of '(.+?)' to be ")),
    ("dispatch keys", re.compile(r"tensor '(.+?)' dispatch key set mismatch")),
    ("dtype", re.compile(r"tensor '(.+?)' dtype mismatch")),
    ("device", re.compile(r"tensor '(.+?)' (?:Tensor )?device index mismatch")),
    ("requires_grad", re.compile(r"tensor '(.+?)' requires_grad mismatch")),
    ("rank", re.compile(r"tensor '(.+?)' rank mismatch")),
    ("size", re.compile(r"tensor '(.+?)' size mismatch at index (\d+)\. expected (-?\d+), actual (-?\d+)")),
    ("stride", re.compile(r"tensor '(.+?)' stride mismatch at index (\d+)\. expected (-?\d+), actual (-?\d+)")),
)
_STAGES = {name: stage for stage, (name, _) in enumerate(_CHECKS)}
_ENTRY = re.compile(r"^(\S*?\d+/\d+)(?:_\d+)?: ")
# Checked before anything of the arguments: the state of the process, and whose entry it is.
_AMBIENT = re.compile(
    r"GLOBAL_STATE changed|BACKEND_MATCH failure|Cache line invalidated|___check_torch_function_mode_stack"
    r"|torch function mode stack|___check_global_state|___check_current_backend"
)
_SOURCE = re.compile(r"\bL\[['\"](\w+)['\"]\]")
_AS_TENSOR = re.compile(r"^___as_tensor\((.+)\)$")
# Behind a guard on a symbol stands the line that asked for it (torch/fx/experimental/symbolic_shapes.py, `_get_sloc`).
_BRANCH = re.compile(r"(?:\s+# |\) and )(?P<source>\S.*?)?\s+# (?P<file>\S+?):(?P<line>\d+) in (?P<function>\S+)")
_FIRST_USE = "user code shown is first use of this value"
_REFUSED = re.compile(r"^\s*- (\S*\d+/\d+: .*)$", re.MULTILINE)
# What torch assumes of each free size, and of sizes that are alike when it meets them (`create_symbol`, same file).
_ZERO_ONE = re.compile(r"2 <= [^<=>]+")
_DUCK = re.compile(r"\S+\.(?:size|stride)\(\)\[\d+\] == \S+\.(?:size|stride)\(\)\[\d+\]")
# A mark on a tensor that an older entry was made without, or with another (torch._dynamo.mark_dynamic).
_MARK = re.compile(r"_dynamo_dim_marking|_dynamo_\w*indices")


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """The sizes and strides of a tensor input of a graph; a dynamic one is None."""

    sizes: tuple[float | None, ...] = ()
    strides: tuple[float | None, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """The inputs of a graph, by torch's names of their sources; `free` are the numbers that are not constants."""

    tensors: dict[str, Input] = field(default_factory=dict)
    free: frozenset[str] = frozenset()

    def __or__(self, other: Inputs) -> Inputs:
        return Inputs(tensors=self.tensors | other.tensors, free=self.free | other.free)

    @property
    def symbolic(self) -> bool:
        """Whether anything is dynamic."""
        return bool(self.free) or any(None in (*each.sizes, *each.strides) for each in self.tensors.values())

    def has_free(self, what: str, name: str, index: int) -> bool:
        """Whether that size or stride of the tensor is dynamic."""
        if f"{name}.{what}()[{index}]" in self.free:
            return True
        found = self.tensors.get(name, Input())
        held = found.sizes if what == "size" else found.strides
        return index < len(held) and held[index] is None

    def size(self, what: str, name: str, index: int) -> float | None:
        """That size or stride of the tensor, if it is known and not a symbol."""
        found = self.tensors.get(name, Input())
        held = found.sizes if what == "size" else found.strides
        return held[index] if index < len(held) else None

    def freed_from(self, older: Inputs) -> bool:
        """Whether a size is dynamic that is static in the older entry."""
        return any(
            self.has_free(what, name, index)
            for name, each in older.tensors.items()
            for what, held in (("size", each.sizes), ("stride", each.strides))
            for index, size in enumerate(held)
            if size is not None
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """Why one entry did not match: torch's text, and the parts that are parsed from it.

    `check` is what failed of a tensor, `name` its source, `index` the dimension; a guard of another kind has none.
    """

    text: str
    entry: str | None = None
    check: str = ""
    name: str = ""
    index: int = 0
    actual: int | None = None

    @property
    def guard(self) -> str:
        """The guard in torch's words, without the compile id before it and the stack and source after it."""
        return guard_text(self.text)

    @property
    def ambient(self) -> bool:
        """Whether it is about the process or the entry itself, and not about the arguments of the call."""
        return bool(_AMBIENT.search(self.guard))

    @property
    def order(self) -> int:
        """The index of the entry among those of its frame; torch lists the most recently used first."""
        return int(self.entry.rpartition("/")[2]) if self.entry else -1

    def passed(self, other: Reason) -> bool:
        """Whether this entry is known to have passed what the other failed."""
        if other.ambient:
            return not self.ambient
        if not other.check or not self.check or self.name != other.name:
            return False
        return (_STAGES[self.check], self.index) > (_STAGES[other.check], other.index)


def read_reason(text: str) -> Reason:
    """Parse one of torch's reasons."""
    found = _ENTRY.match(text)
    entry = found.group(1) if found else None
    guard = guard_text(text)
    for check, pattern in _CHECKS:
        if matched := pattern.match(guard):
            name, index, _, actual = (*matched.groups(), None, None, None)[:4]
            return Reason(
                text=text,
                entry=entry,
                check=check,
                name=source_name(name or ""),
                index=int(index or 0),
                actual=None if actual is None else int(actual),
            )
    return Reason(text=text, entry=entry)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """An older entry: the inputs of its graph, and whether it was made for the same module or callable.

    `same_owner` is None where the frame is no method and no wrapper.
    """

    inputs: Inputs = field(default_factory=Inputs)
    same_owner: bool | None = None


def leading(texts: Sequence[str], entry_of: Callable[[str], Entry], owner: str = "") -> Reason | None:
    """The reason that explains why no older entry matched: that of the newest one that could have.

    `owner` is the name of the frame's first argument, where that is a module.
    """
    reasons = sorted(map(read_reason, texts), key=lambda each: -each.order)
    if not reasons:
        return None
    known = {id(each): entry_of(each.entry) if each.entry else Entry() for each in reasons}

    def left(kept: list[Reason], excused: Callable[[Reason], bool]) -> list[Reason]:
        # What excuses every entry tells nothing.
        return [each for each in kept if not excused(each)] or kept

    def is_of_another(reason: Reason) -> bool:
        """Whether the entry was made for another module or callable, if there is one that was made for this."""
        if known[id(reason)].same_owner is not False:
            return False
        return any(known[id(each)].same_owner and not each.ambient for each in kept) and (
            not owner or names(owner, reason.guard)
        )

    def holds_what_is_free(reason: Reason) -> bool:
        """Whether the entry has a static size that is dynamic in another."""
        return reason.check in ("size", "stride") and any(
            known[id(each)].inputs.has_free(reason.check, reason.name, reason.index) for each in kept
        )

    def was_passed(reason: Reason) -> bool:
        """Whether another entry passed this check, so that what it checks is nothing new."""
        if reason.ambient:
            return any(each.passed(reason) for each in reasons)
        return any(each.passed(reason) or _comes_after(each, reason, known[id(reason)]) for each in reasons)

    kept = reasons
    kept = left(kept, lambda each: each.ambient)
    kept = left(kept, is_of_another)
    kept = left(kept, holds_what_is_free)
    kept = left(kept, was_passed)
    return kept[0]


def _comes_after(later: Reason, reason: Reason, entry: Entry) -> bool:
    """Whether torch checks the size after this value, so that the entry would have failed by that size too.

    Then the entry that failed by its size has passed the check of the value.
    """
    if reason.check or later.check not in ("size", "stride") or later.actual is None:
        return False
    own = entry.inputs.size(later.check, later.name, later.index)
    return own is not None and own != later.actual


def refused_for(error: BaseException) -> str:
    """The guard for which torch refused to compile again, by `error_on_recompile` or a stance; empty for other errors.

    Both raise when only the reasons are known, which are in the text (torch/_dynamo/guards.py,
    `get_and_maybe_log_recompilation_reasons`, and torch/_dynamo/eval_frame.py, `fail_callback`).
    """
    _, _, told = message_of(error).partition("triggered by the following guard failure(s):")
    lead = leading(_REFUSED.findall(told), lambda _: Entry())
    return lead.guard if lead is not None else ""


def became_free(lead: Reason, new: Inputs, old: Inputs) -> bool:
    """Whether what the guard checked is dynamic in the new code: by automatic dynamic, or by a mark."""
    if lead.check in ("size", "stride"):
        return new.has_free(lead.check, lead.name, lead.index) and not old.has_free(lead.check, lead.name, lead.index)
    if lead.check:
        return False
    guard = lead.guard
    if _MARK.search(guard):
        return new.freed_from(old)
    return any(_is_held(name, guard) for name in new.free - old.free) or any(
        _is_held(f"{name}.{what}()[{index}]", guard)
        for name, each in new.tensors.items()
        for what, held in (("size", each.sizes), ("stride", each.strides))
        for index, size in enumerate(held)
        if size is None and not old.has_free(what, name, index)
    )


def meaning_of(reason: str) -> str:
    """What a reason means, in plain words; empty if torch's own words say it."""
    guard = guard_text(reason)
    if _ZERO_ONE.fullmatch(guard) and not branches(reason):
        return "torch specializes a size of 0 or 1 (torch._dynamo.mark_unbacked prevents that)"
    if _DUCK.fullmatch(guard) and not branches(reason):
        return "the two sizes were equal when the code was compiled, and torch assumed that they always are"
    return dispatch_keys.meaning_of(guard)


def _is_held(name: str, guard: str) -> bool:
    """Whether a guard checks that a number is unchanged."""
    return bool(re.search(rf"(?<![\w.'\"]){re.escape(name)} == -?[\d.]+(?:e[+-]?\d+)?(?![\w.])", source_name(guard)))


def names(owner: str, guard: str) -> bool:
    """Whether a guard is about that variable."""
    return bool(re.search(rf"(?<![\w.\"]){re.escape(owner)}(?![\w\"])", source_name(guard)))


def guard_text(reason: str) -> str:
    """A guard failure in torch's words, without the compile id before it and the stack and source after it."""
    line = reason.split("\n", 1)[0]
    line = re.sub(r"^\S*?\d+/\d+(?:_\d+)?: ", "", line)
    return re.sub(r"\s+# .*$", "", line).strip()


def branches(reason: str) -> list[tuple[str, int, str, str]]:
    """The user's lines that a guard on a symbol comes from: file as torch shortens it, line, function, source.

    For a guard of torch's own, the line where its symbol is first used is not among them.
    """
    line = reason.split("\n", 1)[0]
    found = list(_BRANCH.finditer(line))
    ends = [*(each.start() for each in found[1:]), len(line)]
    return [
        (each["file"], int(each["line"]), each["function"], each["source"].strip())
        for each, end in zip(found, ends, strict=False)
        if _FIRST_USE not in line[each.end() : end]
    ]


def source_name(name: str) -> str:
    """A source as users write it: without the dict of locals, and a number that torch keeps in a tensor."""
    name = _AS_TENSOR.sub(r"\1", name)
    return re.sub(r"___as_tensor\((.+?)\)\.item\(\)", r"\1", _SOURCE.sub(r"\1", name))


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """One input of a graph: its source, as torch writes it, and torch's stand-in for it."""

    source: str
    value: object
    is_number: bool


def taken_by(placeholders: Iterable[Node]) -> list[Taken]:
    """What a graph's placeholders stand for. Call it before the graph is compiled: torch then drops it."""
    return [_taken(each) for each in placeholders]


def _taken(placeholder: Node) -> Taken:
    argument = placeholder.meta.get("grapharg")
    name = getattr(getattr(argument, "source", None), "name", None)
    # A method up to torch 2.9, a property after.
    source = name() if callable(name) else name
    value = getattr(argument, "fake_tensor", None)
    if value is None:
        value = placeholder.meta.get("example_value")
    # A float that is no constant is handed over in a tensor.
    number = bool(getattr(argument, "pass_arg_as_tensor", False))
    return Taken(source=source_name(str(source or placeholder.name)), value=value, is_number=number)


def inputs_of(taken: Iterable[Taken]) -> Inputs:
    """The sizes of a graph's inputs. Call it after the graph is compiled, which may specialize a size."""
    torch = importlib.import_module("torch")
    tensors: dict[str, Input] = {}
    free: set[str] = set()
    for each in taken:
        if each.is_number:
            free.add(each.source)
        elif isinstance(each.value, torch.Tensor):
            tensors[each.source] = Input(sizes=_constants(each.value.size), strides=_constants(each.value.stride))
        elif isinstance(each.value, (torch.SymInt, torch.SymFloat)) and _constant(each.value) is None:
            free.add(each.source)
    return Inputs(tensors=tensors, free=frozenset(free))


def _constants(read: Callable[[], Iterable[object]]) -> tuple[int | float | None, ...]:
    try:
        return tuple(map(_constant, read()))
    except (RuntimeError, NotImplementedError):  # a layout that has none
        return ()


def _constant(number: object) -> int | float | None:
    """The number, or None if it is dynamic: a symbol that a branch specialized is not."""
    if isinstance(number, (int, float)):
        return number
    known = getattr(getattr(number, "node", None), "maybe_as_int", None)
    return known() if callable(known) else None
