"""Backends: the names of those that Dynamo hands its graphs to, whoever chose them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .taps import Taps


class Backends:
    """Note, while entered, the name of each backend that is handed a graph while `counts` says that this counts.

    `missing` says why nothing can be noted; empty where it can.
    """

    def __init__(self, counts: Callable[[], bool]) -> None:
        self.names: set[str] = set()
        self.missing = ""
        self._counts = counts
        self._taps = Taps()

    def __enter__(self) -> Backends:
        graphs = getattr(importlib.import_module("torch._dynamo.output_graph"), "OutputGraph", None)
        self._taps.set("call_user_compiler", graphs, "call_user_compiler", self._on_backend)
        self.missing = self._taps.missing.get("call_user_compiler", "")
        return self

    def __exit__(self, *_exc: object) -> None:
        self._taps.close()

    def _on_backend(self, original: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any) -> Any:
        if self._counts():
            self.names.add(name_of(getattr(graph, "compiler_fn", None)))
        return original(graph, *args, **kwargs)


def name_of(backend: Any) -> str:
    """A backend's name as torch.compile was given it, or that of the function that it is."""
    # Around it are torch's debug wrapper (torch/_dynamo/repro/after_dynamo.py), and for a DistributedDataParallel the
    # method that splits its graphs (torch/_dynamo/backends/distributed.py).
    while (inner := _inside(backend)) is not None:
        backend = inner
    name = str(getattr(backend, "compiler_name", None) or getattr(backend, "__name__", None) or type(backend).__name__)
    # With its option `use_aoti`, which torch.compile is given with backend "inductor".
    return "inductor" if name == "aotinductor" else name


def _inside(backend: Any) -> Any:
    split = getattr(getattr(backend, "__self__", None), "backend_compile_fn", None)
    return split if split is not None else getattr(backend, "_torchdynamo_orig_backend", None)
