"""Evidence: torch's structured trace, rendered, of what is being measured; and the graphs, code and guards in it.

Rendering is expensive and prints whole graphs, so it is off while a lane is measured for its verdict (see `trace`): a
handler is added to the trace's logger only for a run of its own.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Protocol

from .trace import LOGGER

# Records of the trace by their names, and the kind and suffix of the file that each becomes (facts/evidence.py).
_RECORDS = {
    "dynamo_output_graph": ("graph", "py"),
    "aot_joint_graph": ("aot_joint", "py"),
    "aot_forward_graph": ("aot_forward", "py"),
    "aot_backward_graph": ("aot_backward", "py"),
    "aot_inference_graph": ("aot_inference", "py"),
    "inductor_output_code": ("code", "py"),
    "dynamo_cpp_guards_str": ("guards", "txt"),
}
# The same of those that have one name and differ by another.
_ARTIFACTS = {
    "inductor_post_grad_graph": ("post_grad", "py"),
    "fx_graph_runnable": ("runnable", "py"),
    "dynamo_graph_break_reason": ("break", "txt"),
    "recompile_reasons": ("recompiled", "txt"),
}
# What torch gives a number the first time that it is named, for records that follow.
_INTERNED = "str"


class Sink(Protocol):
    """Where evidence is kept."""

    def trace(self, text: str) -> None:
        """One record of the trace, as torch writes it."""

    def add(self, kind: str, at: str, suffix: str, text: str) -> None:
        """A graph, code or guards, of the compile `at`."""


class Evidence:
    """Pass what torch traces to a sink, while entered and while `counts` is true.

    `missing` says why there is none, `problem` why a record could not be rendered.
    """

    def __init__(self, sink: Sink, counts: Callable[[], bool]) -> None:
        self.missing = ""
        self._handler = _Handler(sink, counts)
        self._tables: dict[str, object] = {}

    @property
    def problem(self) -> str:
        return self._handler.problem

    def __enter__(self) -> Evidence:
        internal = importlib.import_module("torch._logging._internal")
        formatter = getattr(internal, "TorchLogsFormatter", None)
        if getattr(internal, "trace_log", None) is None or formatter is None:
            self.missing = "torch._logging._internal has no trace_log or TorchLogsFormatter"
            return self
        try:
            self._handler.setFormatter(formatter(trace=True))
        except TypeError as error:
            self.missing = f"torch._logging._internal.TorchLogsFormatter takes no trace=True ({error})"
            return self
        # Of a name that torch has numbered before, the trace would have the number alone.
        structured = importlib.import_module("torch._logging.structured")
        for name, empty in (("INTERN_TABLE", {}), ("DUMPED_FILES", set())):
            if isinstance(getattr(structured, name, None), type(empty)):
                self._tables[name] = getattr(structured, name)
                setattr(structured, name, empty)
        logging.getLogger(LOGGER).addHandler(self._handler)
        return self

    def __exit__(self, *_exc: object) -> None:
        logging.getLogger(LOGGER).removeHandler(self._handler)
        structured = importlib.import_module("torch._logging.structured")
        for name, table in self._tables.items():
            setattr(structured, name, table)
        self._tables = {}


class _Handler(logging.Handler):
    """Renders records. A failure here must not reach the code that compiles."""

    def __init__(self, sink: Sink, counts: Callable[[], bool]) -> None:
        super().__init__(logging.DEBUG)
        self.problem = ""
        self._sink = sink
        self._counts = counts

    def emit(self, record: logging.LogRecord) -> None:
        try:
            metadata: dict[str, object] = getattr(record, "metadata", None) or {}
            if _INTERNED in metadata or self._counts():
                self._sink.trace(self.format(record))
                self._keep(metadata, getattr(record, "payload", None))
        except Exception as error:  # noqa: BLE001 - a record of a shape not known here is one the less
            self.problem = f"{type(error).__name__}: {error}"

    def _keep(self, metadata: dict[str, object], payload: object) -> None:
        artifact = metadata.get("artifact")
        known = _ARTIFACTS.get(artifact.get("name", "")) if isinstance(artifact, dict) else None
        known = known or next((_RECORDS[name] for name in metadata if name in _RECORDS), None)
        if known is not None and isinstance(payload, str):
            self._sink.add(known[0], _compile_of(metadata), known[1], payload)


def _compile_of(metadata: dict[str, object]) -> str:
    """The compile id of a record: frame and number, preceded by that of compiled autograd, if any."""
    parts = [metadata.get(key) for key in ("compiled_autograd_id", "frame_id", "frame_compile_id")]
    return "_".join(str(part) for part in parts if isinstance(part, int))
