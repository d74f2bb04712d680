"""Planting: a fault inserted between Dynamo and the lane's backend, or around what is compiled, during a test.

A run without a fault comes first and finds the sites for each: `Looking`. The faults are in `facts.faults`, and what is
patched in torch in `probes.seams`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from pytest_compilecontract.errors import message_of
from pytest_compilecontract.facts.faults import (
    FAULTS,
    AliasesInput,
    AliasLost,
    Around,
    DeviceFault,
    FactFault,
    Fault,
    FrameFault,
    FrameGivenBack,
    GradientFault,
    GraphBreakMore,
    GraphSkipped,
    HostSync,
    InputWritten,
    KernelMore,
    LimitReached,
    MemoryKept,
    NotUpdated,
    OutputFault,
    ParameterWritten,
    Raises,
    RandomDrawn,
    RecompileMore,
    Stale,
)
from pytest_compilecontract.facts.measurement import Call

from .passes import Kind, watched
from .probes.seams import Seams, Turn, breaking, depending, given_back, lower_recompile_limit

KEPT_BYTES = 1 << 20
THIRD = 2
# What comes of these is seen in what the call was given; of all others, in what it gives.
NEAR_INPUTS = (InputWritten, ParameterWritten, AliasesInput, NotUpdated)
Change = Callable[[torch.Tensor], torch.Tensor]


class PlantedError(RuntimeError):
    """What a planted fault raises."""


class _Changed(torch.autograd.Function):
    """Replaces a tensor by another of the same shape, and keeps its gradient."""

    @staticmethod
    def forward(_ctx: object, tensor: torch.Tensor, change: Change) -> torch.Tensor:
        return change(tensor)

    # A backward that runs within a compiled call would be compiled as well, and counted.
    @staticmethod
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def backward(_ctx: object, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class _OtherGradient(torch.autograd.Function):
    """The identity in forward, with another gradient in backward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, change: Callable[[object], object]) -> torch.Tensor:
        ctx.change = change
        return tensor.view_as(tensor)

    @staticmethod
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[object, None]:
        return ctx.change(grad), None


class _Seam:
    """Counts the graphs that run, from the start of each pass over the calls."""

    def __init__(self) -> None:
        self.executed = 0
        self.compiled = 0  # things given to torch.compile
        self._graphs = 0
        self.missing = ""
        self.problem = ""
        self._eager = False
        self.steady = False  # within steps that are made for what a device shows

    def restart(self) -> None:
        """Another pass over the calls begins."""
        self.executed = 0
        self._graphs = 0

    def next_number(self) -> int:
        """The number of a graph, in the order in which the graphs of a pass are compiled."""
        self._graphs += 1
        return self._graphs - 1

    @contextlib.contextmanager
    def entered(self, fault: Fault | None) -> Iterator[object]:
        """Open the seams, for one run of a test."""
        targets = self.target if fault is None or isinstance(fault, FrameFault) else None
        seams = Seams(
            graphs=self._graph,
            targets=self._target if targets is not None else None,
            cuda_graphs=not isinstance(fault, GraphSkipped),
        )
        with watched(self._of_pass), seams:
            self.missing = seams.missing
            yield self

    @contextlib.contextmanager
    def _of_pass(self, kind: Kind) -> Iterator[None]:
        """A pass. In the eager ones no fault is planted, although torch.cond compiles there too."""
        if kind not in ("float64", "steady"):
            self.restart()
        before = self._eager, self.steady
        self._eager, self.steady = kind in ("eager", "float64"), kind == "steady"
        try:
            yield
        finally:
            self._eager, self.steady = before

    def _graph(self, compiled: Callable[..., object]) -> Callable[..., object]:
        if self._eager:
            return compiled
        other = self.graph(compiled)
        return lambda *args: compiled(*args) if self._eager else other(*args)

    def _target(self, given: object) -> Callable[..., object] | None:
        return None if self._eager else self.target(given)

    def graph(self, compiled: Callable[..., object]) -> Callable[..., object]:
        """What runs in place of a compiled graph."""
        raise NotImplementedError

    def target(self, given: object) -> Callable[..., object] | None:
        """What is compiled in place of the target; None leaves it."""
        raise NotImplementedError


