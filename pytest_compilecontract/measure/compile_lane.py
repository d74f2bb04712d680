"""The lane that a test runs in: the value of the `compile_lane` fixture."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from pytest_compilecontract.calls import as_calls, call
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.lanes import FAKE, Lane
from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import NO_CUDA, Measurement

from .beside import Lanes
from .goodput import Parts
from .gpu_steps import nowhere, with_facts
from .group import is_shared
from .hunt import Budget, Hunt, Where, not_held
from .placement import placed
from .probes.availability import replaced_compile
from .probes.device import device_of
from .probes.inplace import compile_in_place, is_compiled, structure
from .probes.modes import Modes
from .probes.source import Paths
from .probes.targets import made_by
from .programs import Body, Forward, InModes, Program, Training, uncompiled
from .recorder import Measuring, without_comparison
from .runner import Held, Runner
from .shapes import Moded
from .xla.calls import Calls
from .xla.engines import calls_of, compiled_by_xla

# Makes a scalar tensor of an output, an optimizer of parameters, what is to be called of a target.
Loss = Callable[..., torch.Tensor] | None
Optimizer = Callable[..., object] | None
Compiles = Callable[[Any], object] | None
# Compiles with its one argument, and makes its own calls.
OwnCalls = Callable[[Callable[..., Any]], object]
Alone = Callable[[], object] | None


class Observation:
    """What was compiled inside a `with compile_lane.observe()` block."""

    def __init__(self, measuring: Measuring) -> None:
        self._measuring = measuring
        self._parts: Parts | None = None

    @property
    def measurement(self) -> Measurement:
        """The measurement; inside the block, of what was compiled so far. Nothing was compared, so without numerics."""
        measured = alone(self._measuring.measurement())
        if self._parts is None:
            return measured
        found, why = self._parts.found()
        unmeasured = {**measured.unmeasured, "goodput": why} if why else measured.unmeasured
        return replace(measured, goodput=found, unmeasured=unmeasured)

    @contextlib.contextmanager
    def goodput(self) -> Iterator[Parts]:
        """Measure where the wall time of the loop inside goes, in the parts that it names: steps, checkpoints, data.

        Raises:
            UsageError: a second one in the same block.
        """
        if self._parts is not None:
            raise UsageError("goodput: one in each `with compile_lane.observe()` block")
        self._parts = Parts()
        self._parts.start()
        try:
            yield self._parts
        finally:
            self._parts.stop()


def alone(measured: Measurement) -> Measurement:
    """The measurement of what was compiled and not run against eager."""
    reason = "observed, not run against eager"
    facts = nowhere(reason if torch.cuda.is_available() else NO_CUDA)
    return with_facts(without_comparison(measured, reason), facts)


@contextlib.contextmanager
def observing(paths: Paths, lane: Lane | None = None) -> Iterator[Observation]:
    """Measure whatever is compiled inside, in any thread; `lane` is the lane that it should match, if any."""
    measuring = Measuring(paths, lane=lane, calls=True)
    with measuring:
        yield Observation(measuring)


class CompileLane:
    """One lane of a contract.

    `name` is the lane's, `device` a torch.device, `dtype` a torch.dtype (the lane's, else float32).
    """

    def __init__(
        self, lane: Lane, limits: Limits, root: Path, *, timed: bool = False, trains: bool | None = None
    ) -> None:
        self.name = lane.name
        self.device = device_of(lane)
        self.dtype: torch.dtype = getattr(torch, lane.dtype or "float32")
        self.measurements: list[Measurement] = []
        self.trained = False
        self.open = True
        self.beside = Lanes()
        self._lane = lane
        self._limits = limits
        self._timed = timed
        # Whether `run` trains: a ladder that has "train" says it of each rung.
        self._trains = trains
        self._paths = Paths(root)
        self._undo = contextlib.ExitStack()
        self._xla: Calls | None = None

    def __repr__(self) -> str:
        return f"<compile lane {self.name} on {self.device}>"

    @contextlib.contextmanager
    def body(self) -> Iterator[None]:
        """Run the body of the test: a mode that it leaves on is added to its measurement, or raised as an error.

        The mode is left on here: a fixture may turn it off, and isolation does so after the test.
        """
        __tracebackhide__ = True
        modes = Modes()
        try:
            yield
        except BaseException as error:
            for each in modes.left():
                error.add_note(f"the test left {each} on")
            raise
        if self.measurements and (left := modes.left()):
            said = tuple(f"the test left {each} on" for each in left)
            last = self.measurements[-1]
            self.measurements[-1] = replace(last, doubts=(*last.doubts, *said))

    def close(self) -> None:
        """Undo what compiling in place changed in modules."""
        self._undo.close()

    def run(self, target: object, *calls: object, compile_with: Compiles = None) -> Measurement:
        """Call `target` in eager and compiled, compare the two, and measure. The target is restored afterwards.

        Args:
            target: a function or module, not compiled yet. It and the calls' tensors are moved to the lane's device,
                unless one of them is there already, and floating-point ones to its dtype, and moved back.
            calls: tuples of arguments, `call(*args, **kwargs)`, or a tensor as the only argument.
            compile_with: compiles the target in your own way, with `compile_lane.compile`, and returns what to call;
                for regions of a module, or your own wrapper. By default the whole target is compiled.

        Raises:
            UsageError: the arguments cannot be run.
            BrokenLane: the compiled run raised and eager did not, or the reverse.
            Exception: what eager itself raises, if the compiled run raises the same.
        """
        __tracebackhide__ = True
        made = _in_modes(calls, where="compile_lane.run")
        _refuse_uncallable(target, "run")
        if self._trains:
            return self._train(_trained(target), calls, None, None, compile_with)
        return self._keep(self._hold_sequence(target, compile_with, made))

    def train(
        self,
        module: torch.nn.Module,
        batches: Sequence[object],
        *more: object,
        loss: Loss = None,
        optimizer: Optimizer = None,
        compile_with: Compiles = None,
    ) -> Measurement:
        """Train `module` for one step per batch in eager and compiled, compare, and measure. The module is restored.

        A step is forward, loss, backward, optimizer step, zero_grad.

        Args:
            module: a module, not compiled yet.
            batches: one per step: tuples of arguments, `call(*args, **kwargs)`, or a tensor as the only argument.
            loss: returns a scalar tensor for the output. If it takes more arguments, they come from the end of the
                batch: `loss=F.cross_entropy` works with batches `(x, target)`. Default: the output's own `loss` if it
                has one, the output itself if it is a scalar tensor, else the sum over its floating-point tensors of
                the mean of their squares.
            optimizer: returns an optimizer for a list of parameters, as `torch.optim.AdamW` does. Default: SGD with a
                learning rate of 0.01.
            compile_with: as in `run`.

        Raises:
            As `run`.
        """
        __tracebackhide__ = True
        _refuse_training(self._trains)
        return self._train(module, _in_one_list(batches, more), loss, optimizer, compile_with)

    def _train(
        self,
        module: torch.nn.Module,
        batches: Sequence[object],
        loss: Loss,
        optimizer: Optimizer,
        compile_with: Compiles,
    ) -> Measurement:
        __tracebackhide__ = True
        made = _as_batches(batches)
        program = _training(module, loss, optimizer, gradients=self._limits.check_grads is not False)
        seen = self._keep(self._held(module, program, made, compile_with))
        self.trained = True
        return seen

    def compare(self, body: OwnCalls, *, reference: OwnCalls | None = None, alone: Alone = None) -> Measurement:
        """Run code that makes its own calls, once in eager and once compiled, and compare what it returns.

        For code between calls: a changing learning rate, a frozen parameter, a backward of your own.

        Args:
            body: creates what it needs, compiles with its one argument, calls, and returns what to compare.
                Its argument is `compile_lane.compile`, or in the eager runs a function that returns its argument.
            reference: other code for the eager runs, called the same way, that the compiled body must agree with, such
                as a plain loop for a fused operator. Limits apply to `body`; `rtol` and `atol` set the tolerance.
            alone: code for one process, without collectives, that returns what `body` has to return on this rank.

        Raises:
            As `run`.
        """
        __tracebackhide__ = True
        _refuse_body(body, reference, alone, compares=_compares(self._limits, self._lane))
        program = Body(body=body, reference=reference, alone=alone)
        return self._keep(self._held(uncompiled, program, (call(),), lambda _: self.compile))

    def hunt(
        self,
        target: object,
        drawn: object,
        *,
        sequences: int = 100,
        calls: int = 4,
        seconds: float = 60.0,
        derandomize: bool | None = None,
        compile_with: Compiles = None,
    ) -> Measurement:
        """Check sequences of calls that hypothesis draws, each as `run` does, and keep the shortest that fails.

        Each sequence starts without compiled code, and the limits apply to each. If all hold, the one that compiled
        most is kept.

        Args:
            drawn: a strategy for one call, or for a list of consecutive calls: tensors, tuples of arguments,
                `call(...)`. `pytest_compilecontract.shapes` has some.
            sequences: the most sequences to draw, each of at most `calls` draws.
            seconds: the time for the search, and again for shrinking.
            derandomize: draw the same calls in each run; None: hypothesis' setting, which does so if CI is set.

        Raises:
            UsageError: hypothesis is not installed, or nothing that was drawn could be run.
        """
        __tracebackhide__ = True
        _refuse_hunt(target, self._lane)
        budget = Budget(
            sequences=1 if self._lane.reference else sequences, calls=calls, seconds=seconds, derandomize=derandomize
        )
        hunt = Hunt(
            hold=functools.partial(self._hold_sequence, target, compile_with),
            why=functools.partial(not_held, self._limits, reference=self._lane.reference),
            budget=budget,
            where=Where.of(sys._getframe(1), lane=self.name),
        )
        with self.beside.left_out():
            return self._keep(hunt.through(drawn))

    def _hold_sequence(self, target: object, compile_with: Compiles, made: Sequence[Moded]) -> Held:
        __tracebackhide__ = True
        calls = [each.made for each in made]
        if not any(each.has_modes for each in made):
            return self._held(target, Forward(gradients=bool(self._limits.check_grads)), calls, compile_with)
        with placed(target, calls, device=self.device, dtype=self.dtype if self._lane.dtype else None) as moved:
            program = InModes.of(target, made, moved, gradients=bool(self._limits.check_grads))
            return self._held(uncompiled, program, (call(),), lambda _: compile_with or self.compile)

    def compile(self, target: Any, *, in_place: bool | None = None, **overrides: Any) -> Any:
        """Compile a function or module with the settings of the lane; keywords of torch.compile override them.

        With `in_place` (default: `in_place` of the lane) a module is compiled in place, as
        `module.compile()` does, and returned.
        """
        if self._lane.reference:
            return target
        if self._lane.is_xla:
            return compiled_by_xla(self._xla, self._lane, target, overrides)
        _refuse_replaced(self._paths)
        options = {**self._lane.compile_options(), **overrides}
        inside = self._lane.in_place if in_place is None else in_place
        if not isinstance(target, torch.nn.Module) or not inside:
            return torch.compile(target, **options)
        self._undo.callback(compile_in_place(target, options))
        return target

    @contextlib.contextmanager
    def observe(self) -> Iterator[Observation]:
        """Measure everything that is compiled inside the block, in any thread. Starts without compiled code."""
        _refuse_outside(self)
        _refuse_observing(self._lane)
        with observing(self._paths, self._lane) as seen:
            try:
                yield seen
            finally:
                self.measurements.append(seen.measurement)

    def _keep(self, held: Held) -> Measurement:
        __tracebackhide__ = True
        self.measurements.append(held.measurement)
        if held.error is not None:
            raise held.error
        return held.measurement

    def _held(self, target: object, program: Program, calls: Sequence[call], compile_with: Compiles) -> Held:
        __tracebackhide__ = True
        _refuse_outside(self)
        _refuse_target(target, compile_with)
        put_back = structure(target) if isinstance(target, torch.nn.Module) else None
        self._xla = calls_of(self._lane)
        runner = Runner(
            lane=self._lane,
            limits=self._limits,
            device=self.device,
            paths=self._paths,
            compile_target=self.compile if compile_with is None else functools.partial(_made, compile_with, put_back),
            timed=self._timed,
            helpers=() if compile_with is None else (compile_with,),
            turn=self.beside.next(),
            xla=self._xla,
        )
        dtype = self.dtype if self._lane.dtype else None
        try:
            with placed(target, calls, device=self.device, dtype=dtype) as made:
                return runner.hold(target, program, made)
        finally:
            self._xla = None
            if put_back is not None and compile_with is not None:
                put_back()


def _refuse_outside(lane: CompileLane) -> None:
    if not lane.open:
        raise UsageError("compile_lane measures in the body of the test, not in a fixture: only the body is judged")


def _trained(target: object) -> torch.nn.Module:
    """The target of a rung that trains what is run.

    Raises:
        UsageError: it is no module.
    """
    if not isinstance(target, torch.nn.Module):
        raise UsageError(f"frontier: 'train' trains what is run, a torch.nn.Module, got {type(target).__name__!r}")
    return target


def _refuse_training(trains: bool | None) -> None:
    if trains is not None:
        raise UsageError("frontier: 'train' is a rung of its own; write compile_lane.run, which trains from there on")


def _refuse_replaced(paths: Paths) -> None:
    if found := replaced_compile(paths):
        raise UsageError(f"torch.compile has been replaced by {found}: a lane needs torch's own")


def _refuse_observing(lane: Lane) -> None:
    if lane.is_xla:
        raise UsageError(f"compile_lane.observe sees what Dynamo compiles, and lane {lane.name!r} is XLA's")


def _named(given: object) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else repr(type(given).__name__)


def _refuse_uncallable(target: object, method: str) -> None:
    if not callable(target) or isinstance(target, type):
        raise UsageError(f"compile_lane.{method} takes a function or module, got {_named(target)}")


def _refuse_hunt(target: object, lane: Lane) -> None:
    _refuse_uncallable(target, "hunt")
    if is_shared(lane):
        raise UsageError("compile_lane.hunt draws calls for one process, and there are several ranks")


def _compares(limits: Limits, lane: Lane) -> bool:
    """Whether the author wants a comparison; with the fake group no lane makes one, whatever its limits say."""
    return limits.numerics is not None or lane.process_group == FAKE


def _refuse_body(body: object, reference: object, alone: object, *, compares: bool) -> None:
    if not callable(body) or isinstance(body, type):
        raise UsageError(f"compile_lane.compare takes a function of one argument, got {_named(body)}")
    if reference is not None and (not callable(reference) or isinstance(reference, type)):
        expected = "a function of one argument as the body is"
        raise UsageError(f"compile_lane.compare: reference= is {expected}, got {_named(reference)}")
    if alone is not None and (not callable(alone) or isinstance(alone, type)):
        raise UsageError(f"compile_lane.compare: alone= is a function without arguments, got {_named(alone)}")
    if alone is not None and not compares:
        raise UsageError("compile_lane.compare: alone= is compared with, and numerics=None compares nothing")


def _as_batches(batches: object) -> tuple[call, ...]:
    if not isinstance(batches, Iterable) or isinstance(batches, torch.Tensor):
        raise UsageError(f"compile_lane.train takes a list of batches, got {type(batches).__name__!r}")
    return _as_calls(tuple(batches), where="compile_lane.train")


def _in_one_list(batches: Sequence[object], more: tuple[object, ...]) -> Sequence[object]:
    """The batches of `train`, which come in one list; the calls of `run` are separate arguments.

    Raises:
        UsageError: there are arguments after them.
    """
    if more:
        raise UsageError("compile_lane.train takes one list of batches: write train(module, [batch, batch], ...)")
    return batches


def _training(module: torch.nn.Module, loss: Loss, optimizer: Optimizer, *, gradients: bool) -> Training:
    """The program that trains a module, with the default optimizer if none is given.

    Raises:
        UsageError: one of them has the wrong type.
    """
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"compile_lane.train takes a torch.nn.Module, got {type(module).__name__!r}")
    if loss is not None and (not callable(loss) or isinstance(loss, type)):
        raise UsageError(f"compile_lane.train: loss= is a function or module, got {_named(loss)}")
    if isinstance(optimizer, torch.optim.Optimizer):
        name = type(optimizer).__name__
        raise UsageError(
            f"compile_lane.train makes an optimizer for each run: write optimizer=torch.optim.{name}, or "
            f"optimizer=lambda parameters: torch.optim.{name}(parameters, lr=...)"
        )
    if optimizer is not None and not callable(optimizer):
        raise UsageError(f"compile_lane.train: optimizer= makes an optimizer, got {type(optimizer).__name__!r}")
    chosen = optimizer or functools.partial(torch.optim.SGD, lr=0.01)
    return Training(module=module, loss=loss, optimizer=chosen, gradients=gradients)


def _refuse_target(target: object, compile_with: object) -> None:
    if maker := made_by(target):
        raise UsageError(
            f"a {type(target).__name__} made by {maker} is not a target of torch.compile: "
            "give compile_lane the module or function that it was made from"
        )
    if isinstance(target, torch.nn.Module) and any(map(is_lazy, (*target.parameters(), *target.buffers()))):
        raise UsageError("the module has uninitialized lazy parameters: call it once first")
    if is_compiled(target):
        raise UsageError("the target is already compiled; give compile_lane the eager function or module")
    if compile_with is not None and not callable(compile_with):
        raise UsageError(f"compile_with= is a function of the target, got {type(compile_with).__name__!r}")


def _as_calls(values: Sequence[object], *, where: str) -> tuple[call, ...]:
    return as_calls([call(each) if isinstance(each, torch.Tensor) else each for each in values], where=where)


def _in_modes(values: Sequence[object], *, where: str) -> list[Moded]:
    """The calls, and the modes of those that were drawn with modes."""
    made = _as_calls([each.made if isinstance(each, Moded) else each for each in values], where=where)
    return [
        replace(value, made=each) if isinstance(value, Moded) else Moded(made=each)
        for value, each in zip(values, made, strict=True)
    ]


def _made(compile_with: Callable[[object], object], put_back: Callable[[], None] | None, target: object) -> object:
    """The result of `compile_with` for the target, which an earlier pass may have left compiled."""
    if put_back is not None:
        put_back()
    made = compile_with(target)
    if not callable(made):
        raise UsageError(f"compile_with= returned {type(made).__name__!r}: it returns what is to be called")
    return made
