"""Processes that a measured test starts: what they compile is not counted in this one.

Forked, spawned or run, by multiprocessing, torch.multiprocessing, a DataLoader or subprocess; except those that torch
itself starts to compile. A pool that existed before is not detected.
"""

from __future__ import annotations

import multiprocessing.process
import os
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from .taps import Taps

# Forks are told to all that are open: os.register_at_fork cannot be taken back.
_OPEN: weakref.WeakSet[Processes] = weakref.WeakSet()
_registered = False


class Processes:
    """Record each process that this one starts, while entered. Use as a context manager, once."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self._taps = Taps()
        self._local = threading.local()
        self._compilers = tuple(_compilers())

    def __enter__(self) -> Processes:
        global _registered
        self._taps.set("multiprocessing", multiprocessing.process.BaseProcess, "start", self._on_start)
        self._taps.set("subprocess", subprocess.Popen, "__init__", self._on_popen)
        for name in ("posix_spawn", "posix_spawnp", "system"):
            if hasattr(os, name):
                self._taps.set(name, os, name, self._on_call(f"os.{name}"))
        if not _registered and hasattr(os, "register_at_fork"):
            os.register_at_fork(before=_forking, after_in_child=_OPEN.clear)
            _registered = True
        _OPEN.add(self)
        return self

    def __exit__(self, *_exc: object) -> None:
        _OPEN.discard(self)
        self._taps.close()

    def told(self) -> tuple[str, ...]:
        """How processes were started, and how many each way."""
        return tuple(f"{count} by {how}" for how, count in sorted(self.started.items()))

    def note_fork(self) -> None:
        """Note a fork that is about to happen, unless it belongs to another way of starting a process."""
        self._note("os.fork", lambda: None)

    def _on_start(self, original: Callable[..., object], process: object, *args: object, **kwargs: object) -> object:
        method = getattr(process, "_start_method", None) or multiprocessing.get_start_method(allow_none=True) or "spawn"
        return self._note(f"multiprocessing ({method})", lambda: original(process, *args, **kwargs))

    def _on_popen(self, original: Callable[..., object], process: object, *args: Any, **kwargs: Any) -> object:
        command = args[0] if args else kwargs.get("args", "")
        program = command if isinstance(command, (str, bytes, os.PathLike)) else next(iter(command or ()), "")
        name = Path(os.fsdecode(program).split(" ")[0]).name
        return self._note(f"subprocess ({name})", lambda: original(process, *args, **kwargs))

    def _on_call(self, how: str) -> Callable[..., object]:
        def around(original: Callable[..., object], *args: object, **kwargs: object) -> object:
            return self._note(how, lambda: original(*args, **kwargs))

        return around

    def _note(self, how: str, start: Callable[[], object]) -> object:
        if getattr(self._local, "starting", False):
            return start()
        if not self._is_torchs():
            self.started[how] += 1
        self._local.starting = True
        try:
            return start()
        finally:
            self._local.starting = False

    def _is_torchs(self) -> bool:
        """Whether torch's or Triton's compiler starts it."""
        return any(frame.f_code.co_filename.startswith(self._compilers) for frame in _frames())


def _forking() -> None:
    for each in list(_OPEN):
        each.note_fork()


def _compilers() -> Iterator[str]:
    """The files of the code that starts processes to compile."""
    for package, part in (("torch", "_inductor"), ("triton", "")):
        for folder in getattr(sys.modules.get(package), "__path__", ()):
            yield os.path.join(folder, part, "")


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
