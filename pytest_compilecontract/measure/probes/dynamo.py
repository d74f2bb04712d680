"""What Dynamo did: a ledger of its attempts to compile frames, kept by five taps.

An attempt is one time that Dynamo tries to compile one frame. It ends with installed code, with nothing (no ops), or
with an exception, and with at most one graph break. Everything counted here is derived from the list of attempts:

    first compile   code installed for a frame that had no usable entry; a continuation is a resume function
    recompile       code installed for a frame that had one
    dropped         a first compile by torch's count, of a frame whose code torch._dynamo.reset() has dropped
    limit hit       refused, since the frame has too many entries
    eager frame     no code installed, for a reason other than the limit
    graph break     the last one logged in the attempt

The counters of `torch._dynamo.utils` miss breaks that Dynamo cannot resume from and do not count recompiles, so they
are only recorded (see the cases in tests/with_torch/test_scenarios.py).
"""

from __future__ import annotations

import importlib
import inspect
import logging
import operator
import re
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, ModuleType
from typing import Any

from .attempts import (
    STACK_LINE,
    Attempt,
    Break,
    Graph,
    Place,
    break_from,
    is_restart,
    is_soft,
    is_unsupported,
)
from .backends import Compiles, handed_by
from .caches import cache_state
from .counters import counters
from .graph_runs import Runs
from .protocols import GraphModule, Node
from .reasons import inputs_of, taken_by
from .source import Paths
from .stance import Stances
from .taps import Taps
from .targets import class_name, classes_in
from .told import Told

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
    "recomputed_graphs": ("convert_frame", "call_user_compiler"),
    "first_compiles": ("convert_frame", "_compile"),
    "continuations": ("convert_frame", "_compile"),
    "recompiles": ("convert_frame", "_compile", "recompilation_reasons"),
    "graph_breaks": ("convert_frame", "_compile", "log_graph_break"),
    "break_events": ("convert_frame", "_compile", "log_graph_break"),
    "eager_frames": ("convert_frame", "_compile"),
    "limit_hits": ("convert_frame", "_compile"),
    "backend_failures": ("convert_frame", "_compile", "call_user_compiler"),
    "errors_suppressed": ("convert_frame", "_compile"),
    "guards": ("convert_frame", "_compile"),
    "resets": ("reset",),
    "dropped": ("convert_frame", "_compile", "reset"),
    "eager_by_request": ("set_stance", "catch_errors"),
}
# The taps that count what the second channel counts as well.
COUNTING = frozenset(("convert_frame", "_compile", "recompilation_reasons", "log_graph_break", "call_user_compiler"))
_UNKNOWN = object()


