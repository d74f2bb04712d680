"""Programs: how a contract calls its target, the same in every run: forward calls, training steps, or a body."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from pytest_compilecontract.calls import call
from pytest_compilecontract.errors import UsageError

from . import numerics
from .probes.alive import Watch
from .shapes import Moded
from .structure import WRAPPER, Structure


@dataclass(kw_only=True, slots=True)
class Trail:
    """The results of one run of a program: snapshots by group, and the exception that ended it.

    `context` is a copy, for a context variable without a value cannot be reset: it is lost with the copy. `like` is the
    eager run that this one is compared with, unless it is that run; a `reference` is one in a wider precision. Of a run
    whose tensors are `wanted` at some places alone, no others are kept.
    `structure` is None if the run raised.
    """

    groups: dict[str, list[numerics.Snapshot]] = field(default_factory=dict)
    before: list[numerics.Snapshot] = field(default_factory=list)
    aliases: set[tuple[str, str]] = field(default_factory=set)
    facts: dict[tuple[str, str], str] = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch)
    alive: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    error: Exception | None = None
    error_at: int = 0
    random: bool = False
    context: Context = field(default_factory=copy_context)
    like: Trail | None = None
    reference: bool = False
    wanted: frozenset[str] | None = None
    structure: Structure | None = None

    def note(self, group: str, value: object, at: str, *, step: str = "") -> numerics.Snapshot:
        """Keep a snapshot of a value, under the place `at`; `step` as in `numerics.snapshot`."""
        found = self.groups.setdefault(group, [])
        others = self.like.groups.get(group, []) if self.like is not None else []
        like = others[len(found)].nodes if len(found) < len(others) else {}
        kept = numerics.snapshot(value, at=at, step=step, like=like, reference=self.reference, wanted=self.wanted)
        found.append(kept)
        return kept

    def leave_out(self, group: str, at: str, reason: str) -> None:
        """Note that what should be at a place cannot be compared."""
        unread = numerics.Opaque(type="Tensor", unread=reason)
        self.groups.setdefault(group, []).append(numerics.Snapshot(nodes={at: unread}))

    def run(self) -> numerics.Run:
        """The trail as the numerics compare it."""
        return numerics.Run(
            groups={name: numerics.joined(each) for name, each in self.groups.items()},
            before=numerics.joined(self.before),
            aliases=frozenset(self.aliases),
            facts=self.facts,
        )


def uncompiled(target: object, **_overrides: object) -> object:
    """What a body compiles with in the eager runs: returns its argument."""
    return target


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The context of each forward, what runs before each backward, and the tensors that the target reaches.

    A run that is not `recorded` keeps nothing in its trail, and does only what the user's program would.
    """

    autocast: Callable[[], AbstractContextManager[object]]
    before_backward: Callable[[torch.Tensor], None]
    leaves: Mapping[str, torch.Tensor]
    recorded: bool = True


Step = Callable[[call, Trail, str], object]


class Program(Protocol):
    """Makes the steps of one run; `run` is the target or its compiled form."""

    @property
    def unit(self) -> str: ...

    @property
    def reaches(self) -> tuple[object, ...]:
        """The objects with state besides the target."""
        ...

    def start(self, run: Callable[..., object], around: Surroundings) -> Step: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Forward:
    """Forward calls; with `gradients`, each is followed by a backward through its outputs."""

    gradients: bool
    unit: str = "call"
    reaches: tuple[object, ...] = ()

    def start(self, run: Callable[..., object], around: Surroundings) -> Step:
        gradients = _Gradients(around) if self.gradients else None

        def step(arguments: call, trail: Trail, at: str) -> object:
            __tracebackhide__ = True
            leaves = gradients.leaves(arguments) if gradients is not None else {}
            with around.autocast():
                output = run(*arguments.args, **arguments.kwargs)
            if gradients is not None:
                gradients.through(output, leaves, trail, at)
            return output

        return step