class Looking(_Seam):
    """A run without a fault, which finds the sites for each fault.

    `sites` are, by the fault's name, where it fits and changes something: when in a pass, in which graph in order of
    compilation, and at which output or input. `idle` are the faults that fit and would change nothing, such as zeros
    in place of zeros.
    """

    def __init__(self, faults: Sequence[Fault] = FAULTS) -> None:
        super().__init__()
        self.sites: dict[str, list[tuple[int, int, int]]] = {}
        self.idle: set[str] = set()
        self.graphs_run = 0
        self._faults = [each for each in faults if isinstance(each, (OutputFault, Around, GradientFault))]
        self._first: dict[tuple[int, int], torch.Tensor] = {}

    def site(self, fault: Fault, starts: Sequence[int]) -> tuple[int, int] | None:
        """Where to plant a fault: in the first call that it makes wrong, near its inputs or outputs."""
        found = self.sites.get(fault.name, [])
        wrong = {"third": THIRD, "last": len(starts) - 1}.get(fault.calls, 0)
        calls = starts[wrong:] if fault.calls != "third" else starts[wrong : wrong + 1]
        for start in calls:
            until = next((each for each in starts if each > start), None)
            if within := [each for each in found if start <= each[0] and (until is None or each[0] < until)]:
                return within[0 if isinstance(fault, NEAR_INPUTS) else -1][1:]
        return None

    def target(self, given: object) -> Callable[..., object] | None:
        self.compiled += 1
        return None

    def graph(self, compiled: Callable[..., object]) -> Callable[..., object]:
        number = self.next_number()

        def run(*args: object) -> object:
            if self.steady:
                # What looks here would be among the kernels, the waits and the memory that are counted.
                return compiled(*args)
            before = _copies(args)
            results = compiled(*args)
            # Nothing that is looked at here may break the run.
            with contextlib.suppress(Exception), torch.no_grad():
                self._look(number, args, before, results)
            self.executed += 1
            self.graphs_run = max(self.graphs_run, self.executed)
            return results

        return run

    def _look(self, number: int, args: Sequence[object], before: Sequence[object], results: object) -> None:
        for fault in self._faults:
            for at in _places(fault, args, before, results):
                if self._changes(fault, number, at, results):
                    self.sites.setdefault(fault.name, []).append((self.executed, number, at))
                    break
                self.idle.add(fault.name)

    def _changes(self, fault: Fault, number: int, at: int, results: Any) -> bool:
        """Whether a fault would change anything there."""
        if isinstance(fault, Stale):
            known = self._first.setdefault((number, at), results[at].detach().clone())
            return known.shape == results[at].shape and not _same(known, results[at])
        if isinstance(fault, FactFault) or not isinstance(fault, OutputFault):
            return True
        return not _same(results[at], _detached(fault.change, results[at]))


