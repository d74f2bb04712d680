"""Attempts: what Dynamo was seen to do with one frame. `told` makes facts of them."""

from __future__ import annotations

import re
import traceback
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from types import CodeType, FrameType

from pytest_compilecontract.errors import message_of
from pytest_compilecontract.wording import first_said

from .backends import Handed
from .guards import guards_in, recompile_limit
from .messages import parse_message
from .reasons import Inputs
from .source import Paths

# Where operators of a graph come from: the module's path, the files and lines of the stack, and how many they are.
Place = tuple[str, tuple[tuple[str, int], ...], int]
RESUME = "torch_dynamo_resume_in_"
LIMIT_TYPE = "Dynamo recompile limit exceeded"
LIMIT_EXCEPTIONS = ("RecompileLimitExceeded", "FailOnRecompileLimitHit")
STACK_LINE = re.compile(r'^\s*File "(.+?)", line (\d+), in ', re.MULTILINE)


@dataclass(kw_only=True, slots=True)
class Graph:
    """One graph handed to the backend; `kept` once the backend returned. `places` are where its operators come from.

    `rises` is how much each of torch's cache counters rose meanwhile.
    """

    operations: Counter[str]
    inputs: Inputs = field(default_factory=Inputs)
    kept: bool = False
    pieces: int = 0
    restarted: bool = False
    classes: frozenset[str] = frozenset()
    places: tuple[Place, ...] = ()
    handed: Handed | None = None
    rises: dict[str, int] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class Break:
    """A graph break as Dynamo logged it: its message and the inlined stack, outermost frame first."""

    message: str
    stack: tuple[tuple[str, int, str, str], ...]

    def is_met_by(self, other: Break) -> bool:
        """Whether the other is this break as seen by a caller: of the same kind, and this stack ends its own."""
        own, longer = ([(file, line) for file, line, *_ in each.stack] for each in (self, other))
        same_kind = parse_message(self.message).kind == parse_message(other.message).kind
        return same_kind and longer[-len(own) :] == own


@dataclass(kw_only=True, slots=True)
class Attempt:
    """One attempt to compile a frame."""

    code: CodeType
    name: str
    id: str | None = None
    entries: int = 0  # of its frame, before
    limit: int | None = None  # on these entries
    has_code: bool = False  # for whatever instance
    recompiles: bool = False
    guards: dict[str, int] | None = None  # of the code that it installed
    after_reset: bool = False  # the code that this frame had is gone
    fullgraph: bool = False  # a graph break raises
    resets: int = 0  # so many came before
    new_instance: bool = False
    first: str = ""  # the name of its first argument, where that is a module
    made_for: weakref.ref[object] | None = None  # that module, or what a wrapper of Dynamo's calls
    owner: str | None = None
    wrapped: str | None = None
    reasons: list[str] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)
    broke: Break | None = None
    earlier: Break | None = None  # one before it, that torch got over only to break here
    entered: bool = False
    installed: bool = False
    untraced: bool = False  # its break is in none of torch's records
    told: int = 0  # new bytecode of it that the bytecode hook was told of
    error: BaseException | None = None
    suppressed: bool = False
    excused: bool = False  # eager raises where Dynamo gave it up
    caller: Attempt | None = None  # that of the frame which calls this one, and met the same graph break in it

    def finds(self, size: object) -> None:
        """Note the cache entries that its frame has, as torch counts them before it compiles one more."""
        self.entries = int(getattr(size, "num_cache_entries_with_same_id_matched_objs", 0))
        self.has_code = int(getattr(size, "num_cache_entries", 0)) >= 1
        self.recompiles = self.entries >= 1
        self.limit = recompile_limit()

    def ends(self, result: object) -> None:
        """Note what Dynamo returned: the code with its guards, if it installs any."""
        code = getattr(result, "guarded_code", result)
        self.installed = code is not None
        if self.installed:
            self.guards = guards_in(code)

    @property
    def continuation(self) -> bool:
        return self.name.startswith(RESUME)

    @property
    def inputs(self) -> Inputs:
        """The inputs of its graphs."""
        kept = [graph.inputs for graph in self.graphs if graph.kept] or [graph.inputs for graph in self.graphs]
        return reduce(or_, kept, Inputs())

    def made_as(self, other: Attempt) -> bool | None:
        """Whether it was for the same module or callable; None if it was for neither."""
        if self.made_for is None or other.made_for is None:
            return None
        return self.made_for is other.made_for or ((own := self.made_for()) is not None and own is other.made_for())

    @property
    def forbidden(self) -> bool:
        """The user's setting `error_on_recompile` raised: nothing was compiled, and nothing ran in eager."""
        return type(self.error).__name__ == "RecompileError" and not self.suppressed

    @property
    def refused(self) -> bool:
        """The recompile limit stopped it."""
        error = self.error
        if error is None:
            return False
        return type(error).__name__ in LIMIT_EXCEPTIONS or getattr(error, "gb_type", None) == LIMIT_TYPE


