"""CUDA graphs: what Inductor's graph trees did in each step, and why work ran outside of them.

torch's counter of skips is not enough: it misses a graph that is partitioned or has nothing to capture, and calls that
run without a CUDA graph after the first skip. So recording and replaying are counted where they happen.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from pytest_compilecontract.facts.measurement import GraphSkip, GraphStep, Location

from .protocols import Node
from .source import Paths
from .taps import Taps

# torch/_inductor/cudagraph_utils.py logs each skip there, at WARNING.
SKIPS = "torch._inductor.cudagraph_utils.__cudagraphs"
_PREFIX = "skipping cudagraphs due to "
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_INSTANCES = re.compile(r" \(\d+ instances?\)")


@dataclass(kw_only=True, slots=True)
class _Counts:
    """What happened since the last `take`."""

    runs: int = 0
    warmed_up: int = 0
    recorded: int = 0
    replayed: int = 0


class GraphTaps:
    """Count what CUDA graphs do while entered. `missing` says why nothing can be counted, None where it can."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._counts = _Counts()
        self._depth = threading.local()
        self._lock = threading.Lock()
        self._taps = Taps()
        self._messages: list[str] = []
        self._splits: dict[GraphSkip, None] = {}
        self._handler = _Handler(self._messages)
        self._counters: Any = None
        self._base = {"cudagraph_skips": 0, "cudagraph_partitions": 0}

    @property
    def missing(self) -> str | None:
        """The first tap that this torch does not have."""
        return next(iter(self._taps.missing.values()), None)

    def __enter__(self) -> GraphTaps:
        trees = _module("torch._inductor.cudagraph_trees")
        manager = getattr(trees, "CUDAGraphTreeManager", None)
        taps = self._taps
        taps.set("run", manager, "run", self._run)
        for method, name in (("run_eager", "warmed_up"), ("record_function", "recorded"), ("execute_node", "replayed")):
            taps.set(method, manager, method, self._counting(name))
        scheduler = getattr(_module("torch._inductor.scheduler"), "Scheduler", None)
        taps.set("should_partition", scheduler, "should_partition", self._on_partition)
        # Without it nothing is miscounted, the user's line is missing; whether work is split is still known.
        taps.missing.pop("should_partition", None)
        self._counters = importlib.import_module("torch._dynamo.utils").counters
        self._base = self._now()
        logging.getLogger(SKIPS).addHandler(self._handler)
        taps.callback(logging.getLogger(SKIPS).removeHandler, self._handler)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._taps.close()

    def take(self) -> GraphStep:
        """What happened since the last `take`."""
        with self._lock:
            counts, self._counts = self._counts, _Counts()
        reached = counts.warmed_up + counts.recorded + counts.replayed
        return GraphStep(
            warmed_up=counts.warmed_up,
            recorded=counts.recorded,
            replayed=counts.replayed,
            ran_eager=max(counts.runs - reached, 0),
        )

    def partitions(self) -> int:
        """The number of partitions of the graphs that were split; 0 if none was."""
        return self._now()["cudagraph_partitions"] - self._base["cudagraph_partitions"]

    def skips(self) -> tuple[GraphSkip, ...]:
        """What ran outside of CUDA graphs, by torch's log, its counter, and the partitioning."""
        told = [read_skip(message, self._paths) for message in self._messages]
        counted = self._now()["cudagraph_skips"] - self._base["cudagraph_skips"]
        if counted > len(told):
            # CPU-only graphs are counted, and said nothing about.
            told += [GraphSkip(reason="torch skipped CUDA graphs and gives no reason")] * (counted - len(told))
        if self.partitions() and not self._splits:
            told.append(GraphSkip(reason="partitioned, and this torch does not say around what", split=True))
        return tuple(dict.fromkeys([*told, *self._splits]))

    def _now(self) -> dict[str, int]:
        inductor = self._counters["inductor"]
        return {name: int(inductor[name]) for name in self._base}

    def _run(self, original: Callable[..., object], *args: object, **kwargs: object) -> object:
        # It calls itself once, to try again as a root.
        depth = getattr(self._depth, "inside", 0)
        self._depth.inside = depth + 1
        try:
            return original(*args, **kwargs)
        finally:
            self._depth.inside = depth
            if depth == 0:
                with self._lock:
                    self._counts.runs += 1

    def _counting(self, name: str) -> Callable[..., object]:
        def around(original: Callable[..., object], *args: object, **kwargs: object) -> object:
            with self._lock:
                setattr(self._counts, name, getattr(self._counts, name) + 1)
            return original(*args, **kwargs)

        return around

    def _on_partition(self, original: Callable[..., object], *args: object, **kwargs: object) -> object:
        reason = original(*args, **kwargs)
        if isinstance(reason, str):
            node = args[1] if len(args) > 1 else kwargs.get("node")
            self._splits[GraphSkip(reason=reason, location=_line_of(node, self._paths), split=True)] = None
        return reason


class _Handler(logging.Handler):
    """Keeps log messages."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


def read_skip(message: str, paths: Paths) -> GraphSkip:
    """Parse torch's message about a skip: the reason, and the innermost line of the quoted stack."""
    head, _, stack = message.partition("Found from :")
    reason = head.strip().splitlines()[0] if head.strip() else message.strip()
    while reason.startswith(_PREFIX):  # torch may say it twice
        reason = reason[len(_PREFIX) :]
    return GraphSkip(reason=paths.text(_INSTANCES.sub("", reason).rstrip(" .")), location=last_line(stack, paths))


def last_line(stack: str | None, paths: Paths) -> Location | None:
    """The innermost line of a stack in the format of FX nodes, of the project if it has one."""
    found = None
    for each in _FRAME.finditer(stack or ""):
        if found is None or paths.is_users(each["file"]):
            found = paths.location(each["file"], int(each["line"]), each["function"])
    return found


def _line_of(node: Any, paths: Paths) -> Location | None:
    """The user's line that a node of Inductor's scheduler comes from."""
    with contextlib.suppress(Exception):  # whatever an IR node is, it may not have what is looked for
        for origin in _origins(node.node):
            if stack := origin.meta.get("stack_trace"):
                return last_line(stack, paths)
    return None


def _origins(node: Any) -> Iterator[Node]:
    if (origin := node.get_origin_node()) is not None:
        yield origin
    yield from sorted(getattr(node, "origins", ()), key=lambda each: str(each.name))


def _module(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
