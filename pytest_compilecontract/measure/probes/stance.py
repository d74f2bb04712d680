"""Calls of compiled code that ran in eager by request: by a stance, or with Dynamo disabled. Dynamo logs neither.

A compiled callable checks the stance each time it is called (torch/_dynamo/eval_frame.py, `_callback_from_stance`).
Under "force_eager" nothing compiled runs; under "eager_on_recompile" and the stances that compile later, compiled code
runs if some matches the call, and nothing is logged if none does. So a call's compiled graphs are counted, and a call
that ran fewer than another call of the same function ran in eager by request.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch

from .taps import Taps

# Under these a frame that has no compiled code is compiled, or raises.
COMPILES = ("default", "fail_on_recompile")


def switched_off_for_good() -> str:
    """What disables torch.compile in this process from start to end; empty if nothing does."""
    return "TORCHDYNAMO_DISABLE=1 turns torch.compile off" if os.environ.get("TORCHDYNAMO_DISABLE") == "1" else ""


def switched_off() -> str:
    """What disables torch.compile as a whole now; empty if nothing does."""
    if reason := switched_off_for_good():
        return reason
    if getattr(importlib.import_module("torch._dynamo.config"), "disable", False):
        return "TORCH_COMPILE_DISABLE=1, or torch._dynamo.config.disable, turns torch.compile off"
    return ""


def forget_examples() -> None:
    """Make stances that compile a function's second call start from its first.

    Under such a stance torch remembers a function's arguments by its file and line, for the whole process and through a
    reset (torch/_dynamo/eval_frame.py, `get_example_inputs`).
    """
    module: object = importlib.import_module("torch._dynamo.eval_frame")
    if hasattr(module, "_EXAMPLE_INPUTS"):
        module._EXAMPLE_INPUTS = None


def ambient() -> str:
    """The current stance, as given to `torch.compiler.set_stance`; empty for torch's default."""
    stance = getattr(importlib.import_module("torch._dynamo.eval_frame"), "_stance", None)
    name, backend = getattr(stance, "stance", "default"), getattr(stance, "backend", None)
    if backend is None:
        return "" if name == "default" else repr(name)
    shown = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
    return f"{name!r} with force_backend={shown!r}"


