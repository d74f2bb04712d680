"""The runner: a program eager and compiled, from the same state, inputs and seeds, compared and measured."""

from __future__ import annotations

import contextlib
import inspect
import re
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from pytest_compilecontract.calls import call
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import (
    GraphStep,
    Location,
    Measurement,
    Numerics,
    Raised,
    RaisedInBoth,
    StateChange,
    StepOperators,
)
from pytest_compilecontract.wording import first_said

from . import numerics
from .gpu_steps import Facts, SteadySteps, nowhere, with_facts
from .isolation import SEED, GlobalSettings
from .probes import device as devices
from .probes import memory, randomness, stance
from .probes.backend_errors import backend_error
from .probes.backward import compiled_backwards
from .probes.cuda_graphs import GraphTaps
from .probes.modes import Modes
from .probes.operators import Untold, marked, operators_of
from .probes.reasons import refused_for
from .probes.source import OWN, Paths
from .probes.targets import capture_targets
from .programs import Body, Forward, Program, Surroundings, Trail
from .recorder import Measuring, synchronize
from .state import NotWide, State

# Not the user's, also where this package is a checkout and not installed.
OVERHEAD_CALLS = 20
OVERHEAD_SECONDS = 0.2
# Their decompositions draw random numbers otherwise than eager, unless `fallback_random` leaves these out
# (`select_decomp_table` in torch/_inductor/decomposition.py).
WITH_INDUCTORS_DECOMPOSITIONS = ("inductor", "aot_eager_decomp_partition")
_TRACED = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$', re.MULTILINE)


class BrokenLane(Exception):  # noqa: N818 - the lane is broken; what it raised is the cause
    """The compiled run raised where eager did not, or the reverse; the measurement says what."""


