"""The compiled run of an XLA lane: the measured pass, a steady step after it, and the measurement made of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_compilecontract import clock
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.measurement import (
    NO_DYNAMO,
    Call,
    Compiled,
    EagerOps,
    GraphBreak,
    Location,
    Measurement,
    Phase,
    Recompile,
    StepOperators,
    merge_breaks,
    without,
)
from pytest_compilecontract.wording import counted, first_said

from ..compiled_run import keys_of, state_change
from ..endings import Endings
from ..gpu_steps import nowhere, with_facts
from ..passes import How, Job, Passes
from ..probes.source import Paths
from ..probes.xla_lazy import OPENXLA
from ..probes.xla_torchax import not_traced
from ..programs import Body, Trail
from ..recorder import seconds
from .calls import Calls, Counted, Made

# What only Dynamo and torch's own compilers have.
OF_DYNAMO = (
    "eager_frames",
    "limit_hits",
    "break_events",
    "continuations",
    "eager_by_request",
    "dropped",
    "resets",
    "guards",
    "caches",
    "cache_bypasses",
    "stage_seconds",
    "backend_failures",
    "errors_suppressed",
    "capture_targets",
    "recomputed_graphs",
    "overhead_seconds",
    "counters",
    "collectives",
    "placements",
    "saved_bytes",
    "warm",
)
RANDOM = "XLA draws random numbers of its own"
SAME_MEMORY = "which outputs share memory is not compared: XLA returns arrays of its own"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """One call of the test's, by the calls of compiled targets in it."""

    made: tuple[Made, ...]
    seconds: float
    raised: bool


