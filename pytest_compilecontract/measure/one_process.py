"""One process beside ranks: runs what a test says for it, in eager, and compares what the ranks returned with that."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace

import torch.distributed as dist

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.collectives import told_by_kind
from pytest_compilecontract.facts.measurement import Numerics

from . import numerics
from .passes import Job, Passes
from .probes.collectives import Recorded, recorded
from .programs import Body, Trail


def held_to_one_process(
    found: Numerics, passes: Passes, job: Job, sides: Mapping[str, Trail], tolerance: numerics.Tolerance
) -> Numerics:
    """The comparison with what one process returns as well, where the test has code for it.

    Raises:
        UsageError: that code runs collectives, and so is none of one process.
        Exception: what it raises itself.
    """
    alone = job.program.without_ranks if isinstance(job.program, Body) else None
    # What raised has returned nothing to compare.
    if alone is None or any(ranks.error is not None for ranks in sides.values()):
        return found
    with recorded() if _in_a_group() else contextlib.nullcontext() as made:
        trail = passes.eager(replace(job, program=alone))
    if trail.error is not None:
        raise trail.error
    note = _refuse_collectives(made)
    differences = [
        each
        for side, ranks in sides.items()
        for each in numerics.held_to_one_process(ranks.run(), trail.run(), tolerance, side)
    ]
    return replace(
        found,
        differences=(*found.differences, *differences),
        note="; ".join(filter(None, [found.note, note])),
    )


def _in_a_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def _refuse_collectives(made: Recorded | None) -> str:
    if made is None:
        return ""
    if made.collectives is None:
        return f"whether alone= runs collectives is not known: {made.why}"
    if made.collectives:
        ran = told_by_kind(made.collectives)
        raise UsageError(f"compile_lane.compare: alone= is code for one process, and it ran {ran}")
    return ""
