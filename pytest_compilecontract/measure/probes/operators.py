"""What ran in eager: every operator of one steady call, by torch's profiler, and whether a compiled graph ran it.

Dynamo's attempts do not show frames that it never tries: after a graph break in torch's own or installed code it skips
that frame by rule, and every operator there runs in eager in every call. So the call itself is recorded.

An operator is one that was dispatched by name (`aten::linear`; the operators that it calls are part of it). It ran
compiled if it is inside a mark of ours, set around each compiled graph that runs. torch's own span "Torch-Compiled
Region" lasts for the whole call of a compiled frame, including its eager parts; it shows which Python frame is Dynamo's
code. Only what runs inside a compiled callable is examined, from its entry in torch/_dynamo/eval_frame.py on.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import itertools
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any

from pytest_compilecontract.facts.measurement import EagerOps, Location, StepOperators, WhyEager

from .attempts import RESUME, Attempt, Graph, user_function
from .dynamo import Ledger
from .processes import Processes
from .protocols import Event
from .source import Paths
from .taps import Taps

# What torch.compile returns, in torch._dynamo.eval_frame._TorchDynamoContext.__call__.
ENTRANCE = "compile_wrapper"
MARK = "compilecontract: a compiled graph"
# The taps without which no graph has its mark, or no frame its attempt.
MARKED_BY = ("convert_frame", "_compile", "call_user_compiler")
TARGET = "compilecontract: the compiled target"
REGION = "Torch-Compiled Region"
# What torch does between graphs, and no part of the user's program: guards may call operators.
LOOKUP = "TorchDynamo Cache Lookup"
# Silences the lines that Kineto prints when a profile starts (libkineto/src/Logger.cpp); read anew at each start.
QUIET = {"KINETO_LOG_LEVEL": "6"}
# What Dynamo's code for a frame calls beside functions of torch/_dynamo: a number that became an input of the graph is
# made a tensor (torch/_dynamo/codegen.py, `make_call_generated_code`).
CALLED_BY_DYNAMO = (("/torch/__init__.py", "_as_tensor_fullprec"),)
# Whose code runs a compiled backward.
AOTAUTOGRAD = "/torch/_functorch/_aot_autograd/"
# What the autograd engine runs, in threads of its own where a device is not the CPU: one of these for each node.
AUTOGRAD = "autograd::engine::evaluate_function: "
ACCUMULATES = f"{AUTOGRAD}torch::autograd::AccumulateGrad"
# Which allocate and compute nothing. An operator that shares its work among threads allocates in them what it works in
# (`at::parallel_for`; attention on a CPU does), and no Python thread of the program is needed for it.
ALLOCATES = frozenset({"aten::empty", "aten::empty_strided"})
# How often a call is made at most, to be one that compiles nothing.
CALLS = 3
# Frames that only lead to a module's forward.
_CALLS_A_MODULE = ("_wrapped_call_impl", "_call_impl", "inner", "__call__")


class Untold(Exception):  # noqa: N818 - no error of anybody's: the reason why the operators are not known
    """The operators of the call cannot be told; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Frame:
    """A Python frame of the call: its code, the line that runs in it (0: not known), whether the code is Dynamo's.

    `number` tells one run of a function from another.
    """

    number: int
    file: str
    first: int
    name: str
    line: int
    dynamos: bool = False
    module: str = ""
    module_id: int = 0


Seen = list[tuple[str, tuple[_Frame, ...]]]
# What each line of a frame calls, by the frame's number and the line: functions of Python's, and operators.
Callees = dict[tuple[int, int], int]
# A frame of the stack of a graph break: file, line, function and text.
_Called = tuple[str, int, str, str]


def marked(run: Callable[..., object]) -> Callable[..., object]:
    """The compiled target, with a mark around each call, which sets it apart from the rest of a step.

    Raises:
        Untold: this torch has no such marks.
    """
    record = _record()

    def call(*args: object, **kwargs: object) -> object:
        with record(TARGET):
            return run(*args, **kwargs)

    return call


