"""Collectives: those that a pass runs, by torch's profiler, which also sees compiled code.

Each is dispatched as an operator of the namespace c10d, whoever calls it: torch.distributed, the reducer of DDP, FSDP,
DTensor, or a compiled graph through functional collectives. Several of these operators are one kind to a user, and the
kind is reported.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_compilecontract.facts.collectives import Collective

from .operators import QUIET

NAMESPACE = "c10d::"
# What the profiler calls a part of a pass that is not the test's.
NOT_THEIRS = "compilecontract: a look at the results"
# Of names without the underscores and endings that tell one form of an operator from another.
KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgather_base": "all_gather",
    "allgather_into_tensor": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "recv_any_source": "recv",
    "monitored_barrier": "barrier",
}


@dataclass(kw_only=True, slots=True)
class Recorded:
    """The collectives of a pass in the order in which they began; None, with the reason, until it is over."""

    collectives: tuple[Collective, ...] | None = None
    why: str = "the run raised"


@contextlib.contextmanager
def recorded() -> Iterator[Recorded]:
    """Record the collectives of what runs inside."""
    found = Recorded()
    running = getattr(importlib.import_module("torch.autograd"), "_profiler_enabled", lambda: False)
    if running():
        found.why = "torch's profiler is already running"
        yield found
        return
    from torch.profiler import ProfilerActivity, profile

    quiet = {name: value for name, value in QUIET.items() if name not in os.environ}
    with contextlib.ExitStack() as stack:
        os.environ.update(quiet)
        stack.callback(lambda: [os.environ.pop(name, None) for name in quiet])
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=".*[Pp]rofile.*")  # torch 2.11 warns of more than one cycle
        try:
            taken = stack.enter_context(profile(activities=[ProfilerActivity.CPU]))
        except RuntimeError as error:
            found.why = f"torch's profiler cannot be used: {str(error).splitlines()[0]}"
            yield found
            return
        yield found
    events = taken.events()
    if events is None:
        found.why = "torch's profiler has no events"
        return
    ours = [each.time_range for each in events if each.name == NOT_THEIRS]
    begun = sorted(
        (each.time_range.start, each.name)
        for each in events
        if each.name.startswith(NAMESPACE) and not any(span.start <= each.time_range.start <= span.end for span in ours)
    )
    found.collectives = in_runs(kind_of(name) for _, name in begun)
    found.why = ""


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """Record no collectives inside: what the test has not called, such as those of a state dict."""
    from torch.profiler import record_function

    with record_function(NOT_THEIRS):
        yield


def kind_of(operator: str) -> str:
    """The kind of a c10d operator, as torch.distributed names it; an unknown one keeps its own name."""
    name = operator.removeprefix(NAMESPACE).strip("_").removesuffix("_coalesced").strip("_")
    return KINDS.get(name, name)


def in_runs(kinds: Iterator[str]) -> tuple[Collective, ...]:
    """The sequence with equal neighbors merged and counted."""
    return tuple(Collective(kind=kind, times=len([*each])) for kind, each in itertools.groupby(kinds))