@contextlib.contextmanager
def stance_kept() -> Iterator[None]:
    """Restore the current stance afterwards, whatever is set inside."""
    module: object = importlib.import_module("torch._dynamo.eval_frame")
    before, put_back = getattr(module, "_stance", None), getattr(module, "_set_stance", None)
    try:
        yield
    finally:
        if before is not None and callable(put_back):
            put_back(before)


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Run no compiled code inside, even if parts are compiled already; higher-order operators run as usual.

    `torch.cond`, `while_loop` and `flex_attention` in eager use Dynamo to find the tensors that their functions close
    over (torch/_higher_order_ops/utils.py, `setup_compilation_env`). A stance that prevents this would lose the
    gradients of those.
    """
    operators = importlib.import_module("torch._higher_order_ops.utils")
    inside: Callable[[], bool] = getattr(operators, "_in_hop_compile", lambda: False)
    with torch.compiler.set_stance("force_eager"), Taps() as taps:
        taps.set(
            "stance",
            importlib.import_module("torch._dynamo.eval_frame"),
            "_callback_from_stance",
            lambda original, callback: callback if inside() else original(callback),
        )
        yield


@dataclass(kw_only=True, slots=True)
class Entry:
    """One call of compiled code: its function, its stance, and how many compiled graphs it ran."""

    code: CodeType | None
    name: str
    stance: str
    depth: int
    ran: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """A frame that ran in eager by request."""

    code: CodeType | None
    name: str
    reason: str


class Stances:
    """Record what runs in eager by request, on every thread.

    `executed` returns, for the calling thread, a function that tells how many compiled graphs that thread has run.

    Unless `always`, calls are recorded from the first change of stance on, so that cached calls have no overhead.
    """

    def __init__(self, executed: Callable[[], Callable[[], int]], *, always: bool) -> None:
        self._executed = executed
        self._always = always
        self._local = threading.local()
        self._lock = threading.Lock()
        self._open: list[tuple[list[Entry], Callable[[], int]]] = []
        self._most: dict[object, int] = {}
        self._others: list[Entry] = []
        self._disabled: dict[CodeType, None] = {}
        self.forced = ""

    def set(self, taps: Taps) -> None:
        """Set the taps; on a torch without one, `taps.missing` says so."""
        self._module: Any = importlib.import_module("torch._dynamo.eval_frame")
        converter = importlib.import_module("torch._dynamo.convert_frame")
        # set_stance has it under a name of its own (torch/_dynamo/decorators.py).
        users = importlib.import_module("torch._dynamo.decorators")
        taps.set("set_stance", users, "_set_stance", self._on_stance, reads=("stance",))
        if self._always or self._stance() != "default":
            taps.set("stance", self._module, "_callback_from_stance", self._on_call)
        self._taps = taps
        taps.set("catch_errors", getattr(converter, "CatchErrorsWrapper", None), "__call__", self._on_frame)
        self._note_backend(getattr(self._module, "_stance", None))

    def lost(self) -> list[Lost]:
        """Each frame that did not run its compiled code, once for each reason."""
        with self._lock:
            for entries, ran in self._open:
                while entries:
                    self._close(entries.pop(), ran())
        found: dict[tuple[object, str], Lost] = {}
        for each in self._others:
            most = self._most.get(each.code or each.name, 0)
            if each.ran >= max(most, 1):
                continue
            reason = f"stance {each.stance!r} was set"
            if each.ran:
                reason += f": a call ran {each.ran} of {most} compiled graphs"
            lost = Lost(code=each.code, name=each.name, reason=reason)
            found.setdefault((each.code or each.name, each.stance), lost)
        disabled = "torch._dynamo.config.disable was set"
        return [*found.values(), *(Lost(code=code, name=code.co_name, reason=disabled) for code in self._disabled)]

    def _stance(self) -> str:
        return str(getattr(getattr(self._module, "_stance", None), "stance", "default"))

    def _note_backend(self, stance: object) -> None:
        if (backend := getattr(stance, "backend", None)) is not None:
            self.forced = str(backend if isinstance(backend, str) else getattr(backend, "__name__", backend))

    def _on_stance(self, original: Callable[..., object], stance: object) -> object:
        prior = original(stance)
        self._note_backend(stance)
        tapped = getattr(self._module._callback_from_stance, "__wrapped__", None)
        if getattr(stance, "stance", "default") != "default" and tapped is None:
            self._taps.set("stance", self._module, "_callback_from_stance", self._on_call)
        return prior

    def _on_call(self, original: Callable[..., object], callback: object) -> object:
        # None is torch._dynamo.disable, False a run of what is compiled already: neither asks for compiled code.
        if callback not in (None, False):
            self._enter(sys._getframe(2))
        return original(callback)

    def _enter(self, caller: FrameType) -> None:
        target = caller.f_locals.get("fn")
        if target is None:
            return
        depth, frame = 0, caller.f_back
        while frame is not None:
            depth += frame.f_code is caller.f_code
            frame = frame.f_back
        entries, executed = self._entries()
        while entries and entries[-1].depth >= depth:
            self._close(entries.pop(), executed())
        code, name = _named(target)
        entries.append(Entry(code=code, name=name, stance=self._stance(), depth=depth, ran=-executed()))

    def _entries(self) -> tuple[list[Entry], Callable[[], int]]:
        """The current calls of this thread, and how many compiled graphs it has run."""
        mine: tuple[list[Entry], Callable[[], int]] | None = getattr(self._local, "mine", None)
        if mine is None:
            mine = self._local.mine = ([], self._executed())
            with self._lock:
                self._open.append(mine)
        return mine

    def _close(self, entry: Entry, executed: int) -> None:
        entry.ran += executed
        if entry.stance in COMPILES:
            key = entry.code or entry.name
            self._most[key] = max(self._most.get(key, 0), entry.ran)
        else:
            self._others.append(entry)

    def _on_frame(
        self, original: Callable[..., object], wrapper: object, frame: FrameType, *args: object, **kwargs: object
    ) -> object:
        result = original(wrapper, frame, *args, **kwargs)
        config = importlib.import_module("torch._dynamo.config")
        if getattr(config, "disable", False) and _is_worth_compiling(frame):
            self._disabled[frame.f_code] = None
        return result


def _is_worth_compiling(frame: FrameType) -> bool:
    rules = importlib.import_module("torch._dynamo.trace_rules")
    converter = importlib.import_module("torch._dynamo.convert_frame")
    return not rules.check(frame.f_code) and bool(converter.has_tensor_in_frame(frame))


def _named(target: object) -> tuple[CodeType | None, str]:
    """The code of the user's function that was compiled, and its name."""
    owner = getattr(target, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        target = type(owner).forward
    code = getattr(target, "__code__", None)
    if isinstance(code, CodeType) and code.co_name == "inner" and code.co_filename.endswith("external_utils.py"):
        cells = dict(zip(code.co_freevars, getattr(target, "__closure__", None) or (), strict=False))
        if "fn" in cells:
            return _named(cells["fn"].cell_contents)
    name = str(getattr(target, "__qualname__", type(target).__qualname__))
    return (code if isinstance(code, CodeType) else None), name
