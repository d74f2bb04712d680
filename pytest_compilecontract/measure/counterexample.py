"""Counterexamples: a sequence of calls written as Python that makes the same calls, and as a test to paste.

What cannot be written as Python is shown in angle brackets: a tensor that `tensor` did not make, or that was modified
or marked afterwards, or any other object.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_compilecontract.calls import call

from .probes.tensors import storage_of
from .shapes import Moded, text_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A sequence as Python: assignments of what several arguments share, then the calls.

    `unwritten` is what is in angle brackets.
    """

    shared: tuple[str, ...]
    calls: tuple[str, ...]
    unwritten: tuple[str, ...]

    @property
    def key(self) -> str | None:
        """A key that is equal only for sequences that make the same calls; None if that cannot be told."""
        return None if self.unwritten else "\n".join((*self.shared, *self.calls))


def written(sequence: Sequence[Moded], *, beside: str = "") -> Written:
    """The sequence as Python, without names that the code `beside` it already uses."""
    writing = _Writing(sequence, taken=set(re.findall(r"\w+", beside)))
    calls = tuple(map(writing.argument, sequence))
    return Written(shared=tuple(writing.shared), calls=calls, unwritten=tuple(dict.fromkeys(writing.unwritten)))


def test_of(target: str, made: Written) -> tuple[str, ...]:
    """A sequence as a test to paste, a line each."""
    lines = [f"compile_lane.run({target}, {', '.join(made.calls)})"]
    if len(lines[0]) > 100:
        lines = ["compile_lane.run(", *(f"    {each}," for each in (target, *made.calls)), ")"]
    lines = [*made.shared, *lines]
    # Angle brackets are no Python: whoever pastes it has to put something there.
    unwritten = [f"# {each} stands for a value that cannot be written" for each in made.unwritten]
    return (*_imports(lines), *unwritten, "def test_found(compile_lane):", *(f"    {line}" for line in lines))


test_of.__test__ = False  # type: ignore[attr-defined]  # no test of pytest's


def _imports(code: Iterable[str]) -> list[str]:
    used = {name for each in code for name in re.findall(r"\b(call|mode|tensor)\(|\b(torch)\.", each)}
    names = sorted({name for pair in used for name in pair if name})
    shapes = [each for each in names if each in ("mode", "tensor")]
    lines = ["import torch"] if "torch" in names else []
    lines += ["from pytest_compilecontract import call"] if "call" in names else []
    return [*lines, *([f"from pytest_compilecontract.shapes import {', '.join(shapes)}"] if shapes else [])]


class _Writing:
    """Writes the values of one sequence. A mutable value that occurs more than once gets a name."""

    def __init__(self, sequence: Sequence[Moded], *, taken: set[str]) -> None:
        self.shared: list[str] = []
        self.unwritten: list[str] = []
        self._taken = taken
        self._names: dict[int, str] = {}
        self._open: set[int] = set()
        self._met: Counter[int] = Counter()
        # Tensors of one storage, which are written as if each had its own.
        self._of_storage: dict[int, set[int]] = {}
        for each in sequence:
            self._meet((each.made.args, each.made.kwargs))

    def argument(self, each: Moded) -> str:
        """A call, as an argument of `compile_lane.run`."""
        modes = {"grad": each.grad, "training": each.training}
        given = "".join(f", {name}={value}" for name, value in modes.items() if value is not None)
        return f"mode({self._arguments(each.made)}{given})" if given else self._arguments(each.made)

    def _arguments(self, made: call) -> str:
        if not made.kwargs:
            return self._value(tuple(made.args))
        named = [f"{name}={self._value(each)}" for name, each in made.kwargs.items()]
        return f"call({', '.join([*map(self._value, made.args), *named])})"

    def _meet(self, top: object) -> None:
        pending: list[Any] = [top]
        while pending:
            value = pending.pop()
            if isinstance(value, torch.Tensor) or type(value) in (list, dict):
                self._met[id(value)] += 1
                if self._met[id(value)] > 1:
                    continue
            if isinstance(value, torch.Tensor):
                if (at := _storage(value)) is not None:
                    self._of_storage.setdefault(at, set()).add(id(value))
            elif type(value) in (list, tuple):
                pending += value
            elif type(value) is dict:
                pending += [*value, *value.values()]

    def _value(self, value: object) -> str:
        if self._met[id(value)] < 2:
            return self._made(value)
        if id(value) not in self._names:
            if id(value) in self._open:
                return self._unwritten(f"<a {type(value).__name__} in itself>")
            self._open.add(id(value))
            made = self._made(value)
            name = self._names[id(value)] = self._name("t" if isinstance(value, torch.Tensor) else "a")
            self.shared.append(f"{name} = {made}")
        return self._names[id(value)]

    def _name(self, stem: str) -> str:
        number = 1
        while (name := stem if number == 1 else f"{stem}{number}") in self._taken:
            number += 1
        self._taken.add(name)
        return name

    def _made(self, value: object) -> str:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if type(value) is list:
            return f"[{', '.join(map(self._value, value))}]"
        if type(value) is tuple:
            return f"({', '.join(map(self._value, value))}{',' if len(value) == 1 else ''})"
        if type(value) is dict:
            pairs = (f"{self._value(key)}: {self._value(each)}" for key, each in value.items())
            return f"{{{', '.join(pairs)}}}"
        if type(value) is slice:
            return f"slice({', '.join(map(self._value, (value.start, value.stop, value.step)))})"
        return _plain(value) or self._unwritten(f"<{type(value).__name__}>")

    def _tensor(self, value: torch.Tensor) -> str:
        at = _storage(value)
        alone = at is not None and len(self._of_storage[at]) == 1
        return (text_of(value) if alone else None) or self._unwritten(f"<tensor {tuple(value.shape)} {value.dtype}>")

    def _unwritten(self, said: str) -> str:
        self.unwritten.append(said)
        return said


def _plain(value: object) -> str | None:
    """A literal for an immutable value; None if there is none, such as for a member of an enum."""
    if type(value) is float and not math.isfinite(value):
        return f'float("{value}")'
    if type(value) is torch.device:
        return f"torch.device({str(value)!r})"
    plain = (bool, int, float, str, bytes, range, torch.dtype, torch.layout, torch.memory_format)
    return repr(value) if value is None or type(value) in plain else None


def _storage(value: torch.Tensor) -> int | None:
    """The identity of a tensor's storage; None for a kind of tensor that has none."""
    try:
        return storage_of(value)
    except (NotImplementedError, RuntimeError):
        return None
