"""Schemas: what is known of an operator that a dispatch mode is called with."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeGuard

import torch

from .protocols import Operator

TorchDispatchMode: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode


def is_operator(func: object) -> TypeGuard[Operator]:
    """Whether it is an operator, rather than a higher-order one or a method of a C++ class."""
    return isinstance(func, torch._ops.OpOverload)


def written(func: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[torch.Tensor]:
    """The tensor arguments that an operator writes to."""
    found: list[torch.Tensor] = []
    for at, name in _written_arguments(func) if is_operator(func) else ():
        found += tensors_in(kwargs[name] if name in kwargs else args[at] if at < len(args) else None)
    return found


# A schema is read from C++, piece by piece, which takes longer than many an operator.


@cache
def _written_arguments(func: Operator) -> tuple[tuple[int, str], ...]:
    """The arguments that an operator writes to, each by its place and its name."""
    aliases = [(at, each.name, each.alias_info) for at, each in enumerate(func._schema.arguments)]
    return tuple((at, name) for at, name, alias in aliases if alias is not None and alias.is_write)


@cache
def is_view(func: Operator) -> bool:
    """Whether an operator's result is a view of an argument that it does not write to."""
    aliases = [each.alias_info for each in func._schema.returns]
    return any(each is not None and not each.is_write for each in aliases)


# Results by which the backward of an attention draws the same random numbers again.
SEEDS = frozenset({"philox_seed", "philox_offset", "rng_state"})


@cache
def keeps_seeds(func: Operator) -> bool:
    """Whether an operator returns the state of its random numbers: no integer that it returns is chosen from floats."""
    return not SEEDS.isdisjoint(each.name for each in func._schema.returns)


def is_wrapper(kind: type) -> bool:
    """Whether tensors of a class consist of others, with which their operators are called in turn."""
    return hasattr(kind, "__tensor_flatten__")


# An operator takes and gives tensors, and lists of them: torch's pytree, which knows every container, takes most of the
# time of a mode in which operators are small.


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors in arguments or results of an operator."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def mapped(change: Callable[[Any], object], kind: type, value: object) -> Any:
    """The arguments of an operator, with each part of this kind changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, list | tuple):
        parts = [mapped(change, kind, each) for each in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, dict):
        return {name: mapped(change, kind, each) for name, each in value.items()}
    return value
