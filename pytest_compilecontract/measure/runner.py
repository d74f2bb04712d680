"""The runner: runs a program eager and compiled, from the same state, inputs and seeds; compares and measures."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from pytest_compilecontract.calls import call
from pytest_compilecontract.facts.lanes import FAKE, Lane
from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import (
    Measurement,
    Numerics,
    Raised,
    without,
)

from . import numerics
from .beside import Turn
from .compiled_run import CompiledRun
from .endings import BrokenLane, DeviceLost, Endings
from .gpu_steps import nowhere
from .group import any_rank, barred, in_ranks, is_shared
from .noise_runs import Judge, NoiseRuns
from .one_process import held_to_one_process
from .passes import Job, Passes, Reference
from .probes.modes import Modes
from .probes.source import Paths
from .programs import Program, Trail, returns_results
from .state import State
from .structure import with_structure
from .xla.calls import Calls
from .xla.compiled_run import RANDOM, XlaRun, drew_otherwise

CONVOLUTIONS = (
    torch.nn.Conv1d,
    torch.nn.Conv2d,
    torch.nn.Conv3d,
    torch.nn.ConvTranspose1d,
    torch.nn.ConvTranspose2d,
    torch.nn.ConvTranspose3d,
)
OF_STRUCTURE = ("placements", "saved_bytes", "recomputed_graphs")
# Eager runs with other random numbers, for what the compiled run has otherwise where it draws its own.
SEEDS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A measurement, and the exception to raise in the test: eager's own, or that of a broken lane."""

    measurement: Measurement
    error: Exception | None = None


