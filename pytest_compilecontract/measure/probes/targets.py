"""Targets: what torch.compile does not accept, and the module classes whose operations a captured graph contains."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable, Sequence

from pytest_compilecontract.facts.measurement import CaptureTargets

from .protocols import Nodes

# What each is made with, by the module that its class is of. Their classes are not asked for by name: to import them
# warns from torch 2.13 on.
_NO_TARGETS = {
    "torch.jit": "torch.jit.script or torch.jit.trace",
    "torch.export.exported_program": "torch.export",
    "torch._inductor.package": "AOTInductor",
}


def is_scripted(value: object) -> bool:
    """Whether a module or function is TorchScript, which does not run in Python."""
    return made_by(value) == _NO_TARGETS["torch.jit"]


def made_by(value: object) -> str:
    """The function that made a target which torch.compile does not accept, since it contains no Python; else empty."""
    met: set[int] = set()
    # A partial can be made to lead back to itself; calling it raises, in eager too.
    while isinstance(value, (functools.partial, types.MethodType)) and id(value) not in met:
        met.add(id(value))
        value = value.func if isinstance(value, functools.partial) else value.__self__
    for base in type(value).__mro__:
        module = str(base.__module__)
        # torch's classes for functions and methods of TorchScript are written in C.
        if base.__name__ in ("ScriptFunction", "ScriptMethod") and module.partition(".")[0] == "torch":
            return _NO_TARGETS["torch.jit"]
        for prefix, maker in _NO_TARGETS.items():
            if module == prefix or module.startswith(f"{prefix}."):
                return maker
    return ""


def classes_in(graph: Nodes) -> frozenset[str]:
    """The full names of the modules' classes that the operations of a graph were traced in."""
    found: set[str] = set()
    for node in graph.nodes:
        if node.op.startswith("call_"):
            # Each entry is (path, class), the class itself or its full name.
            found.update(class_name(entry[1]) for entry in (node.meta.get("nn_module_stack") or {}).values())
    return frozenset(found)


def class_name(cls: type | str) -> str:
    """The full name of a class."""
    return cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}"


def capture_targets(requested: Sequence[str], found: Iterable[str]) -> CaptureTargets:
    """Which of the requested classes were found; each may be given by the last parts of its full name."""
    dotted = [f".{name}" for name in found]
    compiled = tuple(
        name for name in requested if any(each.endswith((f".{name}", f".{_defined_as(name)}")) for each in dotted)
    )
    return CaptureTargets(
        requested=tuple(requested), compiled=compiled, missing=tuple(name for name in requested if name not in compiled)
    )


def _defined_as(name: str) -> str:
    """The full name of the class that a dotted name such as `torch.nn.Linear` refers to; else the name itself."""
    path, _, last = name.rpartition(".")
    found = getattr(sys.modules.get(path), last, None)
    return class_name(found) if isinstance(found, type) else name
