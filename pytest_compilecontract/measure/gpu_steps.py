"""Steady steps: what can only be measured on a GPU, after the counted calls.

The last call is repeated, eager and compiled, from the saved state and seeds, after counting has ended. The results of
a step are not recorded, so that the device only does what the user's program does.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pytest_compilecontract import clock
from pytest_compilecontract.calls import call
from pytest_compilecontract.facts.measurement import (
    NO_CUDA,
    NOT_ASKED,
    CudaGraphs,
    GraphStep,
    Measurement,
    Memory,
    Speed,
    StepKernels,
)
from pytest_compilecontract.facts.metrics import STEADY

from . import numerics
from .passes import told_of
from .probes import device, kernels, memory, randomness, speed, stance, syncs
from .probes.cuda_graphs import GraphTaps
from .probes.source import Paths
from .programs import Program, Surroundings, Trail
from .recorder import Measuring
from .state import State

WARM_STEPS = 4
GROWTH_STEPS = 20
FEWEST_STEPS = 6
# What a lane may spend on watching memory.
GROWTH_SECONDS = 10.0


@dataclass(kw_only=True, slots=True)
class Facts:
    """The metrics of steady steps, and why others are not known."""

    found: dict[str, Any] = field(default_factory=dict)
    unmeasured: dict[str, str] = field(default_factory=dict)
    disagreements: list[str] = field(default_factory=list)

    def leave(self, reason: str) -> None:
        """Give this reason for every metric that has not been measured."""
        for name in STEADY:
            if name not in self.found:
                self.unmeasured.setdefault(name, reason)


class Unsteady(Exception):  # noqa: N818 - no error of anybody's: the reason why nothing is measured
    """A repeated call differs from the one before it."""


class SteadySteps:
    """The steps of one program, eager and compiled. `graphs` watches CUDA graphs, None if the lane uses none."""

    def __init__(
        self,
        *,
        program: Program,
        last: call,
        state: State,
        start: dict[str, object],
        autocast: Callable[[], contextlib.AbstractContextManager[object]],
        measuring: Measuring,
        graphs: GraphTaps | None,
        pools: frozenset[object],
        paths: Paths,
        timed: bool,
    ) -> None:
        self._program = program
        self._last = last
        self._state = state
        self._start = start
        self._autocast = autocast
        self._measuring = measuring
        self._graphs = graphs
        self._pools = pools
        self._paths = paths
        self._timed = timed
        self._attempts = len(measuring.ledger.attempts)

    def measure(self, target: object, compiled: object, calls: tuple[GraphStep, ...]) -> Facts:
        """All metrics. `calls` is what CUDA graphs did in the calls that are counted."""
        facts = Facts()
        if self._graphs is None:
            facts.unmeasured["cuda_graphs"] = NOT_ASKED
        elif self._graphs.missing is not None:
            facts.unmeasured["cuda_graphs"] = self._graphs.missing
        if not self._timed:
            facts.unmeasured["speed"] = "not requested (min_speedup or --contract-speed)"
        try:
            with told_of("steady"):
                self._measure(target, compiled, calls, facts)
        except Unsteady as reason:
            facts.leave(str(reason))
        except Exception as error:
            if device.lost(error):
                raise
            memory.let_go(error)
            facts.leave(f"a repeated call raises {type(error).__name__}")
        if "cuda_graphs" not in facts.found and "cuda_graphs" not in facts.unmeasured:
            facts.unmeasured["cuda_graphs"] = "nothing measured it"
        if self._graphs is not None and self._graphs.missing is None and "cuda_graphs" not in facts.found:
            # What the counted calls showed is still known.
            facts.unmeasured["cuda_graphs.steady"] = facts.unmeasured.pop("cuda_graphs")
            facts.found["cuda_graphs"] = self._cuda_graphs(calls)
        return facts

    def _measure(self, target: object, compiled: object, calls: tuple[GraphStep, ...], facts: Facts) -> None:
        # What the passes before left in cycles is not to go in the middle of a step that is looked at. Once: it takes
        # half a second in a process that has torch and more in it.
        gc.collect()
        with self._stepping(target, eager=True) as eager:
            eager_rows = kernels.profiled(eager)
            eager_kernels = kernels.read_profile(eager_rows).kernels
            eager_peak = self._peak(eager)
            eager_shares = _shared_outputs(eager)
        with self._stepping(compiled, eager=False) as step:
            self._refuse_when_compiling()
            samples, steady = self._watch(step)
            profile = kernels.read_profile(kernels.profiled(step))
            one = self._graphs.take() if self._graphs else None
            found_syncs = syncs.host_syncs(step, self._paths)
            peak = self._peak(step)
            overwritten = _shared_outputs(step)
            pools = memory.pools(self._pools)
            # Looked at again, for what a cycle holds until it is collected is no leak.
            grown = _growth_without_garbage(step) if memory.growth(samples) else 0
            self._refuse_when_compiling()
            facts.found |= {
                "kernels": StepKernels(compiled=profile.kernels, eager=eager_kernels),
                "host_syncs": found_syncs,
                "overwritten": tuple(name for name in overwritten if name not in eager_shares),
                "memory": Memory(
                    peak_bytes=peak + pools.reserved,
                    eager_peak_bytes=eager_peak,
                    pool_bytes=pools.reserved,
                    growth_bytes=grown,
                ),
            }
        if self._graphs is not None and self._graphs.missing is None:
            assert one is not None
            facts.found["cuda_graphs"] = self._cuda_graphs(
                calls, steady=steady, steps=len(samples) - 1, step=one, launches=profile.launches
            )
            if one.replayed > profile.launches:
                facts.disagreements.append(
                    f"CUDA graphs replayed: {one.replayed} by the taps, {profile.launches} by the profiler"
                )
        if self._timed:
            facts.found["speed"] = self._speed(target, compiled)

    def _cuda_graphs(
        self,
        calls: tuple[GraphStep, ...],
        *,
        steady: GraphStep | None = None,
        steps: int = 0,
        step: GraphStep | None = None,
        launches: int | None = None,
    ) -> CudaGraphs:
        assert self._graphs is not None
        return CudaGraphs(
            calls=calls,
            steady=steady,
            steady_steps=steps,
            step=step,
            launches=launches,
            partitions=self._graphs.partitions(),
            skips=self._graphs.skips(),
        )

    @contextlib.contextmanager
    def _stepping(self, run: object, *, eager: bool) -> Iterator[_Stepper]:
        """A warmed-up step that can be repeated, with the state and seeds of the start of a pass."""
        self._state.restore(accepted=not eager)
        randomness.put_back(self._start)
        stepper = _Stepper(self._program, run, self._last, self._state, self._autocast, eager=eager)
        try:
            for _ in range(WARM_STEPS):
                stepper()
            if self._graphs:
                self._graphs.take()
            yield stepper
        finally:
            stepper.close()

    def _refuse_when_compiling(self) -> None:
        if len(self._measuring.ledger.attempts) > self._attempts:
            raise Unsteady("a repeated call compiles again")

    def _watch(self, step: _Stepper) -> tuple[list[int], GraphStep]:
        """The bytes in use before some steps and after each of them, and what CUDA graphs did in them."""
        if self._graphs:
            self._graphs.take()
        torch.cuda.synchronize()
        started = clock.seconds()
        samples = [torch.cuda.memory_allocated()]
        while len(samples) <= GROWTH_STEPS:
            step()
            torch.cuda.synchronize()
            samples.append(torch.cuda.memory_allocated())
            if len(samples) > FEWEST_STEPS and clock.seconds() - started > GROWTH_SECONDS:
                break
        return samples, self._graphs.take() if self._graphs else GraphStep()

    def _peak(self, step: _Stepper) -> int:
        """The peak memory of a step: its state, and what it allocates on top."""
        return memory.bytes_of(self._state.tensors.values()) + memory.peak_of(step) - step.floor

    def _speed(self, target: object, compiled: object) -> Speed:
        with self._stepping(target, eager=True) as eager, self._stepping(compiled, eager=False) as ours:
            of_eager, of_compiled = speed.timed(eager.timed(), ours.timed())
        self._refuse_when_compiling()
        spent = sum(each.seconds for each in self._measuring.timed)
        steady = speed.timing(of_compiled)
        return Speed(
            eager=speed.timing(of_eager),
            compiled=steady,
            samples=len(of_compiled),
            compile_seconds=max(spent - len(self._measuring.timed) * steady.median, 0.0),
        )


class _Stepper:
    """One step of a program, on copies of the last call's inputs, which are made once."""

    def __init__(
        self,
        program: Program,
        run: Any,
        last: call,
        state: State,
        autocast: Callable[[], contextlib.AbstractContextManager[object]],
        *,
        eager: bool,
    ) -> None:
        self.floor = memory.allocated()
        self._eager = eager
        args, kwargs = numerics.Copies(state.reached()).of((last.args, last.kwargs))
        self._arguments = call(*args, **kwargs)
        self._leaves = [*state.tensors.values(), *numerics.tensors_in((args, kwargs))]
        around = Surroundings(autocast=autocast, before_backward=lambda _: None, leaves=state.tensors, recorded=False)
        self._step = program.start(run, around)
        self._trail = Trail()

    def __call__(self) -> object:
        with self.around():
            return self.run()

    def run(self) -> object:
        """The step itself, without any instrumentation."""
        return self._step(self._arguments, self._trail, "")

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """The context that a step needs, which is not measured."""
        for leaf in self._leaves:
            leaf.grad = None
        with stance.eager() if self._eager else contextlib.nullcontext():
            yield

    def timed(self) -> speed.Step:
        return speed.Step(run=self.run, around=self.around)

    def close(self) -> None:
        """Release what the step holds on the device."""
        del self._step, self._arguments, self._leaves


