"""Compiling a module in place and undoing it, for which torch has no public API."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

import torch

# Where `Module.compile()` keeps the compiled call (torch/nn/modules/module.py).
COMPILED = "_compiled_call_impl"


def compile_in_place(module: torch.nn.Module, options: Mapping[str, object]) -> Callable[[], None]:
    """Call `module.compile(**options)`; returns a function that undoes it, which keeps no module alive."""
    had = COMPILED in vars(module)
    before = vars(module).get(COMPILED)
    module.compile(**options)
    there = weakref.ref(module)

    def undo() -> None:
        compiled = there()
        if compiled is None:
            return
        if had:
            setattr(compiled, COMPILED, before)
        elif COMPILED in vars(compiled):
            delattr(compiled, COMPILED)

    return undo


def structure(module: torch.nn.Module) -> Callable[[], None]:
    """A function that restores the current submodules of a module, and which of them are compiled in place."""
    kept = [(each, dict(each._modules), vars(each).get(COMPILED)) for each in module.modules()]

    def put_back() -> None:
        for each, children, compiled in kept:
            each._modules.clear()
            each._modules.update(children)
            if compiled is not None:
                setattr(each, COMPILED, compiled)
            elif COMPILED in vars(each):
                delattr(each, COMPILED)

    return put_back


def is_compiled(target: object) -> bool:
    """Whether torch.compile was applied to a function or module already."""
    if isinstance(target, torch.nn.Module):
        return getattr(target, COMPILED, None) is not None or hasattr(target, "_orig_mod")
    return hasattr(target, "_torchdynamo_orig_callable") and not hasattr(target, "_torchdynamo_disable")