def operators_of(
    ready: Callable[[], Callable[[], object]], *, ledger: Ledger, paths: Paths, modules: Mapping[int, str]
) -> StepOperators:
    """Make a steady call of a target that is `marked`, and return its operators; twice if some ran in eager.

    `ready` prepares a call, and returns what makes it.

    The first recording covers every thread, without Python calls, of which there may be millions. Only if operators ran
    in eager, a second one has the Python calls, of this thread alone: torch nests those of several threads into one
    another. `modules` are the paths of the target's modules by their ids.

    Raises:
        Untold: this torch cannot tell, or the call was no steady one.
    """
    for tap in MARKED_BY:
        if tap in ledger.missing:
            raise Untold(ledger.missing[tap])
    recording = _Recording(ledger, modules)
    found: Seen = []
    made: Callees = {}
    for with_stack in (False, True):
        ran, roots = recording.steady(ready, with_stack=with_stack)
        if not with_stack and (elsewhere := _in_other_threads(roots)):
            raise Untold(f"operators ran in another thread, and not in a compiled graph: {', '.join(elsewhere)}")
        graphs, found, made = _with_frames(roots) if with_stack else (*_without_frames(roots), {})
        if graphs != len(ran):
            raise Untold(f"torch's profiler saw {graphs} of {len(ran)} compiled graphs: some ran in another thread")
        if not found:
            break
    return _Told(ledger, paths, modules).operators(found, made, ran)


def _record() -> Callable[[str], AbstractContextManager[None]]:
    record: Callable[[str], AbstractContextManager[None]] | None = getattr(
        importlib.import_module("torch._C._profiler"), "_RecordFunctionFast", None
    )
    if record is None:
        raise Untold("torch has no torch._C._profiler._RecordFunctionFast")
    return record


