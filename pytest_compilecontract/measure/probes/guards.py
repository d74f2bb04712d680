"""The guards of compiled code, which torch checks at each call before it runs the code: counted in its tree of them."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

UNREADABLE = "the guards of this torch are kept in another form"


def guards_in(code: object) -> dict[str, int] | None:
    """The guards of a cache entry by torch's names, as `TORCH_LOGS=guards` lists them; None if they cannot be read.

    A guard with several conditions, such as that on symbolic sizes, is as many as it has; one that several tensors
    share is one.
    """
    try:
        found: Counter[str] = Counter()
        for leaf in {id(each): each for each in [*_leaves(code.guard_manager.root)]}.values():  # type: ignore[attr-defined]
            found[type(leaf).__name__] += len(leaf.verbose_code_parts()) or 1
    except AttributeError:
        return None
    return dict(found.most_common())


def recompile_limit() -> int | None:
    """How many cache entries a frame may have, as set for the torch.compile that compiles it now."""
    limit = getattr(importlib.import_module("torch._dynamo.config"), "recompile_limit", None)
    return limit if isinstance(limit, int) else None


def _leaves(root: Any) -> Iterator[Any]:
    """The leaves of torch's tree; the guards of a dict's items are below its keys and values."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield from node.get_leaf_guards()
        if hasattr(node, "get_key_value_managers"):
            pending += [each for pair in node.get_key_value_managers().values() for each in pair if each is not None]
        else:
            pending += node.get_child_managers()
    yield from root.get_epilogue_lambda_guards()
