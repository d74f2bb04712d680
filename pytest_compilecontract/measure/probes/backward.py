"""Compiled backward graphs, found in the autograd graph, so that their count does not depend on compile caches.

torch's own records of a backward compile are missing when the AOTAutograd cache is warm, since the backward is then
loaded with the forward. The autograd nodes of AOTAutograd's compiled functions always exist.
"""

from __future__ import annotations

from typing import Any

import torch

COMPILED_NODE = "CompiledFunctionBackward"
NO_TASK = -1


def in_backward() -> bool | None:
    """Whether autograd is running a backward on this thread; None if this torch does not tell."""
    current = getattr(torch._C, "_current_graph_task_id", None)
    return None if current is None else bool(current() != NO_TASK)


def compiled_backwards(root: Any) -> frozenset[int]:
    """The distinct compiled backward graphs that `root.backward()` would run, as ids of their functions.

    `root` is a tensor. Each compiled graph has an autograd function of its own (torch/_functorch/_aot_autograd/
    runtime_wrappers.py), so two nodes of one type are one graph met twice.
    """
    pending = [root.grad_fn]
    seen: set[object] = set()
    found: set[int] = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == COMPILED_NODE:
            found.add(id(type(node)))
        pending.extend(following for following, _ in node.next_functions)
    return frozenset(found)
