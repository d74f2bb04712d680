"""The runner: a program eager and compiled, from the same state, inputs and seeds, compared and measured."""

from __future__ import annotations

import contextlib
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from pytest_compilecontract.calls import call
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import (
    GraphStep,
    Measurement,
    Numerics,
    Raised,
    StateChange,
    StepOperators,
)

from . import numerics
from .endings import BrokenLane, DeviceLost, Endings, ended_as
from .gpu_steps import Facts, SteadySteps, nowhere, with_facts
from .passes import How, Job, Passes
from .probes import memory
from .probes.attempts import forget_frames
from .probes.cuda_graphs import GraphTaps
from .probes.fallback_random import drawn_as_eager
from .probes.modes import Modes
from .probes.source import Paths
from .probes.targets import capture_targets
from .programs import Body, Program, Trail
from .recorder import Measuring
from .repeated import Repeated
from .state import State

CONVOLUTIONS = (
    torch.nn.Conv1d,
    torch.nn.Conv2d,
    torch.nn.Conv3d,
    torch.nn.ConvTranspose1d,
    torch.nn.ConvTranspose2d,
    torch.nn.ConvTranspose3d,
)
# Their decompositions draw random numbers otherwise than eager, unless `fallback_random` leaves these out
# (`select_decomp_table` in torch/_inductor/decomposition.py).
WITH_INDUCTORS_DECOMPOSITIONS = ("inductor", "aot_eager_decomp_partition")


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A measurement, and the exception that the test has to see: eager's own, or that of a broken lane."""

    measurement: Measurement
    error: Exception | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _After:
    """What was found once the counted calls were over, with why where there is None."""

    change: StateChange | None
    overhead: float | None
    no_overhead: str
    facts: Facts
    operators: StepOperators | None
    no_operators: str


