"""The second way of counting: torch's structured trace, read by a log handler. It changes no setting and prints nothing.

Where it and the ledger disagree after the corrections below, one of the two is wrong and no number can be trusted.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator

from .dynamo import Ledger

LOGGER = "torch.__trace"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Only torch's own handlers on the trace logger: pytest shows every record of it in a failure, thousands of lines."""
    logger = logging.getLogger(LOGGER)
    foreign = [handler for handler in logger.handlers if not type(handler).__module__.startswith("torch.")]
    for handler in foreign:
        logger.removeHandler(handler)
    try:
        yield
    finally:
        for handler in foreign:
            logger.addHandler(handler)


class Trace(logging.Handler):
    """Count what torch's trace says of recompiles and graph breaks, while entered."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.recompile_reasons = 0
        self.broken: set[object] = set()
        self.missing: str | None = None
        self._starts = itertools.count()
        self._attempts: dict[tuple[object, object], int] = {}
        self._logger = logging.getLogger(LOGGER)

    def __enter__(self) -> Trace:
        # torch gives this logger no level of its own until somebody asks for a trace file, and never lets it propagate.
        if self._logger.propagate or not self._logger.isEnabledFor(logging.DEBUG):
            self.missing = f"torch's structured trace logger {LOGGER!r} is not set up"
        else:
            self._logger.addHandler(self)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Count one record. Never raises: a record of a shape not known here only makes the two counts disagree."""
        metadata = getattr(record, "metadata", None)
        if not isinstance(metadata, dict):
            return
        attempt = (metadata.get("frame_id"), metadata.get("frame_compile_id"))
        if "dynamo_start" in metadata:
            # A reset in mid-run starts the ids at 0/0 again.
            self._attempts[attempt] = next(self._starts)
        elif "artifact" in metadata:
            name = metadata["artifact"].get("name") if isinstance(metadata["artifact"], dict) else None
            if name == "recompile_reasons":
                self.recompile_reasons += 1
            elif name == "dynamo_graph_break_reason":
                self.broken.add(self._attempts.get(attempt, attempt))


def disagreements(ledger: Ledger, trace: Trace, unique_graphs: int | None) -> tuple[str, ...]:
    """What the ledger's counts and the independent ones do not agree on, one sentence each.

    `unique_graphs` is the rise of `counters["stats"]["unique_graphs"]`, or None where somebody cleared the counters.
    Known differences: the trace gives a reason for a refused recompile too; a generator is refused before any trace; torch
    keeps a graph in its counter although a later restart dropped it.
    """
    found: list[str] = []

    def compare(what: str, ledger_count: int, other: str, other_count: int) -> None:
        if ledger_count != other_count:
            found.append(f"{what}: {ledger_count} by the ledger, {other_count} by {other}")

    installed = sum(1 for attempt in ledger.attempts if attempt.installed)
    compare("frames compiled", installed, "torch's bytecode hook", ledger.bytecode_hooks)
    kept = sum(1 for graph in ledger.graphs if graph.kept)
    if unique_graphs is not None:
        compare("graphs", kept, 'counters["stats"]["unique_graphs"]', unique_graphs)
    if trace.missing:
        return (*found, trace.missing)
    asked = sum(1 for attempt in ledger.attempts if attempt.recompiles)
    compare("recompiles", asked, "torch's trace", trace.recompile_reasons)
    traced = sum(1 for attempt in ledger.broken() if attempt.id is not None)
    compare("graph breaks", traced, "torch's trace", len(trace.broken))
    return tuple(found)