def _growth_without_garbage(step: Callable[[], object]) -> int:
    """Bytes that each step leaves behind when garbage is collected, over as many steps twice; 0 if not both times."""
    looks: list[int] = []
    for steps in (0, GROWTH_STEPS // 2, GROWTH_STEPS // 2):
        for _ in range(steps):
            step()
        gc.collect()
        torch.cuda.synchronize()
        looks.append(torch.cuda.memory_allocated())
    return memory.growth(looks) // (GROWTH_STEPS // 2)


def _shared_outputs(step: Callable[[], object]) -> tuple[str, ...]:
    """Outputs that the next step changed while they were held: overwritten, or freed."""
    kept = _results(step())
    before = [_copy(each) for each in kept]
    places = [_place(each) for each in kept]
    later = _results(step())
    taken = {_place(each) for each in later}
    torch.cuda.synchronize()
    return tuple(
        f"output tensor {index}"
        for index, (tensor, copy, place) in enumerate(zip(kept, before, places, strict=True))
        # The same values again in the same place: the next step wrote there.
        if place is not None and (place in taken or not _is_still(tensor, copy))
    )


def _results(output: object) -> list[torch.Tensor]:
    """The tensors of an output; of a wrapper subclass those that it consists of."""
    return [each for each in numerics.tensors_in(output) if not numerics.is_wrapper(each)]


def _place(tensor: torch.Tensor) -> int | None:
    try:
        return tensor.untyped_storage().data_ptr() or None if tensor.numel() else None
    except RuntimeError:
        return None


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _is_still(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    """Whether a tensor still equals its copy bit by bit, NaN included."""
    try:
        return numerics.same_bits(tensor.detach(), copy)
    except RuntimeError:  # torch says that a CUDA graph has overwritten it
        return False


def nowhere(reason: str = NO_CUDA) -> Facts:
    """The facts of a lane in which none of this can be measured."""
    facts = Facts()
    facts.leave(reason)
    return facts


def with_facts(measurement: Measurement, facts: Facts) -> Measurement:
    """The measurement with what steady steps showed."""
    return replace(
        measurement,
        **facts.found,
        unmeasured=measurement.unmeasured | facts.unmeasured,
        disagreements=(*measurement.disagreements, *facts.disagreements),
    )