class Runner:
    """Hold one target to eager in one lane.

    A run is one pass over all calls. Every pass starts from the same saved state and seeds, on copies of the inputs:
    eager, eager again (is it deterministic?), eager in float64 (the reference), and compiled, which alone is measured.
    """

    def __init__(
        self,
        *,
        lane: Lane,
        limits: Limits,
        device: torch.device,
        paths: Paths,
        compile_target: Callable[[Any], Any],
        timed: bool = False,
        beside: tuple[Any, ...] = (),
    ) -> None:
        self._lane = lane
        self._limits = limits
        self._device = device
        self._paths = paths
        self._compile_target = compile_target
        # A function that compiles the target may put what it made where the target finds it.
        self._beside = beside
        self._timed = timed or limits.min_speedup is not None
        self._passes = Passes(lane, device)
        self._endings = Endings(paths)
        self._tf32 = False

    def hold(self, target: Any, program: Program, calls: Sequence[call]) -> Held:
        """Run the program in all passes, and put the target back as it was."""
        modes, left = Modes(), self._passes.left
        try:
            held = self._hold(target, program, calls)
        finally:
            left += [f"a later call left {each} on" for each in modes.take_off()]
        if not left:
            return held
        said = tuple(f"{each}; it was taken off" for each in dict.fromkeys(left))
        if held.error is not None and not isinstance(held.error, BrokenLane):
            held.error.add_note("\n".join(said))
        return replace(held, measurement=replace(held.measurement, doubts=(*held.measurement.doubts, *said)))

    def _hold(self, target: Any, program: Program, calls: Sequence[call]) -> Held:
        code, left_out = _code_in(calls)
        state = State(target, *code, *program.reaches, beside=self._beside)
        if left_out:
            self._passes.notes.append("state not compared: what is farther in the arguments")
        self._tf32 = self._device.type == "cuda" and _in_tf32(state.modules)
        job = Job(target=target, program=program, calls=calls, state=state)
        try:
            held = self._reference(job) if self._lane.reference else self._held(job)
        except DeviceLost as error:
            # Nothing on the device can be put back, nor read.
            return Held(measurement=self._of_lost(error), error=error)
        except BaseException:
            state.forget()
            self._leave(state)
            raise
        self._leave(state)
        return held

    def _compile(self, job: Job) -> Any:
        """The target compiled, from the state that every pass starts with; what that changes of it stays for a while.

        Until `state.forget()`, compiled passes start from the state with it.
        """
        job.state.forget()
        self._passes.start_anew(job.state)
        compiled = self._compile_target(job.target)
        job.state.accept()
        return compiled

    def _leave(self, state: State) -> None:
        self._passes.start_anew(state)
        state.release()

    def _of_lost(self, error: DeviceLost) -> Measurement:
        assert error.__cause__ is not None
        message = f"{self._paths.text(error.what)} ({error.where}); the process cannot use CUDA any more"
        raised = Raised(type="CUDA error", message=message, location=self._endings.user_line(error.__cause__))
        reason = "the run lost the device"
        unmeasured = dict.fromkeys((*nowhere(reason).unmeasured, "numerics", "limit_hits", "eager_frames"), reason)
        return Measurement(backend=self._lane.backend, raised=raised, unmeasured=unmeasured)

    def _unknown(self, reason: str) -> Measurement:
        """The measurement of a run that ended for no reason of compiling: what it counted till then says nothing."""
        counts = ("graphs", "ops_captured", "graph_breaks", "recompiles", "eager_frames", "limit_hits", "numerics")
        unmeasured = dict.fromkeys((*nowhere(reason).unmeasured, *counts), reason)
        return Measurement(backend=self._lane.backend, unmeasured=unmeasured)

    def _reference(self, job: Job) -> Held:
        trail = self._passes.eager(job)
        reason = "the eager lane is the reference and compiles nothing"
        return Held(measurement=Measurement(backend="", unmeasured={"numerics": reason}), error=trail.error)

    def _held(self, job: Job) -> Held:
        unit = job.program.unit
        eager = self._passes.eager(job)
        comparing = self._limits.numerics is not None
        again = self._passes.eager(job, eager.changed) if comparing else None
        gold, gold_absent = None, ""
        if comparing and self._limits.numerics == "fp64":
            gold, gold_absent = self._passes.gold(job, eager)
        measured, compiled = self._measured(job, eager)
        raised = self._endings.raised(eager, compiled, unit)
        if raised is not None and not raised.out_of_memory:
            # Its state may be where no run can put it back, as in a generator.
            once_more = self._passes.eager(job)
            if unsteady := ended_as(once_more, compiled, unit):
                return Held(measurement=self._unknown(unsteady), error=eager.error)
        measured = replace(measured, raised=raised)
        if eager.error is not None and raised is None:
            in_both = self._endings.raised_in_both(eager, unit, len(job.calls))
            measured = replace(measured, raised_in_both=in_both)
        if again is None:
            measured = _without(measured, "numerics", "the contract asks for no comparison")
        elif raised is not None:
            measured = _without(measured, "numerics", "the run raised")
        else:
            compared, note = self._compared(job, eager, compiled)
            judged = self._judged(compared, eager=eager, again=again, gold=gold, gold_absent=gold_absent, note=note)
            measured = replace(measured, numerics=judged)
        error = BrokenLane() if raised is not None else eager.error
        if error is not None and error is not eager.error:
            error.__cause__ = compiled.error or eager.error
        return Held(measurement=measured, error=error)

    def _compared(self, job: Job, eager: Trail, compiled: Trail) -> tuple[Trail, str]:
        """The compiled pass that is held against eager, and what is to be said of the comparison."""
        note = ""
        if eager.error is not None:
            raised = f"{type(eager.error).__name__} in {job.program.unit} {eager.error_at}"
            note = f"eager and compiled both raise {raised}"
        elif eager.random and self._draws_otherwise():
            compiled, note = self._fallback_random(job, eager)
        notes = (note, job.state.unreached, *dict.fromkeys(self._passes.notes))
        return compiled, "; ".join(each for each in notes if each)

    # the compiled pass

    def _measured(self, job: Job, eager: Trail) -> tuple[Measurement, Trail]:
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

    def _made(self, job: Job, eager: Trail, measuring: Measuring, graphs: GraphTaps | None) -> tuple[Trail, _After]:
        """The counted calls, and what is looked at after them."""
        by_call: list[GraphStep] = []

        def counted(step: Callable[[], Any]) -> Any:
            try:
                return measuring.call(step, device=self._device)
            finally:
                if graphs is not None:
                    by_call.append(graphs.take())

        keys, kind = _keys(job.target), type(job.target)
        pools = memory.pool_ids() if self._device.type == "cuda" else frozenset()
        compiled = self._compile(job)
        change = _state_change(keys, kind, compiled)
        make: Callable[..., Any] | None = counted
        if isinstance(job.program, Body):
            compiled, make = self._noting(compiled, measuring), None
        trail = self._passes.fresh(compiled, job, How(make=make, names=eager.changed))
        if eager.error is not None and self._endings.raised(eager, trail, job.program.unit) is None:
            measuring.raised_in_both(eager.error)
        measuring.close()
        self._kept_alive(trail, eager, measuring)
        repeated = Repeated(self._passes, job, compiled=compiled, measuring=measuring, trail=trail, paths=self._paths)
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
            facts = self._steady(steps, job.target, compiled, tuple(by_call))
        # Last: what CUDA graphs record for one more call, the steady steps would find recorded.
        operators, no_operators = repeated.operators()
        return trail, _After(
            change=change,
            overhead=overhead,
            no_overhead=no_overhead,
            facts=facts,
            operators=operators,
            no_operators=no_operators,
        )

    def _nowhere(self, job: Job, trail: Trail) -> Facts | None:
        """Why there are no steady steps to look at; None where there are."""
        if self._device.type != "cuda":
            return nowhere()
        if isinstance(job.program, Body):
            return nowhere("the body of the test makes its own calls")
        return nowhere("the run raised") if trail.error is not None else None

    def _with(self, measuring: Measuring, after: _After, *, silent: bool) -> Measurement:
        """The measurement with what was found after the calls. `silent`: the run made them, and raised nothing."""
        measured = replace(
            measuring.measurement(),
            overhead_seconds=after.overhead,
            state_change=after.change,
            operators_run=after.operators,
        )
        measured = with_facts(measured, after.facts)
        if after.operators is None:
            measured = _without(measured, "operators_run", after.no_operators)
            if measured.graph_breaks and silent:
                # Behind a break whole frames may run eager, and the limit on eager frames would not see them.
                doubt = f"what ran eager beside the graph breaks is not known: {after.no_operators}"
                measured = replace(measured, doubts=(*measured.doubts, doubt))
        if self._limits.capture_targets is not None:
            found = capture_targets(self._limits.capture_targets, measuring.ledger.told.classes())
            measured = replace(measured, capture_targets=found)
        if after.overhead is None:
            measured = _without(measured, "overhead_seconds", after.no_overhead)
        if after.change is None:
            measured = _without(measured, "state_change", "the target is no module")
        if self._lane.backend == "eager" and measured.backward_graphs is not None:
            reason = "backend 'eager' compiles no backward; lane 'aot' does"
            measured = replace(_without(measured, "backward_graphs", reason), backward_graphs=None)
        return measured

    def _noting(self, compile: Callable[..., Any], measuring: Measuring) -> Callable[..., Any]:
        """What a body compiles with: the calls are those that it makes of what it compiled."""

        def noting(target: Any, **overrides: Any) -> Any:
            return measuring.noting(compile(target, **overrides), device=self._device)

        return noting

    def _kept_alive(self, compiled: Trail, eager: Trail, measuring: Measuring) -> None:
        """Note what compiled code keeps in memory and eager does not."""
        # What an exception passed is alive as long as it is: one that is suppressed lives on in the records of a log.
        # CUDA graphs put outputs in memory of their own.
        ledger = measuring.ledger
        if compiled.error is not None or eager.error is not None or ledger.told.suppressed() or self._has_cuda_graphs():
            return
        forget_frames(ledger.attempts)
        for at in compiled.watch.kept(eager.alive):
            compiled.facts[f"memory: {at}"] = "keeps it alive"

    def _has_cuda_graphs(self) -> bool:
        settings = {**(self._lane.options or {}), **self._lane.inductor}
        return self._lane.mode in ("reduce-overhead", "max-autotune") or bool(settings.get("triton.cudagraphs"))

    def _steady(self, steps: SteadySteps, target: Any, compiled: Any, by_call: tuple[GraphStep, ...]) -> Facts:
        try:
            return steps.measure(target, compiled, by_call)
        except Exception as error:
            self._passes.refuse_when_lost(error, "in a steady step", compiled=True)
            raise

    def _fallback_random(self, job: Job, eager: Trail) -> tuple[Trail, str]:
        """A second compiled pass, not measured, in which Inductor draws random numbers as eager does."""
        torch.compiler.reset()
        with drawn_as_eager():
            trail = self._passes.fresh(self._compile(job), job, How(names=eager.changed))
        job.state.forget()
        torch.compiler.reset()
        return trail, "random numbers: judged in a pass of its own with fallback_random=True"

    def _draws_otherwise(self) -> bool:
        return self._lane.backend in WITH_INDUCTORS_DECOMPOSITIONS and not self._lane.inductor.get("fallback_random")

    def _judged(
        self, compiled: Trail, *, eager: Trail, again: Trail, gold: Trail | None, gold_absent: str, note: str
    ) -> Numerics:
        lowest = self._lane.autocast or self._lane.dtype
        assert self._limits.numerics is not None
        judged = numerics.judge(
            eager=eager.run(),
            compiled=compiled.run(),
            again=again.run(),
            gold=gold.run() if gold else None,
            gold_absent=gold_absent,
            method=self._limits.numerics,
            rtol=self._limits.rtol,
            atol=self._limits.atol,
            precision=getattr(torch, lowest) if lowest else None,
            tf32=self._tf32 and lowest is None,
        )
        return replace(judged, note="; ".join(each for each in (judged.note, note) if each))