class _Recording:
    """A step as recorded by torch's profiler, and the graphs that ran in it, each with the path of its module."""

    def __init__(self, ledger: Ledger, modules: Mapping[int, str]) -> None:
        self._ledger = ledger
        self._modules = modules

    def steady(
        self, ready: Callable[[], Callable[[], object]], *, with_stack: bool
    ) -> tuple[list[tuple[Graph, str]], list[Event]]:
        """The first call that compiles nothing: a changing number becomes dynamic only after some calls."""
        for _ in range(CALLS):
            step = ready()
            attempts = len(self._ledger.attempts)
            recorded = self._of(step, with_stack=with_stack)
            if len(self._ledger.attempts) == attempts:
                return recorded
        raise Untold("a repeated call compiles again")

    def _of(self, step: Callable[[], object], *, with_stack: bool) -> tuple[list[tuple[Graph, str]], list[Event]]:
        record = _record()
        ran: list[tuple[Graph, str]] = []

        def around(graph: Graph) -> AbstractContextManager[None]:
            ran.append((graph, self._module()))
            # Entered by who runs the graph: a frame of ours between them would be no part of what the mark spans.
            return record(MARK)

        self._ledger.runs.around = around
        try:
            with Processes() as processes:
                roots = _profiled(step, with_stack=with_stack)
        finally:
            self._ledger.runs.around = None
        if started := processes.told():
            raise Untold(f"the call starts processes, and what runs in them is not measured: {', '.join(started)}")
        return ran, roots

    def _module(self) -> str:
        """The path of the innermost module that is being called."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if (
                frame.f_code.co_name == _CALLS_A_MODULE[0]
                and (owner := id(frame.f_locals.get("self"))) in self._modules
            ):
                return self._modules[owner]
            frame = frame.f_back
        return ""


def _entrances() -> frozenset[tuple[str, str]]:
    """The functions through which compiled code is called, by file and name."""
    module = importlib.import_module("torch._dynamo.eval_frame")
    call = vars(getattr(module, "_TorchDynamoContext", object)).get("__call__")
    inner = [each for each in getattr(getattr(call, "__code__", None), "co_consts", ()) if isinstance(each, CodeType)]
    found = frozenset((each.co_filename, each.co_name) for each in inner if each.co_name == ENTRANCE)
    if not found:
        raise Untold(f"torch has no torch._dynamo.eval_frame._TorchDynamoContext.__call__.{ENTRANCE}")
    return found


def _profiled(step: Callable[[], object], *, with_stack: bool) -> list[Event]:
    """The events of a step as trees, of all threads; with `with_stack`, including the Python calls of this thread."""
    from torch.profiler import ProfilerActivity, profile

    running = getattr(importlib.import_module("torch.autograd"), "_profiler_enabled", lambda: False)
    if running():
        # A second one ends the first.
        raise Untold("torch's profiler is already running")
    try:
        which = importlib.import_module("torch._C._profiler")._ExperimentalConfig(profile_all_threads=not with_stack)
    except (AttributeError, TypeError) as error:
        raise Untold("torch's profiler cannot record all threads") from error
    quiet = {name: value for name, value in QUIET.items() if name not in os.environ}
    with contextlib.ExitStack() as stack:
        taps = stack.enter_context(Taps())
        # Files by their whole names, as code objects have them.
        tracer = importlib.import_module("torch.profiler.python_tracer")
        taps.set("names", tracer, "_prefix_regex", lambda _original: [])
        if taps.missing:
            raise Untold(taps.missing["names"])
        os.environ.update(quiet)
        stack.callback(lambda: [os.environ.pop(name, None) for name in quiet])
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # torch 2.11 warns of profiles of more than one cycle, which this is not
        try:
            taken = stack.enter_context(
                profile(activities=[ProfilerActivity.CPU], with_stack=with_stack, experimental_config=which)
            )
        except RuntimeError as error:
            raise Untold(f"torch's profiler cannot be used: {str(error).splitlines()[0]}") from error
        before = set(threading.enumerate())
        step()
        if left := sorted(each.name for each in set(threading.enumerate()) - before):
            raise Untold(f"the call left a thread running: {left[0]}")
    results = getattr(getattr(taken, "profiler", None), "kineto_results", None)
    tree: Callable[[], list[Event]] | None = getattr(results, "experimental_event_tree", None)
    if tree is None:
        raise Untold("torch's profiler has no experimental_event_tree")
    return tree()


def _in_other_threads(roots: Sequence[Event]) -> list[str]:
    """The operators that ran in other threads than the target's since it was called, and in no compiled graph.

    Those that only allocate are left out: whoever computes in a thread has others there.
    """
    targets = [event for event in _events(roots) if event.name == TARGET]
    if not targets:
        return []
    thread, start = targets[0].start_tid, min(event.start_time_ns for event in targets)
    end = max(event.end_time_ns for event in targets)
    found: dict[str, None] = {}
    for root in roots:
        # What follows the target, as the backward of its result does, may have a thread of its own.
        last = end if root.name.startswith(AUTOGRAD) else sys.maxsize
        if root.start_tid != thread and start <= root.start_time_ns <= last:
            ran = [each.name for each in _outside_graphs(root) if each.name not in ALLOCATES]
            found.update((_short(name), None) for name in ran)
    return list(found)


def _events(roots: Sequence[Event]) -> Iterator[Event]:
    pending = list(roots)
    while pending:
        event = pending.pop()
        yield event
        pending += event.children


def _outside_graphs(root: Event) -> Iterator[Event]:
    """The operators of a thread outside of compiled graphs."""
    if root.name.startswith(AUTOGRAD) and any(each.name == MARK for each in _events([root])):
        return  # compiled backward: the rest is what AOTAutograd does around its graph
    pending = [root]
    while pending:
        event = pending.pop()
        if event.name in (MARK, LOOKUP) or event.name.startswith(ACCUMULATES):
            continue
        if event.typed[0].name == "TorchOp" and _is_operator(event):
            yield event
        else:
            pending += reversed(event.children)


def _without_frames(roots: Sequence[Event]) -> tuple[int, Seen]:
    """How many compiled graphs ran, and the operators that the target ran outside of them."""
    graphs = 0
    found: Seen = []
    pending = [(root, False) for root in roots]
    while pending:
        event, inside = pending.pop()
        name = event.name if event.typed[0].name == "TorchOp" else ""
        if name == MARK:
            graphs += 1
        elif inside and name and _is_operator(event):
            found.append((name, ()))
            graphs += _graphs_below(event)
        elif name != LOOKUP:
            pending += [(each, inside or name == TARGET) for each in event.children]
    return graphs, found


def _with_frames(roots: Sequence[Event]) -> tuple[int, Seen, Callees]:
    """The same, each operator with the Python frames that called it, from the compiled callable on.

    Also the number of calls of each line, with operators or without: a graph break may be a call without any.
    """
    entrances = _entrances()
    graphs, calls = 0, 0
    found: Seen = []
    made: Callees = {}
    # An event, the frames around it, from which of them on they are in a compiled callable, and whether it is Dynamo's
    # code that comes next.
    pending: list[tuple[Event, tuple[_Frame, ...], int | None, bool]] = [(root, (), None, False) for root in roots]
    while pending:
        event, frames, depth, dynamos = pending.pop()
        tag, fields = event.typed
        if tag.name == "TorchOp":
            name = event.name
            graphs += name == MARK
            if name in (MARK, LOOKUP):
                continue
            if _is_operator(event):
                if depth is not None:
                    found.append((name, frames[depth:]))
                    _count_call(made, frames)
                graphs += _graphs_below(event)
                continue
            dynamos = name.startswith(REGION)
        elif tag.name in ("PyCall", "PyCCall"):
            frames = _at_line(frames, fields.caller.line_number)
            if tag.name == "PyCall":
                calls += 1
                frame = _frame(calls, fields, dynamos=dynamos)
                if frame.name != "__getattr__":  # a module's own, on the way to what is called
                    _count_call(made, frames)
                frames = (*frames, frame)
                if (frame.file, frame.name) in entrances:
                    depth = len(frames)
            dynamos = False
        pending += [(each, frames, depth, dynamos) for each in reversed(event.children)]
    return graphs, found, made


def _graphs_below(event: Event) -> int:
    """The compiled graphs that ran inside an operator: one written in Python may itself be compiled."""
    return sum(each.name == MARK for each in _events(event.children))


def _count_call(made: Callees, frames: tuple[_Frame, ...]) -> None:
    if frames:
        line = (frames[-1].number, frames[-1].line)
        made[line] = made.get(line, 0) + 1


def _is_operator(event: Event) -> bool:
    """Whether a span is an operator's; a name given to `record_function` may look like one."""
    if event.typed[1].scope.name == "USER_SCOPE":
        return False
    return "::" in event.name and not event.name.startswith(("autograd::", "profiler::"))


