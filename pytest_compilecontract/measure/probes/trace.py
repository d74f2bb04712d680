"""The second channel: counts by torch's structured trace, without changing a setting or printing anything.

If it and the ledger disagree after the corrections below, one of them is wrong and no number can be trusted.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pytest_compilecontract.facts.measurement import CacheBypass

from .caches import BYPASSES, NO_REASON
from .dynamo import Ledger

LOGGER = "torch.__trace"
_KEPT = ("torch.", "pytest_compilecontract.")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave only torch's handlers and ours on the trace logger: pytest would show thousands of records."""
    __tracebackhide__ = True
    logger = logging.getLogger(LOGGER)
    foreign = [handler for handler in logger.handlers if not type(handler).__module__.startswith(_KEPT)]
    for handler in foreign:
        logger.removeHandler(handler)
    try:
        yield
    finally:
        for handler in foreign:
            logger.addHandler(handler)


class Trace:
    """Count what torch's trace says of recompiles and graph breaks, and read why caches are bypassed, while entered.

    torch checks the trace logger's handlers before it renders a record (torch/_logging/_internal.py,
    `trace_structured`), and rendering is expensive: whole graphs as text. So a stand-in for the logger notes what is
    about to be recorded and answers like the logger, so that nothing more is rendered than without it.
    """

    def __init__(self) -> None:
        self.recompile_reasons = 0
        self.broken: set[object] = set()
        self.bypasses: list[CacheBypass] = []
        self.missing: str | None = None
        self._starts = itertools.count()
        self._attempts: dict[str, int] = {}
        self._taken: tuple[Any, object] | None = None

    def __enter__(self) -> Trace:
        internal: Any = importlib.import_module("torch._logging._internal")
        logger = getattr(internal, "trace_log", None)
        if logger is None:
            self.missing = "torch._logging._internal has no trace_log"
            return self
        self._taken = (internal, logger)
        internal.trace_log = _StandIn(logger, self._note)
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._taken is not None:
            internal, logger = self._taken
            internal.trace_log = logger
            self._taken = None

    def _note(self, name: object, metadata_fn: object, payload_fn: object) -> None:
        """Count one record; an unknown form of record only makes the two counts disagree."""
        if name == "artifact":
            metadata = metadata_fn() if callable(metadata_fn) else None
            kind = metadata.get("name") if isinstance(metadata, dict) else None
            if kind == "recompile_reasons":
                self.recompile_reasons += 1
            elif kind == "dynamo_graph_break_reason":
                attempt = _compile_id()
                self.broken.add(self._attempts.get(attempt, attempt))
            elif kind in BYPASSES:
                self.bypasses.append(CacheBypass(cache=BYPASSES[kind], reason=_reason_in(payload_fn)))
        elif name == "dynamo_start":
            # A reset in mid-run starts the ids at 0/0 again.
            self._attempts[_compile_id()] = next(self._starts)


class _StandIn:
    """Stands in for the trace's logger: torch asks for its handlers when it is about to record something."""

    def __init__(self, logger: logging.Logger, note: Callable[[object, object, object], None]) -> None:
        self._logger = logger
        self._note = note

    @property
    def handlers(self) -> list[logging.Handler]:
        asking = sys._getframe(1).f_locals
        self._note(asking.get("name"), asking.get("metadata_fn"), asking.get("payload_fn"))
        return self._logger.handlers

    def __getattr__(self, name: str) -> object:
        return getattr(self._logger, name)


def _reason_in(payload_fn: object) -> str:
    """Why a cache was bypassed, from torch's record of it."""
    payload = payload_fn() if callable(payload_fn) else None
    try:
        found = json.loads(payload) if isinstance(payload, str) else payload
    except ValueError:
        found = None
    reason = found.get("cache_bypass_reason") if isinstance(found, dict) else None
    return str(reason or NO_REASON)


def _compile_id() -> str:
    context = importlib.import_module("torch._guards").CompileContext
    return str(context.current_compile_id())


def disagreements(ledger: Ledger, trace: Trace, unique_graphs: int | None) -> tuple[str, ...]:
    """The disagreements between the ledger's counts and the independent ones, one sentence each.

    `unique_graphs` is the rise of `counters["stats"]["unique_graphs"]`, or None if the counters were cleared. Known
    differences: the trace also has a reason for a recompile that the limit refuses, and none for one that
    `error_on_recompile` forbids; a generator is refused before there is one; a frame refused before its first
    instruction (called inside a transform of torch.func) is in the trace only while torch logs graph breaks; and the
    counter includes empty graphs that no backend gets.
    """
    found: list[str] = []

    def compare(what: str, ledger_count: int, other: str, other_count: int) -> None:
        if ledger_count != other_count:
            found.append(f"{what}: {ledger_count} by the ledger, {other_count} by {other}")

    installed = sum(1 for attempt in ledger.attempts if attempt.installed)
    compare("frames compiled", installed, "torch's bytecode hook", ledger.bytecode_hooks)
    kept = sum(1 for graph in ledger.graphs if graph.kept)
    if unique_graphs is not None:
        compare("graphs", kept, 'counters["stats"]["unique_graphs"]', unique_graphs - ledger.noops)
    if trace.missing:
        return (*found, trace.missing)
    asked = sum(1 for attempt in ledger.attempts if attempt.recompiles and not attempt.forbidden)
    compare("recompiles", asked, "torch's trace", trace.recompile_reasons)
    traced = sum(1 for attempt in ledger.told.broken() if attempt.id is not None and not attempt.untraced)
    compare("graph breaks", traced, "torch's trace", len(trace.broken))
    return tuple(found)