class Runner:
    """Compare one target with eager in one lane.

    A run is one pass over all calls. Every pass starts from the same saved state and seeds, on copies of the inputs:
    eager, eager again (is it deterministic?), compiled, which alone is measured, and where bits differ eager in float64
    (the reference).
    """

    def __init__(
        self,
        *,
        lane: Lane,
        limits: Limits,
        device: torch.device,
        paths: Paths,
        compile_target: Callable[[object], object],
        timed: bool = False,
        helpers: tuple[object, ...] = (),
        turn: Turn,
        xla: Calls | None = None,
    ) -> None:
        self._lane = lane
        self._limits = limits
        self._device = device
        self._paths = paths
        # A function that compiles the target may put what it made where the target finds it.
        self._helpers = helpers
        self._turn = turn
        self._passes = Passes(lane, device, paths)
        self._endings = Endings(paths)
        self._compiled = (
            CompiledRun(
                self._passes,
                self._endings,
                lane=lane,
                limits=limits,
                device=device,
                paths=paths,
                compile_target=compile_target,
                timed=timed or limits.min_speedup is not None,
            )
            if xla is None
            else XlaRun(self._passes, self._endings, lane=lane, paths=paths, calls=xla, compile_target=compile_target)
        )
        self._tf32 = False

    def hold(self, target: object, program: Program, calls: Sequence[call]) -> Held:
        """Run the program in all passes, and restore the target."""
        __tracebackhide__ = True
        modes, left = Modes(), self._passes.left
        try:
            held = self._hold(target, program, calls)
        finally:
            left += [f"a later call left {each} on" for each in modes.take_off()]
        if not left:
            return held
        said = tuple(f"{each}; it was turned off" for each in dict.fromkeys(left))
        if held.error is not None and not isinstance(held.error, BrokenLane):
            held.error.add_note("\n".join(said))
        return replace(held, measurement=replace(held.measurement, doubts=(*held.measurement.doubts, *said)))

    def _hold(self, target: object, program: Program, calls: Sequence[call]) -> Held:
        __tracebackhide__ = True
        code, left_out = _code_in(calls)
        state = State(target, *code, *program.reaches, beside=self._helpers)
        if left_out:
            self._passes.notes.append("state not compared: deeply nested arguments")
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

    def _leave(self, state: State) -> None:
        self._passes.start_anew(state)
        state.release()

    def _of_lost(self, error: DeviceLost) -> Measurement:
        assert error.__cause__ is not None
        message = f"{self._paths.text(error.what)} ({error.where}); the process can no longer use CUDA"
        raised = Raised(type="CUDA error", message=message, location=self._endings.user_line(error.__cause__))
        reason = "the run lost the device"
        counts = ("numerics", "limit_hits", "eager_frames", *OF_STRUCTURE)
        unmeasured = dict.fromkeys((*nowhere(reason).unmeasured, *counts), reason)
        return Measurement(backend=self._lane.backend, raised=raised, unmeasured=unmeasured)

    def _unknown(self, reason: str) -> Measurement:
        """The measurement of a run that ended for a reason other than compiling: its counts are not known."""
        counts = ("graphs", "ops_captured", "graph_breaks", "recompiles", "eager_frames", "limit_hits", "numerics")
        unmeasured = dict.fromkeys((*nowhere(reason).unmeasured, *counts, *OF_STRUCTURE), reason)
        return Measurement(backend=self._lane.backend, unmeasured=unmeasured)

    def _reference(self, job: Job) -> Held:
        trail = self._passes.eager(job)
        reason = "the eager lane is the reference and compiles nothing"
        return Held(measurement=Measurement(backend="", unmeasured={"numerics": reason}), error=trail.error)

    def _held(self, job: Job) -> Held:
        __tracebackhide__ = True
        unit = job.program.unit
        eager = self._passes.eager(job)
        comparing = self._limits.numerics is not None
        again = None
        with in_ranks(self._lane) as made:
            if comparing or made is not None:
                again = self._passes.eager(job, eager)
        measured, compiled = self._compiled.measured(job, eager)
        if measured.collectives is not None and made is not None:
            measured = replace(measured, collectives=replace(measured.collectives, eager=made.collectives))
        raised = self._endings.raised(eager, compiled, unit, again)
        if raised is not None and not raised.out_of_memory and not is_shared(self._lane):
            # Its state may be where no run can put it back, as in a generator.
            once_more = self._passes.eager(job)
            if unsteady := self._endings.ended_as(once_more, compiled, unit):
                return Held(measurement=self._unknown(unsteady), error=eager.error)
        measured = self._with_structure(replace(measured, raised=raised), job, eager=eager, compiled=compiled)
        if eager.error is not None and raised is None:
            in_both = self._endings.raised_in_both(eager, unit, len(job.calls))
            measured = replace(measured, raised_in_both=in_both)
        why = _why_not_compared(self._limits, self._lane, raised, eager=eager, compiled=compiled)
        if again is None or why:
            measured = without(measured, "numerics", why)
        else:
            compared, note = self._compared(job, eager, compiled)
            gold = self._gold(job, compared, eager=eager, again=again)
            judged = self._judged(job, compared, eager=eager, again=again, gold=gold, note=note)
            if compared is not compiled:
                judged = self._as_drawn(job, judged, eager=eager, compiled=compiled)
            sides = {"compiled": compared, "eager in ranks": eager}
            measured = replace(measured, numerics=self._with_one_process(judged, job, sides))
            if self._turn.wanted:
                runs, tolerance = self.sides(compared, eager=eager, again=again, gold=gold)
                self._turn.kept = numerics.kept(runs, tolerance, random=eager.random, device=self._device.type)
                measured = replace(measured, beside=self._agreed(job, runs, self._turn.kept, eager))
        error = BrokenLane() if raised is not None else eager.error
        if error is not None and error is not eager.error:
            error.__cause__ = compiled.error or eager.error
        return Held(measurement=measured, error=error)

    def _with_structure(self, measured: Measurement, job: Job, *, eager: Trail, compiled: Trail) -> Measurement:
        measured = with_structure(measured, eager.structure, compiled.structure, body=returns_results(job.program))
        if self._limits.max_saved_ratio is None:
            return without(measured, "saved_bytes", "no limit asks for it")
        return self._compiled.with_saved(measured, job, eager)

    def _with_one_process(self, found: Numerics, job: Job, sides: Mapping[str, Trail]) -> Numerics:
        return held_to_one_process(found, self._passes, job, sides, self._tolerance())

    def _compared(self, job: Job, eager: Trail, compiled: Trail) -> tuple[Trail, str]:
        """The compiled pass that is compared with eager, and notes on the comparison."""
        note = ""
        if eager.error is not None:
            raised = f"{type(eager.error).__name__} in {job.program.unit} {eager.error_at}"
            note = f"eager and compiled both raise {raised}"
        elif self._compiled.draws_otherwise() and any_rank(self._lane, eager.random):
            compiled, note = self._compiled.fallback_random(job, eager)
        return compiled, note

    def _gold(self, job: Job, compiled: Trail, *, eager: Trail, again: Trail) -> Reference | None:
        """The wider pass that judges; None if compiled and eager have the same bits everywhere, which all rules accept.

        Lanes that are compared with one another may differ where each agrees with eager.
        """
        if self._limits.numerics != "fp64":
            return Reference(trail=None)
        runs, _ = self.sides(compiled, eager=eager, again=again, gold=None)
        if not self._turn.wanted and numerics.all_alike(runs):
            return None
        why = barred(self._lane)
        return Reference(trail=None, absent=why) if why else self._passes.reference(job, eager)

    def _as_drawn(self, job: Job, judged: Numerics, *, eager: Trail, compiled: Trail) -> Numerics:
        """The same with what the measured pass, which drew other random numbers, has otherwise than eager."""
        known = {(each.at, each.kind) for each in judged.differences}
        found = numerics.beside_values(eager.run(), compiled.run())
        left = {place: each for place, each in found.items() if place not in known}
        for number in range(1, SEEDS + 1):
            if not any_rank(self._lane, bool(left)):
                break
            # What random numbers do decide, some of them decide otherwise.
            seeded = self._passes.seeded(job, eager, number)
            others = numerics.beside_values(eager.run(), seeded.run())
            left = {} if seeded.error is not None else {at: each for at, each in left.items() if at not in others}
        return replace(judged, differences=(*judged.differences, *left.values()))

    def _judged(
        self, job: Job, compiled: Trail, *, eager: Trail, again: Trail, gold: Reference | None, note: str
    ) -> Numerics:
        runs, tolerance = self.sides(compiled, eager=eager, again=again, gold=gold)
        found = self._with_noise(job, eager, numerics.Judging(runs, tolerance).judged)
        told = gold.told if gold is not None else ""
        notes = (found.note, told, note, job.state.unreached, *dict.fromkeys(self._passes.notes))
        return replace(found, note="; ".join(each for each in notes if each))

    def _agreed(self, job: Job, runs: numerics.Runs, kept: numerics.Kept, eager: Trail) -> Numerics | None:
        """The results of this lane compared with those of the lane beside it; None if there is none."""
        name, other = self._turn.lane, self._turn.other
        if not name:
            return None
        names = (self._lane.name, name)
        why = numerics.why_apart(kept, other) if other is not None else f"lane {name!r} compared nothing here"
        if why or other is None:
            return numerics.not_compared(why, kept.tolerance.method)
        return self._with_noise(
            job, eager, lambda moved, _: numerics.agreed(replace(runs, moved=moved), kept, other, names)
        )

    def _with_noise(self, job: Job, eager: Trail, judge: Judge) -> Numerics:
        """Judge with as many noise runs as are needed."""
        noise = NoiseRuns(self._passes, job, eager, self._paths, tf32=self._tf32, barred=barred(self._lane))
        return noise.judged(judge).numerics

    def sides(
        self, compiled: Trail, *, eager: Trail, again: Trail, gold: Reference | None
    ) -> tuple[numerics.Runs, numerics.Tolerance]:
        """The compared values, and the tolerance; without `gold` it is that of the same bits everywhere."""
        runs = numerics.Runs(
            eager=eager.run(),
            compiled=compiled.run(),
            again=again.run(),
            gold=gold.trail.run() if gold is not None and gold.trail else None,
            gold_absent=gold.absent if gold is not None else "",
            desk=self._device if self._device.type == "cuda" else None,
            all_alike=gold is None,
        )
        return runs, self._tolerance(gold.dtype) if gold is not None else replace(self._tolerance(), method="bitwise")

    def _tolerance(self, reference: str = "float64") -> numerics.Tolerance:
        lowest = self._lane.autocast or self._lane.dtype
        tf32 = self._tf32 and lowest is None
        assert self._limits.numerics is not None
        return numerics.Tolerance(
            method=self._limits.numerics,
            rtol=self._limits.rtol,
            atol=self._limits.atol,
            precision=torch.float16 if tf32 else getattr(torch, lowest) if lowest else None,
            tf32=tf32,
            reference=reference,
        )