def user_function(name: str) -> str:
    """The user's function behind Dynamo's name for a continuation, `torch_dynamo_resume_in_f_at_12`."""
    while name.startswith(RESUME):
        name = re.sub(r"_at_\d+$", "", name[len(RESUME) :])
    return name


def break_from(error: object, reason: str = "") -> Break:
    stack = getattr(error, "real_stack", None) or ()
    message = str(getattr(error, "msg", "") or reason) or message_of(error) or type(error).__name__
    return Break(
        message=message, stack=tuple((each.filename, each.lineno or 0, each.name, each.line or "") for each in stack)
    )


def is_unsupported(error: BaseException) -> bool:
    return any(each.__name__ == "Unsupported" for each in type(error).__mro__)


def is_soft(error: BaseException) -> bool:
    """Errors that Dynamo always turns into an eager frame, without suppress_errors."""
    return any(each.__name__ in ("Unsupported", "UserError") for each in type(error).__mro__)


def is_restart(error: BaseException) -> bool:
    return any(each.__name__ == "RestartAnalysis" for each in type(error).__mro__)


def first_line_of(error: BaseException) -> str:
    return first_said(message_of(error)) or type(error).__name__


def forget_frames(attempts: Iterable[Attempt]) -> None:
    """Clear the tracebacks of errors, which hold the user's tensors."""
    pending = [attempt.error for attempt in attempts]
    met: set[int] = set()
    while pending:
        error = pending.pop()
        if error is None or id(error) in met:
            continue
        met.add(id(error))
        error.__traceback__ = None
        for name, value in list(vars(error).items()):
            # The frame that torch would show, and what Dynamo had traced so far.
            if isinstance(value, FrameType) or name.startswith("_torch_dynamo"):
                setattr(error, name, None)
        pending += [error.__cause__, error.__context__, getattr(error, "inner_exception", None)]


def excuse(attempts: Iterable[Attempt], error: BaseException, paths: Paths) -> None:
    """Mark the attempts that fell back exactly where eager raised this exception."""
    lines = [(each.filename, each.lineno) for each in traceback.extract_tb(error.__traceback__)]
    for attempt in attempts:
        attempt.excused = not attempt.installed and _ends_at(attempt, lines, paths)


def _ends_at(attempt: Attempt, lines: list[tuple[str, int | None]], paths: Paths) -> bool:
    """Whether Dynamo stopped at the innermost of these lines, or at one that leads there."""
    stack = attempt.broke.stack if attempt.broke is not None else break_from(attempt.error).stack
    own, theirs = (
        [each for each in place if not paths.is_out_of_reach(each[0])] or place
        for place in ([(file, line) for file, line, *_ in stack], lines)
    )
    return bool(own) and bool(theirs) and own[-1] in (theirs[-1], lines[-1]) and set(own) <= set(lines)