class DeviceLost(BrokenLane):
    """An error after which CUDA refuses every call of this process; `where` it came, `what` CUDA says."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(what)
        self.what = what
        self.where = where


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A measurement, and the exception that the test has to see: eager's own, or that of a broken lane."""

    measurement: Measurement
    error: Exception | None = None


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
        self._measuring: Measuring | None = None
        self._notes: list[str] = []
        self._left: list[str] = []
        self._tf32 = False
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]  # or its generators would not be among those below
        randomness.seed(SEED)
        self._start = randomness.generators()
        self._settings = GlobalSettings()

    def hold(self, target: Any, program: Program, calls: Sequence[call]) -> Held:
        """Run the program in all passes, and put the target back as it was."""
        modes = Modes()
        try:
            held = self._hold(target, program, calls)
        finally:
            self._left += [f"a later call left {each} on" for each in modes.take_off()]
        if not self._left:
            return held
        said = tuple(f"{each}; it was taken off" for each in dict.fromkeys(self._left))
        if held.error is not None and not isinstance(held.error, BrokenLane):
            held.error.add_note("\n".join(said))
        return replace(held, measurement=replace(held.measurement, doubts=(*held.measurement.doubts, *said)))

    def _hold(self, target: Any, program: Program, calls: Sequence[call]) -> Held:
        code, left_out = _code_in(calls)
        state = State(target, *code, *program.reaches, beside=self._beside)
        if left_out:
            self._notes.append("state not compared: what is farther in the arguments")
        self._tf32 = self._device.type == "cuda" and _in_tf32(state.modules)
        try:
            if self._lane.reference:
                held = self._reference(target, program, calls, state)
            else:
                held = self._held(target, program, calls, state)
        except DeviceLost as error:
            # Nothing on the device can be put back, nor read.
            return Held(measurement=self._of_lost(error), error=error)
        except BaseException:
            state.forget()
            self._leave(state)
            raise
        self._leave(state)
        return held

    def _compile(self, target: Any, state: State) -> Any:
        """The target compiled, from the state that every pass starts with; what that changes of it stays for a while.

        Until `state.forget()`, compiled passes start from the state with it.
        """
        state.forget()
        self._start_anew(state)
        compiled = self._compile_target(target)
        state.accept()
        return compiled

    def _start_anew(self, state: State) -> None:
        state.restore()
        self._settings.put_back()

    def _leave(self, state: State) -> None:
        self._start_anew(state)
        state.release()

    def _of_lost(self, error: DeviceLost) -> Measurement:
        assert error.__cause__ is not None
        message = f"{self._paths.text(error.what)} ({error.where}); the process cannot use CUDA any more"
        raised = Raised(type="CUDA error", message=message, location=self._user_line(error.__cause__))
        reason = "the run lost the device"
        unmeasured = dict.fromkeys((*nowhere(reason).unmeasured, "numerics", "limit_hits", "eager_frames"), reason)
        return Measurement(backend=self._lane.backend, raised=raised, unmeasured=unmeasured)

    def _unknown(self, reason: str) -> Measurement:
        """The measurement of a run that ended for no reason of compiling: what it counted till then says nothing."""
        counts = ("graphs", "ops_captured", "graph_breaks", "recompiles", "eager_frames", "limit_hits", "numerics")
        unmeasured = dict.fromkeys((*nowhere(reason).unmeasured, *counts), reason)
        return Measurement(backend=self._lane.backend, unmeasured=unmeasured)

    def _reference(self, target: Any, program: Program, calls: Sequence[call], state: State) -> Held:
        trail = self._eager_pass(target, program, calls, state)
        reason = "the eager lane is the reference and compiles nothing"
        return Held(measurement=Measurement(backend="", unmeasured={"numerics": reason}), error=trail.error)

    def _held(self, target: Any, program: Program, calls: Sequence[call], state: State) -> Held:
        eager = self._eager_pass(target, program, calls, state)
        comparing = self._limits.numerics is not None
        again = self._eager_pass(target, program, calls, state, names=eager.changed) if comparing else None
        gold, gold_absent = None, ""
        if comparing and self._limits.numerics == "fp64":
            gold, gold_absent = self._gold(target, program, calls, state, eager)
        measured, compiled = self._measured(target, program, calls, state, eager)
        raised = self._raised(eager, compiled, program.unit)
        if raised is not None and not raised.out_of_memory:
            # Its state may be where no run can put it back, as in a generator.
            once_more = self._eager_pass(target, program, calls, state)
            if unsteady := _ended_as(once_more, compiled, program.unit):
                return Held(measurement=self._unknown(unsteady), error=eager.error)
        measured = replace(measured, raised=raised)
        if eager.error is not None and raised is None:
            measured = replace(measured, raised_in_both=self._raised_in_both(eager, program.unit, len(calls)))
        if again is None:
            measured = _without(measured, "numerics", "the contract asks for no comparison")
        elif raised is not None:
            measured = _without(measured, "numerics", "the run raised")
        else:
            compared, note = compiled, ""
            if eager.error is not None:
                note = f"eager and compiled both raise {type(eager.error).__name__} in {program.unit} {eager.error_at}"
            elif eager.random and self._draws_otherwise():
                compared, note = self._fallback_random(target, program, calls, state, eager)
            note = "; ".join(each for each in (note, state.unreached, *dict.fromkeys(self._notes)) if each)
            judged = self._judged(compared, eager=eager, again=again, gold=gold, gold_absent=gold_absent, note=note)
            measured = replace(measured, numerics=judged)
        error = BrokenLane() if raised is not None else eager.error
        if error is not None and error is not eager.error:
            error.__cause__ = compiled.error or eager.error
        return Held(measurement=measured, error=error)

    # passes

    def _eager_pass(self, target: Any, program: Program, calls: Sequence[call], state: State, **how: Any) -> Trail:
        """A pass that nothing is compiled in, also where parts of the target are compiled already."""
        with stance.eager():
            return self._fresh_pass(target, program, calls, state, which="eager", **how)

    def _fresh_pass(self, run: Any, program: Program, calls: Sequence[call], state: State, **how: Any) -> Trail:
        self._start_anew(state)
        return self._pass(run, program, calls, state, **how)

    def _pass(
        self,
        run: Any,
        program: Program,
        calls: Sequence[call],
        state: State,
        *,
        copies: Callable[..., numerics.Copies] = numerics.Copies,
        make: Callable[[Callable[[], Any]], Any] | None = None,
        names: frozenset[str] = frozenset(),
        autocast: bool = True,
        which: str = "compiled",
    ) -> Trail:
        """Run all calls once. `make` makes each call; `names` are tensors of the state to keep, changed or not.

        A mode that the calls leave on is taken off, and told: as that of the run in eager, compiled or float64.
        """
        __tracebackhide__ = True  # of what the target raises, pytest shows the target's lines
        modes = Modes()
        randomness.put_back(self._start)
        trail = Trail()
        around = Surroundings(
            autocast=self._autocast if autocast else contextlib.nullcontext,
            before_backward=self._before_backward,
            leaves=state.tensors,
        )
        step = program.start(run, around)
        copied = copies(state.reached())
        # Training compares what is learned after each step, by a rule of its own.
        learned = isinstance(program, Forward)
        left = isinstance(program, Forward) and not program.gradients
        for index, each in enumerate(calls):
            args, kwargs = copied.of((each.args, each.kwargs))
            arguments: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
            at = f"{program.unit} {index}"
            trail.before.append(numerics.snapshot(arguments, at=f"{at} input"))
            stepped = partial(step, call(*args, **kwargs), trail, at)
            try:
                output = make(stepped) if make else stepped()
                # What a kernel did wrong is said at some later call, and has to be said of this one.
                synchronize(self._device)
            except Exception as error:
                # Eager has made the same steps: a loss without a gradient is none of the user's then.
                if isinstance(error, UsageError) and make is None:
                    raise
                self._refuse_when_lost(error, f"in {program.unit} {index}", compiled=make is not None)
                if memory.is_out_of_memory(error):
                    memory.let_go(error)
                trail.error, trail.error_at = error, index
                break
            outputs = trail.note("output", output, f"{at} output")
            inputs = trail.note("input", arguments, f"{at} input")
            if left and (grads := numerics.gradients_in(arguments)):
                trail.note("grad", grads, f"{at} input grad")
            trail.aliases |= numerics.aliases(outputs, inputs)
            trail.watch.add(output, f"{at} output")
            trail.watch.add(arguments, f"{at} input")
            del output, args, kwargs, arguments, stepped
        for mode in modes.take_off():
            trail.facts[f"mode left on: {mode}"] = "on"
            self._left.append(f"the {which} run left {mode} on")
        if copied.shared:
            self._notes.append(copied.shared)
        del copied
        trail.random = randomness.drew(self._start)
        trail.facts.update(randomness.left(self._start))
        trail.facts.update(self._settings.left())
        trail.alive = trail.watch.alive()
        changed = state.changed(names, learned=learned, gradients=left)
        trail.changed = frozenset(changed)
        trail.note("state", changed, "afterwards")
        for name, value in state.made().items():
            trail.note(numerics.MADE, value, f"afterwards[{name!r}]")
        return trail

    def _refuse_when_lost(self, error: Exception, where: str, *, compiled: bool) -> None:
        if self._device.type == "cuda" and (what := devices.lost(error)):
            raise DeviceLost(what, f"{where}, {'compiled' if compiled else 'eager'}") from error

    def _gold(
        self, target: Any, program: Program, calls: Sequence[call], state: State, eager: Trail
    ) -> tuple[Trail | None, str]:
        """The float64 pass, or why there is none."""
        if isinstance(program, Body):
            return None, "what makes its own tensors has no float64 run"
        if eager.random:
            return None, "random numbers are drawn otherwise in float64"
        self._start_anew(state)
        default = torch.get_default_dtype()
        try:
            with state.in_float64(), stance.eager():
                torch.set_default_dtype(torch.float64)
                trail = self._pass(
                    target,
                    program,
                    calls,
                    state,
                    copies=partial(numerics.Copies, to=numerics.wide),
                    names=eager.changed,
                    autocast=False,
                    which="float64",
                )
        except NotWide as reason:
            return None, str(reason)
        finally:
            torch.set_default_dtype(default)
        if trail.error is not None and (eager.error is None or trail.error_at != eager.error_at):
            message = next(iter(str(trail.error).strip().splitlines()), "")
            return None, f"in float64 eager raises {type(trail.error).__name__}: {message}"
        return trail, ""

    def _measured(
        self, target: Any, program: Program, calls: Sequence[call], state: State, eager: Trail
    ) -> tuple[Measurement, Trail]:
        keys, kind = _keys(target), type(target)
        on_cuda = self._device.type == "cuda"
        graphs = GraphTaps(self._paths) if on_cuda and self._lane.asks_for_cuda_graphs else None
        pools = memory.pool_ids() if on_cuda else frozenset()
        self._measuring = measuring = Measuring(self._paths, lane=self._lane)
        measuring.ledger.watches_classes = self._limits.capture_targets is not None
        by_call: list[GraphStep] = []

        def counted(step: Callable[[], Any]) -> Any:
            try:
                return measuring.call(step, device=self._device)
            finally:
                if graphs is not None:
                    by_call.append(graphs.take())

        try:
            with measuring, graphs or contextlib.nullcontext():
                compiled = self._compile(target, state)
                change = _state_change(keys, kind, compiled)
                make: Callable[..., Any] | None = counted
                if isinstance(program, Body):
                    compiled, make = self._noting(compiled, measuring), None
                trail = self._fresh_pass(compiled, program, calls, state, make=make, names=eager.changed)
                if eager.error is not None and self._raised(eager, trail, program.unit) is None:
                    measuring.raised_in_both(eager.error)
                measuring.close()
                self._kept_alive(trail, eager)
                overhead, unknown = self._overhead(compiled, program, calls, state, measuring, trail)
                if not on_cuda:
                    facts = nowhere()
                elif isinstance(program, Body):
                    facts = nowhere("the body of the test makes its own calls")
                elif trail.error is not None:
                    facts = nowhere("the run raised")
                else:
                    steps = SteadySteps(
                        program=program,
                        last=calls[-1],
                        state=state,
                        start=self._start,
                        autocast=self._autocast,
                        measuring=measuring,
                        graphs=graphs,
                        pools=pools,
                        paths=self._paths,
                        timed=self._timed,
                    )
                    facts = self._steady(steps, target, compiled, tuple(by_call))
                # Last: what CUDA graphs record for one more call, the steady steps would find recorded.
                operators, untold = self._operators(compiled, program, calls, state, measuring, trail)
        finally:
            self._measuring = None
            state.forget()
        measured = replace(
            measuring.measurement(), overhead_seconds=overhead, state_change=change, operators_run=operators
        )
        measured = with_facts(measured, facts)
        if operators is None:
            measured = _without(measured, "operators_run", untold)
            if measured.graph_breaks and trail.error is None and not isinstance(program, Body):
                # Behind a break whole frames may run eager, and the limit on eager frames would not see them.
                doubt = f"what ran eager beside the graph breaks is not known: {untold}"
                measured = replace(measured, doubts=(*measured.doubts, doubt))
        if self._limits.capture_targets is not None:
            found = capture_targets(self._limits.capture_targets, measuring.ledger.classes())
            measured = replace(measured, capture_targets=found)
        if overhead is None:
            measured = _without(measured, "overhead_seconds", unknown)
        if change is None:
            measured = _without(measured, "state_change", "the target is no module")
        if self._lane.backend == "eager" and measured.backward_graphs is not None:
            reason = "backend 'eager' compiles no backward; lane 'aot' does"
            measured = replace(_without(measured, "backward_graphs", reason), backward_graphs=None)
        return measured, trail

    def _noting(self, compile: Callable[..., Any], measuring: Measuring) -> Callable[..., Any]:
        """What a body compiles with: the calls are those that it makes of what it compiled."""

        def noting(target: Any, **overrides: Any) -> Any:
            return measuring.noting(compile(target, **overrides), device=self._device)

        return noting

    def _kept_alive(self, compiled: Trail, eager: Trail) -> None:
        """Note what compiled code keeps in memory and eager does not."""
        # What an exception passed is alive as long as it is: one that is suppressed lives on in the records of a log.
        # CUDA graphs put outputs in memory of their own.
        assert self._measuring is not None
        ledger = self._measuring.ledger
        if compiled.error is not None or eager.error is not None or ledger.suppressed() or self._has_cuda_graphs():
            return
        ledger.forget_frames()
        for at in compiled.watch.kept(eager.alive):
            compiled.facts[f"memory: {at}"] = "keeps it alive"

    def _has_cuda_graphs(self) -> bool:
        settings = {**(self._lane.options or {}), **self._lane.inductor}
        return self._lane.mode in ("reduce-overhead", "max-autotune") or bool(settings.get("triton.cudagraphs"))

    def _steady(self, steps: SteadySteps, target: Any, compiled: Any, by_call: tuple[GraphStep, ...]) -> Facts:
        try:
            return steps.measure(target, compiled, by_call)
        except Exception as error:
            self._refuse_when_lost(error, "in a steady step", compiled=True)
            raise

    def _operators(
        self, compiled: Any, program: Program, calls: Sequence[call], state: State, measuring: Measuring, trail: Trail
    ) -> tuple[StepOperators | None, str]:
        """The operators of the last call, made once more; or None and why."""
        if isinstance(program, Body):
            return None, "the body of the test makes its own calls"
        if trail.error is not None:
            return None, "the run raised"
        found, why = self._recorded(compiled, program, calls, state, measuring)
        if found is None:
            # What has come to its end, as an iterator, or grows with each call, begins anew.
            self._start_anew(state)
            randomness.put_back(self._start)
            found, why = self._recorded(compiled, program, calls, state, measuring)
        return found, why

    def _recorded(
        self, compiled: Any, program: Program, calls: Sequence[call], state: State, measuring: Measuring
    ) -> tuple[StepOperators | None, str]:
        """The operators of the last call, from the state that is; or None and why."""
        around = Surroundings(
            autocast=self._autocast, before_backward=lambda _: None, leaves=state.tensors, recorded=False
        )
        args, kwargs = numerics.Copies(state.reached()).of((calls[-1].args, calls[-1].kwargs))
        modules = {id(each): path for top in state.modules for path, each in top.named_modules()}
        try:
            step = partial(program.start(marked(compiled), around), call(*args, **kwargs), Trail(), "")
            return operators_of(step, ledger=measuring.ledger, paths=self._paths, modules=modules), ""
        except Untold as reason:
            return None, str(reason)
        except Exception as error:  # noqa: BLE001 - a target may refuse to be called more often than the test does
            self._refuse_when_lost(error, "in a repeated call", compiled=True)
            memory.let_go(error)
            return None, f"a repeated call raises {type(error).__name__}"

    def _overhead(
        self, compiled: Any, program: Program, calls: Sequence[call], state: State, measuring: Measuring, trail: Trail
    ) -> tuple[float | None, str]:
        """CPU seconds of a cached call outside its graphs, the median of some calls; or None and why."""
        if not isinstance(program, Forward) or program.gradients:
            return None, "a step runs more than the compiled target"
        if trail.error is not None or measuring.timed[-1].compiled or measuring.timed[-1].executed == 0:
            return None, "the last call was no cached call of compiled code"
        ledger = measuring.ledger
        last = calls[-1]
        samples: list[float] = []
        deadline = time.perf_counter() + OVERHEAD_SECONDS
        attempts = len(ledger.attempts)
        ledger.clock = time.thread_time
        try:
            while len(samples) < OVERHEAD_CALLS and (time.perf_counter() < deadline or not samples):
                args, kwargs = numerics.Copies(state.reached()).of((last.args, last.kwargs))
                inside, started = ledger.seconds_inside, time.thread_time()
                with self._autocast():
                    compiled(*args, **kwargs)
                samples.append(time.thread_time() - started - (ledger.seconds_inside - inside))
                if len(ledger.attempts) > attempts:
                    return None, "a repeated call compiles again"
        except Exception as error:  # noqa: BLE001 - a target may refuse to be called more often than the test does
            return None, f"a repeated call raises {type(error).__name__}"
        finally:
            ledger.clock = None
        return max(statistics.median(samples), 0.0), ""

    def _fallback_random(
        self, target: Any, program: Program, calls: Sequence[call], state: State, eager: Trail
    ) -> tuple[Trail, str]:
        """A second compiled pass, not measured, in which Inductor draws random numbers as eager does."""
        from torch._inductor import config

        torch.compiler.reset()
        with config.patch(fallback_random=True):
            trail = self._fresh_pass(self._compile(target, state), program, calls, state, names=eager.changed)
        state.forget()
        torch.compiler.reset()
        return trail, "random numbers: judged in a pass of its own with fallback_random=True"

    def _draws_otherwise(self) -> bool:
        return self._lane.backend in WITH_INDUCTORS_DECOMPOSITIONS and not self._lane.inductor.get("fallback_random")

    # around a step

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._lane.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=getattr(torch, self._lane.autocast))

    def _before_backward(self, root: torch.Tensor) -> None:
        if self._measuring is not None and root.requires_grad:
            self._measuring.backwards = (self._measuring.backwards or set()) | compiled_backwards(root)

    # outcomes

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

    def _raised(self, eager: Trail, compiled: Trail, unit: str) -> Raised | None:
        """The exception in which the two runs differ, or None."""
        theirs, ours = eager.error, compiled.error
        if theirs is None and ours is None:
            return None
        if theirs is None:
            assert ours is not None
            return self._as_raised(ours, f"in {unit} {compiled.error_at}; eager does not raise")
        eager_says = f"eager raises {type(theirs).__name__} in {unit} {eager.error_at}"
        if ours is None:
            return Raised(type="no exception", message=f"{eager_says}: {_first_line(theirs)}; compiled does not raise")
        if isinstance(ours, type(theirs)) and eager.error_at == compiled.error_at:
            return None
        return self._as_raised(ours, f"in {unit} {compiled.error_at}; {eager_says}")

    def _raised_in_both(self, eager: Trail, unit: str, calls: int) -> RaisedInBoth:
        assert eager.error is not None
        return RaisedInBoth(
            type=type(eager.error).__name__,
            message=self._paths.text(_first_line(eager.error)),
            at=f"{unit} {eager.error_at}",
            left=max(calls - eager.error_at - 1, 0),
        )

    def _as_raised(self, error: Exception, when: str) -> Raised:
        backend = backend_error(error, self._paths)
        at = f", {backend.at}" if backend is not None and backend.at else ""
        if guard := refused_for(error):
            at = f": {self._paths.text(guard)}"
        return Raised(
            type=type(error).__name__,
            message=f"{self._paths.text(_first_line(error))}{at} ({when})".lstrip(),
            location=(backend.location if backend is not None else None) or self._user_line(error),
            out_of_memory=memory.is_out_of_memory(error),
        )

    def _user_line(self, error: BaseException) -> Location | None:
        """The innermost line of the project's that the exception passed; for a compile error, the line compiled."""
        # An internal error of Dynamo's has no stack of its own: it says in its text what it was tracing.
        traced = [
            (each.filename, each.lineno or 0, each.name) for each in getattr(error, "real_stack", None) or ()
        ] or [
            (file, int(line), name)
            for file, line, name in _TRACED.findall(str(error).partition("\nfrom user code:")[2])
        ]
        if traced:
            own = [each for each in traced if not self._paths.is_out_of_reach(each[0])]
            return self._paths.location(*(own or traced)[-1])
        found = None
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if self._paths.is_users(code.co_filename) and not code.co_filename.startswith(OWN):
                found = self._paths.location(code.co_filename, trace.tb_lineno, code.co_name)
            trace = trace.tb_next
        return found


def _in_tf32(modules: Sequence[torch.nn.Module]) -> bool:
    """Whether CUDA may compute float32 products in TF32: matmuls where asked to, convolutions unless asked not to.

    A convolution that is called as a function is not seen.
    """
    if torch.get_float32_matmul_precision() != "highest":
        return True
    convolution = torch.nn.modules.conv._ConvNd
    return torch.backends.cudnn.allow_tf32 and any(isinstance(m, convolution) for top in modules for m in top.modules())


def _ended_as(eager: Trail, compiled: Trail, unit: str) -> str:
    """How a later eager run ended as the compiled one did; empty where it did not, so that eager raises otherwise."""
    if type(eager.error) is not type(compiled.error) or eager.error_at != compiled.error_at:
        return ""
    if eager.error is None:
        return "eager differs from itself: run once more, it does not raise either"
    raised = f"{type(eager.error).__name__} in {unit} {eager.error_at}"
    return f"eager differs from itself: run once more, it raises {raised} too"


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


def _first_line(error: BaseException) -> str:
    """Of the error's own text; Dynamo adds the user's line to it, even where there was none."""
    return first_said(str(error).partition("from user code:")[0])