def _why_not_compared(limits: Limits, lane: Lane, raised: Raised | None, *, eager: Trail, compiled: Trail) -> str:
    """Why the compiled run is not compared with eager; empty if it is."""
    if limits.numerics is None:
        moved = lane.process_group != FAKE
        return "the contract asks for no comparison" if moved else "process group 'fake' moves no data"
    if raised is not None:
        return "the run raised"
    return RANDOM if lane.is_xla and drew_otherwise(eager, compiled) else ""


def _in_tf32(modules: Sequence[torch.nn.Module]) -> bool:
    """Whether CUDA may compute float32 products in TF32: matmuls where asked to, convolutions unless asked not to.

    A convolution that is called as a function is not detected.
    """
    if torch.get_float32_matmul_precision() != "highest":
        return True
    return torch.backends.cudnn.allow_tf32 and any(
        isinstance(module, CONVOLUTIONS) for top in modules for module in top.modules()
    )


def _code_in(calls: Sequence[call]) -> tuple[list[object], bool]:
    """The arguments that share state with their copies: a function its closure, and an object its class.

    Also whether the search reached its bound.
    """
    found, seen, bound = list[object](), set[int](), numerics.Bound()
    pending = deque[object](value for each in calls for value in (*each.args, *each.kwargs.values()))
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
