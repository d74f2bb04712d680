"""Capture targets: of which classes of modules a captured graph holds an operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..measurement import CaptureTargets


def classes_in(graph: Any) -> frozenset[str]:
    """The full names of the modules' classes that the operations of a graph were traced in."""
    found: set[str] = set()
    for node in graph.nodes:
        if node.op.startswith("call_"):
            # Each entry is (path, class), the class itself or its full name.
            found.update(class_name(entry[1]) for entry in (node.meta.get("nn_module_stack") or {}).values())
    return frozenset(found)


def class_name(cls: Any) -> str:
    """The full name of a class."""
    return cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}"


def capture_targets(requested: Sequence[str], found: Iterable[str]) -> CaptureTargets:
    """Which of the requested classes were found; one may be named by the last parts of its full name."""
    dotted = [f".{name}" for name in found]
    compiled = tuple(name for name in requested if any(each.endswith(f".{name}") for each in dotted))
    return CaptureTargets(
        requested=tuple(requested), compiled=compiled, missing=tuple(name for name in requested if name not in compiled)
    )
