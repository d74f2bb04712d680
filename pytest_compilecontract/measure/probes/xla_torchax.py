"""XLA by way of torchax: a target as a function of JAX arrays, compiled by jax.jit.

jax.monitoring says what XLA compiled; the cache of each jitted function says it again.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..xla.calls import Asked, Counted, Returned
from .xla_trees import Tree, apart

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
# What XLA calls back into Python for, in the text of a program.
CALLBACK = re.compile(r"custom_call[^\n]*@(\w*callback\w*)")
OPERATION = re.compile(r"= \"?stablehlo\.(\w+)")
# No operation of the model's: a value that the program was given.
NOT_COUNTED = ("constant",)
# A value that is not known while the program is made; an operator that is not in torchax.
NOT_TRACED = ("JAXTypeError", "JAXIndexError", "OperatorNotFound")


@dataclass(kw_only=True, slots=True)
class _Program:
    """The jitted functions of one way to call a target; what is in it besides is known once it is traced."""

    forward: Any = None
    backward: Any = None
    tree: Tree | None = None
    floating: tuple[bool, ...] = ()
    changed: tuple[int, ...] = ()


@dataclass(kw_only=True, slots=True)
class _Added:
    module: torch.nn.Module
    names: tuple[str, ...]
    programs: dict[object, _Program] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class _Seen:
    """What was heard and counted since the last question."""

    events: list[str] = field(default_factory=list)
    programs: int = 0
    executed: int = 0
    ran: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)
    breaks: Counter[str] = field(default_factory=Counter)


class Torchax:
    """Programs of JAX's, on the CPU plugin of PJRT."""

    def __init__(self) -> None:
        switch = torch.backends.mha.get_fastpath_enabled()
        self._jax: Any = importlib.import_module("jax")
        torchax: Any = importlib.import_module("torchax.tensor")
        # Importing it turns this off, for all of the process.
        torch.backends.mha.set_fastpath_enabled(switch)
        self._numpy: Any = importlib.import_module("numpy")
        self._env = torchax.Environment()
        self._tensor: type = torchax.Tensor
        self._targets: list[_Added] = []
        self._texts: dict[int, str] = {}
        self._seen = _Seen()

    def add(self, module: torch.nn.Module, names: Sequence[str]) -> int:
        self._targets.append(_Added(module=module, names=tuple(names)))
        return len(self._targets) - 1

    def forward(self, number: int, asked: Asked, tensors: Sequence[torch.Tensor]) -> Returned:
        __tracebackhide__ = True
        added = self._targets[number]
        program = added.programs.get(asked.key)
        if program is None:
            program = added.programs[asked.key] = self._program(added, asked)
        with self._jax.enable_x64(True):
            found = self._run(program.forward, [self._put(each) for each in tensors])
        (floating, (others, changed)), vjp = found if asked.gradients else (found, None)
        tree = program.tree
        assert tree is not None
        if host := [type(each).__name__ for _, each in tree.rest if isinstance(each, torch.Tensor)]:
            self._seen.outside.update(f"output as a {each} of the CPU" for each in host)
        values = [iter(others), iter(floating)]
        return Returned(
            tensors=[self._take(next(values[is_floating])) for is_floating in program.floating],
            tree=tree,
            changed={at: self._take(each) for at, each in zip(program.changed, changed, strict=True)},
            constant=frozenset(at for at, is_floating in enumerate(program.floating) if not is_floating),
            token=(program, vjp, asked, len(tensors)),
        )

    def backward(self, token: Any, grads: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        program, vjp, asked, count = token
        with self._jax.enable_x64(True):
            wanted = tuple(self._put(each) for each, floats in zip(grads, program.floating, strict=True) if floats)
            found = self._run(program.backward, vjp, wanted)
        result: list[torch.Tensor | None] = [None] * count
        for at, each in zip(asked.gradients, found, strict=True):
            result[at] = self._take(each)
        return result

    def counted(self) -> Counted:
        seen, self._seen = self._seen, _Seen()
        return Counted(
            compiles=len(seen.events),
            programs=seen.programs,
            executed=seen.executed,
            ran=seen.ran,
            operations=dict(sorted(seen.operations.items())),
            outside=dict(seen.outside),
            breaks=dict(seen.breaks),
        )

    def _run(self, jitted: Any, *args: Any) -> Any:
        __tracebackhide__ = True
        before = jitted._cache_size()
        with self._listening(), self._watching():
            result = self._jax.block_until_ready(jitted(*args))
        made = jitted._cache_size() - before
        if made:
            self._seen.programs += made
            self._texts[id(jitted)] = jitted.lower(*args).as_text()
        text = self._texts.get(id(jitted), "")
        operations = list(_operations(text))
        self._seen.ran += len(operations)
        self._seen.operations.update(operations if made else ())
        self._seen.outside.update(CALLBACK.findall(text))
        # Without a program, as under jax.disable_jit, each operation ran by itself.
        if jitted._cache_size() and not self._jax.config.jax_disable_jit:
            self._seen.executed += 1
        return result

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        seen = self._seen

        def heard(event: str, _seconds: float, **_facts: object) -> None:
            if event == COMPILE_EVENT:
                seen.events.append(event)

        self._jax.monitoring.register_event_duration_secs_listener(heard)
        try:
            yield
        finally:
            self._jax.monitoring.unregister_event_duration_listener(heard)

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        """Count what the target asks of a value that is not known yet, also where it handles the error itself."""
        seen = self._seen
        # The types of its errors all come to these two.
        before = {kind: kind.__init__ for kind in (self._jax.errors.JAXTypeError, self._jax.errors.JAXIndexError)}

        def noting(real: Any) -> Any:
            def noted(error: Exception, message: str) -> None:
                real(error, message)
                seen.breaks[f"a value was asked for that is not known yet ({type(error).__name__})"] += 1

            return noted

        for kind, real in before.items():
            kind.__init__ = noting(real)
        try:
            yield
        finally:
            for kind, real in before.items():
                kind.__init__ = real

    def _program(self, added: _Added, asked: Asked) -> _Program:
        program = _Program()

        def whole(arrays: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[tuple[Any, ...], tuple[Any, ...]]]:
            tensors = self._env.j2t_iso(list(arrays))
            state = dict(zip(added.names, tensors, strict=False))
            args, kwargs = asked.called.filled(tensors[len(added.names) :])
            with self._env, _without_fastpath():
                output = torch.func.functional_call(added.module, state, args, kwargs)
            found, program.tree = apart(output, self._tensor)
            # An output that no wanted tensor leads to is traced as any number is.
            kind = type(arrays[asked.gradients[0]]) if asked.gradients else object
            program.floating = tuple(each.is_floating_point() and isinstance(each._elem, kind) for each in found)
            # A tensor that was changed in place has another array.
            program.changed = tuple(
                at for at, (each, given) in enumerate(zip(tensors, arrays, strict=True)) if each._elem is not given
            )
            results = [self._env.t2j_iso(each) for each in found]
            floating = tuple(each for each, floats in zip(results, program.floating, strict=True) if floats)
            others = tuple(each for each, floats in zip(results, program.floating, strict=True) if not floats)
            return floating, (others, tuple(tensors[at]._elem for at in program.changed))

        def with_gradients(arrays: Sequence[Any]) -> Any:
            def of(*wanted: Any) -> Any:
                replaced = dict(zip(asked.gradients, wanted, strict=True))
                return whole([replaced.get(at, each) for at, each in enumerate(arrays)])

            result, vjp, rest = self._jax.vjp(of, *(arrays[at] for at in asked.gradients), has_aux=True)
            return (result, rest), vjp

        program.forward = self._jax.jit(with_gradients if asked.gradients else whole)
        program.backward = self._jax.jit(lambda vjp, grads: vjp(grads))
        return program

    def _put(self, tensor: torch.Tensor) -> Any:
        """A JAX array with the values of a tensor, which may change afterwards."""
        tensor = tensor.detach()
        if tensor.dtype == torch.bfloat16:
            return self._jax.device_put(tensor.clone().view(torch.int16).numpy().view(self._jax.numpy.bfloat16))
        return self._jax.device_put(tensor.resolve_conj().resolve_neg().clone().numpy())

    def _take(self, array: Any) -> torch.Tensor:
        values = self._numpy.array(array)
        if array.dtype == self._jax.numpy.bfloat16:
            return torch.from_numpy(values.view(self._numpy.int16)).view(torch.bfloat16)
        return torch.from_numpy(values)


@contextlib.contextmanager
def _without_fastpath() -> Iterator[None]:
    """Without the operators of nested tensors for attention, which torchax does not have."""
    switch = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(switch)


def _operations(text: str) -> Iterator[str]:
    return (name for name in OPERATION.findall(text) if name not in NOT_COUNTED)


def not_traced(error: BaseException) -> str:
    """How JAX or torchax calls what it cannot make a program of; empty if it is another error."""
    for kind in type(error).__mro__:
        if kind.__name__ in NOT_TRACED and kind.__module__.partition(".")[0] in ("jax", "torchax"):
            return type(error).__name__
    return ""
