"""Measuring: one measurement from Dynamo's ledger, the second channel and the calls."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_compilecontract import clock
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.measurement import NO_CACHES, CacheBypass, Call, Measurement, Phase, backends_of
from pytest_compilecontract.wording import counted

from .probes.attempts import excuse
from .probes.caches import bypasses_in, cache_state, not_looked_up
from .probes.canary import canary
from .probes.counters import Rises, counters
from .probes.dynamo import COUNTING, NEEDS, Ledger
from .probes.guards import UNREADABLE
from .probes.inplace import COMPILED
from .probes.processes import Processes
from .probes.source import Paths
from .probes.stages import Stages
from .probes.stance import switched_off
from .probes.told import cached, guards_of
from .probes.trace import Trace, disagreements


@dataclass(kw_only=True, slots=True)
class Timed:
    """One call: its wall seconds, whether Dynamo tried to compile in it, and the compiled graphs that it ran.

    `raised`: it ended in an exception.

    `callee` tells apart the calls of several compiled callables; `attempts` were made before it.
    """

    seconds: float
    compiled: bool
    executed: int
    callee: int = 0
    attempts: int = 0
    raised: bool = False


class Measuring:
    """Record everything that Dynamo does while entered. Starts without compiled code.

    Code that is called during a body uses `start` and `stop` instead, and does the rest itself.
    """

    def __init__(self, paths: Paths, *, lane: Lane | None = None, calls: bool = False) -> None:
        self._paths = paths
        self._lane = lane
        self._backend = lane.backend if lane is not None else ""
        self._trace = Trace()
        self.ledger = Ledger(paths, calls=calls)
        self._processes = Processes()
        self.timed: list[Timed] = []
        self.backwards: set[int] | None = None
        self._doubt: str | None = None
        self._done: Measurement | None = None
        self._callees = 0

    _active = False

    def __enter__(self) -> Measuring:
        if Measuring._active:
            raise UsageError("a measurement is already running: observe and run cannot be nested")
        self._doubt = switched_off() or canary()
        torch.compiler.reset()
        counters().clear()
        self.start(Rises())
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()
        if self._done is None:
            self._done = self._measurement()

    @staticmethod
    def going_on() -> bool:
        """Whether anything is being measured."""
        return Measuring._active

    def start(self, rises: Rises) -> None:
        """Start recording, without dropping compiled code. `rises` are the counters since the test began."""
        self._rises = rises
        self._rises.settle()
        self._stages = Stages()
        self.ledger.__enter__()
        self._trace.__enter__()
        self._processes.__enter__()
        Measuring._active = True

    def stop(self) -> None:
        """Stop recording."""
        Measuring._active = False
        self._stages.stop()
        self._processes.__exit__()
        self._trace.__exit__()
        self.ledger.__exit__()

    @property
    def compiled(self) -> bool:
        """Whether Dynamo tried to compile anything."""
        return bool(self.ledger.attempts or self.ledger.loose_graphs)

    def noting(self, compiled: object, *, device: torch.device) -> object:
        """A wrapper of a compiled callable that records each call."""
        self._callees += 1
        callee = self._callees

        def noted(original: Callable[..., object]) -> Callable[..., object]:
            @functools.wraps(original)
            def call(*args: object, **kwargs: object) -> object:
                # Inside of other compiled code it is part of that code's call.
                if torch.compiler.is_compiling():
                    return original(*args, **kwargs)
                return self.call(functools.partial(original, *args, **kwargs), device=device, callee=callee)

            return call

        if not isinstance(compiled, torch.nn.Module):
            return noted(compiled) if callable(compiled) else compiled
        # Where torch keeps the compiled call: in a module that was compiled in place, and in the one around it.
        place = COMPILED if vars(compiled).get(COMPILED) is not None else "forward"
        vars(compiled)[place] = noted(getattr(compiled, place))
        return compiled

    def call(self, make: Callable[[], object], *, device: torch.device, callee: int = 0) -> object:
        """Make one call and record it, even if it raises."""
        __tracebackhide__ = True
        attempts = len(self.ledger.attempts)
        executed = self.ledger.runs.executed
        raised = True
        synchronize(device)
        started = clock.seconds()
        try:
            result = make()
            synchronize(device)
            raised = False
            return result
        finally:
            self.timed.append(
                Timed(
                    seconds=clock.seconds() - started,
                    compiled=len(self.ledger.attempts) > attempts,
                    executed=self.ledger.runs.executed - executed,
                    callee=callee,
                    attempts=attempts,
                    raised=raised,
                )
            )

    def raised_in_both(self, error: BaseException) -> None:
        """Note that eager ended its last call with this exception, as the compiled run did."""
        if self.timed:
            excuse(self.ledger.attempts[self.timed[-1].attempts :], error, self._paths)

    def close(self) -> None:
        """Take the measurement now; it leaves out what is compiled later while the taps are still set."""
        self._done = self._measurement()

    def measurement(self) -> Measurement:
        """The measurement; while recording, what is known so far."""
        return self._done or self._measurement()

    def _measurement(self) -> Measurement:
        ledger = self.ledger
        facts = {name: read() for name, read in self._readers().items()}
        unmeasured = {
            name: ledger.missing[tap] for name, taps in NEEDS.items() for tap in taps if tap in ledger.missing
        }
        facts.update(dict.fromkeys(unmeasured, None))
        calls = self._calls(measured="graphs_executed" not in unmeasured) if self.timed else None
        if calls is None:
            unmeasured["calls"] = "the test makes its own calls"
        if facts["recomputed_graphs"] is None:
            unmeasured.setdefault("recomputed_graphs", "this torch does not tell whether a backward is running")
        stages, no_stages = self._stages.read()
        if no_stages:
            unmeasured["stage_seconds"] = no_stages
        if facts["guards"] is None and "guards" not in unmeasured:
            unmeasured["guards"] = UNREADABLE
        if self.backwards is None:
            unmeasured["backward_graphs"] = "no backward was run from a loss, as compile_lane.train does"
        rises = {
            group: {self._paths.text(key): rise for key, rise in values.items()}
            for group, values in self._rises.all().items()
        }
        state = cache_state(rises)
        if why := self._no_caches(state, stages):
            unmeasured |= {"caches": why, "cache_bypasses": why}
        return Measurement(
            backend=backends_of(facts["compiles"]) or self._backend,
            calls=calls,
            backward_graphs=None if self.backwards is None else len(self.backwards),
            stage_seconds=stages,
            caches=None if why else state,
            cache_bypasses=None if why else self._bypasses(state),
            counters=rises,
            disagreements=self._disagreements(),
            doubts=self._doubts(),
            processes=self._processes.told(),
            unmeasured=unmeasured,
            **seconds(calls),
            **facts,
        )

    def _readers(self) -> dict[str, Callable[[], Any]]:
        ledger = self.ledger
        kept = [graph for graph in ledger.graphs if graph.kept]
        installed = [attempt for attempt in ledger.attempts if attempt.installed]
        first = [attempt for attempt in installed if not attempt.recompiles]
        return {
            "graphs": lambda: len(kept),
            "backend_calls": lambda: sum(graph.pieces or 1 for graph in ledger.graphs),
            "ops_captured": lambda: sum(graph.operations.total() for graph in kept),
            "compiles": lambda: ledger.told.compiles(self._lane),
            "operations": lambda: dict(sorted(sum((graph.operations for graph in kept), Counter()).items())),
            "first_compiles": lambda: len(first),
            "continuations": lambda: sum(1 for attempt in first if attempt.continuation),
            "recompiles": ledger.told.recompiles,
            "graph_breaks": ledger.told.graph_breaks,
            "break_events": lambda: len(ledger.told.broken()),
            "eager_frames": ledger.told.eager_frames,
            "limit_hits": ledger.told.limit_hits,
            "backend_failures": ledger.told.failures,
            "errors_suppressed": ledger.told.suppressed,
            "graphs_executed": lambda: ledger.runs.executed,
            "recomputed_graphs": lambda: ledger.runs.recomputed,
            "resets": lambda: ledger.resets,
            "dropped": ledger.told.dropped,
            "eager_by_request": ledger.told.eager_by_request,
            "guards": lambda: guards_of(installed, self._paths),
        }

    def _no_caches(self, state: dict[str, int], stages: dict[str, float] | None) -> str:
        """Why the hits and misses of compile caches are not known; empty if they are."""
        if not self._rises.intact():
            return "the test cleared Dynamo's counters"
        inductor, others = cached(self.ledger.graphs)
        if others and not inductor and not any(state.values()):
            written = stages is not None and stages["code_generation"]
            return "a backend of the project's uses Inductor, with its caches switched off" if written else NO_CACHES
        return not_looked_up(inductor, others)

    def _bypasses(self, state: dict[str, int]) -> tuple[CacheBypass, ...]:
        told = [replace(each, reason=self._paths.text(each.reason)) for each in self._trace.bypasses]
        return bypasses_in(state, told)

    def _doubts(self) -> tuple[str, ...]:
        found = [
            f"thread {name!r} was running before this measurement and compiled {count} frames in it"
            for name, count in self.ledger.strangers.items()
        ]
        forced = self.ledger.stances.forced
        for each in self.ledger.told.compiles(self._lane):
            if each.contrary and each.backend != forced:
                graphs = counted(each.graphs, "graph")
                where = f" (compiled at {each.location})" if each.location is not None else ""
                found.append(f"{graphs} not compiled as the lane says: {each.contrary}{where}")
        if self._backend and forced:
            found.append(f"the stance forced backend {forced!r}, the lane's is {self._backend!r}")
        return tuple(dict.fromkeys(found))

    def _disagreements(self) -> tuple[str, ...]:
        doubts = (self._doubt,) if self._doubt else ()
        if COUNTING & set(self.ledger.missing):
            return doubts
        unique_graphs = self._rises.of("stats", "unique_graphs") if self._rises.intact() else None
        return doubts + disagreements(self.ledger, self._trace, unique_graphs)

    def _calls(self, *, measured: bool) -> tuple[Call, ...]:
        by_callee = sorted(self.timed, key=lambda each: each.callee)
        firsts = {id(next(group)) for _, group in itertools.groupby(by_callee, lambda each: each.callee)}
        return tuple(
            Call(
                phase=_phase(each, first=id(each) in firsts),
                seconds=each.seconds,
                graphs_executed=each.executed if measured else None,
                attempted=each.compiled,
                raised=each.raised,
            )
            for each in by_callee
        )


def _phase(timed: Timed, *, first: bool) -> Phase:
    if first:
        return "cold"
    return "warm-up" if timed.compiled else "steady"


def seconds(calls: tuple[Call, ...] | None) -> dict[str, Any]:
    """Wall seconds of the cold call, of all warm-up calls, and of the median steady call."""
    calls = calls or ()
    warm = [each.seconds for each in calls if each.phase == "warm-up"]
    steady = sorted(each.seconds for each in calls if each.phase == "steady")
    return {
        "cold_seconds": calls[0].seconds if calls else None,
        "warmup_seconds": sum(warm) if calls else None,
        "steady_seconds": steady[len(steady) // 2] if steady else None,
    }


def synchronize(device: torch.device) -> None:
    """Wait for the device, if it works asynchronously."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def without_comparison(measurement: Measurement, reason: str) -> Measurement:
    """The measurement of a run that was not compared with anything, and why."""
    compared = ("numerics", "state_change", "placements", "saved_bytes")
    unmeasured = measurement.unmeasured | dict.fromkeys(compared, reason)
    return replace(measurement, unmeasured=unmeasured)