class Planting(_Seam):
    """A run with one fault, at a site that `Looking` found.

    `starts` are the numbers of graphs that have run when each call of a pass begins, `steady` that before a call that
    compiles nothing. `placed` counts how often the fault was planted, `took` how often it changed anything, `asked` the
    gradients that were requested there; `problem` says why it could not be planted.
    """

    def __init__(
        self, fault: Fault, *, site: tuple[int, int] | None, starts: Sequence[int], steady: int | None
    ) -> None:
        super().__init__()
        self.fault = fault
        self.placed = 0
        self.took = 0
        self.asked = 0  # gradients that were asked for
        self._starts = starts
        self._steady = steady
        self._site = site
        self._first: torch.Tensor | None = None
        self._turn = Turn()
        self._kept: list[torch.Tensor] = []

    def restart(self) -> None:
        super().restart()
        self._first = None

    # what is compiled

    def target(self, given: Any) -> Callable[..., object]:
        self.compiled += 1
        fault = self.fault
        if isinstance(fault, GraphBreakMore):
            self._take()
            return breaking(given)
        if isinstance(fault, FrameGivenBack):
            self._take()
            return given_back(given)
        if isinstance(fault, LimitReached):
            self.problem = lower_recompile_limit()
        return depending(given, self._turn)

    def _take(self) -> None:
        self.placed += 1
        self.took += 1

    def _turn_over(self) -> None:
        """Change the value that the compiled function depends on, if the fault needs that before the next call."""
        wanted = isinstance(self.fault, LimitReached) or (
            isinstance(self.fault, RecompileMore) and self._steady is not None and self.executed == self._steady
        )
        if wanted and self.compiled:
            self._turn.value = f"{self._turn.value}x"
            self._take()

    # what runs

    def graph(self, compiled: Callable[..., object]) -> Callable[..., object]:
        number = self.next_number()

        def run(*args: object) -> object:
            try:
                return self._run(compiled, number, args)
            finally:
                self.executed += 1
                self._turn_over()

        return run

    def _run(self, compiled: Callable[..., object], number: int, args: tuple[object, ...]) -> object:
        fault = self.fault
        if isinstance(fault, Raises):
            self._take()
            raise PlantedError("a planted fault")
        before = _copies(args) if isinstance(fault, NotUpdated) else ()
        results = compiled(*args)
        if not self._is_wrong_now():
            return results
        try:
            if isinstance(fault, OutputFault):
                return self._with_output(number, args, results)
            if isinstance(fault, GradientFault):
                return self._with_gradient(number, args, results)
            if isinstance(fault, DeviceFault):
                self._on_device(results)
                return results
            return self._around(number, args, before, results)
        except Exception as error:  # noqa: BLE001 - what cannot be planted is no fault of the program's
            self.problem = f"{type(error).__name__}: {message_of(error)}".splitlines()[0]
            return results

    def _is_wrong_now(self) -> bool:
        if isinstance(self.fault, FrameFault):
            return False
        if self.fault.calls == "every":
            return True
        if self.fault.calls == "last":
            return bool(self._starts) and self.executed >= self._starts[-1]
        until = self._starts[THIRD + 1] if len(self._starts) > THIRD + 1 else None
        return len(self._starts) > THIRD and self._starts[THIRD] <= self.executed < (until or self.executed + 1)

    def _with_output(self, number: int, args: Sequence[object], results: Any) -> object:
        fault, at = self.fault, self._place(number, args, (), results)
        assert isinstance(fault, OutputFault)
        if at is None:
            return results
        tensor = results[at]
        change: Change = fault.change
        if isinstance(fault, Stale):
            if self._first is None:
                self._first = tensor.detach().clone()
            if self._first.shape != tensor.shape:
                return results
            change = functools.partial(_again, self._first)
        if not isinstance(fault, FactFault) and _same(tensor, _detached(change, tensor)):
            return results
        self._take()
        return _replaced(results, at, _with_gradient_kept(change, tensor) if fault.keeps_gradient else change(tensor))

    def _place(self, number: int, args: Sequence[object], before: Sequence[object], results: object) -> int | None:
        """Which of a graph's outputs or inputs; None if the site is in another graph, or no longer fits."""
        if self._site is None or self._site[0] != number:
            return None
        return self._site[1] if self._site[1] in set(_places(self.fault, args, before, results)) else None

    def _with_gradient(self, number: int, args: Sequence[object], results: Any) -> object:
        fault, at = self.fault, self._place(number, args, (), results)
        assert isinstance(fault, GradientFault)
        if at is None:
            return results

        def other(grad: torch.Tensor) -> object:
            self.asked += 1
            changed = fault.gradient(grad)
            if changed is None or not _same(grad, changed):
                self.took += 1
            return changed

        self.placed += 1
        changed = _OtherGradient.apply(results[at], other)  # type: ignore[no-untyped-call]
        return _replaced(results, at, changed)

    def _around(self, number: int, args: Sequence[Any], before: Sequence[object], results: Any) -> object:
        fault = self.fault
        if isinstance(fault, RandomDrawn):
            torch.rand(1)
            self._take()
            return results
        at = self._place(number, args, before, results)
        if at is None:
            return results
        if isinstance(fault, (InputWritten, ParameterWritten)):
            place = args[at].data
            place[(0,) * place.dim()] += 1
        elif isinstance(fault, NotUpdated):
            args[at].data.copy_(before[at])
        elif isinstance(fault, AliasLost):
            results = _replaced(results, at, results[at].clone())
        else:
            assert isinstance(fault, AliasesInput)
            results = _in_memory_of_an_input(args, results, at)
        self._take()
        return results

    def _on_device(self, results: object) -> None:
        fault = self.fault
        tensor = next((each for each in _tensors(results) if each.is_cuda and each.numel()), None)
        if tensor is None:
            return
        if isinstance(fault, HostSync):
            tensor.detach().reshape(-1)[0].item()
        elif isinstance(fault, KernelMore):
            tensor.detach().reshape(-1)[:1].float().cos()
        elif isinstance(fault, MemoryKept):
            self._kept.append(torch.empty(KEPT_BYTES, dtype=torch.uint8, device=tensor.device))
        self._take()


def starts_of(calls: Sequence[Call] | None, executed: int) -> tuple[int, ...]:
    """How many graphs have run when each call begins. If calls are not counted, each graph that runs is one."""
    if calls is None:
        return tuple(range(executed))
    ran = [each.graphs_executed or 0 for each in calls]
    return tuple(itertools.accumulate(ran[:-1], initial=0)) if ran else ()


