"""What Dynamo did: a ledger of its attempts to compile frames, kept by five taps.

An attempt is one time that Dynamo means to compile one frame. It ends with installed code, with nothing (no ops), or
with an exception, and with at most one graph break. Everything counted here follows from the list of attempts:

    first compile   code installed for a frame that had no usable entry; a continuation resumes after a graph break
    recompile       code installed for a frame that had one
    dropped         a first compile by torch's count, of a frame whose code torch._dynamo.reset() has dropped
    limit hit       refused, since the frame has too many entries
    eager frame     no code installed, and not for the limit
    graph break     the last one logged in the attempt

The counters of `torch._dynamo.utils` miss breaks that Dynamo cannot resume from and know no recompiles, so they are
only recorded (tests/with_torch/test_scenarios.py holds the cases that tell).
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import logging
import operator
import re
import sys
import threading
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.measurement import (
    Compiled,
    CompileFailure,
    EagerFrame,
    GraphBreak,
    LimitHit,
    Location,
    Recompile,
    RecompileKind,
    merge_breaks,
)
from pytest_compilecontract.wording import first_said

from .backend_errors import backend_error
from .backends import Compiles, Handed, handed_by
from .reasons import (
    Entry,
    Inputs,
    Reason,
    became_free,
    branches,
    guard_text,
    inputs_of,
    leading,
    meaning_of,
    taken_by,
)
from .source import Paths, file_of
from .stance import Lost, Stances
from .taps import Taps
from .targets import class_name, classes_in

RESUME = "torch_dynamo_resume_in_"
LIMIT_TYPE = "Dynamo recompile limit exceeded"
LIMIT_EXCEPTIONS = ("RecompileLimitExceeded", "FailOnRecompileLimitHit")
_STACK_LINE = re.compile(r'^\s*File "(.+?)", line (\d+), in ', re.MULTILINE)
# Dynamo's source of a module: `L['self']._modules['block'].act`, in one release or another.
_OF_A_PATH: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^[LG]\['\w+'\]"), ""),
    (re.compile(r"\._orig_mod\b"), ""),
    (re.compile(r"(?:\._modules)?\['?(\w+)'?\]"), r".\1"),
)
# What each metric needs: a metric whose tap is missing is None, with the tap's reason.
NEEDS: dict[str, tuple[str, ...]] = {
    "graphs": ("call_user_compiler",),
    "backend_calls": ("call_user_compiler",),
    "ops_captured": ("call_user_compiler",),
    "operations": ("call_user_compiler",),
    "compiles": ("call_user_compiler",),
    "graphs_executed": ("convert_frame", "call_user_compiler"),
    "first_compiles": ("convert_frame", "_compile"),
    "continuations": ("convert_frame", "_compile"),
    "recompiles": ("convert_frame", "_compile", "recompilation_reasons"),
    "graph_breaks": ("convert_frame", "_compile", "log_graph_break"),
    "break_events": ("convert_frame", "_compile", "log_graph_break"),
    "eager_frames": ("convert_frame", "_compile"),
    "limit_hits": ("convert_frame", "_compile"),
    "backend_failures": ("convert_frame", "_compile", "call_user_compiler"),
    "errors_suppressed": ("convert_frame", "_compile"),
    "resets": ("reset",),
    "dropped": ("convert_frame", "_compile", "reset"),
    "eager_by_request": ("set_stance", "catch_errors"),
}
# The taps that count what the second channel counts as well.
COUNTING = frozenset(("convert_frame", "_compile", "recompilation_reasons", "log_graph_break", "call_user_compiler"))
_UNKNOWN = object()
DROPPED = "torch._dynamo.reset() dropped the code that was compiled"


# Where operators of a graph come from: the module's path, the files and lines of the stack, and how many they are.
Place = tuple[str, tuple[tuple[str, int], ...], int]


@dataclass(kw_only=True, slots=True)
class Graph:
    """One graph handed to the backend; `kept` once the backend returned. `places` are where its operators come from."""

    operations: Counter[str]
    inputs: Inputs = field(default_factory=Inputs)
    kept: bool = False
    pieces: int = 0
    restarted: bool = False
    classes: frozenset[str] = frozenset()
    places: tuple[Place, ...] = ()
    handed: Handed | None = None


@dataclass(kw_only=True, slots=True)
class Break:
    """A graph break as Dynamo logged it: its message and the inlined stack, outermost frame first."""

    message: str
    stack: tuple[tuple[str, int, str, str], ...]

    def is_met_by(self, other: Break) -> bool:
        """Whether the other is this break, met by a caller: of one kind, at the end of its stack."""
        own, longer = ([(file, line) for file, line, *_ in each.stack] for each in (self, other))
        same_kind = parse_message(self.message).kind == parse_message(other.message).kind
        return same_kind and longer[-len(own) :] == own


@dataclass(kw_only=True, slots=True)
class Attempt:
    """One attempt to compile a frame."""

    code: CodeType
    name: str
    id: str | None = None
    entries: int = 0
    has_code: bool = False  # for whatever instance
    recompiles: bool = False
    after_reset: bool = False  # the code that this frame had is gone
    fullgraph: bool = False  # a graph break raises
    resets: int = 0  # so many came before
    new_instance: bool = False
    first: str = ""  # the name of its first argument, where that is a module
    made_for: weakref.ref[Any] | None = None  # that module, or what a wrapper of Dynamo's calls
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

    @property
    def continuation(self) -> bool:
        return self.name.startswith(RESUME)

    @property
    def inputs(self) -> Inputs:
        """What its graphs take."""
        kept = [graph.inputs for graph in self.graphs if graph.kept] or [graph.inputs for graph in self.graphs]
        return reduce(or_, kept, Inputs())

    def made_as(self, other: Attempt) -> bool | None:
        """Whether it was for the same module or callable; None where it was for none."""
        if self.made_for is None or other.made_for is None:
            return None
        return self.made_for is other.made_for or ((own := self.made_for()) is not None and own is other.made_for())

    @property
    def forbidden(self) -> bool:
        """The user's setting `error_on_recompile` raised: nothing was compiled, and nothing ran eager."""
        return type(self.error).__name__ == "RecompileError" and not self.suppressed

    @property
    def refused(self) -> bool:
        """The recompile limit stopped it."""
        error = self.error
        if error is None:
            return False
        return type(error).__name__ in LIMIT_EXCEPTIONS or getattr(error, "gb_type", None) == LIMIT_TYPE


