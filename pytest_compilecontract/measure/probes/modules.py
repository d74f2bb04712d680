"""The contents of private attributes of nn.Module: tensors, their keys, submodules, and hooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

# Attributes of every nn.Module that hold no state of the user.
OWN = frozenset(vars(torch.nn.Module())) | {"_compiled_call_impl"}
_HOOKS = tuple(name for name in sorted(OWN) if "_hooks" in name and "state_dict" not in name)
_NON_PERSISTENT = "_non_persistent_buffers_set"

Tensors = dict[str, torch.Tensor | None]


def parameters_of(module: torch.nn.Module) -> Tensors:
    """The module's own dict of parameters, not a copy."""
    found: Tensors = vars(module)["_parameters"]
    return found


def buffers_of(module: torch.nn.Module) -> Tensors:
    """The module's own dict of buffers, not a copy."""
    found: Tensors = vars(module)["_buffers"]
    return found


def submodules_of(module: torch.nn.Module) -> dict[Any, Any]:
    """The module's own dict of the modules directly in it, not a copy."""
    found: dict[Any, Any] = vars(module)["_modules"]
    return found


def hooks_of(module: torch.nn.Module) -> Iterator[tuple[str, dict[object, object]]]:
    """The module's tables of hooks that are not empty, by attribute."""
    for name in _HOOKS:
        if isinstance(hooks := vars(module).get(name), dict) and hooks:
            yield name, hooks


def non_persistent_buffers(module: torch.nn.Module) -> set[str]:
    """The names of the non-persistent buffers, which are not in the state dict."""
    return set(vars(module)[_NON_PERSISTENT])


def set_non_persistent_buffers(module: torch.nn.Module, names: set[str]) -> None:
    """Make exactly these buffers non-persistent."""
    vars(module)[_NON_PERSISTENT] = set(names)


def state_dict_keys(module: torch.nn.Module) -> set[str]:
    """The names of the module's own parameters and buffers that are in its state dict."""
    return {*parameters_of(module), *buffers_of(module)} - non_persistent_buffers(module)