def steady_of(calls: Sequence[Call] | None, starts: Sequence[int]) -> int | None:
    """How many graphs have run before a call that compiles nothing; None if only one call is made.

    It is the last such call, so that every size has occurred by then.
    """
    if calls is None:
        return starts[1] if len(starts) > 1 else None
    steady = [at for at, each in enumerate(calls) if each.phase == "steady" and at and starts[at]]
    return starts[steady[-1]] if steady else None


def _places(fault: Fault, args: Sequence[object], before: Sequence[object], results: object) -> Iterator[int]:
    """The outputs, or inputs, that a fault applies to; those that share no memory first."""
    if isinstance(fault, RandomDrawn | Raises):
        yield 0
        return
    if isinstance(fault, (InputWritten, ParameterWritten, NotUpdated)):
        yield from _inputs(fault, args, before)
        return
    if not isinstance(results, (tuple, list)):
        return
    outputs = [at for at, each in enumerate(results) if _is_plain(each)]
    shared = [at for at in outputs if any(_share(results[at], each) for each in args)]
    if isinstance(fault, AliasLost):
        yield from shared
        return
    for at in sorted(outputs, key=lambda at: at in shared):
        tensor = results[at]
        if isinstance(fault, OutputFault):
            fits = fault.fits(tensor)
        elif isinstance(fault, GradientFault):
            fits = tensor.requires_grad and bool(tensor.numel())
        else:
            fits = at not in shared and any(_has_room(each, tensor) for each in args)
        if fits:
            yield at


def _inputs(fault: Fault, args: Sequence[Any], before: Sequence[Any]) -> Iterator[int]:
    for at, tensor in enumerate(args):
        if not _is_plain(tensor) or not tensor.numel():
            continue
        if isinstance(fault, NotUpdated):
            if before[at] is not None and not _same(tensor, before[at]):
                yield at
        elif tensor.is_floating_point():
            parameter = isinstance(tensor, torch.nn.Parameter)
            if parameter == isinstance(fault, ParameterWritten):
                yield at


def _is_plain(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided


def _tensors(results: object) -> list[torch.Tensor]:
    return [each for each in results if _is_plain(each)] if isinstance(results, (tuple, list)) else []


def _copies(args: Sequence[Any]) -> list[object]:
    return [each.detach().clone() if _is_plain(each) else None for each in args]


def _share(one: torch.Tensor, other: Any) -> bool:
    if not _is_plain(other) or not one.numel() or not other.numel() or one.device != other.device:
        return False
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())


def _has_room(donor: Any, tensor: torch.Tensor) -> bool:
    """Whether an output could lie in an input's memory."""
    if not _is_plain(donor) or isinstance(donor, torch.nn.Parameter) or donor.dtype != tensor.dtype:
        return False
    if donor.device != tensor.device or not tensor.numel() or not (tensor.is_contiguous() and donor.is_contiguous()):
        return False
    room = donor.untyped_storage().nbytes() // donor.element_size() - donor.storage_offset()
    return bool(tensor.numel() <= min(room, donor.numel()))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same values, NaN included. A copy of an expanded tensor has other strides."""
    if (one.dtype, one.shape, one.device) != (other.dtype, other.shape, other.device):
        return False
    if one.device.type == "meta":
        return True
    mine, theirs = one.detach(), other.detach()
    return bool(((mine == theirs) | ((mine != mine) & (theirs != theirs))).all())


def _in_memory_of_an_input(args: Sequence[Any], results: Any, at: int) -> object:
    """The results, with one of them written into an input."""
    tensor = results[at]
    donor = next(each for each in args if _has_room(each, tensor))

    def change(value: torch.Tensor) -> torch.Tensor:
        place = value.new_empty(0)
        place.set_(donor.untyped_storage(), donor.storage_offset(), value.size(), value.stride())
        return place.copy_(value.detach())

    return _replaced(results, at, _with_gradient_kept(change, tensor))


def _with_gradient_kept(change: Change, tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.requires_grad or not torch.is_grad_enabled():
        return _detached(change, tensor)
    changed: torch.Tensor = _Changed.apply(tensor, change)  # type: ignore[no-untyped-call]
    return changed


def _detached(change: Change, tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return change(tensor.detach())


def _again(first: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().copy_(first)


def _replaced(results: Any, at: int, tensor: torch.Tensor) -> object:
    return type(results)(tensor if index == at else each for index, each in enumerate(results))
