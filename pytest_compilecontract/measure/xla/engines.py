"""The engine of an XLA lane: torchax in this process, or torch_xla in one of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.lanes import TORCHAX, Lane

from ..probes.xla_lazy import TorchXla
from ..probes.xla_torchax import Torchax
from .calls import Calls


def calls_of(lane: Lane) -> Calls | None:
    """What records the calls of an XLA lane; None of another lane."""
    if not lane.is_xla:
        return None
    return Calls(Torchax() if lane.backend == TORCHAX else TorchXla(lane.backend))


def compiled_by_xla(calls: Calls | None, lane: Lane, target: Any, overrides: Mapping[str, object]) -> Any:
    """The target compiled in an XLA lane, while something is measured there.

    Raises:
        UsageError: nothing is, or there are keywords of torch.compile.
    """
    if overrides:
        given = ", ".join(overrides)
        raise UsageError(f"lane {lane.name!r} has no torch.compile, and takes none of its keywords: {given}")
    if calls is None:
        raise UsageError(f"lane {lane.name!r} compiles inside compile_lane.run, train and compare alone")
    return calls.compile(target)