def _at_line(frames: tuple[_Frame, ...], line: int) -> tuple[_Frame, ...]:
    if not frames or frames[-1].line == line:
        return frames
    return (*frames[:-1], replace(frames[-1], line=line))


def _frame(number: int, fields: Any, *, dynamos: bool) -> _Frame:
    module = fields.module
    return _Frame(
        number=number,
        file=fields.callsite.file_name,
        first=fields.callsite.line_number,
        name=fields.callsite.function_name,
        line=0,
        dynamos=dynamos,
        module=str(module.cls_name).rpartition(".")[2] if module is not None else "",
        module_id=int(module.self_ptr) if module is not None else 0,
    )


class _Told:
    """Explains the operators by their frames, with what the ledger knows of these."""

    def __init__(self, ledger: Ledger, paths: Paths, modules: Mapping[int, str]) -> None:
        self._ledger = ledger
        self._paths = paths
        self._modules = modules
        self._broken = [each for each in ledger.told.broken() if each.broke is not None and each.broke.stack]
        self._breaks = {
            each[:2]
            for attempt in self._broken
            # Dynamo's wrapper of a library's callable is not where a call of the user's stands.
            if attempt.broke is not None and attempt.wrapped is None
            for each in self._where_broken(attempt.broke.stack)
        }
        self._ways = {
            (*caller[:2], callee[0], callee[2])
            for each in self._broken
            for caller, callee in itertools.pairwise(each.broke.stack if each.broke is not None else ())
        }
        given_up = [each.code for each in ledger.attempts if not each.installed and _is_known(each)]
        codes = [*given_up, *(each.code for each in ledger.stances.lost() if each.code is not None)]
        self._known = {(code.co_filename, code.co_name): set[int]() for code in codes}
        for code in codes:
            self._known[code.co_filename, code.co_name] |= {code.co_firstlineno, *_lines_of(code)}

    def operators(self, found: Seen, callees: Callees, ran: list[tuple[Graph, str]]) -> StepOperators:
        groups: dict[tuple[WhyEager, Location | None, Location | None, str, Location | None], Counter[str]] = {}
        modules: dict[str, list[int]] = {}
        lines: dict[str, list[int]] = {}

        def count(of: dict[str, list[int]], key: str, place: int, by: int = 1) -> None:
            of.setdefault(key, [0, 0])[place] += by

        found = [each for each in found if not _is_plumbing(each[1])]
        for name, frames in found:
            why, frame = self._why(frames, callees)
            place = (self._broken_at(frames) if why == "graph break" else None) or self._place(frames)
            module = self._module(frames)
            count(modules, module, 1)
            if place is not None:
                count(lines, f"{place.file}:{place.line}", 1)
            at = self._location(frame) if frame is not None else None
            shown = place if why != "skipped" else self._caller(frames, frame)
            key = (why, at, shown, self._name(frames, frame), self._cause(frame))
            groups.setdefault(key, Counter())[_short(name)] += 1
        compiled = 0
        # Dynamo knows modules from the one on whose frame it compiled.
        for graph, inside in ran:
            for path, trace, times in graph.places:
                compiled += times
                count(modules, ".".join(filter(None, (inside, path))), 0, times)
                if (line := self._line_of(trace)) is not None:
                    count(lines, line, 0, times)
        return StepOperators(
            compiled=compiled,
            eager=len(found),
            modules={path: (both[0], both[1]) for path, both in sorted(modules.items())},
            lines={line: (both[0], both[1]) for line, both in sorted(lines.items())},
            groups=tuple(
                EagerOps(
                    why=why, frame=frame, location=place, name=name, broke=broke, operators=dict(sorted(counts.items()))
                )
                for (why, frame, place, name, broke), counts in groups.items()
            ),
        )

    def _why(self, frames: tuple[_Frame, ...], callees: Callees) -> tuple[WhyEager, _Frame | None]:
        """Why an operator ran in eager, and in which frame."""
        start = max((at for at, each in enumerate(frames) if each.dynamos), default=-1)
        inner = frames[start + 1 :]
        if start >= 0 and (all(map(_is_dynamos_own, inner)) or _is_formatting(inner[0])):
            # Called by Dynamo's code for the frame: what a graph break stands for, or what puts results together. The
            # fields of an f-string are among these, at no line of the user's.
            return "graph break", None
        known = next((each for each in reversed(inner) if self._is_known(each)), None)
        if known is not None:
            return "frame", known
        for at in range(max(start, 0), len(frames)):
            if self._stands_for(frames[at:], callees, dynamos=at == start):
                return "graph break", None
        return "skipped", next((each for each in inner if not _leads_to_module(each)), inner[-1])

    def _stands_for(self, frames: tuple[_Frame, ...], callees: Callees, *, dynamos: bool) -> bool:
        """Whether a graph break is exactly the call that the first of these frames makes.

        A line may call several functions: a call that leads to another graph break does not count, and in a frame that
        is not Dynamo's code, such as a container's loop over its layers, no call counts if the line makes several,
        unless it is a disabled function. A function that Dynamo does not follow (`checkpoint_sequential`, `eval`) may
        call modules: these are not part of the break.
        """
        caller = frames[0]
        if (caller.file, caller.line) not in self._breaks:
            return False
        called = [*itertools.dropwhile(_leads_to_module, frames[1:])]
        callee = called[0] if called else None
        if callee is not None and (
            # What is left of the frame after the break, not what broke it.
            callee.name.startswith(RESUME)
            or ((caller.file, caller.line, callee.file, callee.name) in self._ways and not self._is_librarys(called))
        ):
            return False
        if callee is not None and _is_disabled(callee):
            return True
        if any(each.module for each in called[1:]):
            return False
        return dynamos or callees.get((caller.number, caller.line), 0) <= 1

    def _where_broken(self, stack: Sequence[_Called]) -> Iterator[_Called]:
        """The line of a break, or if it is in the standard library, the line that called it.

        torch 2.12 traces into copy.deepcopy and breaks there; other releases break at its call.
        """
        yield stack[-1]
        callers = [each for each in stack if not self._paths.is_pythons(each[0])]
        if callers and callers[-1] is not stack[-1]:
            yield callers[-1]

    def _is_librarys(self, called: Sequence[_Frame]) -> bool:
        """Whether a call stays in the standard library and copies: other functions there may run the user's code."""
        inside = all(not each.module and self._paths.is_out_of_reach(each.file) for each in called)
        librarys = [each for each in called if self._paths.is_pythons(each.file)]
        return inside and called[0] in librarys and librarys[-1].file == copy.__file__

    def _is_known(self, frame: _Frame) -> bool:
        """Whether another metric already reports that the frame ran in eager."""
        return frame.first in self._known.get((frame.file, frame.name), ())

    def _place(self, frames: tuple[_Frame, ...]) -> Location | None:
        """The innermost line outside torch and the standard library."""
        for each in reversed(frames):
            if not self._paths.is_out_of_reach(each.file):
                return self._location(each, each.line or each.first)
        return None

    def _broken_at(self, frames: tuple[_Frame, ...]) -> Location | None:
        """The line of the break if Dynamo's code for a frame calls an operator itself, as for `if tensor:`.

        The profiler only has the lines of calls, and would give the line of the `def`.
        """
        last = frames[-1]
        if not last.dynamos or last.line:
            return None
        stacks = [each.broke.stack for each in self._broken if each.broke is not None]
        lines = {
            line
            for file, line, function, _ in (each[-1] for each in stacks)
            if (file, function) == (last.file, last.name)
        }
        return self._location(last, lines.pop()) if len(lines) == 1 else None

    def _caller(self, frames: tuple[_Frame, ...], frame: _Frame | None) -> Location | None:
        """The line that leads to a frame, which may be the frame's own caller in torch's code."""
        at = frames.index(frame) if frame in frames else len(frames)
        return self._place(frames[:at])

    def _location(self, frame: _Frame, line: int = 0) -> Location:
        return self._paths.location(frame.file, line or frame.first, user_function(frame.name))

    def _module(self, frames: tuple[_Frame, ...]) -> str:
        return next((self._modules[each.module_id] for each in reversed(frames) if each.module_id in self._modules), "")

    def _name(self, frames: tuple[_Frame, ...], frame: _Frame | None) -> str:
        """The name of the frame's function, with the class of its module."""
        if frame is None:
            return ""
        if frame.name.startswith(RESUME):
            return f"{user_function(frame.name)} after its graph break"
        before = frames[: frames.index(frame)]
        for each in reversed(before):
            if each.module:
                return f"{each.module}.{user_function(frame.name)}"
            if not _leads_to_module(each):
                break
        return user_function(frame.name)

    def _cause(self, frame: _Frame | None) -> Location | None:
        """The graph break in a frame, or below it."""
        if frame is None:
            return None
        for attempt in self._broken:
            assert attempt.broke is not None
            if any((file, function) == (frame.file, frame.name) for file, _, function, _ in attempt.broke.stack):
                return self._ledger.told.break_of(attempt).location
        return None

    def _line_of(self, trace: tuple[tuple[str, int], ...]) -> str | None:
        for file, line in reversed(trace):
            if not self._paths.is_out_of_reach(file):
                return f"{self._paths.name(file)}:{line}"
        return None


