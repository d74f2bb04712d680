"""Observing: which test bodies compile, and what, in tests that are not contracts. Never imports torch itself."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from pytest_compilecontract.errors import message_of
from pytest_compilecontract.facts.measurement import Measurement

from .probes.counters import Rises, counters_kept
from .probes.entrances import DYNAMO, Entrances, anything_compiled
from .probes.source import Paths

if TYPE_CHECKING:
    from .recorder import Measuring


@dataclass(kw_only=True, slots=True)
class Body:
    """One test's body. `measurement` is set when the body ends, and None if nothing was compiled in it."""

    measurement: Measurement | None = None


class Watch(contextlib.ExitStack):
    """Measures each body that compiles anything or calls torch.compile, at next to no cost for the others.

    A suite that never imports Dynamo is left alone: two cheap taps are set when it is imported, even during a body. The
    expensive parts follow only if something is compiled: the ledger at the first attempt of a body, the canary after
    the first body that compiled, and dropping compiled code before the next body.

    `unusable` says why this process's torch cannot be measured, or None; it is asked once torch is imported.
    `why_not` says, from then on, why no body can be watched. `armed` is called when the taps are set.
    """

    def __init__(self, root: Path, unusable: Callable[[], str | None], armed: Callable[[], object]) -> None:
        super().__init__()
        self.why_not = ""
        self._root = root
        self._unusable = unusable
        self._armed = armed
        self._entrances: Entrances | None = None
        self._awaited: _WhenImported | None = None
        self._open = False
        self._used = False
        self._asked = False
        self._measuring: Measuring | None = None
        self._rises: Rises | None = None
        self._lock = threading.Lock()
        self.callback(self._stop_waiting)

    @contextlib.contextmanager
    def body(self) -> Iterator[Body]:
        """Observe what is compiled inside, in any thread."""
        __tracebackhide__ = True
        body = Body()
        self._begin()
        try:
            yield body
        finally:
            body.measurement = self._end()

    def nothing(self) -> Measurement:
        """The measurement of a body that compiled nothing."""
        from .recorder import Measuring

        measuring = Measuring(self._paths())
        measuring.start(Rises())
        measuring.stop()
        return _finished(measuring)

    # a body

    def _begin(self) -> None:
        if self._entrances is None and not self.why_not:
            if DYNAMO in sys.modules:
                self._arm()
            elif self._awaited is None:
                self._awaited = _WhenImported(DYNAMO, self._arm)
                sys.meta_path.insert(0, self._awaited)
        if self._entrances is not None:
            if self._used:
                _reset()
                self._used = False
            _forget_examples()
            self._note(self._entrances)
        self._asked = False
        self._open = True

    def _end(self) -> Measurement | None:
        with self._lock:
            self._open = False
            measuring, self._measuring = self._measuring, None
        if self._entrances is not None and (changed := self._entrances.settings()):
            from .isolation import put_settings_back

            with _without_warnings():
                for module, before in changed:
                    put_settings_back(module, before)
        if measuring is not None:
            measuring.stop()
            if measuring.compiled:
                return _finished(measuring)
        # torch.compile without effect is a fact too: a later torch may refuse, or compile, what this one passes over.
        return self.nothing() if self._asked else None

    def _was_asked(self) -> None:
        self._asked = self._asked or self._open

    def _entered(self) -> bool:
        """Dynamo is about to compile; the first time in a body, the ledger is opened."""
        self._used = True
        if not self._open or self._measuring is not None:
            return False
        from .recorder import Measuring

        with self._lock:
            if not self._open or (self._measuring is None and Measuring.going_on()):
                return False
            if self._measuring is None:
                measuring = Measuring(self._paths())
                measuring.start(self._rises or Rises())
                self._measuring = measuring
        return True

    def _note(self, entrances: Entrances) -> None:
        entrances.note_settings()
        self._rises = Rises()

    def _paths(self) -> Paths:
        return Paths(self._root)

    # the taps

    def _arm(self) -> None:
        self._stop_waiting()
        # It may run inside an import of the test's own: whatever fails here, that import does not.
        try:
            with _without_warnings():
                self.why_not = self._unusable() or self._tap()
        except Exception as error:  # noqa: BLE001
            self.why_not = f"{type(error).__name__}: {message_of(error)}".splitlines()[0]

    def _tap(self) -> str:
        from .isolation import exact
        from .probes.settings import MODULES

        entrances = Entrances(told=self._entered, asked=self._was_asked, configs=MODULES)
        self.callback(entrances.close)
        if "convert_frame" in entrances.missing:
            return entrances.missing["convert_frame"]
        self.enter_context(exact())
        self._used = anything_compiled()
        self._entrances = entrances
        if self._open:
            self._note(entrances)
        self._armed()
        return ""

    def _stop_waiting(self) -> None:
        if self._awaited is not None and self._awaited in sys.meta_path:
            sys.meta_path.remove(self._awaited)


class _WhenImported(importlib.abc.MetaPathFinder):
    """Calls `then` right after a module was imported, whoever imports it."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then
        self._finding = False

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._name or self._finding:
            return None
        self._finding = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._then()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _finished(measuring: Measuring) -> Measurement:
    from .compile_lane import alone

    measurement = alone(measuring.measurement())
    from .probes.stance import switched_off

    doubt = switched_off() or _canary()
    return replace(measurement, disagreements=(doubt, *measurement.disagreements)) if doubt else measurement


def _canary() -> str | None:
    """Run the canary after the first body that compiled: a suite that compiles nothing does not need it."""
    from .probes.canary import canary

    with _without_warnings(), counters_kept():
        return canary()


def _forget_examples() -> None:
    """Drop what Dynamo remembers of calls that a stance left in eager, without ever compiling them."""
    from .probes.stance import forget_examples

    forget_examples()


def _reset() -> None:
    import torch

    with _without_warnings():
        torch.compiler.reset()


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Ignore warnings that this plugin causes: a project may turn warnings into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
