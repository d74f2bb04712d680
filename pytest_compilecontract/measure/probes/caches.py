"""torch's compile caches: a folder for each lane, and the hits and misses of the caches."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from pytest_compilecontract.facts.measurement import CacheBypass

from .taps import Taps

# Counter group and key in `torch._dynamo.utils.counters`, and the name that a measurement gives it.
COUNTERS = {
    ("inductor", "fxgraph_cache_hit"): "fx_graph_hit",
    ("inductor", "fxgraph_cache_miss"): "fx_graph_miss",
    ("inductor", "fxgraph_cache_bypass"): "fx_graph_bypass",
    ("aot_autograd", "autograd_cache_hit"): "aot_autograd_hit",
    ("aot_autograd", "autograd_cache_miss"): "aot_autograd_miss",
    ("aot_autograd", "autograd_cache_bypass"): "aot_autograd_bypass",
    ("aot_autograd", "autograd_cache_saved"): "aot_autograd_saved",
    ("dynamo_cache", "dynamo_cache_hit"): "dynamo_hit",
    ("dynamo_cache", "dynamo_cache_miss"): "dynamo_miss",
}


# The names of torch's records of graphs that a cache does not take, and the cache of each.
BYPASSES = {"fx_graph_cache_bypass": "FX graph cache", "aotautograd_cache_bypass": "AOTAutograd cache"}
_COUNTED_AS = {"FX graph cache": "fx_graph_bypass", "AOTAutograd cache": "aot_autograd_bypass"}
# The AOTAutograd cache is asked only where the other is on, which has no need of a graph that does nothing by itself.
_LOOKED_UP = frozenset({"fx_graph_hit", "fx_graph_miss", "fx_graph_bypass", "aot_autograd_hit", "aot_autograd_miss"})
NO_REASON = "torch gives no reason"


def bypasses_in(state: Mapping[str, int], told: Sequence[CacheBypass]) -> tuple[CacheBypass, ...]:
    """The bypasses that torch counted, each with the reason that it recorded, if it did."""
    reasons = Counter(each.cache for each in told)
    silent = (
        CacheBypass(cache=cache, reason=NO_REASON)
        for cache, name in _COUNTED_AS.items()
        for _ in range(state[name] - reasons[cache])
    )
    return (*told, *silent)


def not_looked_up(inductor: Sequence[Mapping[str, int]], others: Sequence[Mapping[str, int]]) -> str:
    """Why hits and misses say nothing of some graphs of Inductor's; empty if each was looked up.

    For each graph, what its backend call added to the caches' counters: a backward may be looked up later. Graphs of
    `others`, which are other backends, are Inductor's if any cache was asked for them.
    """
    graphs = [*inductor, *filter(None, others)]
    asked = sum(1 for each in graphs if not _LOOKED_UP.isdisjoint(each))
    if asked == len(graphs):
        return ""
    of = len(graphs)
    return f"torch looked up {asked} of {of} graphs in its FX graph cache, which is switched off for the others"


def cache_state(counters: Mapping[str, Mapping[Any, int]]) -> dict[str, int]:
    """Hits, misses and what was kept, by Dynamo's counters; 0 for a cache that was not used."""
    return {name: counters.get(group, {}).get(key, 0) for (group, key), name in COUNTERS.items()}


# What Inductor has found out of this processor, as it does once a process: by the instructions and the program.
_KNOWN: dict[str, bool] = {}


def check_processor() -> None:
    """Let Inductor find out, once a process, what vector instructions this processor has.

    For that it builds a small program for each kind, and starts a Python that loads it. Later processes find the
    programs in the caches of this one. In the empty caches of a lane, the first lane of every process would build them
    again.
    """
    # Where a torch has no such function, or no C++ compiler is found, the first lane meets that.
    with contextlib.suppress(Exception), Taps() as taps:
        module = importlib.import_module("torch._inductor.cpu_vec_isa")
        taps.set("processor", getattr(module, "VecISA", None), "check_build", _answered)
        module.valid_vec_isa_list()


def _answered(check: Callable[..., object], instructions: Any, code: str) -> bool:
    asked = f"{instructions.build_arch_flags()} {hashlib.sha256(code.encode()).hexdigest()}"
    if asked not in _KNOWN:
        _KNOWN[asked] = bool(check(instructions, code))
    return _KNOWN[asked]


def processor_known() -> dict[str, bool]:
    """What this process has found out of the processor, for `know_processor` of one that it starts."""
    return dict(_KNOWN)


def know_processor(known: Mapping[str, bool]) -> None:
    """Take these answers of the process that started this one, in place of programs that it built."""
    _KNOWN.update(known)


@contextlib.contextmanager
def own_caches() -> Iterator[None]:
    """Use empty compile caches, on disk and in this process, while the `with` lasts."""
    fresh = getattr(importlib.import_module("torch._inductor.utils"), "fresh_cache", None)
    with contextlib.ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="compilecontract-", ignore_cleanup_errors=True)
        folder = stack.enter_context(made)
        stack.enter_context(_folder(folder) if fresh is None else fresh(dir=folder, delete=True))
        yield


@contextlib.contextmanager
def _folder(folder: str) -> Iterator[None]:
    names = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": os.path.join(folder, "triton")}
    with mock.patch.dict(os.environ, names):
        yield