class Ledger:
    """Record every attempt, on every thread, while entered.

    Use as a context manager, once. The facts are read after leaving, or at any time in between. `executed` counts the
    compiled graphs that ran; while a `clock` is set, `seconds_inside` adds up what it shows of their time, and what is
    `around` is put around each. `strangers`
    are threads that were there before and compile: whose work they do is not known. `calls` looks at every call of
    compiled code, not only at those after the first change of stance.
    """

    def __init__(self, paths: Paths, *, calls: bool = False) -> None:
        self.attempts: list[Attempt] = []
        self.loose_graphs: list[Graph] = []
        self.missing: dict[str, str] = {}
        self.bytecode_hooks = 0
        self.watches_classes = False
        self._paths = paths
        self.executed = 0
        self.clock: Callable[[], float] | None = None
        self.around: Callable[[Graph], contextlib.AbstractContextManager[None]] | None = None
        self.seconds_inside = 0.0
        self._counting_lock = threading.Lock()
        self._seen: dict[CodeType, weakref.WeakSet[Any]] = {}
        self._local = threading.local()
        self._taps = Taps()
        self.resets = 0
        self.noops = 0
        self.strangers: Counter[str] = Counter()
        self.stances = Stances(self._executed_here, always=calls)
        self._compiles = Compiles(paths)
        self._before: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        # By the compiled callable and the frame's place: at which reset code was installed last.
        self._installed: dict[tuple[Any, ...], int] = {}

    def __enter__(self) -> Ledger:
        from torch._dynamo import convert_frame

        self._before.update(set(threading.enumerate()) - {threading.current_thread()})

        output_graph = _module("torch._dynamo.output_graph")
        translator = getattr(_module("torch._dynamo.symbolic_convert"), "InstructionTranslatorBase", None)
        taps = self._taps
        converter = getattr(convert_frame, "ConvertFrameAssert", None)
        graphs = getattr(output_graph, "OutputGraph", None)
        taps.set("convert_frame", converter, "__call__", self._on_frame)
        taps.set(
            "_compile",
            convert_frame,
            "_compile",
            self._on_compile,
            reads=("compile_id", "one_graph", "cache_size", "locals", "closure"),
        )
        taps.set(
            "recompilation_reasons", convert_frame, "get_and_maybe_log_recompilation_reasons", self._on_recompilation
        )
        taps.set("log_graph_break", translator, "log_graph_break", self._on_graph_break, reads=("exc",))
        taps.set("call_user_compiler", graphs, "call_user_compiler", self._on_backend, reads=("gm",))
        if hasattr(output_graph, "is_noop_graph"):
            # From torch 2.15 on a graph with nothing in it is counted and never compiled.
            taps.set("is_noop_graph", output_graph, "is_noop_graph", self._on_noop)
        if _distributed():
            splitter = getattr(_module("torch._dynamo.backends.distributed"), "SubmodCompiler", None)
            taps.set("ddp_pieces", splitter, "compile_submod", self._on_piece)
        # The part of a reset that drops the code, whoever asks for it.
        package = _module("torch._dynamo")
        part = "reset_code_caches" if hasattr(package, "reset_code_caches") else "reset"
        taps.set("reset", package, part, self._on_reset)
        self.stances.set(taps)
        self._compiles.set(taps)
        hook = convert_frame.register_bytecode_hook(self._on_bytecode)
        taps.callback(hook.remove)
        self.missing = taps.missing
        return self

    def __exit__(self, *_exc: object) -> None:
        self._taps.close()

    # taps

    def _on_frame(self, original: Callable[..., Any], converter: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        attempt = Attempt(code=frame.f_code, name=frame.f_code.co_name, resets=self.resets)
        # The converter is that of one torch.compile; kept, so that no other gets its id.
        key = (converter, attempt.code.co_filename, attempt.code.co_firstlineno, attempt.name)
        if (thread := threading.current_thread()) in self._before:
            self.strangers[thread.name] += 1
        with self._current(attempt):
            try:
                return original(converter, frame, *args, **kwargs)
            except BaseException as error:
                if not attempt.entered and _is_unsupported(error) and _has_tensors(frame):
                    # A generator: refused before tracing, and logged nowhere. Dynamo refuses it before it looks for
                    # tensors, so it meets those of Python's own library too, which any other frame would be spared.
                    attempt.entered = True
                    attempt.error = error
                    attempt.broke = _break_of(error)
                raise
            finally:
                if attempt.error is not None and _errors_on_break(converter):
                    attempt.fullgraph = True
                if attempt.installed:
                    attempt.after_reset = not attempt.recompiles and self._installed.get(key, self.resets) < self.resets
                    self._installed[key] = self.resets
                if attempt.entered:
                    attempt.caller = self._caller_that_met(attempt.broke)
                    self.attempts.append(attempt)

    def _caller_that_met(self, broke: Break | None) -> Attempt | None:
        """The attempt at a frame that runs now and was given up for this break, with nobody's line on its own stack.

        torch's and Python's functions are tried by themselves where inlining them into the caller has failed. Who
        calls them is on the stack of this thread: the same break in another call is a place of its own.
        """
        if broke is None or not broke.stack or not all(self._paths.is_out_of_reach(file) for file, *_ in broke.stack):
            return None
        running: set[tuple[str, int, str]] = set()
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            # Dynamo's code for a frame is another object, of the same place and name.
            running.add(_place_of(frame.f_code))
            frame = frame.f_back
        for earlier in reversed(self.attempts):
            if _place_of(earlier.code) in running and earlier.broke is not None and broke.is_met_by(earlier.broke):
                return earlier
        return None

    def _on_compile(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        stack = self._stack()
        attempt = stack[-1] if stack else None
        if attempt is None or attempt.entered:
            return original(*args, **kwargs)
        attempt.entered = True
        self._describe(attempt, original, args, kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            # Torch tells of the code before it makes the guards, and where these cannot be made installs none.
            self.bytecode_hooks -= attempt.told
            attempt.error = error
            attempt.suppressed = not attempt.fullgraph and not _is_soft(error) and _suppress_errors()
            if attempt.broke is None and not attempt.fullgraph and not attempt.refused and _is_unsupported(error):
                attempt.broke = _break_of(error)
                # What no tracing has logged is told by the frame's converter, and only to the log of graph breaks.
                attempt.untraced = not getattr(error, "logged", False) and not _logs_breaks()
            raise
        attempt.installed = getattr(result, "guarded_code", result) is not None
        return result

    def _describe(self, attempt: Attempt, original: Callable[..., Any], args: Any, kwargs: Any) -> None:
        bound = inspect.signature(original).bind(*args, **kwargs).arguments
        attempt.id = str(bound.get("compile_id"))
        attempt.fullgraph = bool(bound.get("one_graph"))
        size = bound.get("cache_size")
        attempt.entries = int(getattr(size, "num_cache_entries_with_same_id_matched_objs", 0))
        attempt.has_code = int(getattr(size, "num_cache_entries", 0)) >= 1
        attempt.recompiles = attempt.entries >= 1
        attempt.new_instance = self._is_new_instance(attempt.code, bound.get("locals") or {})
        owner = _first_module(attempt.code, bound.get("locals") or {})
        if owner is not None:
            attempt.first = attempt.code.co_varnames[0]
            attempt.owner = class_name(type(owner))
        wrapped = _wrapped_callable(attempt.code, bound.get("closure") or ())
        if wrapped is not None:
            attempt.wrapped = _callable_name(wrapped)
        attempt.made_for = _weak(owner if wrapped is None else wrapped)

    def _is_new_instance(self, code: CodeType, frame_locals: dict[str, Any]) -> bool:
        owner = _first_module(code, frame_locals)
        if owner is None:
            return False
        first = code not in self._seen
        seen = self._seen.setdefault(code, weakref.WeakSet())
        if owner in seen:
            return False
        seen.add(owner)
        return not first  # of the instances before, some may be gone

    def _on_recompilation(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        reasons = original(*args, **kwargs)
        # torch 2.11 asks a second time, for its own statistics only; then it says skip_logging.
        if not kwargs.get("skip_logging") and (stack := self._stack()):
            stack[-1].reasons = [str(reason) for reason in reasons or ()]
        return reasons

    def _on_graph_break(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        arguments = inspect.signature(original).bind(*args, **kwargs).arguments
        error = arguments.get("exc")
        stack = self._stack()
        if stack and not getattr(error, "logged", False):
            stack[-1].earlier = stack[-1].broke
            stack[-1].broke = _break_of(error, str(arguments.get("reason") or ""))
        return original(*args, **kwargs)

    def _on_backend(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        arguments = inspect.signature(original).bind(*args, **kwargs).arguments
        graph = _graph_of(arguments.get("gm"))
        taken = taken_by(_placeholders(arguments.get("gm")))
        if self.watches_classes:
            graph.classes = classes_in(arguments["gm"].graph)
        graph.handed = handed_by(arguments.get("self"))
        stack = self._stack()
        # An attempt that `_compile` did not open is not kept: on a torch without that tap its graphs are loose.
        (stack[-1].graphs if stack and stack[-1].entered else self.loose_graphs).append(graph)
        self._local.graph = graph
        try:
            compiled = original(*args, **kwargs)
        except BaseException as error:
            graph.restarted = _is_restart(error)
            raise
        finally:
            self._local.graph = None
            # Not before: a backend may still pin a size down.
            graph.inputs = inputs_of(taken)
        # One more backend call for a graph that is counted already (`specialize_on`, torch/_dynamo/output_graph.py).
        graph.kept = "specialization" not in getattr(arguments.get("gm"), "meta", {})
        if not stack:
            return compiled
        return self._counting(compiled, graph)

    def _on_piece(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        graph = getattr(self._local, "graph", None)
        if graph is not None:
            graph.pieces += 1
        return original(*args, **kwargs)

    def _on_noop(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        is_noop = original(*args, **kwargs)
        self.noops += bool(is_noop)
        return is_noop

    def _on_reset(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.resets += 1
        return original(*args, **kwargs)

    def _on_bytecode(self, code: CodeType, new_code: CodeType) -> None:
        self.bytecode_hooks += 1
        if stack := self._stack():
            stack[-1].told += 1

    def _counting(self, compiled: Any, graph: Graph) -> Any:
        """The same compiled graph, counted each time it runs, on any thread."""
        run = _forced(compiled)

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self._counting_lock:
                self.executed += 1
            self._count_here()[0] += 1
            if (around := self.around) is not None:
                with around(graph):
                    return run(*args, **kwargs)
            if (clock := self.clock) is None:
                return run(*args, **kwargs)
            started = clock()
            try:
                return run(*args, **kwargs)
            finally:
                self.seconds_inside += clock() - started

        return counted

    # per thread

    def _count_here(self) -> list[int]:
        count: list[int] | None = getattr(self._local, "executed", None)
        if count is None:
            count = self._local.executed = [0]
        return count

    def _executed_here(self) -> Callable[[], int]:
        count = self._count_here()
        return lambda: count[0]

    def _stack(self) -> list[Attempt]:
        stack: list[Attempt] | None = getattr(self._local, "stack", None)
        if stack is None:
            stack = self._local.stack = []
        return stack

    def _current(self, attempt: Attempt) -> _Pushed:
        return _Pushed(self._stack(), attempt)

    def forget_frames(self) -> None:
        """Let go of the frames that errors have passed, and with them of the user's tensors."""
        pending = [attempt.error for attempt in self.attempts]
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

    def excuse(self, error: BaseException, *, since: int) -> None:
        """Note which of the attempts since gave a frame up just where eager raised this: it has no end to run to."""
        lines = [(each.filename, each.lineno) for each in traceback.extract_tb(error.__traceback__)]
        for attempt in self.attempts[since:]:
            attempt.excused = not attempt.installed and self._ends_at(attempt, lines)

    def _ends_at(self, attempt: Attempt, lines: list[tuple[str, int | None]]) -> bool:
        """Whether Dynamo gave up at the innermost of these lines that is anybody's, and on the way to it."""
        stack = attempt.broke.stack if attempt.broke is not None else _break_of(attempt.error).stack
        own, theirs = (
            [each for each in place if not self._paths.is_out_of_reach(each[0])] or place
            for place in ([(file, line) for file, line, *_ in stack], lines)
        )
        return bool(own) and bool(theirs) and own[-1] in (theirs[-1], lines[-1]) and set(own) <= set(lines)

    # facts

    @property
    def graphs(self) -> list[Graph]:
        return [graph for attempt in self.attempts for graph in attempt.graphs] + self.loose_graphs

    def compiles(self, lane: Lane | None) -> tuple[Compiled, ...]:
        """What each torch.compile was given whose graphs were handed to a backend, in the order of their first ones."""
        found: dict[tuple[int, bool], tuple[Attempt | None, list[Graph]]] = {}
        pairs = [(attempt, graph) for attempt in self.attempts for graph in attempt.graphs]
        for attempt, graph in (*pairs, *((None, graph) for graph in self.loose_graphs)):
            if graph.handed is not None:
                key = (id(graph.handed.backend), attempt is not None and attempt.fullgraph)
                found.setdefault(key, (attempt, []))[1].append(graph)
        told: list[Compiled] = []
        for (_, fullgraph), (attempt, graphs) in found.items():
            assert graphs[0].handed is not None
            frame = self._frame(attempt) if attempt is not None else None
            handed = next((each.handed for each in graphs if each.handed and each.handed.instead), graphs[0].handed)
            told.append(self._compiles.told(handed, lane, fullgraph=fullgraph, graphs=len(graphs), frame=frame))
        return tuple(told)

    def classes(self) -> frozenset[str]:
        """The modules' classes that graphs hold operations of; known where `watches_classes` was set."""
        found = {name for graph in self.graphs if graph.kept for name in graph.classes}
        # A frame's own module is in no operation's stack: nothing called it.
        found |= {each.owner for each in self.attempts if each.owner and any(graph.operations for graph in each.graphs)}
        return frozenset(found)

    def recompiles(self) -> tuple[Recompile, ...]:
        return tuple(self._recompile(each) for each in self.attempts if each.installed and each.recompiles)

    def dropped(self) -> tuple[Recompile, ...]:
        """What was compiled again for the same compiled callable since a reset had dropped its code."""
        return tuple(self._recompile(each) for each in self.attempts if each.after_reset)

    def graph_breaks(self) -> tuple[GraphBreak, ...]:
        return merge_breaks([self.break_of(each) for each in self.broken()])

    def broken(self) -> list[Attempt]:
        """Attempts that ended with a graph break; a break under fullgraph is an error instead."""
        return [each for each in self.attempts if each.broke is not None and not each.refused and not each.fullgraph]

    def eager_frames(self) -> tuple[EagerFrame, ...]:
        return tuple(
            self._eager_frame(each)
            for each in self.attempts
            if not each.installed and not each.refused and not each.forbidden
        )

    def eager_by_request(self) -> tuple[EagerFrame, ...]:
        """Frames that ran eager, or in part, since a stance or a setting said so."""
        return tuple(map(self._eager_by_request, self.stances.lost()))

    def _eager_by_request(self, lost: Lost) -> EagerFrame:
        code = lost.code
        line = (code.co_filename, code.co_firstlineno, code.co_name) if code is not None else ("", 0, lost.name)
        return EagerFrame(frame=self._paths.location(*line), cause="by request", reason=lost.reason)

    def limit_hits(self) -> tuple[LimitHit, ...]:
        return tuple(self._limit_hit(each) for each in self.attempts if each.refused)

    def failures(self) -> tuple[CompileFailure, ...]:
        """Backends that raised."""
        return tuple(
            self._failure(each)
            for each in self.attempts
            if each.error is not None and any(not graph.kept and not graph.restarted for graph in each.graphs)
        )

    def suppressed(self) -> tuple[CompileFailure, ...]:
        return tuple(self._failure(each) for each in self.attempts if each.suppressed)

    def _frame(self, attempt: Attempt) -> Location:
        code = attempt.code
        return self._paths.location(code.co_filename, code.co_firstlineno, user_function(attempt.name))

    def _recompile(self, attempt: Attempt) -> Recompile:
        lead = self._lead(attempt)
        return Recompile(
            frame=self._frame(attempt),
            kind="reset" if attempt.after_reset else self._recompile_kind(attempt, lead),
            guard=DROPPED if attempt.after_reset else self._guard(lead),
            guards=tuple(self._paths.text(guard_text(reason)) for reason in attempt.reasons),
            location=self._guard_location(attempt, lead),
            meaning="" if attempt.after_reset or lead is None else self._paths.text(meaning_of(lead.text)),
            continuation=attempt.continuation,
            module=attempt.wrapped,
        )

    def _lead(self, attempt: Attempt) -> Reason | None:
        """The reason that tells why no older entry of the frame served."""
        return leading(attempt.reasons, lambda entry: self._entry(attempt, entry), attempt.first)

    def _entry(self, attempt: Attempt, id: str) -> Entry:
        made = self._made(attempt, id)
        return Entry() if made is None else Entry(inputs=made.inputs, same_owner=attempt.made_as(made))

    def _made(self, attempt: Attempt, id: str | None) -> Attempt | None:
        """The attempt that made an older entry of the same frame: a reset starts the ids anew."""
        for each in self.attempts:
            if each.id == id and each.resets == attempt.resets and each.code is attempt.code and each.installed:
                return each
        return None

    def _guard(self, lead: Reason | None) -> str:
        return self._paths.text(lead.guard) if lead is not None else ""

    def _recompile_kind(self, attempt: Attempt, lead: Reason | None) -> RecompileKind:
        if lead is None:
            return "wrapper" if attempt.wrapped is not None else "instance" if attempt.new_instance else "guard"
        if "Cache line invalidated" in lead.text:
            return "invalidated"
        if "BACKEND_MATCH" in lead.text:
            return "backend"
        made = self._made(attempt, lead.entry)
        if attempt.wrapped is not None and (made is None or not attempt.made_as(made)):
            return "wrapper"
        if became_free(lead, attempt.inputs, made.inputs if made is not None else Inputs()):
            return "dynamic"
        if attempt.new_instance:
            return "instance"
        return "guard"

    def _guard_location(self, attempt: Attempt, lead: Reason | None) -> Location | None:
        if lead is None:
            return None
        traces = re.findall(r'^\s*File "(.+?)", line (\d+), in (\S+)', lead.text, re.MULTILINE)
        if traces:
            file, line, function = traces[self._innermost([each[0] for each in traces])]
            return self._paths.location(file, int(line), user_function(function))
        for shortened, line, function, source in reversed(branches(lead.text)):
            if found := file_of(shortened, line, source, (attempt.code.co_filename,)):
                return self._paths.location(found, line, user_function(function), source)
        return None

    def _innermost(self, files: list[str]) -> int:
        """Which frame of a stack has the innermost line that a person can change; the last where none has."""
        return max((at for at, file in enumerate(files) if not self._paths.is_out_of_reach(file)), default=-1)

    def break_of(self, attempt: Attempt) -> GraphBreak:
        """The graph break that an attempt ended with."""
        assert attempt.broke is not None
        if attempt.caller is not None:
            return replace(self.break_of(attempt.caller), whole_frame=not attempt.installed)
        message = parse_message(self._paths.text(attempt.broke.message))
        frames = list(attempt.broke.stack)
        place = self._innermost([file for file, *_ in frames])
        # What torch called of its own below the place tells what was meant there; what it called of Python's does not.
        if not all(self._paths.is_pythons(file) for file, *_ in frames):
            while self._paths.is_pythons(frames[-1][0]):
                frames.pop()
        stack = tuple(
            self._paths.location(file, line, user_function(function), source) for file, line, function, source in frames
        )
        backend = backend_error(attempt.error, self._paths) if attempt.error is not None else None
        return GraphBreak(
            location=stack[place] if stack else self._frame(attempt),
            kind=message.kind,
            reason=f"{message.reason}: {backend.raised}" if backend is not None else message.reason,
            explanation=message.explanation,
            hints=(*((backend.at,) if backend and backend.at else ()), *self._earlier(attempt), *message.hints),
            registry_id=message.registry_id or registry_id(message.kind),
            whole_frame=not attempt.installed,
            stacks=(stack,) if stack else (),
        )

    def _earlier(self, attempt: Attempt) -> Iterator[str]:
        """What to look at first, where torch broke in the same frame before."""
        if (earlier := attempt.earlier) is not None and earlier != attempt.broke:
            what = parse_message(self._paths.text(earlier.message)).reason
            where = f" at {self._paths.location(*earlier.stack[-1])}" if earlier.stack else ""
            yield f"Dynamo broke in this frame before, and this break may come of it: {what}{where}"

    def _eager_frame(self, attempt: Attempt) -> EagerFrame:
        frame = self._frame(attempt)
        error = attempt.error
        if attempt.excused and error is not None:
            told = self.break_of(attempt).reason if attempt.broke is not None else _first_line(error)
            return EagerFrame(
                frame=frame,
                cause="raises in eager too",
                reason=self._paths.text(told),
                continuation=attempt.continuation,
            )
        if error is None:
            reason = "Dynamo traced no tensor operation in it"
            if attempt.has_code:
                reason += " in this call, and skips it in all calls from then on, compiled before or not"
            return EagerFrame(
                frame=frame,
                cause="nothing more to compile" if attempt.has_code else "nothing to compile",
                reason=reason,
                continuation=attempt.continuation,
            )
        backend = backend_error(error, self._paths)
        at = f" ({backend.at})" if backend is not None and backend.at else ""
        broke = self.break_of(attempt) if attempt.broke is not None else None
        if broke is not None and not attempt.fullgraph:
            return EagerFrame(
                frame=frame,
                cause="graph break",
                reason=broke.reason + at,
                location=broke.location,
                continuation=attempt.continuation,
            )
        return EagerFrame(
            frame=frame,
            cause="suppressed error" if attempt.suppressed else "error",
            reason=self._paths.text(f"{type(error).__name__}: {_first_line(error)}") + at,
            continuation=attempt.continuation,
        )

    def _limit_hit(self, attempt: Attempt) -> LimitHit:
        cause = attempt.error.__cause__ or attempt.error if attempt.error else None
        named = re.search(r"(\w*(?:recompile|cache_size)_limit)\b", str(cause))
        return LimitHit(
            frame=self._frame(attempt),
            limit=named.group(1) if named else "recompile_limit",
            reason=self._paths.text(_first_line(cause)) if cause else "",
            guard=self._guard(self._lead(attempt)),
            continuation=attempt.continuation,
        )

    def _failure(self, attempt: Attempt) -> CompileFailure:
        assert attempt.error is not None
        error = attempt.error
        if (backend := backend_error(error, self._paths)) is not None:
            message = f"{backend.said} ({backend.at})" if backend.at else backend.said
            return CompileFailure(frame=self._frame(attempt), type=backend.exception, message=message)
        inner = error.__cause__ or error
        message = self._paths.text(_first_line(inner))
        return CompileFailure(frame=self._frame(attempt), type=type(inner).__name__, message=message)


class _Pushed:
    """The current attempt of this thread, for as long as the `with` lasts."""

    def __init__(self, stack: list[Attempt], attempt: Attempt) -> None:
        self._stack = stack
        self._attempt = attempt

    def __enter__(self) -> None:
        self._stack.append(self._attempt)

    def __exit__(self, *_exc: object) -> None:
        self._stack.pop()


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A graph break's message, taken apart."""

    kind: str
    reason: str
    explanation: str
    hints: tuple[str, ...]
    registry_id: str | None


NEXT_BREAK = "*** While handling this graph break, another graph break occurred: ***"


def parse_message(text: str) -> Message:
    """Take torch's text apart (torch/_dynamo/exc.py, `format_graph_break_message`).

    Where one break led to another (a break in a loop), torch puts the cause first, and so do we.
    """
    parts = [part.strip() for part in text.split(NEXT_BREAK)]
    cause, last = parts[0], parts[-1]
    head = cause.split("\n\n  Developer debug context:")[0]
    kind = head.split("\n", 1)[0].strip()
    reason = kind if last is cause else f"{kind} ({last.splitlines()[0].strip()})"
    explanation = re.search(r"^\s*Explanation: (.*?)(?=^\s*Hint: |\Z)", head, re.MULTILINE | re.DOTALL)
    hints = re.findall(r"^\s*Hint: (.*?)(?=^\s*Hint: |\Z)", head, re.MULTILINE | re.DOTALL)
    number = re.search(r"/gb(\d+)\.html", cause)
    return Message(
        kind=kind,
        reason=reason,
        explanation=_flat(explanation.group(1)) if explanation else "",
        hints=tuple(_flat(hint) for hint in hints),
        registry_id=f"GB{number.group(1)}" if number else None,
    )


def registry_id(kind: str) -> str | None:
    """The id that torch's own registry of graph breaks gives this kind, where it has one."""
    return _registry().get(kind)


_REGISTRY: dict[str, str] | None = None


def _registry() -> dict[str, str]:
    global _REGISTRY
    if _REGISTRY is None:
        _REGISTRY = dict(_read_registry())
    return _REGISTRY


def _read_registry() -> Iterator[tuple[str, str]]:
    folder = Path(importlib.import_module("torch._dynamo").__file__ or "").parent
    try:
        registry = json.loads((folder / "graph_break_registry.json").read_text(encoding="utf-8"))
        for number, versions in registry.items():
            yield str(versions[0]["Gb_type"]), str(number)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return


def user_function(name: str) -> str:
    """The user's function behind Dynamo's name for a continuation, `torch_dynamo_resume_in_f_at_12`."""
    while name.startswith(RESUME):
        name = re.sub(r"_at_\d+$", "", name[len(RESUME) :])
    return name


def _wrapped_callable(code: CodeType, closure: Any) -> Any:
    """What Dynamo's own wrapper frame was made for, or None where the frame is the user's.

    Library modules and callables share one compiled function (torch/_dynamo/external_utils.py, `wrap_inline`).
    """
    if code.co_name != "inner" or not code.co_filename.endswith("external_utils.py"):
        return None
    for name, cell in zip(code.co_freevars, closure, strict=False):
        if name == "fn":
            target = getattr(cell, "cell_contents", None)
            owner = getattr(target, "__self__", None)
            # A builtin's is the module that it is in.
            return target if owner is None or isinstance(owner, ModuleType) else owner
    return _UNKNOWN


def _callable_name(target: Any) -> str:
    if target is _UNKNOWN:
        return "a library callable"
    return str(getattr(target, "__qualname__", type(target).__qualname__))


def _weak(target: Any) -> weakref.ref[Any] | None:
    if target is None or target is _UNKNOWN:
        return None
    try:
        return weakref.ref(target)
    except TypeError:
        return None


def _place_of(code: CodeType) -> tuple[str, int, str]:
    return (code.co_filename, code.co_firstlineno, code.co_name)


def _first_module(code: CodeType, frame_locals: dict[str, Any]) -> Any:
    """A frame's first argument, where that is a module: the one whose method it is, as a rule."""
    owner = frame_locals.get(code.co_varnames[0]) if code.co_argcount else None
    return owner if isinstance(owner, importlib.import_module("torch").nn.Module) else None


def _graph_of(module: Any) -> Graph:
    nodes = module.graph.nodes if module is not None else ()
    return Graph(
        operations=Counter(_name_of(node.target) for node in nodes if node.op.startswith("call_")),
        places=_places_in(nodes),
    )


def _placeholders(module: Any) -> list[Any]:
    return [node for node in module.graph.nodes if node.op == "placeholder"] if module is not None else []


def _places_in(nodes: Any) -> tuple[Place, ...]:
    """Where the operators of a graph come from; what only takes a number or an item of a tuple is none."""
    found: Counter[tuple[str, tuple[tuple[str, int], ...]]] = Counter()
    torch = importlib.import_module("torch")
    for node in nodes:
        if not node.op.startswith("call_") or node.meta.get("example_value", torch.Tensor) is None:
            continue
        value = node.meta.get("example_value")
        if isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool, torch.Size)):
            continue
        if node.target is operator.getitem and isinstance(_value_of(node.args[0]), (tuple, list, torch.Size)):
            continue
        stack = tuple((file, int(line)) for file, line in _STACK_LINE.findall(node.meta.get("stack_trace") or ""))
        found[_module_path(node), stack] += 1
    return tuple((path, stack, times) for (path, stack), times in found.items())


def _value_of(argument: Any) -> Any:
    return getattr(argument, "meta", {}).get("example_value")


def _module_path(node: Any) -> str:
    """The path of the module that an operation was traced in, as `named_modules` has it: of the compiled module on."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    for pattern, put in _OF_A_PATH:
        path = pattern.sub(put, path)
    return path.strip(".")


def _name_of(target: Any) -> str:
    """An operation's name as users write it: a method's, or a function's own without where it lives."""
    return target if isinstance(target, str) else str(getattr(target, "__name__", type(target).__name__))


def _break_of(error: Any, reason: str = "") -> Break:
    stack = getattr(error, "real_stack", None) or ()
    message = str(getattr(error, "msg", "") or reason or error or type(error).__name__)
    return Break(
        message=message, stack=tuple((each.filename, each.lineno or 0, each.name, each.line or "") for each in stack)
    )


def _forced(compiled: Any) -> Any:
    """The graph module's real forward, where Dynamo would look it up itself (torch/fx/_lazy_graph_module.py)."""
    owner = getattr(compiled, "__self__", None)
    force = getattr(type(owner), "force_recompile", None)
    if force is None or getattr(compiled, "__name__", "") != "_lazy_forward":
        return compiled
    force(owner)
    return owner.forward  # type: ignore[union-attr]


def _is_unsupported(error: BaseException) -> bool:
    return any(each.__name__ == "Unsupported" for each in type(error).__mro__)


def _is_soft(error: BaseException) -> bool:
    """Errors that Dynamo always turns into an eager frame, without suppress_errors."""
    return any(each.__name__ in ("Unsupported", "UserError") for each in type(error).__mro__)


def _has_tensors(frame: Any) -> bool:
    """Dynamo's own test of whether a frame is worth compiling (torch/_dynamo/convert_frame.py)."""
    test = getattr(_module("torch._dynamo.convert_frame"), "has_tensor_in_frame", None)
    return bool(test(frame)) if test is not None else True


def _errors_on_break(converter: Any) -> bool:
    """Inside `torch._dynamo.error_on_graph_break(True)` a break is an error, as under fullgraph."""
    return bool(getattr(getattr(converter, "_box", None), "error_on_graph_break", False))


def _is_restart(error: BaseException) -> bool:
    return any(each.__name__ == "RestartAnalysis" for each in type(error).__mro__)


def _suppress_errors() -> bool:
    config = importlib.import_module("torch._dynamo.config")
    return bool(getattr(config, "suppress_errors", False))


def _logs_breaks() -> bool:
    log = getattr(_module("torch._dynamo.convert_frame"), "graph_break_log", None)
    return log is not None and bool(log.isEnabledFor(logging.DEBUG))


def _distributed() -> bool:
    torch = importlib.import_module("torch")
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _first_line(error: BaseException) -> str:
    return first_said(str(error)) or type(error).__name__


def _flat(text: str) -> str:
    return " ".join(text.split())
