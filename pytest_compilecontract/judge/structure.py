"""Limits on structure, checked against a measurement: where parameters are placed, and what the backward is given."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.verdict import Bound, Violation, violated
from pytest_compilecontract.wording import counted

from .bounds import why_unmeasured


def judge_structure(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    """Judge what eager is the measure of. Where eager has none of it, the limit means nothing, and is not held."""
    yield from _judge_placements(limits, seen, unmeasurable)
    yield from _judge_saved(limits, seen, unmeasurable)


def _judge_placements(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if not limits.same_placements:
        return
    bound = Bound(name="same_placements", allows=True)
    found = seen.placements
    if found is None:
        yield violated(bound, f"{unmeasurable}: {why_unmeasured(seen, 'placements')}")
    elif found.changed:
        measured = f"{counted(len(found.changed), 'parameter')} not placed as in eager"
        yield violated(bound, measured, [(str(each),) for each in found.changed])
    elif not found.in_eager:
        yield violated(bound, "no parameter is a DTensor, in eager either")


def _judge_saved(limits: Limits, seen: Measurement, unmeasurable: str) -> Iterator[Violation]:
    if limits.max_saved_ratio is None:
        return
    bound = Bound(name="max_saved_ratio", allows=limits.max_saved_ratio)
    found = seen.saved_bytes
    if found is None:
        yield violated(bound, f"{unmeasurable}: {why_unmeasured(seen, 'saved_bytes')}")
    elif not found.eager:
        yield violated(bound, "eager saves nothing for a backward")
    elif found.ratio > bound.allows:
        sizes = f"{counted(found.compiled, 'byte')} compiled, {counted(found.eager, 'byte')} eager"
        yield violated(bound, f"{found.ratio:.3g} ({sizes})")
