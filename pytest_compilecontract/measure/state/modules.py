"""Modules: their parameters, buffers, attributes and hooks, and the keys of their state dicts."""

from __future__ import annotations

import torch

from ..probes.targets import is_scripted
from .code import reach_classes, save_inherited
from .mappings import save_mapping
from .reached import Reached
from .tensors_saved import save_tensor

# Attributes of every nn.Module that hold no state of the user's.
MODULE_OWN = frozenset(vars(torch.nn.Module())) | {"_compiled_call_impl"}
HOOKS = tuple(name for name in sorted(MODULE_OWN) if "_hooks" in name and "state_dict" not in name)


def save_module(walk: Reached, root: torch.nn.Module, name: str, *, depth: int) -> None:
    walk.modules.append(root)
    prefix = name or (str(len(walk.modules)) if len(walk.modules) > 1 else "")
    for path, module in root.named_modules(prefix=prefix):
        walk.seen[id(module)] = module
        if is_scripted(module):
            save_scripted(walk, module, path, depth=depth)
            continue
        for entries in (vars(module)["_parameters"], vars(module)["_buffers"]):
            save_mapping(walk, entries, path, depth=depth, learned=True)
        save_keys(walk, module, path)
        save_mapping(walk, vars(module), path, depth=depth, without=MODULE_OWN - {"training"})
        for hooks in HOOKS:
            if isinstance(entries := vars(module).get(hooks), dict) and entries:
                save_mapping(walk, entries, f"{path} hooks".strip(), depth=depth)
        save_inherited(walk, module, path)
        reach_classes(walk, module, depth=depth)


def save_scripted(walk: Reached, module: torch.nn.Module, name: str, *, depth: int) -> None:
    """A scripted part of a module: it keeps its tensors where Python sees them by name alone, and no attributes."""
    for key, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        if id(tensor) not in walk.seen:
            walk.seen[id(tensor)] = tensor
            save_tensor(walk, tensor, f"{name}.{key}" if name else key, depth=depth, learned=True)


def save_keys(walk: Reached, module: torch.nn.Module, name: str) -> None:
    """Which keys a module has in a state dict: one that a run adds is seen, whatever its value."""

    def keys() -> set[str]:
        own = vars(module)
        return {*own["_parameters"], *own["_buffers"]}.difference(own["_non_persistent_buffers_set"])

    def apart() -> set[str]:
        return set(vars(module)["_non_persistent_buffers_set"])

    saved, non_persistent = walk.pieces.wanted(keys(), keys), walk.pieces.wanted(apart(), apart)

    def put_back() -> None:
        vars(module)["_non_persistent_buffers_set"] = set(non_persistent.wanted)

    def added() -> dict[str, str]:
        return dict.fromkeys(sorted(keys() - saved.wanted), "added")

    walk.pieces.keep(f"{name}, state_dict".removeprefix(", "), added, lambda now: not now, put_back)
