"""Seams: where code can be inserted between Dynamo and a backend, or around what torch.compile is given.

Both are below what a ledger counts, if they are set before it: inserted code counts as the backend's or the user's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from .canary import canary
from .taps import Taps

# What is compiled by itself, to see whether counting is right, is nobody's program.
OWN = canary.__module__


class Turn:
    """A value that a compiled function depends on, so that it is recompiled when the value changes.

    A string: Dynamo would make a number dynamic.
    """

    def __init__(self) -> None:
        self.value = ""


class Seams:
    """While entered, `graphs` is called with each compiled graph and returns what runs in its place.

    `targets` is called with the argument of torch.compile, and returns what is to be compiled, or None to leave it.
    Either may be None. Without `cuda_graphs`, none are recorded. `missing` says why a seam could not be opened; empty
    if all were.
    """

    def __init__(
        self,
        *,
        graphs: Callable[[Callable[..., object]], Callable[..., object]] | None,
        targets: Callable[[object], Callable[..., object] | None] | None,
        cuda_graphs: bool = True,
    ) -> None:
        self.missing = ""
        self._graphs = graphs
        self._targets = targets
        self._cuda_graphs = cuda_graphs
        self._taps = Taps()

    def __enter__(self) -> Seams:
        if self._graphs is not None:
            output_graph = getattr(importlib.import_module("torch._dynamo.output_graph"), "OutputGraph", None)
            self._taps.set("call_user_compiler", output_graph, "call_user_compiler", self._on_backend)
        if self._targets is not None or not self._cuda_graphs:
            self._taps.set("compile", importlib.import_module("torch"), "compile", self._on_compile)
        self.missing = "; ".join(self._taps.missing.values())
        return self

    def __exit__(self, *_exc: object) -> None:
        self._taps.close()

    def _on_backend(self, original: Callable[..., Any], graph: object, *args: object, **kwargs: object) -> object:
        compiled = original(graph, *args, **kwargs)
        code = getattr(getattr(graph, "root_tx", None), "f_code", None)
        if self._graphs is None or _is_own(getattr(code, "co_filename", "")):
            return compiled
        return self._graphs(compiled)

    def _on_compile(
        self, original: Callable[..., object], model: object = None, *args: object, **kwargs: object
    ) -> object:
        # What this package compiles for itself, as the canary, is nobody's contract.
        own = str(getattr(model, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]
        if model is None or kwargs.get("disable") or own:
            return original(model, *args, **kwargs)
        if not self._cuda_graphs:
            kwargs = _without_cuda_graphs(kwargs)
        other = self._targets(model) if self._targets is not None else None
        if other is None:
            return original(model, *args, **kwargs)
        if not isinstance(model, importlib.import_module("torch").nn.Module):
            return original(other, *args, **kwargs)
        compiled = original(model, *args, **kwargs)
        context = getattr(compiled, "dynamo_ctx", None)
        if context is not None:
            # The module stays what the user gets; what it runs when it is called is another.
            vars(compiled)["forward"] = context(other)
        return compiled


def breaking(run: Callable[..., object]) -> Callable[..., object]:
    """`run`, and a graph break after it."""
    dynamo = importlib.import_module("torch._dynamo")

    def broken(*args: object, **kwargs: object) -> object:
        result = run(*args, **kwargs)
        dynamo.graph_break()
        return result

    return _of_its_own(broken, run)


def given_back(run: Callable[..., object]) -> Callable[..., object]:
    """`run` in a frame that computes something itself, and that Dynamo cannot compile."""
    torch = importlib.import_module("torch")
    dynamo = importlib.import_module("torch._dynamo")

    def in_a_loop(*args: object, **kwargs: object) -> object:
        result = None
        for _ in range(1):
            torch.ones(2).mul(2)
            result = run(*args, **kwargs)
            # Out of a loop Dynamo cannot go on where it broke.
            dynamo.graph_break()
        return result

    return _of_its_own(in_a_loop, run)


def depending(run: Callable[..., object], turn: Turn) -> Callable[..., object]:
    """`run`, recompiled each time that the turn has changed."""

    def guarded(*args: object, **kwargs: object) -> object:
        if turn.value == "":
            return run(*args, **kwargs)
        return run(*args, **kwargs)

    return _of_its_own(guarded, run)


def lower_recompile_limit() -> str:
    """Let Dynamo compile each frame only once; returns why it cannot, or "". Isolation restores the setting."""
    config: object = importlib.import_module("torch._dynamo.config")
    if not hasattr(config, "recompile_limit"):
        return "torch has no setting torch._dynamo.config.recompile_limit"
    config.recompile_limit = 1
    return ""


def _without_cuda_graphs(options: dict[str, Any]) -> dict[str, object]:
    """The keywords of torch.compile, changed so that Inductor records no CUDA graphs."""
    if options.get("backend", "inductor") != "inductor":
        return options
    if options.get("mode") == "max-autotune":
        return {**options, "mode": "max-autotune-no-cudagraphs"}
    # torch.compile takes either a mode or options.
    others = {key: value for key, value in options.items() if key != "mode"}
    return {**others, "options": {**(options.get("options") or {}), "triton.cudagraphs": False}}


_CODES: dict[tuple[CodeType, CodeType], CodeType] = {}


def _of_its_own(wrapper: Any, run: object) -> Callable[..., object]:
    """The wrapper with a code object of its own for each function that it wraps: Dynamo caches by code object."""
    function = getattr(run, "forward", run)
    wrapped = getattr(getattr(function, "__func__", function), "__code__", None)
    own: FunctionType = wrapper
    code = own.__code__
    if isinstance(wrapped, CodeType):
        own.__code__ = _CODES.setdefault((code, wrapped), code.replace())
    else:
        own.__code__ = code.replace()
    return own


def _is_own(file: str) -> bool:
    return file == getattr(importlib.import_module(OWN), "__file__", None)