class XlaRun:
    """Measures a target that XLA compiles, over the calls of a job."""

    def __init__(
        self,
        passes: Passes,
        endings: Endings,
        *,
        lane: Lane,
        paths: Paths,
        calls: Calls,
        compile_target: Callable[[object], object],
    ) -> None:
        self._passes = passes
        self._endings = endings
        self._lane = lane
        self._paths = paths
        self._calls = calls
        self._compile_target = compile_target

    def measured(self, job: Job, eager: Trail) -> tuple[Measurement, Trail]:
        __tracebackhide__ = True
        keys, kind = keys_of(job.target), type(job.target)
        job.state.forget()
        self._passes.start_anew(job.state)
        compiled = self._compile_target(job.target)
        trail, steps = self._pass(compiled, job, eager)
        made = [each for step in steps for each in step.made]
        if eager.aliases:
            trail.aliases = set(eager.aliases)
            self._passes.notes.append(SAME_MEMORY)
        measured = self._measurement(made, steps)
        measured = replace(measured, state_change=state_change(keys, kind, job.target))
        if keys is None:
            measured = without(measured, "state_change", "the target is not a module")
        measured = self._with_break(self._with_breaks(measured, made), trail, made)
        return self._with_steady(measured, compiled, job, trail, seen=len(made)), trail

    def draws_otherwise(self) -> bool:
        return False

    def fallback_random(self, job: Job, eager: Trail) -> tuple[Trail, str]:
        raise NotImplementedError(RANDOM)

    def with_saved(self, measured: Measurement, job: Job, eager: Trail) -> Measurement:
        del job, eager
        return without(measured, "saved_bytes", NO_DYNAMO)

    def _pass(self, compiled: object, job: Job, eager: Trail | None) -> tuple[Trail, list[_Step]]:
        """All calls of the job. A body makes its own, and each call of what it compiled is one."""
        __tracebackhide__ = True
        steps: list[_Step] = []
        log = self._calls.made
        start = len(log)

        def noted(step: Callable[[], object]) -> object:
            __tracebackhide__ = True
            before, started, raised = len(log), clock.seconds(), True
            try:
                result = step()
                raised = False
                return result
            finally:
                steps.append(_Step(made=tuple(log[before:]), seconds=clock.seconds() - started, raised=raised))

        own = isinstance(job.program, Body)
        trail = self._passes.fresh(compiled, job, How(make=None if own else noted, like=eager))
        if own:
            steps = [_Step(made=(each,), seconds=each.seconds, raised=False) for each in log[start:]]
        return trail, steps

    def _measurement(self, made: Sequence[Made], steps: Sequence[_Step]) -> Measurement:
        operations = sum((Counter(each.forward.operations) for each in made), Counter[str]())
        programs = sum(each.forward.programs for each in made)
        recompiles = tuple(self._recompiles(made))
        backwards = [each.backward for each in made if each.backward is not None]
        calls = tuple(_call(step, number) for number, step in enumerate(steps))
        options = {"pjrt": "cpu"}
        measured = Measurement(
            backend=self._lane.backend,
            graphs=programs,
            backend_calls=programs,
            ops_captured=operations.total(),
            operations=dict(sorted(operations.items())),
            first_compiles=len({each.target for each in made if each.forward.programs}),
            recompiles=recompiles,
            graph_breaks=(),
            graphs_executed=sum(each.forward.executed for each in made),
            backward_graphs=sum(each.programs for each in backwards) if backwards else None,
            calls=calls,
            compiles=(Compiled(backend=self._lane.backend, options=options, graphs=programs),),
            disagreements=tuple(dict.fromkeys(_disagreements(made))),
            unmeasured=dict.fromkeys(OF_DYNAMO, NO_DYNAMO),
            **seconds(calls),
        )
        if not backwards:
            measured = without(measured, "backward_graphs", "no backward was run")
        return with_facts(measured, nowhere())

    def _recompiles(self, made: Sequence[Made]) -> list[Recompile]:
        found = []
        for each in made:
            late = not each.forward.programs and each.backward is not None and each.backward.programs and each.again
            if (each.forward.programs and each.differs) or late:
                guard = each.differs if not late else "its backward was compiled again"
                found.append(Recompile(frame=self._where(each), kind="guard", guard=guard))
        return found

    def _where(self, made: Made) -> Location:
        target: Any = self._calls.targets[made.target]
        function = type(target).forward if isinstance(target, torch.nn.Module) else target
        code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
        if code is None:
            return Location(file="", line=0, function=type(target).__qualname__)
        return self._paths.location(code.co_filename, code.co_firstlineno, code.co_name)

    def _with_last(self, measured: Measurement) -> Measurement:
        """The measurement with what the last call of a body ran outside of XLA, where such a call tells it."""
        parts = [part for each in self._calls.made[-1:] for part in each.parts]
        if self._lane.backend != OPENXLA or not any(part.programs for part in parts):
            return replace(measured, operators_run=_operators(parts))
        said = "the last call compiled, and what falls back to the CPU shows in steady calls alone"
        return replace(without(measured, "operators_run", said), doubts=(*measured.doubts, said))

    def _with_breaks(self, measured: Measurement, made: Sequence[Made]) -> Measurement:
        """The measurement with what ended programs in these calls and those before."""
        breaks = list(measured.graph_breaks or ())
        for each in made:
            for part in each.parts:
                for reason, events in part.breaks.items():
                    text = self._paths.text(first_said(reason))
                    breaks.append(GraphBreak(location=self._where(each), kind=text, reason=text, events=events))
        return replace(measured, graph_breaks=merge_breaks(breaks))

    def _with_break(self, measured: Measurement, trail: Trail, made: Sequence[Made]) -> Measurement:
        """The measurement with what XLA's tracer stopped at, which ends the call: nothing of it runs in eager."""
        if trail.error is None or not (kind := not_traced(trail.error)):
            return measured
        location = self._endings.user_line(trail.error) or self._where(made[-1])
        reason = self._paths.text(first_said(str(trail.error)))
        found = GraphBreak(location=location, kind=kind, reason=reason, whole_frame=True)
        return replace(measured, graph_breaks=(found,), break_events=None)

    def _with_steady(
        self, measured: Measurement, compiled: object, job: Job, trail: Trail, *, seen: int
    ) -> Measurement:
        """The measurement with one step more, the last one again, which has to compile nothing."""
        if trail.error is not None:
            return without(measured, "operators_run", "the run raised")
        if isinstance(job.program, Body):
            return self._with_last(measured)
        again, _ = self._pass(compiled, replace(job, calls=job.calls[-1:]), None)
        made = self._calls.made[seen:]
        if again.error is not None:
            said = f"a steady step raised {type(again.error).__name__}"
            measured = replace(measured, doubts=(*measured.doubts, said))
            return without(measured, "operators_run", said)
        parts = [part for each in made for part in each.parts]
        if compiles := sum(max(each.compiles, each.programs) for each in parts):
            said = f"a steady step, the last call again, compiled {counted(compiles, 'program')}"
            measured = replace(measured, doubts=(*measured.doubts, said))
        return replace(self._with_breaks(measured, made), operators_run=_operators(parts))


def drew_otherwise(eager: Trail, compiled: Trail) -> bool:
    """Whether eager drew from a generator of torch's that the compiled run did not leave as eager did."""
    if not eager.random:
        return False
    return any(
        compiled.facts.get(at, "untouched") != left for at, left in eager.facts.items() if at[0] == "random numbers"
    )


def _operators(parts: Sequence[Counted]) -> StepOperators:
    """The operators of one step, by what its forward and its backward counted."""
    outside = sum((Counter(each.outside) for each in parts), Counter[str]())
    group = EagerOps(why="frame", operators=dict(outside), name="outside of XLA")
    return StepOperators(
        compiled=sum(each.ran for each in parts), eager=outside.total(), groups=(group,) if outside else ()
    )


def _call(step: _Step, number: int) -> Call:
    compiled = any(part.programs for each in step.made for part in each.parts)
    phase: Phase = "cold" if not number else "warm-up" if compiled else "steady"
    ran = sum(each.forward.executed for each in step.made)
    return Call(phase=phase, seconds=step.seconds, graphs_executed=ran, attempted=compiled, raised=step.raised)


def _disagreements(made: Sequence[Made]) -> list[str]:
    """Where XLA's own word on what it compiled is not what was added to the cache of programs."""
    found = []
    for each in made:
        for what, part in zip(("forward", "backward"), each.parts, strict=False):
            if part.compiles != part.programs:
                found.append(
                    f"XLA compiled {counted(part.compiles, 'program')} in a {what}, "
                    f"{counted(part.programs, 'program')} of the target's"
                )
    return found