def _is_known(attempt: Attempt) -> bool:
    # Without an error Dynamo found nothing to compile in that call; what later calls find is news.
    return attempt.error is not None or attempt.has_code


def _lines_of(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line is not None}


def _is_dynamos_own(frame: _Frame) -> bool:
    return "/torch/_dynamo/" in frame.file.replace("\\", "/")


def _is_plumbing(frames: tuple[_Frame, ...]) -> bool:
    """Whether compiled code called the operator: Dynamo's, to call a graph, or that of a compiled backward.

    A graph break may be a call of backward (`torch.autograd.grad`), whose graphs have no mark around them.
    """
    return any(AOTAUTOGRAD in each.file.replace("\\", "/") for each in frames) or any(
        caller.dynamos and callee.name == name and callee.file.replace("\\", "/").endswith(of)
        for caller, callee in itertools.pairwise(frames)
        for of, name in CALLED_BY_DYNAMO
    )


def _is_disabled(frame: _Frame) -> bool:
    """Whether the frame is the wrapper of `torch.compiler.disable`."""
    return frame.name == "_fn" and frame.file.replace("\\", "/").endswith("/torch/_dynamo/eval_frame.py")


def _is_formatting(frame: _Frame) -> bool:
    return frame.name == "__format__" and frame.file.replace("\\", "/").endswith("/torch/_tensor.py")


def _leads_to_module(frame: _Frame) -> bool:
    return bool(frame.module) or (frame.name in _CALLS_A_MODULE and "/torch/" in frame.file.replace("\\", "/"))


def _short(name: str) -> str:
    return name.removeprefix("aten::")
