"""The compiled run: the measured pass, what is examined after its calls, and the measurement made of both."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_compilecontract.errors import UsageError, message_of
from pytest_compilecontract.facts.collectives import Collectives
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import GraphStep, Measurement, StateChange, StepOperators, without
from pytest_compilecontract.facts.structure import SavedBytes
from pytest_compilecontract.wording import first_line

from .endings import Endings
from .gpu_steps import Facts, SteadySteps, nowhere, with_facts
from .group import barred, in_ranks, is_shared
from .passes import How, Job, Passes
from .probes import memory
from .probes.attempts import forget_frames
from .probes.collectives import Recorded
from .probes.cuda_graphs import GraphTaps
from .probes.fallback_random import drawn_as_eager
from .probes.logged import forget_tracebacks
from .probes.source import Paths
from .probes.targets import capture_targets
from .programs import Body, Trail
from .recorder import Measuring
from .repeated import Repeated
from .saved import saving

# Their decompositions draw random numbers otherwise than eager, unless `fallback_random` leaves these out
# (`select_decomp_table` in torch/_inductor/decomposition.py).
WITH_INDUCTORS_DECOMPOSITIONS = ("inductor", "aot_eager_decomp_partition")


@dataclass(frozen=True, kw_only=True, slots=True)
class _After:
    """What was found after the counted calls; for each None, the reason."""

    made: Recorded | None
    change: StateChange | None
    overhead: float | None
    no_overhead: str
    facts: Facts
    operators: StepOperators | None
    no_operators: str


class CompiledRun:
    """Measures a target, compiled, over the calls of a job."""

    def __init__(
        self,
        passes: Passes,
        endings: Endings,
        *,
        lane: Lane,
        limits: Limits,
        device: torch.device,
        paths: Paths,
        compile_target: Callable[[object], object],
        timed: bool,
    ) -> None:
        self._passes = passes
        self._endings = endings
        self._lane = lane
        self._limits = limits
        self._device = device
        self._paths = paths
        self._compile_target = compile_target
        self._timed = timed

    def measured(self, job: Job, eager: Trail) -> tuple[Measurement, Trail]:
        __tracebackhide__ = True
        on_cuda = self._device.type == "cuda"
        graphs = GraphTaps(self._paths) if on_cuda and self._lane.asks_for_cuda_graphs else None
        measuring = self._passes.measuring = Measuring(self._paths, lane=self._lane)
        measuring.ledger.watches_classes = self._limits.capture_targets is not None
        try:
            with measuring, graphs or contextlib.nullcontext():
                trail, after = self._made(job, eager, measuring, graphs)
        finally:
            self._passes.measuring = None
            job.state.forget()
        return self._with(measuring, after, silent=trail.error is None and not isinstance(job.program, Body)), trail

    def _compile(self, job: Job) -> Any:
        """Compile the target, in the state that every pass starts from, and keep what compiling changes of it.

        Compiled passes start from the changed state until `state.forget()`.
        """
        job.state.forget()
        self._passes.start_anew(job.state)
        compiled = self._compile_target(job.target)
        job.state.accept()
        return compiled

    def _made(self, job: Job, eager: Trail, measuring: Measuring, graphs: GraphTaps | None) -> tuple[Trail, _After]:
        """Make the counted calls, and examine what they leave."""
        __tracebackhide__ = True
        by_call: list[GraphStep] = []

        def counted(step: Callable[[], object]) -> object:
            __tracebackhide__ = True
            try:
                return measuring.call(step, device=self._device)
            finally:
                if graphs is not None:
                    by_call.append(graphs.take())

        keys, kind = keys_of(job.target), type(job.target)
        pools = memory.pool_ids() if self._device.type == "cuda" else frozenset()
        compiled = self._compile(job)
        change = state_change(keys, kind, compiled)
        make: Callable[..., object] | None = counted
        if isinstance(job.program, Body):
            compiled, make = self._noting(compiled, measuring), None
        with in_ranks(self._lane) as made:
            trail = self._passes.fresh(compiled, job, How(make=make, like=eager))
        if eager.error is not None and self._endings.raised(eager, trail, job.program.unit) is None:
            measuring.raised_in_both(eager.error)
        measuring.close()
        self._kept_alive(trail, eager, measuring)
        repeated = Repeated(
            self._passes,
            job,
            compiled=compiled,
            measuring=measuring,
            trail=trail,
            paths=self._paths,
            barred=barred(self._lane),
        )
        overhead, no_overhead = repeated.overhead()
        facts = self._nowhere(job, trail)
        if facts is None:
            steps = SteadySteps(
                program=job.program,
                last=job.calls[-1],
                state=job.state,
                start=self._passes.start,
                autocast=self._passes.autocast,
                measuring=measuring,
                graphs=graphs,
                pools=pools,
                paths=self._paths,
                timed=self._timed,
            )
            facts = trail.context.run(self._steady, steps, job.target, compiled, tuple(by_call))
        # Last: what CUDA graphs record for one more call, the steady steps would find recorded.
        operators, no_operators = repeated.operators()
        return trail, _After(
            made=made,
            change=change,
            overhead=overhead,
            no_overhead=no_overhead,
            facts=facts,
            operators=operators,
            no_operators=no_operators,
        )

    def _nowhere(self, job: Job, trail: Trail) -> Facts | None:
        """Why there are no steady steps to measure, or None."""
        if self._device.type != "cuda":
            return nowhere()
        if isinstance(job.program, Body):
            return nowhere("the body of the test makes its own calls")
        if why := barred(self._lane):
            return nowhere(why)
        return nowhere("the run raised") if trail.error is not None else None

    def _with(self, measuring: Measuring, after: _After, *, silent: bool) -> Measurement:
        """The measurement with what was found after the calls. `silent`: all of them were made, and none raised."""
        measured = replace(
            measuring.measurement(),
            overhead_seconds=after.overhead,
            state_change=after.change,
            operators_run=after.operators,
        )
        measured = with_facts(measured, after.facts)
        if after.made is not None and after.made.collectives is not None:
            measured = replace(measured, collectives=Collectives(compiled=after.made.collectives))
        elif after.made is not None:
            measured = without(measured, "collectives", after.made.why)
        if after.operators is None:
            measured = without(measured, "operators_run", after.no_operators)
            if measured.graph_breaks and silent:
                # Behind a break whole frames may run in eager, and the limit on eager frames would not see them.
                doubt = f"what ran in eager besides the graph breaks is unknown: {after.no_operators}"
                measured = replace(measured, doubts=(*measured.doubts, doubt))
        if self._limits.capture_targets is not None:
            found = capture_targets(self._limits.capture_targets, measuring.ledger.told.classes())
            measured = replace(measured, capture_targets=found)
        if after.overhead is None:
            measured = without(measured, "overhead_seconds", after.no_overhead)
        if after.change is None:
            measured = without(measured, "state_change", "the target is not a module")
        if self._lane.backend == "eager" and measured.backward_graphs is not None:
            reason = "backend 'eager' compiles no backward; lane 'aot' does"
            measured = replace(without(measured, "backward_graphs", reason), backward_graphs=None)
        return measured

    def _noting(self, compile: Callable[..., object], measuring: Measuring) -> Callable[..., object]:
        """What a body compiles with; each call of what it compiled is noted as a call."""

        def noting(target: object, **overrides: object) -> object:
            return measuring.noting(compile(target, **overrides), device=self._device)

        return noting

    def _kept_alive(self, compiled: Trail, eager: Trail, measuring: Measuring) -> None:
        """Note what compiled code keeps in memory and eager does not."""
        # What an exception passed is alive as long as it is. CUDA graphs put outputs in memory of their own.
        if compiled.error is not None or eager.error is not None or self._has_cuda_graphs():
            return
        forget_frames(measuring.ledger.attempts)
        if compiled.watch.alive() - eager.alive:
            forget_tracebacks(Passes.fresh.__code__)
        for at in compiled.watch.kept(eager.alive):
            compiled.facts["memory", at] = "keeps it alive"

    def _has_cuda_graphs(self) -> bool:
        settings = {**(self._lane.options or {}), **self._lane.inductor}
        return self._lane.mode in ("reduce-overhead", "max-autotune") or bool(settings.get("triton.cudagraphs"))

    def _steady(self, steps: SteadySteps, target: object, compiled: object, by_call: tuple[GraphStep, ...]) -> Facts:
        try:
            return steps.measure(target, compiled, by_call)
        except Exception as error:
            self._passes.refuse_when_lost(error, "in a steady step", compiled=True)
            raise

    def fallback_random(self, job: Job, eager: Trail) -> tuple[Trail, str]:
        """A second compiled pass, not measured, in which Inductor draws random numbers as eager does."""
        torch.compiler.reset()
        with drawn_as_eager():
            trail = self._passes.fresh(self._compile(job), job, How(like=eager))
        job.state.forget()
        torch.compiler.reset()
        return trail, "random numbers: judged in a pass of its own with fallback_random=True"

    def with_saved(self, measured: Measurement, job: Job, eager: Trail) -> Measurement:
        """The measurement with the bytes saved for the backward, in an eager and a compiled pass of their own."""
        if measured.raised is not None or eager.error is not None:
            return without(measured, "saved_bytes", "the run raised")
        with saving() as in_eager:
            trail = self._passes.eager(job, eager)
        if trail.error is not None or trail.structure is None:
            return without(measured, "saved_bytes", self._refused(trail.error))
        saved = in_eager.without(trail.structure.storages)
        torch.compiler.reset()
        with saving() as compiled:
            trail = self._passes.fresh(self._compile(job), job, How(like=eager))
        job.state.forget()
        torch.compiler.reset()
        if trail.error is not None or trail.structure is None:
            return without(measured, "saved_bytes", self._refused(trail.error))
        if others := in_eager.others or compiled.others:
            why = f"the run has hooks of its own on saved tensors ({others}), and what they take is not counted"
            return without(measured, "saved_bytes", why)
        found = SavedBytes(compiled=compiled.without(trail.structure.storages), eager=saved)
        return replace(measured, saved_bytes=found)

    def _refused(self, error: Exception | None) -> str:
        """Why a pass with hooks raised. A rank that raised alone has to end, or the others would wait for it."""
        assert error is not None
        said = f"with hooks on saved tensors the run raises {type(error).__name__}: {first_line(message_of(error))}"
        if is_shared(self._lane):
            raise UsageError(f"max_saved_ratio: {said}") from error
        return said

    def draws_otherwise(self) -> bool:
        return self._lane.backend in WITH_INDUCTORS_DECOMPOSITIONS and not self._lane.inductor.get("fallback_random")


def keys_of(target: object) -> tuple[str, ...] | None:
    """The keys of a module's state dict; None of another target."""
    return tuple(target.state_dict()) if isinstance(target, torch.nn.Module) else None


def state_change(keys: tuple[str, ...] | None, kind: type, compiled: object) -> StateChange | None:
    """How a compiled module differs from the module of this type and with these keys."""
    if keys is None:
        return None
    if not isinstance(compiled, torch.nn.Module):
        return StateChange(type_changed=f"{kind.__qualname__} became a {type(compiled).__qualname__}")
    now = tuple(compiled.state_dict())
    changed = type(compiled) is not kind
    return StateChange(
        keys_added=tuple(key for key in now if key not in keys),
        keys_removed=tuple(key for key in keys if key not in now),
        type_changed=f"{kind.__qualname__} became {type(compiled).__qualname__}" if changed else "",
    )
