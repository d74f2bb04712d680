"""Passes: all calls once, from the saved state and seeds, on copies of the inputs; eager, compiled, or in float64."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch

from pytest_compilecontract import clock
from pytest_compilecontract.calls import call
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.lanes import Lane

from . import numerics
from .endings import DeviceLost, is_own
from .isolation import SEED, GlobalSettings
from .probes import device as devices
from .probes import memory, randomness, stance
from .probes.backward import compiled_backwards
from .probes.collectives import left_out
from .probes.modes import Modes
from .probes.refusals import Refusals
from .probes.rounding import Rounding
from .probes.source import Paths
from .programs import Body, Forward, Program, Surroundings, Trail, returns_results
from .recorder import Measuring, synchronize
from .said import held_by
from .state import NotWide, State
from .structure import placed_in, results_in, structure_of

# `steady`: no pass, but steps made again and again, of which nothing but the device's own work is looked at.
Kind = Literal["eager", "compiled", "float64", "steady"]
# Who is to know of each pass, while it is made: what is planted counts from its start, and leaves eager ones alone.
Watcher = Callable[[Kind], AbstractContextManager[None]]
_watchers: list[Watcher] = []
# Bytes of a target's tensors in memory from which what a pass has freed is given back before the next.
LARGE = 64 << 20


@contextlib.contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Enter `watcher` around each pass."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


@contextlib.contextmanager
def told_of(kind: Kind) -> Iterator[None]:
    """Report to all watchers what is created inside."""
    with contextlib.ExitStack() as stack:
        for watcher in _watchers:
            stack.enter_context(watcher(kind))
        yield


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is compared with eager: a target, the program that calls it, its calls, and the state that they reach."""

    target: object
    program: Program
    calls: Sequence[call]
    state: State


@dataclass(frozen=True, kw_only=True, slots=True)
class How:
    """How a pass is made: `make` makes each call; `like` is the eager run that it is compared with.

    `to` gives the dtype of the copy of an argument. `mode` is entered around each call. `seed` is another than that
    of all passes. `wanted` are the places at which tensors are kept, if not at all.
    """

    kind: Kind = "compiled"
    make: Callable[[Callable[[], object]], object] | None = None
    like: Trail | None = None
    to: Callable[[torch.dtype], torch.dtype] | None = None
    mode: AbstractContextManager[object] | None = None
    seed: int | None = None
    wanted: frozenset[str] | None = None

    @property
    def copies(self) -> Callable[..., numerics.Copies]:
        return partial(numerics.Copies, to=self.to) if self.to is not None else numerics.Copies


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """The eager pass in a wider precision, `dtype`, with notes on it; without one, `absent` says why."""

    trail: Trail | None
    dtype: str = "float64"
    absent: str = ""
    told: str = ""


