"""Modules: their parameters, buffers, submodules, attributes and hooks, and the keys of their state dicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..probes.modules import (
    OWN,
    buffers_of,
    hooks_of,
    non_persistent_buffers,
    parameters_of,
    set_non_persistent_buffers,
    state_dict_keys,
    submodules_of,
)
from ..probes.targets import is_scripted
from ..probes.tensors import backward_hooks
from .code import reach_classes, save_class_of, save_inherited
from .mappings import keep_new, save_entry, save_mapping, save_order
from .reached import Reached
from .tensors_saved import save_tensor

# Hooks by the table that they are in, and their key there.
Hooks = dict[tuple[str, object], object]


def save_module(walk: Reached, root: torch.nn.Module, name: str, *, depth: int) -> None:
    walk.modules.append(root)
    prefix = name or (str(len(walk.modules)) if len(walk.modules) > 1 else "")
    for path, module in root.named_modules(prefix=prefix):
        walk.seen[id(module)] = module
        if is_scripted(module):
            save_scripted(walk, module, path, depth=depth)
            continue
        for tensors in (parameters_of(module), buffers_of(module)):
            save_mapping(walk, tensors, path, depth=depth, learned=True)
        save_submodules(walk, module, path)
        save_class_of(walk, module, path)
        save_keys(walk, module, path)
        save_mapping(walk, vars(module), path, depth=depth, without=OWN - {"training"})
        for _, entries in hooks_of(module):
            save_mapping(walk, entries, f"{path} hooks".strip(), depth=depth)
        save_hooks(walk, module, path)
        save_inherited(walk, module, path)
        reach_classes(walk, module, depth=depth)


def save_submodules(walk: Reached, module: torch.nn.Module, name: str) -> None:
    """Which modules are directly in a module, and their order, in which an nn.Sequential calls them."""
    own = submodules_of(module)
    keep_new(walk, own, name)
    for key, value in own.items():
        save_entry(walk, own, key, value, f"{name}.{key}" if name else key)
    save_order(walk, own, list(own), f"{name}, submodules".removeprefix(", "))


def save_scripted(walk: Reached, module: torch.nn.Module, name: str, *, depth: int) -> None:
    """Save a scripted module: Python sees its tensors only by name, and no attributes."""
    for key, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        if id(tensor) not in walk.seen:
            walk.seen[id(tensor)] = tensor
            save_tensor(walk, tensor, f"{name}.{key}" if name else key, depth=depth, learned=True)


def save_hooks(walk: Reached, module: torch.nn.Module, name: str) -> None:
    """Save the hooks of a module and its own parameters: one that a run registers is noticed, and removed again."""

    def tables() -> Iterator[tuple[str, dict[Any, Any]]]:
        yield from hooks_of(module)
        for key, parameter in parameters_of(module).items():
            if parameter is not None:
                yield from ((f"{key}.{table}", hooks) for table, hooks in backward_hooks(parameter))

    def now() -> Hooks:
        return {(table, key): hook for table, hooks in tables() for key, hook in hooks.items()}

    saved = walk.pieces.wanted(now(), now)

    def added() -> dict[str, list[object]]:
        found: dict[str, list[object]] = {}
        for (table, key), hook in now().items():
            if (table, key) not in saved.wanted and callable(hook):
                found.setdefault(table, []).append(hook)
        return found

    def put_back() -> None:
        for table, hooks in tables():
            for key in [key for key in hooks if (table, key) not in saved.wanted]:
                del hooks[key]

    walk.pieces.keep(f"{name}, hooks".removeprefix(", "), added, lambda now: not now, put_back)


def save_keys(walk: Reached, module: torch.nn.Module, name: str) -> None:
    """Save which keys a module has in its state dict, to notice one that a run adds."""

    def keys() -> set[str]:
        return state_dict_keys(module)

    def apart() -> set[str]:
        return non_persistent_buffers(module)

    saved, non_persistent = walk.pieces.wanted(keys(), keys), walk.pieces.wanted(apart(), apart)

    def put_back() -> None:
        set_non_persistent_buffers(module, non_persistent.wanted)

    def added() -> dict[str, str]:
        return dict.fromkeys(sorted(keys() - saved.wanted), "added")

    walk.pieces.keep(f"{name}, state_dict".removeprefix(", "), added, lambda now: not now, put_back)
