"""Schemas: what is known of an operator that a dispatch mode is called with."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

import torch

from .protocols import Operator

TorchDispatchMode: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode


def is_operator(func: object) -> TypeGuard[Operator]:
    """Whether it is an operator, rather than a higher-order one or a method of a C++ class."""
    return isinstance(func, torch._ops.OpOverload)


def written(func: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[torch.Tensor]:
    """The tensor arguments that an operator writes to."""
    if not is_operator(func) or not func._schema.is_mutable:
        return []
    found: list[torch.Tensor] = []
    for at, each in enumerate(func._schema.arguments):
        if each.alias_info is None or not each.alias_info.is_write:
            continue
        value = kwargs[each.name] if each.name in kwargs else args[at] if at < len(args) else None
        found += tensors_in(value)
    return found


def is_view(func: Operator) -> bool:
    """Whether an operator's result is a view of an argument that it does not write to."""
    aliases = [each.alias_info for each in func._schema.returns]
    return any(each is not None and not each.is_write for each in aliases)


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
