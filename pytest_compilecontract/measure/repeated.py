"""Repeated calls: what can be measured in one more call of compiled code, after the counted calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial

from pytest_compilecontract import clock
from pytest_compilecontract.calls import call
from pytest_compilecontract.facts.measurement import StepOperators

from . import numerics
from .passes import Job, Passes
from .probes import memory, randomness
from .probes.operators import Untold, marked, operators_of
from .probes.source import Paths
from .programs import Body, Forward, Surroundings, Trail
from .recorder import Measuring

# Makes one call.
Step = Callable[[], object]
OVERHEAD_CALLS = 20
OVERHEAD_SECONDS = 0.2


class Repeated:
    """Repeats the last call of a job with `compiled`; `trail` has the results of the counted calls.

    `barred` is why it may not be repeated.
    """

    def __init__(
        self,
        passes: Passes,
        job: Job,
        *,
        compiled: Callable[..., object],
        measuring: Measuring,
        trail: Trail,
        paths: Paths,
        barred: str = "",
    ) -> None:
        self._passes = passes
        self._job = job
        self._compiled = compiled
        self._measuring = measuring
        self._trail = trail
        self._paths = paths
        self._barred = barred

    def operators(self) -> tuple[StepOperators | None, str]:
        """The operators of the call, or None and the reason.

        Where a graph broke, also those of earlier calls, each of which may take a way of its own.
        """
        found, why = self._of_last()
        if found is None or not self._measuring.ledger.told.broken():
            return found, why
        timed = self._measuring.timed
        for index in (at for at, each in enumerate(timed[: len(self._job.calls) - 1]) if each.compiled):
            # Without a new compile it runs what another call, which had one, ran.
            earlier, why = copy_context().run(self._recorded, partial(self._anew, index))
            if earlier is None:
                # What is made anew, as the state of an optimizer, may compile anew each time.
                earlier, why = copy_context().run(self._recorded, partial(self._from_here, index))
            if earlier is None:
                return None, f"{self._job.program.unit} {index}: {why}"
            found = found.joined(earlier)
        return found, ""

    def _of_last(self) -> tuple[StepOperators | None, str]:
        if isinstance(self._job.program, Body):
            return None, "the body of the test makes its own calls"
        if self._trail.error is not None:
            return None, "the run raised"
        if self._barred:
            return None, self._barred
        last = partial(self._from_here, len(self._job.calls) - 1)
        found, why = self._trail.context.run(self._recorded, last)
        if found is None:
            # What has come to its end, as an iterator, or grows with each call, begins anew.
            self._passes.start_anew(self._job.state)
            randomness.put_back(self._passes.start)
            found, why = copy_context().run(self._recorded, last)
        return found, why

    def _recorded(self, prepared: Callable[[], Callable[[], Step]]) -> tuple[StepOperators | None, str]:
        """The operators of a call, or None and the reason; `prepared` returns what makes the call ready."""
        modules = {id(each): path for top in self._job.state.modules for path, each in top.named_modules()}
        try:
            return operators_of(prepared(), ledger=self._measuring.ledger, paths=self._paths, modules=modules), ""
        except Untold as reason:
            return None, str(reason)
        except Exception as error:  # noqa: BLE001 - a target may refuse to be called more often than the test does
            self._passes.refuse_when_lost(error, "in a repeated call", compiled=True)
            memory.let_go(error)
            return None, f"a repeated call raises {type(error).__name__}"

    def _from_here(self, index: int) -> Callable[[], Step]:
        """A call from the current state, and so from another each time."""
        step = self._step(self._job.calls[index : index + 1])
        return lambda: step

    def _anew(self, index: int) -> Callable[[], Step]:
        """A call after those before it, from the state that the first of them found."""

        def ready() -> Step:
            self._passes.start_anew(self._job.state)
            randomness.put_back(self._passes.start)
            return self._step(self._job.calls[: index + 1])

        return ready

    def _step(self, calls: Sequence[call]) -> Step:
        """Make these calls up to the last, which is returned."""
        around = Surroundings(
            autocast=self._passes.autocast,
            before_backward=lambda _: None,
            leaves=self._job.state.tensors,
            recorded=False,
        )
        copied = numerics.Copies(self._job.state.reached())
        step = self._job.program.start(marked(self._compiled), around)
        for each in calls[:-1]:
            args, kwargs = copied.of((each.args, each.kwargs))
            step(call(*args, **kwargs), Trail(), "")
        args, kwargs = copied.of((calls[-1].args, calls[-1].kwargs))
        return partial(step, call(*args, **kwargs), Trail(), "")

    def overhead(self) -> tuple[float | None, str]:
        """CPU seconds of a cached call outside its graphs, the median over several calls, or None and the reason."""
        program, measuring = self._job.program, self._measuring
        if not isinstance(program, Forward) or program.gradients:
            return None, "a step runs more than the compiled target"
        if self._barred:
            return None, self._barred
        if self._trail.error is not None or measuring.timed[-1].compiled or measuring.timed[-1].executed == 0:
            return None, "the last call did not run cached compiled code"
        return self._trail.context.run(self._timed)

    def _timed(self) -> tuple[float | None, str]:
        ledger, runs = self._measuring.ledger, self._measuring.ledger.runs
        last = self._job.calls[-1]
        samples: list[float] = []
        deadline = clock.seconds() + OVERHEAD_SECONDS
        attempts = len(ledger.attempts)
        runs.clock = time.thread_time
        try:
            while len(samples) < OVERHEAD_CALLS and (clock.seconds() < deadline or not samples):
                args, kwargs = numerics.Copies(self._job.state.reached()).of((last.args, last.kwargs))
                inside, started = runs.seconds_inside, time.thread_time()
                with self._passes.autocast():
                    self._compiled(*args, **kwargs)
                samples.append(time.thread_time() - started - (runs.seconds_inside - inside))
                if len(ledger.attempts) > attempts:
                    return None, "a repeated call compiles again"
        except Exception as error:  # noqa: BLE001 - a target may refuse to be called more often than the test does
            return None, f"a repeated call raises {type(error).__name__}"
        finally:
            runs.clock = None
        return max(statistics.median(samples), 0.0), ""