def _in_tf32(modules: Sequence[torch.nn.Module]) -> bool:
    """Whether CUDA may compute float32 products in TF32: matmuls where asked to, convolutions unless asked not to.

    A convolution that is called as a function is not seen.
    """
    if torch.get_float32_matmul_precision() != "highest":
        return True
    return torch.backends.cudnn.allow_tf32 and any(
        isinstance(module, CONVOLUTIONS) for top in modules for module in top.modules()
    )


def _without(measurement: Measurement, metric: str, reason: str) -> Measurement:
    return replace(measurement, unmeasured=measurement.unmeasured | {metric: reason})


def _keys(target: Any) -> tuple[str, ...] | None:
    return tuple(target.state_dict()) if isinstance(target, torch.nn.Module) else None


def _state_change(keys: tuple[str, ...] | None, kind: type, compiled: Any) -> StateChange | None:
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


def _code_in(calls: Sequence[call]) -> tuple[list[Any], bool]:
    """What has state among the arguments: a copy of a function has the same closure, and one of an object its class.

    And whether there was more than is looked at.
    """
    found, seen, bound = [], set[int](), numerics.Bound()
    pending = deque[Any](value for each in calls for value in (*each.args, *each.kwargs.values()))
    while pending:
        value = pending.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (torch.nn.Module, type)) or inspect.isroutine(value) or isinstance(value, partial):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            pending.extend(numerics.firsts(value, bound))
        elif isinstance(value, dict):
            pending.extend(numerics.firsts(value.values(), bound))
        elif numerics.is_projects(type(value).__module__):
            found.append(type(value))
            pending.extend(numerics.firsts(numerics.attributes_of(value).values(), bound))
    return found, bound.met
