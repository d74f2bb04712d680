"""Calls through XLA: a target as a program of its tensors, with its gradients, and a record of each call."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from pytest_compilecontract import clock
from pytest_compilecontract.errors import UsageError

from ..probes.xla_trees import Tree, apart
from ..state import State


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a program is made for: how it is called, the modes of its modules, and which tensors get a gradient.

    The tensors are those of the modules, by their `names`, and then the arguments.
    """

    tensors: tuple[str, ...]
    names: tuple[str, ...]
    called: Tree
    training: tuple[bool, ...]
    gradients: tuple[int, ...]

    def differs(self, earlier: Asked) -> str:
        """In what it differs from an earlier call of the same target."""
        if self.key == earlier.key:
            return "the same call was compiled before"
        for at, (now, was) in enumerate(zip(self.tensors, earlier.tensors, strict=False)):
            if now != was:
                name = self.names[at] if at < len(self.names) else f"input tensor {at - len(self.names)}"
                return f"{name} is {now}, and was {was}"
        if len(self.tensors) != len(earlier.tensors):
            given, before = (len(each.tensors) - len(each.names) for each in (self, earlier))
            return f"{given} input tensors, and {before} before"
        if self.training != earlier.training:
            return "modules are in another mode (train, eval)"
        if self.gradients != earlier.gradients:
            return "other tensors require a gradient"
        return "an argument that is no tensor has another value"

    @property
    def key(self) -> tuple[object, ...]:
        return self.tensors, self.called.told, self.training, self.gradients


@dataclass(kw_only=True, slots=True)
class Returned:
    """What a program returned: its tensors, the tree around them, and the inputs that it changed, by number.

    `constant` are those of its tensors that have no gradient.
    """

    tensors: list[torch.Tensor]
    tree: Tree
    changed: dict[int, torch.Tensor] = field(default_factory=dict)
    constant: frozenset[int] = frozenset()
    token: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """What an engine counted since it was last asked.

    `compiles` is what XLA says that it compiled, `programs` what was added to the cache of programs: two channels.
    `operations` are those of new programs, `ran` is how many of them the programs that were executed have, and
    `outside` are operators that ran outside of the programs, by name, and `breaks` what ended a program, and how often.
    """

    compiles: int = 0
    programs: int = 0
    executed: int = 0
    ran: int = 0
    operations: Mapping[str, int] = field(default_factory=dict)
    outside: Mapping[str, int] = field(default_factory=dict)
    breaks: Mapping[str, int] = field(default_factory=dict)


class Engine(Protocol):
    """Compiles and runs the programs of targets; `add` gives a target its number."""

    def add(self, module: torch.nn.Module, names: Sequence[str]) -> int: ...

    def forward(self, number: int, asked: Asked, tensors: Sequence[torch.Tensor]) -> Returned: ...

    def backward(self, token: Any, grads: Sequence[torch.Tensor]) -> list[torch.Tensor | None]: ...

    def counted(self) -> Counted: ...


@dataclass(kw_only=True, slots=True)
class Made:
    """One call of a target: what it compiled and ran, in its forward and then in its backward."""

    target: int
    asked: Asked
    seconds: float = 0.0
    forward: Counted = field(default_factory=Counted)
    backward: Counted | None = None
    # In what it differs from the last call of its target, if there was one.
    differs: str = ""

    @property
    def again(self) -> bool:
        return bool(self.differs)

    @property
    def parts(self) -> tuple[Counted, ...]:
        """Its forward, and its backward if there was one."""
        return (self.forward,) if self.backward is None else (self.forward, self.backward)


class _Target(torch.nn.Module):
    """The modules that a target reaches as children of one, whose tensors can be replaced during a call."""

    def __init__(self, function: Callable[..., object], modules: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.reached = torch.nn.ModuleList(modules)
        self.function = [function]

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.function[0](*args, **kwargs)


class Calls:
    """Compiles targets with an engine, and records their calls."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.made: list[Made] = []
        self.targets: list[object] = []

    def compile(self, target: Any) -> Any:
        """The target run by XLA: a module of the same type, keys and parameters, or a function."""
        if not callable(target) or isinstance(target, type):
            raise UsageError(f"an XLA lane compiles a function or module, got {type(target).__name__!r}")
        modules = [target] if isinstance(target, torch.nn.Module) else State(target).modules
        whole = _Target(target, modules)
        names = [name for name, _ in (*whole.named_parameters(), *whole.named_buffers())]
        number = self.engine.add(whole, names)
        self.targets.append(target)

        def run(*args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            return self._call(number, whole, names, args, kwargs)

        if not isinstance(target, torch.nn.Module):
            return functools.wraps(target)(run)
        clone = _called_whole(copy.copy(target), run)
        # The program runs the hooks, as part of the module.
        for name in [each for each in vars(clone) if each.endswith("_hooks")]:
            vars(clone)[name] = OrderedDict()
        vars(clone)["forward"] = run
        return clone

    def _call(
        self, number: int, whole: _Target, names: Sequence[str], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        __tracebackhide__ = True
        given, called = apart((args, kwargs))
        tensors = [*whole.parameters(), *whole.buffers(), *given]
        wanted = [at for at, each in enumerate(tensors) if each.requires_grad] if torch.is_grad_enabled() else []
        asked = Asked(
            tensors=tuple(f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}" for each in tensors),
            names=tuple(name.partition(".")[2].partition(".")[2] for name in names),
            called=called,
            training=tuple(each.training for each in whole.reached.modules()),
            gradients=tuple(wanted),
        )
        made = Made(target=number, asked=asked)
        before = [each for each in self.made if each.target == number]
        made.differs = asked.differs(before[-1].asked) if before else ""
        returned: list[Returned] = []
        self.engine.counted()
        started = clock.seconds()
        try:
            tensors_out = _Through.apply(self, made, returned, *tensors)  # type: ignore[no-untyped-call]
        finally:
            made.seconds = clock.seconds() - started
            made.forward = self.engine.counted()
            self.made.append(made)
        with torch.no_grad():
            for at, value in returned[0].changed.items():
                tensors[at].copy_(value)
        return returned[0].tree.filled(tensors_out)


def _called_whole(module: torch.nn.Module, run: Callable[..., object]) -> torch.nn.Module:
    """The module, of a type below its own if that has a `__call__`, which is part of the program then."""
    kind = type(module)
    if kind.__call__ is torch.nn.Module.__call__:
        return module

    def called(_self: object, *args: object, **kwargs: object) -> object:
        __tracebackhide__ = True
        return run(*args, **kwargs)

    module.__class__ = type(kind.__name__, (kind,), {"__call__": called, "__module__": kind.__module__})
    return module


class _Through(torch.autograd.Function):
    """A program in autograd's graph: the gradients of its inputs are computed by a program, too."""

    @staticmethod
    def forward(ctx: Any, calls: Calls, made: Made, returned: list[Returned], *tensors: torch.Tensor) -> Any:
        __tracebackhide__ = True
        with torch.set_grad_enabled(bool(made.asked.gradients)):
            found = calls.engine.forward(made.target, made.asked, [each.detach() for each in tensors])
        returned.append(found)
        ctx.calls, ctx.made, ctx.token = calls, made, found.token
        ctx.mark_non_differentiable(*[each for at, each in enumerate(found.tensors) if at in found.constant])
        return tuple(found.tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        calls, made = ctx.calls, ctx.made
        calls.engine.counted()
        try:
            found = calls.engine.backward(ctx.token, grads)
        finally:
            made.backward = calls.engine.counted()
        return (None, None, None, *found)