class Ledger:
    """Record every attempt, on every thread, while entered.

    Use as a context manager, once. `told` has the facts, after leaving or at any time before; `runs` are those of the
    compiled graphs. `strangers` are threads that existed before and compile: it is not known for whom. `calls` looks at
    every call of compiled code, not only at those after the first change of stance.
    """

    def __init__(self, paths: Paths, *, calls: bool = False) -> None:
        self.attempts: list[Attempt] = []
        self.loose_graphs: list[Graph] = []
        self.missing: dict[str, str] = {}
        self.bytecode_hooks = 0
        self.watches_classes = False
        self._paths = paths
        self.runs = Runs()
        self._seen: dict[CodeType, weakref.WeakSet[object]] = {}
        self._local = threading.local()
        self._taps = Taps()
        self.resets = 0
        self.noops = 0
        self.strangers: Counter[str] = Counter()
        self.stances = Stances(self.runs.here, always=calls)
        self._compiles = Compiles(paths)
        self._before: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        # By the compiled callable and the frame's place: at which reset code was installed last.
        self._installed: dict[tuple[object, ...], int] = {}
        self.told = Told(self.attempts, self.loose_graphs, stances=self.stances, compiles=self._compiles, paths=paths)

    def __enter__(self) -> Ledger:
        from torch._dynamo import convert_frame

        self._before.update(set(threading.enumerate()) - {threading.current_thread()})

        output_graph = module_named("torch._dynamo.output_graph")
        translator = getattr(module_named("torch._dynamo.symbolic_convert"), "InstructionTranslatorBase", None)
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
            splitter = getattr(module_named("torch._dynamo.backends.distributed"), "SubmodCompiler", None)
            taps.set("ddp_pieces", splitter, "compile_submod", self._on_piece)
        # The part of a reset that drops the code, whoever asks for it.
        package = module_named("torch._dynamo")
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

    def _on_frame(
        self, original: Callable[..., object], converter: object, frame: FrameType, *args: object, **kwargs: object
    ) -> object:
        attempt = Attempt(code=frame.f_code, name=frame.f_code.co_name, resets=self.resets)
        # The converter is that of one torch.compile; kept, so that no other gets its id.
        key = (converter, attempt.code.co_filename, attempt.code.co_firstlineno, attempt.name)
        if (thread := threading.current_thread()) in self._before:
            self.strangers[thread.name] += 1
        with self._current(attempt):
            try:
                return original(converter, frame, *args, **kwargs)
            except BaseException as error:
                if not attempt.entered and is_unsupported(error) and _has_tensors(frame):
                    # A generator: refused before tracing, and logged nowhere. Dynamo refuses it before it looks for
                    # tensors, so it meets those of Python's own library too, which any other frame would be spared.
                    attempt.entered = True
                    attempt.error = error
                    attempt.broke = break_from(error)
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
        """The running frame whose attempt ended with this break, if the break's own stack has no line of the user.

        torch's and Python's functions are compiled by themselves if inlining them into the caller has failed. Their
        caller is on the stack of this thread: the same break in another call is a different place.
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

    def _on_compile(self, original: Callable[..., object], *args: object, **kwargs: object) -> object:
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
            attempt.suppressed = not attempt.fullgraph and not is_soft(error) and _suppress_errors()
            if attempt.broke is None and not attempt.fullgraph and not attempt.refused and is_unsupported(error):
                attempt.broke = break_from(error)
                # What no tracing has logged is told by the frame's converter, and only to the log of graph breaks.
                attempt.untraced = not getattr(error, "logged", False) and not _logs_breaks()
            raise
        attempt.ends(result)
        return result

    def _describe(self, attempt: Attempt, original: Callable[..., object], args: Any, kwargs: Any) -> None:
        bound = inspect.signature(original).bind(*args, **kwargs).arguments
        attempt.id = str(bound.get("compile_id"))
        attempt.fullgraph = bool(bound.get("one_graph"))
        attempt.finds(bound.get("cache_size"))
        attempt.new_instance = self._is_new_instance(attempt.code, bound.get("locals") or {})
        owner = _first_module(attempt.code, bound.get("locals") or {})
        if owner is not None:
            attempt.first = attempt.code.co_varnames[0]
            attempt.owner = class_name(type(owner))
        wrapped = _wrapped_callable(attempt.code, bound.get("closure") or ())
        if wrapped is not None:
            attempt.wrapped = _callable_name(wrapped)
        attempt.made_for = _weak(owner if wrapped is None else wrapped)

    def _is_new_instance(self, code: CodeType, frame_locals: dict[str, object]) -> bool:
        owner = _first_module(code, frame_locals)
        if owner is None:
            return False
        first = code not in self._seen
        seen = self._seen.setdefault(code, weakref.WeakSet())
        if owner in seen:
            return False
        seen.add(owner)
        return not first  # of the instances before, some may be gone

    def _on_recompilation(self, original: Callable[..., Any], *args: object, **kwargs: object) -> object:
        reasons = original(*args, **kwargs)
        # torch 2.11 asks a second time, for its own statistics only; then it says skip_logging.
        if not kwargs.get("skip_logging") and (stack := self._stack()):
            stack[-1].reasons = [str(reason) for reason in reasons or ()]
        return reasons

    def _on_graph_break(self, original: Callable[..., object], *args: object, **kwargs: object) -> object:
        arguments = inspect.signature(original).bind(*args, **kwargs).arguments
        error = arguments.get("exc")
        stack = self._stack()
        if stack and not getattr(error, "logged", False):
            stack[-1].earlier = stack[-1].broke
            stack[-1].broke = break_from(error, str(arguments.get("reason") or ""))
        return original(*args, **kwargs)

    def _on_backend(self, original: Callable[..., object], *args: object, **kwargs: object) -> object:
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
        before = cache_state(counters())
        try:
            compiled = original(*args, **kwargs)
        except BaseException as error:
            graph.restarted = is_restart(error)
            raise
        finally:
            self._local.graph = None
            graph.rises = {name: rose for name, now in cache_state(counters()).items() if (rose := now - before[name])}
            # Not before: a backend may still pin a size down.
            graph.inputs = inputs_of(taken)
        # One more backend call for a graph that is counted already (`specialize_on`, torch/_dynamo/output_graph.py).
        graph.kept = "specialization" not in getattr(arguments.get("gm"), "meta", {})
        if not stack:
            return compiled
        return self.runs.counted(_forced(compiled), graph, stack[-1].code)

    def _on_piece(self, original: Callable[..., object], *args: object, **kwargs: object) -> object:
        graph = getattr(self._local, "graph", None)
        if graph is not None:
            graph.pieces += 1
        return original(*args, **kwargs)

    def _on_noop(self, original: Callable[..., object], *args: object, **kwargs: object) -> object:
        is_noop = original(*args, **kwargs)
        self.noops += bool(is_noop)
        return is_noop

    def _on_reset(self, original: Callable[..., object], *args: object, **kwargs: object) -> object:
        self.resets += 1
        return original(*args, **kwargs)

    def _on_bytecode(self, code: CodeType, new_code: CodeType) -> None:
        self.bytecode_hooks += 1
        if stack := self._stack():
            stack[-1].told += 1

    # per thread

    def _stack(self) -> list[Attempt]:
        stack: list[Attempt] | None = getattr(self._local, "stack", None)
        if stack is None:
            stack = self._local.stack = []
        return stack

    def _current(self, attempt: Attempt) -> _Pushed:
        return _Pushed(self._stack(), attempt)

    @property
    def graphs(self) -> list[Graph]:
        return self.told.graphs


class _Pushed:
    """Sets the current attempt of this thread while the `with` lasts."""

    def __init__(self, stack: list[Attempt], attempt: Attempt) -> None:
        self._stack = stack
        self._attempt = attempt

    def __enter__(self) -> None:
        self._stack.append(self._attempt)

    def __exit__(self, *_exc: object) -> None:
        self._stack.pop()


def _wrapped_callable(code: CodeType, closure: Iterable[object]) -> object:
    """The callable that Dynamo's own wrapper frame was made for, or None if the frame is the user's.

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