class _Gradients:
    """A backward through the outputs of each call, and the gradients that it leaves."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._ones: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}
        # The leaves that had a gradient before any call.
        self._own: set[int] | None = None

    def leaves(self, arguments: call) -> dict[str, torch.Tensor]:
        """The tensors in which a call may leave gradients, without those of the previous call."""
        leaves = dict(self._around.leaves)
        for index, tensor in enumerate(numerics.tensors_in((arguments.args, arguments.kwargs))):
            leaves.update((f"input tensor {index}", leaf) for leaf in numerics.leaves_of(tensor))
        bare = [each for each in leaves.values() if each.is_leaf]
        if self._own is None:
            self._own = {id(each) for each in bare if each.grad is not None}
        for leaf in bare:
            # Each call has gradients of its own: to those that CUDA graphs hold nothing can be added. What the
            # user had there stays, for the target may read it.
            if id(leaf) not in self._own:
                leaf.grad = None
        return leaves

    def through(self, output: object, leaves: Mapping[str, torch.Tensor], trail: Trail, at: str) -> None:
        """Run backward from an output, and keep the gradients."""
        __tracebackhide__ = True
        roots, without = _roots(output)
        if roots and without:
            # torch guesses that every output gets a gradient of its own kind: none of part of them can be taken.
            for index, reason in enumerate(without):
                trail.leave_out("grad", f"{at} grad of output {index}", reason)
            return
        if not self._around.recorded:
            torch.autograd.backward(roots, [self._upstream(each) for each in roots])
            return
        root = _weighted_sum(roots, without)
        self._around.before_backward(root)
        root.backward()  # type: ignore[no-untyped-call]
        grads = {name: each.grad for name, each in leaves.items() if each.requires_grad and each.is_leaf}
        trail.note("grad", grads, f"{at} grad")

    def _upstream(self, root: torch.Tensor) -> torch.Tensor:
        # Made once, so that it is not part of the steps after.
        key = (root.shape, root.dtype)
        if key not in self._ones:
            self._ones[key] = torch.ones_like(root)
        return self._ones[key]


@dataclass(frozen=True, kw_only=True, slots=True)
class Body:
    """A body that builds, compiles and calls by itself; `run` is what it compiles with. Its output is what it returns.

    `reference` runs instead of it if `run` is `uncompiled`. `alone` returns the same without ranks.
    """

    body: Callable[[Callable[..., object]], object]
    reference: Callable[[Callable[..., object]], object] | None = None
    alone: Callable[[], object] | None = None
    unit: str = "body"

    @property
    def reaches(self) -> tuple[object, ...]:
        return tuple(each for each in (self.body, self.reference, self.alone) if each is not None)

    @property
    def without_ranks(self) -> Body | None:
        """The program of one process, if there is one."""
        alone = self.alone
        return None if alone is None else Body(body=lambda _compile: alone())

    def start(self, run: Callable[..., object], around: Surroundings) -> Step:
        body = self.reference if self.reference is not None and run is uncompiled else self.body

        def step(_arguments: call, _trail: Trail, _at: str) -> object:
            __tracebackhide__ = True
            with around.autocast():
                return body(run)

        return step


@dataclass(frozen=True, kw_only=True, slots=True)
class InModes(Body):
    """Calls of `body`, each in its modes; with `gradients`, a backward follows each that has gradients enabled."""

    made: Sequence[Moded]
    gradients: bool

    @classmethod
    def of(cls, target: Any, made: Sequence[Moded], moved: Sequence[call], *, gradients: bool) -> InModes:
        """The program for the calls `made`, after they were moved."""
        calls = [replace(each, made=there) for each, there in zip(made, moved, strict=True)]
        return cls(body=target, made=calls, gradients=gradients)

    def start(self, run: Callable[..., Any], around: Surroundings) -> Step:
        gradients = _Gradients(around) if self.gradients else None

        def step(_arguments: call, trail: Trail, at: str) -> object:
            __tracebackhide__ = True
            compiled, results = run(self.body), []
            modules = [each for each in (self.body, compiled) if isinstance(each, torch.nn.Module)]
            # All at once: what the calls share, they still share.
            copies = numerics.Copies({}).of([(each.made.args, each.made.kwargs) for each in self.made])
            for index, (each, (args, kwargs)) in enumerate(zip(self.made, copies, strict=True)):
                if each.training is not None:
                    for module in modules:
                        module.train(each.training)
                on = torch.is_grad_enabled() if each.grad is None else each.grad
                leaves = gradients.leaves(call(*args, **kwargs)) if gradients is not None else {}
                with torch.set_grad_enabled(on), around.autocast():
                    results.append(compiled(*args, **kwargs))
                if gradients is not None and on:
                    gradients.through(results[-1], leaves, trail, f"{at} call {index}")
            return results

        return step


def returns_results(program: Program) -> bool:
    """Whether it is code of the test's own, which returns what is to be looked at."""
    return isinstance(program, Body) and not isinstance(program, InModes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Whole steps: forward, loss, backward, optimizer step, zero_grad."""

    module: torch.nn.Module
    loss: Callable[..., torch.Tensor] | None
    optimizer: Callable[..., object]
    gradients: bool
    unit: str = "step"

    @property
    def reaches(self) -> tuple[object, ...]:
        return (self.loss,) if isinstance(self.loss, torch.nn.Module) else ()

    def _made_optimizer(self) -> Any:
        parameters = [each for each in self.module.parameters() if each.requires_grad]
        if not parameters:
            raise UsageError("compile_lane.train: the module has no parameter that requires a gradient")
        optimizer = self.optimizer(parameters)
        if not callable(getattr(optimizer, "step", None)) or not callable(getattr(optimizer, "zero_grad", None)):
            made = type(optimizer).__name__
            raise UsageError(f"compile_lane.train: optimizer= made a {made}, which has no step and zero_grad")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UsageError("compile_lane.train: optimizer= made an LBFGS, which runs more than one forward a step")
        return optimizer

    def start(self, run: Callable[..., object], around: Surroundings) -> Step:
        optimizer = self._made_optimizer()
        extra = extra_arguments(self.loss)
        initial: numerics.Snapshot | None = None

        def step(batch: call, trail: Trail, at: str) -> object:
            nonlocal initial
            __tracebackhide__ = True
            if around.recorded and trail.like is None and initial is None:
                initial = numerics.snapshot(_named(self.module.named_parameters()), at="start")
            inputs, targets = _split(batch.args, extra)
            with around.autocast():
                output = run(*inputs, **batch.kwargs)
                loss = _own_loss(output) if self.loss is None else self.loss(output, *targets)
            _refuse_what_is_no_loss(loss)
            around.before_backward(loss)
            loss.backward()  # type: ignore[no-untyped-call]
            if not around.recorded:
                optimizer.step()
                optimizer.zero_grad()
                return output
            trail.note("loss", loss, f"{at} loss")
            named = _named(self.module.named_parameters())
            if self.gradients:
                trail.note("grad", {name: each.grad for name, each in named.items()}, f"{at} grad", step=at)
            optimizer.step()
            # An optimizer may make a whole step of a gradient that is rounding noise: the judge sees its size.
            if initial is not None:
                trail.before.append(numerics.renamed(initial, "start", f"{at} parameter"))
            trail.note("parameter", named, f"{at} parameter", step=at)
            trail.note("buffer", _named(self.module.named_buffers()), f"{at} buffer", step=at)
            optimizer.zero_grad()
            return output

        return step


def _named(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The tensors by name, without the prefix of torch.compile's wrapper around a part of the module."""
    return {name.replace(WRAPPER, ""): tensor for name, tensor in tensors}


def _refuse_what_is_no_loss(loss: object) -> None:
    if not isinstance(loss, torch.Tensor):
        raise UsageError(f"compile_lane.train: the loss is a {type(loss).__name__}, not a tensor")
    if loss.numel() != 1:
        raise UsageError(f"compile_lane.train: the loss has shape {list(loss.shape)}, not one number")
    if not loss.requires_grad:
        raise UsageError("compile_lane.train: the loss does not depend on a parameter that requires a gradient")


def extra_arguments(loss: Callable[..., object] | None) -> int:
    """How many arguments a loss requires besides the output: the last ones of each batch."""
    if loss is None:
        return 0
    target = loss.forward if isinstance(loss, torch.nn.Module) else loss
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # a function of torch's own, written in C: torch.mean
        return 0
    required = [
        each
        for each in parameters
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    return max(len(required) - 1, 0)


def _split(args: tuple[object, ...], extra: int) -> tuple[tuple[object, ...], tuple[object, ...]]:
    if len(args) <= extra and extra:
        raise UsageError(
            f"compile_lane.train: the loss takes {extra} more than the output, but a batch has {len(args)} arguments "
            "(the model's come first, the loss's last)"
        )
    return args[: len(args) - extra], args[len(args) - extra :]


def _own_loss(output: object) -> torch.Tensor:
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    if isinstance(output, torch.Tensor) and output.dim() == 0:
        return output
    floating, without = numerics.roots_in(output)
    squares = [each.float().square().mean() for each in floating]
    if not squares:
        why = f" ({without[0]})" if without else ""
        raise UsageError(
            f"compile_lane.train: the output has no floating-point tensor to make a loss from{why}; give loss="
        )
    return torch.stack(squares).sum()


def _roots(output: object) -> tuple[list[torch.Tensor], list[str]]:
    """The plain tensors from which a backward starts, and why others have none."""
    found, without = numerics.roots_in(output)
    return [each for each in found if each.requires_grad], without


def _weighted_sum(roots: list[torch.Tensor], without: list[str]) -> torch.Tensor:
    """A scalar that gives each element a different gradient: a plain sum is constant after a softmax."""
    weighted = [(each.double() * _weights(each)).sum().to(each.device) for each in roots]
    if not weighted:
        why = f": {without[0]}" if without else ""
        raise UsageError(f"check_grads=True, but no output requires a gradient{why}")
    return torch.stack(weighted).sum()


def _weights(tensor: torch.Tensor) -> torch.Tensor:
    # Not from a generator: the run's own random numbers must not move.
    return torch.linspace(0.5, 1.5, tensor.numel(), dtype=torch.float64, device=tensor.device).reshape(tensor.shape)
