"""Backends: the names of those that Dynamo passes graphs to, whoever chose them."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.measurement import Compiled, Location

from .source import OWN, Paths
from .taps import Taps

# What torch.compile makes of a backend (torch/__init__.py).
INDUCTORS, OTHERS = "_TorchCompileInductorWrapper", "_TorchCompileWrapper"
# Called eager, torch.cond and its like have Dynamo look at their functions, and flex_attention at its own.
COMPILE_BY_THEMSELVES = (os.path.join("torch", "_higher_order_ops", ""), os.path.join("torch", "nn", "attention", ""))
_UNSAID = object()


class Backends:
    """Record, while entered, the name of each backend that is passed a graph while `counts` is true.

    `missing` says why nothing can be recorded; empty if it can.
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

    def _on_backend(self, original: Callable[..., object], graph: object, *args: object, **kwargs: object) -> object:
        if self._counts():
            self.names.add(name_of(handed_by(graph).backend))
        return original(graph, *args, **kwargs)


def name_of(backend: object) -> str:
    """A backend's name as torch.compile was given it, or that of the function that it is."""
    # Around it are torch's debug wrapper (torch/_dynamo/repro/after_dynamo.py), and for a DistributedDataParallel the
    # method that splits its graphs (torch/_dynamo/backends/distributed.py).
    backend = innermost(backend)
    name = str(getattr(backend, "compiler_name", None) or getattr(backend, "__name__", None) or type(backend).__name__)
    # With its option `use_aoti`, which torch.compile is given with backend "inductor".
    return "inductor" if name == "aotinductor" else name


def _inside(backend: object) -> object:
    # Not by getattr alone: a mock has whatever it is asked for.
    owner = getattr(backend, "__self__", None)
    split = vars(owner).get("backend_compile_fn") if hasattr(owner, "__dict__") else None
    return split if split is not None else getattr(backend, "__dict__", {}).get("_torchdynamo_orig_backend")


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """The arguments of torch.compile, and the line that called it, or `by_torch`: a function of torch's own."""

    mode: str | None
    dynamic: bool | None
    options: dict[str, object]
    location: Location | None
    by_torch: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Handed:
    """A graph's backend: what torch.compile made of the one that it was given, or a substitute.

    `instead` are Inductor options that were set for this graph alone, for debugging.
    """

    backend: object
    instead: Mapping[str, object] = field(default_factory=dict)


class Compiles:
    """The arguments of each torch.compile while entered, and the backend that its graphs were passed to."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        # Kept with what torch.compile made, so that nothing else gets its id.
        self._given: dict[int, tuple[object, Given]] = {}

    def set(self, taps: Taps) -> None:
        """Set the taps. Without them, a compile is known only by what it left in its backend, without its line."""
        for name in (INDUCTORS, OTHERS):
            owner = getattr(torch, name, None)
            taps.set(f"{name} made", owner, "__init__", self._on_made, reads=("mode", "options", "dynamic"))

    def _on_made(self, original: Callable[..., object], made: object, *args: object, **kwargs: object) -> object:
        result = original(made, *args, **kwargs)
        given = inspect.signature(original).bind(made, *args, **kwargs).arguments
        location, by_torch = self._caller()
        self._given[id(made)] = (
            made,
            Given(
                mode=_mode(given.get("mode")),
                dynamic=given.get("dynamic"),
                options=dict(given.get("options") or {}),
                location=location,
                by_torch=by_torch,
            ),
        )
        return result

    def _caller(self) -> tuple[Location | None, bool]:
        """The line that called torch.compile, and whether it is one of torch's own functions that compile."""
        frame: FrameType | None = sys._getframe(2)
        by_torch = False
        while frame is not None:
            file = frame.f_code.co_filename
            by_torch |= any(part in file for part in COMPILE_BY_THEMSELVES)
            if not file.startswith(OWN) and not self._paths.is_out_of_reach(file) and os.path.isabs(file):
                return self._paths.location(file, frame.f_lineno, frame.f_code.co_name), by_torch
            frame = frame.f_back
        return None, by_torch

    def given(self, handed: Handed) -> Given:
        """The arguments of the torch.compile that passed on a graph."""
        return self._given.get(id(handed.backend), (None, None))[1] or _left_in(handed.backend)

    def dynamic(self, handed: Iterable[Handed | None]) -> bool | None:
        """The argument `dynamic` of the torch.compile that passed on these graphs; None if there are none."""
        first = next(filter(None, handed), None)
        return self.given(first).dynamic if first is not None else None

    def told(
        self, handed: Handed, lane: Lane | None, *, fullgraph: bool, graphs: int, frame: Location | None
    ) -> Compiled:
        """A compile as a fact, with what differs from the lane."""
        made, given = handed.backend, self.given(handed)
        options = {**given.options, **handed.instead}
        by_torch = given.by_torch or "make_eager_backend_with_torch_function_mode" in str(
            getattr(getattr(made, "compiler_fn", made), "__qualname__", "")
        )
        said = () if lane is None or by_torch else _contrary(made, given, handed.instead, lane, fullgraph)
        return Compiled(
            backend=shown_name(made),
            mode=given.mode,
            dynamic=given.dynamic,
            fullgraph=fullgraph,
            options={name: self._paths.text(_written(value)) for name, value in sorted(options.items())},
            graphs=graphs,
            location=given.location or frame,
            by_torch=by_torch,
            contrary="; ".join(said),
        )