class Passes:
    """The passes of one lane on one device.

    `notes` say why something was not compared, `left` which modes a pass left on. `measuring` is notified of backward
    passes. `eager_seconds` is the wall time of the longest eager pass so far.
    """

    def __init__(self, lane: Lane, device: torch.device, paths: Paths) -> None:
        self._lane = lane
        self._paths = paths
        self._device = device
        self.notes: list[str] = []
        self.left: list[str] = []
        self.eager_seconds = 0.0
        self.measuring: Measuring | None = None
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]  # or its generators would not be among those below
        randomness.seed(SEED)
        self.start = randomness.generators()
        self._settings = GlobalSettings()

    def start_anew(self, state: State) -> None:
        """Restore the state and torch's settings that every pass starts from."""
        state.restore()
        self._settings.put_back()

    def eager(self, job: Job, like: Trail | None = None) -> Trail:
        """An eager pass: nothing compiled runs, even if parts of the target are compiled already."""
        __tracebackhide__ = True
        started = clock.seconds()
        try:
            with stance.eager():
                return self.fresh(job.target, job, How(kind="eager", like=like))
        finally:
            self.eager_seconds = max(self.eager_seconds, clock.seconds() - started)

    def fresh(self, run: object, job: Job, how: How) -> Trail:
        """A pass from the initial state: `run` is the target, or its compiled form."""
        __tracebackhide__ = True
        self.start_anew(job.state)
        return self._pass(run, job, how)

    def rounded(self, job: Job, eager: Trail, rounding: Rounding, wanted: frozenset[str] | None = None) -> Trail:
        """An eager pass in which every result is rounded differently; it keeps the tensors at these places, or all."""
        with stance.eager():
            return self.fresh(job.target, job, How(kind="eager", like=eager, mode=rounding, wanted=wanted))

    def seeded(self, job: Job, eager: Trail, number: int) -> Trail:
        """An eager pass with other random numbers than those of all passes."""
        with stance.eager():
            return self.fresh(job.target, job, How(kind="eager", like=eager, seed=SEED + number))

    def reference(self, job: Job, eager: Trail) -> Reference:
        """The pass in float64, or else in float32 for a target that computes in less."""
        if isinstance(job.program, Body):
            return Reference(trail=None, absent="code that makes its own tensors has no float64 run")
        if eager.random:
            return Reference(trail=None, absent="random numbers are drawn differently in float64")
        found, mode = self._wide(job, eager, torch.float64, None), None
        if found.trail is None:
            mode = Refusals(torch.float64)
            found = replace(self._wide(job, eager, torch.float64, mode), absent=found.absent)
        if found.trail is None and self._is_narrow(job):
            mode = Refusals(torch.float32)
            found = replace(self._wide(job, eager, torch.float32, mode), absent=found.absent)
        if found.trail is None:
            return found
        told = [f"judged by a float32 run: {found.absent}"] if found.dtype == "float32" else []
        told += [
            f"in the {found.dtype} run {name} ran in {numerics.short(dtype)}, since it does not support {found.dtype}"
            for name, dtype in (mode.ran_in if mode is not None else {}).items()
        ]
        return replace(found, absent="", told="; ".join(told))

    def _wide(self, job: Job, eager: Trail, dtype: torch.dtype, mode: Refusals | None) -> Reference:
        """The pass in a wider dtype, or why there is none; `mode` runs operators without that dtype in another."""
        to, name = (numerics.wide if dtype == torch.float64 else numerics.single), numerics.short(dtype)
        if why := numerics.why_not_cast([(each.args, each.kwargs) for each in job.calls], to):
            return Reference(trail=None, dtype=name, absent=why)
        self.start_anew(job.state)
        default = torch.get_default_dtype()
        try:
            with job.state.in_wide(to), stance.eager():
                torch.set_default_dtype(dtype)
                trail = self._pass(job.target, job, How(kind="float64", like=eager, to=to, mode=mode))
        except NotWide as reason:
            return Reference(trail=None, dtype=name, absent=str(reason))
        finally:
            torch.set_default_dtype(default)
        if trail.error is not None and (eager.error is None or trail.error_at != eager.error_at):
            message = next(iter(str(trail.error).strip().splitlines()), "")
            return Reference(
                trail=None, dtype=name, absent=f"in {name} eager raises {type(trail.error).__name__}: {message}"
            )
        return Reference(trail=trail, dtype=name)

    def _is_narrow(self, job: Job) -> bool:
        """Whether anything is computed in less than float32, as far as the lane and the tensors tell."""
        given = numerics.tensors_in([(each.args, each.kwargs) for each in job.calls])
        dtypes = {each.dtype for each in (*job.state.tensors.values(), *given)}
        return self._lane.autocast is not None or any(numerics.single(each) != each for each in dtypes)

    def _pass(self, run: object, job: Job, how: How) -> Trail:
        """Run all calls once.

        A mode that the calls leave on is removed and reported, with the pass that left it.
        """
        __tracebackhide__ = True  # of what the target raises, pytest shows the target's lines
        trail = Trail(like=how.like, reference=how.kind == "float64", wanted=how.wanted)
        trail.context.run(self._make, run, job, how, trail)
        return trail

    def _make(self, run: object, job: Job, how: How, trail: Trail) -> None:
        """Make all calls, and note what they leave."""
        __tracebackhide__ = True
        if sum(map(_bytes_in_memory, job.state.tensors.values())) > LARGE:
            numerics.trim()
        modes = Modes()
        randomness.put_back(self.start)
        if how.seed is not None:
            randomness.seed(how.seed)
        with told_of(how.kind):
            self._make_calls(run, job, how, trail)
        for mode in modes.take_off():
            trail.facts["mode left on", mode] = "on"
            self.left.append(f"the {how.kind} run left {mode} on")
        trail.random = randomness.drew(self.start)
        trail.facts.update(randomness.left(self.start))
        trail.facts.update(self._settings.left())
        trail.alive = trail.watch.alive()
        # Training compares what is learned after each step, by a rule of its own.
        learned = isinstance(job.program, Forward)
        # What the eager run has changed is kept, whether this one changes it or not.
        names = how.like.changed if how.like is not None else frozenset()
        changed = job.state.changed(names, learned=learned, gradients=_leaves_gradients(job.program))
        trail.changed = frozenset(changed)
        trail.note("state", changed, "afterwards")
        for name, value in job.state.made().items():
            trail.note(numerics.MADE, value, f"afterwards[{name!r}]")

    def _make_calls(self, run: Any, job: Job, how: How, trail: Trail) -> None:
        """Make the calls on copies, which are freed afterwards."""
        __tracebackhide__ = True
        around = Surroundings(
            autocast=self.autocast if how.kind != "float64" else contextlib.nullcontext,
            before_backward=self.before_backward,
            leaves=job.state.tensors,
        )
        step = job.program.start(run, around)
        copied = how.copies(job.state.reached())
        left = _leaves_gradients(job.program)
        for index, each in enumerate(job.calls):
            args, kwargs = copied.of((each.args, each.kwargs))
            arguments: dict[Any, object] = {**dict(enumerate(args)), **kwargs}
            at = f"{job.program.unit} {index}"
            trail.before.append(numerics.snapshot(arguments, at=f"{at} input"))
            stepped = partial(step, call(*args, **kwargs), trail, at)
            try:
                with how.mode or contextlib.nullcontext():
                    output = how.make(stepped) if how.make else stepped()
                # What a kernel did wrong is said at some later call, and has to be said of this one.
                synchronize(self._device)
            except Exception as error:
                # Eager has made the same steps: a loss without a gradient is none of the user's then.
                if isinstance(error, UsageError) and how.make is None:
                    raise
                self.refuse_when_lost(error, f"in {job.program.unit} {index}", compiled=how.make is not None)
                if memory.is_out_of_memory(error):
                    memory.let_go(error)
                trail.error, trail.error_at = error, index
                if is_own(error, self._paths) if how.like is None else "raised" in how.like.groups:
                    trail.note("raised", held_by(error), f"{at} exception")
                break
            results = output
            if returns_results(job.program):
                with left_out():
                    trail.structure = structure_of(output)
                results = results_in(output, trail.structure)
            outputs = trail.note("output", output, f"{at} output")
            inputs = trail.note("input", arguments, f"{at} input")
            if left and (grads := numerics.gradients_in(arguments)):
                trail.note("grad", grads, f"{at} input grad")
            trail.aliases |= numerics.aliases(outputs, inputs, job.state.tensors)
            trail.watch.add(results, f"{at} output")
            trail.watch.add(arguments, f"{at} input")
            del output, results, args, kwargs, arguments, stepped
        if trail.error is None and not returns_results(job.program):
            trail.structure = placed_in(run if isinstance(run, torch.nn.Module) else job.target)
        if copied.shared:
            self.notes.append(copied.shared)

    def refuse_when_lost(self, error: Exception, where: str, *, compiled: bool) -> None:
        """Raise DeviceLost where CUDA refuses every call of this process from now on."""
        if self._device.type == "cuda" and (what := devices.lost(error)):
            raise DeviceLost(what, f"{where}, {'compiled' if compiled else 'eager'}") from error

    def autocast(self) -> AbstractContextManager[object]:
        """The lane's autocast, for one forward."""
        if self._lane.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=getattr(torch, self._lane.autocast))

    def before_backward(self, root: torch.Tensor) -> None:
        """Note the compiled backward graphs that a loss reaches."""
        if self.measuring is not None and root.requires_grad:
            self.measuring.backwards = (self.measuring.backwards or set()) | compiled_backwards(root)


def _bytes_in_memory(tensor: torch.Tensor) -> int:
    if tensor.device.type != "cpu" or not numerics.has_storage(tensor):
        return 0
    return tensor.untyped_storage().nbytes()


def _leaves_gradients(program: Program) -> bool:
    """Whether forward calls, for which no backward is requested, may still leave gradients in their arguments."""
    return isinstance(program, Forward) and not program.gradients