def _callable_name(target: object) -> str:
    if target is _UNKNOWN:
        return "a library callable"
    return str(getattr(target, "__qualname__", type(target).__qualname__))


def _weak(target: object) -> weakref.ref[object] | None:
    if target is None or target is _UNKNOWN:
        return None
    try:
        return weakref.ref(target)
    except TypeError:
        return None


def _place_of(code: CodeType) -> tuple[str, int, str]:
    return (code.co_filename, code.co_firstlineno, code.co_name)


def _first_module(code: CodeType, frame_locals: dict[str, object]) -> object:
    """A frame's first argument if it is a module: usually `self`."""
    owner = frame_locals.get(code.co_varnames[0]) if code.co_argcount else None
    return owner if isinstance(owner, importlib.import_module("torch").nn.Module) else None


def _graph_of(module: GraphModule | None) -> Graph:
    nodes = module.graph.nodes if module is not None else ()
    return Graph(
        operations=Counter(_name_of(node.target) for node in nodes if node.op.startswith("call_")),
        places=_places_in(nodes),
    )


def _placeholders(module: GraphModule | None) -> list[Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"] if module is not None else []


def _places_in(nodes: Iterable[Node]) -> tuple[Place, ...]:
    """Where the operators of a graph come from, without nodes that only take a number or an item of a tuple."""
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
        stack = tuple((file, int(line)) for file, line in STACK_LINE.findall(node.meta.get("stack_trace") or ""))
        found[_module_path(node), stack] += 1
    return tuple((path, stack, times) for (path, stack), times in found.items())


def _value_of(argument: object) -> object:
    return getattr(argument, "meta", {}).get("example_value")


def _module_path(node: Node) -> str:
    """The path of the module that an operation was traced in, as in `named_modules` of the compiled module."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    for pattern, put in _OF_A_PATH:
        path = pattern.sub(put, path)
    return path.strip(".")


def _name_of(target: object) -> str:
    """An operation's name as users write it: a method's, or a function's without its module."""
    return target if isinstance(target, str) else str(getattr(target, "__name__", type(target).__name__))


def _forced(compiled: object) -> Any:
    """The graph module's real forward, as Dynamo would look it up (torch/fx/_lazy_graph_module.py)."""
    owner = getattr(compiled, "__self__", None)
    force = getattr(type(owner), "force_recompile", None)
    if force is None or getattr(compiled, "__name__", "") != "_lazy_forward":
        return compiled
    force(owner)
    return owner.forward  # type: ignore[union-attr]


def _has_tensors(frame: object) -> bool:
    """Dynamo's own test of whether a frame is worth compiling (torch/_dynamo/convert_frame.py)."""
    test = getattr(module_named("torch._dynamo.convert_frame"), "has_tensor_in_frame", None)
    return bool(test(frame)) if test is not None else True


def _errors_on_break(converter: object) -> bool:
    """Whether a graph break is an error, as inside `torch._dynamo.error_on_graph_break(True)`."""
    return bool(getattr(getattr(converter, "_box", None), "error_on_graph_break", False))


def _suppress_errors() -> bool:
    config = importlib.import_module("torch._dynamo.config")
    return bool(getattr(config, "suppress_errors", False))


def _logs_breaks() -> bool:
    log = getattr(module_named("torch._dynamo.convert_frame"), "graph_break_log", None)
    return log is not None and bool(log.isEnabledFor(logging.DEBUG))


def _distributed() -> bool:
    torch = importlib.import_module("torch")
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def module_named(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