def handed_by(graph: Any) -> Handed:
    """The backend to which Dynamo passes a graph (`OutputGraph._call_user_compiler`)."""
    module = importlib.import_module("torch._dynamo.output_graph")
    config = importlib.import_module("torch._dynamo.config")
    found: dict[str, Any] = {}
    for name in ("backend", "inductor_config"):
        override = getattr(module, f"get_{name}_override_for_compile_id", None)
        asked = getattr(config, f"debug_{name}_override", "")
        if asked and override is not None:
            found[name] = override(graph.dynamo_compile_id, asked)
    backend = found.get("backend") or getattr(graph, "compiler_fn", None)
    return Handed(backend=innermost(backend), instead=dict(found.get("inductor_config") or {}))


def innermost(backend: object) -> object:
    """The backend itself, or torch.compile's wrapper of it, without Dynamo's wrappers."""
    seen: list[object] = []
    while (inner := _inside(backend)) is not None and not any(inner is each for each in seen):
        seen.append(backend)
        backend = inner
    return backend


def shown_name(backend: object) -> str:
    """A backend's name if it is registered under it; else the function, and where it is defined."""
    name = name_of(backend)
    function = _function(backend)
    if _kind(backend) == INDUCTORS or function is _registered(name):
        return name
    target = function.func if isinstance(function, functools.partial) else function
    where = getattr(target, "__module__", None) or type(target).__module__
    which = getattr(target, "__qualname__", None) or type(target).__qualname__
    return f"functools.partial of {where}.{which}" if target is not function else f"{where}.{which}"


def _contrary(made: object, given: Given, instead: Mapping[str, object], lane: Lane, fullgraph: bool) -> Iterator[str]:
    """How a compile contradicts its lane; apart from backend and mode, only what the lane sets is compared."""
    if not _is_lanes(made, lane):
        yield f"backend {shown_name(made)!r}, the lane's is {lane.backend!r}"
        return
    if given.mode != _mode(lane.mode):
        yield f"mode {given.mode!r}, the lane's is {lane.mode!r}"
    if lane.dynamic is not None and given.dynamic != lane.dynamic:
        yield f"dynamic={given.dynamic!r}, the lane's is {lane.dynamic!r}"
    if lane.fullgraph is not None and fullgraph != lane.fullgraph:
        yield f"fullgraph={fullgraph!r}, the lane's is {lane.fullgraph!r}"
    for name, value in (lane.options or {}).items():
        if given.options.get(name, given.options.get(name.replace("-", "_"), _UNSAID)) != value:
            found = given.options.get(name, "not set")
            yield f"option {name} {found!r}, the lane's is {value!r}"
    for name, value in instead.items():
        yield f"option {name} {value!r}, set for one graph by torch._dynamo.config.debug_inductor_config_override"


def _is_lanes(made: object, lane: Lane) -> bool:
    """Whether a backend is the lane's: the same function, whatever its name."""
    if _kind(made) == INDUCTORS:
        return lane.backend == "inductor"
    registered = _registered(lane.backend)
    return registered is not None and _function(made) is registered


def _left_in(made: object) -> Given:
    """The arguments of a torch.compile that was not observed, as far as its wrapper has them."""
    config: dict[str, object] = dict(getattr(made, "config", None) or {}) if _kind(made) == INDUCTORS else {}
    kwargs = getattr(made, "kwargs", None) if _kind(made) == OTHERS else None
    mode = None
    if isinstance(kwargs, dict):
        mode, config = _mode(kwargs.get("mode")), dict(kwargs.get("options") or {})
    elif config:
        modes = importlib.import_module("torch._inductor").list_mode_options(None, getattr(made, "dynamic", None))
        mode = next((name for name, table in modes.items() if name != "default" and table == config), None)
        config = {} if mode else config
    dynamic = getattr(made, "dynamic", None) if _kind(made) else None
    return Given(mode=mode, dynamic=dynamic, options=config, location=None)


def _kind(backend: object) -> str:
    """Which of torch.compile's two wrappers this is; empty for a backend that was passed to Dynamo without one."""
    return next((each.__name__ for each in type(backend).__mro__ if each.__name__ in (INDUCTORS, OTHERS)), "")


def _function(backend: Any) -> object:
    return backend.compiler_fn if _kind(backend) == OTHERS else backend


def _registered(name: str) -> object:
    """The function that torch calls for a backend's name, or None."""
    registry = importlib.import_module("torch._dynamo.backends.registry")
    try:
        return registry.lookup_backend(name)
    except Exception:  # noqa: BLE001 - not a name, or a backend whose package cannot be imported
        return None


def _mode(mode: object) -> str | None:
    return None if mode in (None, "default") else str(mode)


def _written(value: object) -> str:
    try:
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    except Exception:  # noqa: BLE001 - a user's class
        return f"<{type(value).__name__}>"
