"""First-call seconds of each lane, old and new. They are shown and not judged by any policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_compilecontract.facts.metrics import METRICS, STAGES
from pytest_compilecontract.facts.receipt import Entry

from .bands import Band, band_of
from .drift import LaneComparison

COLD = METRICS["cold_seconds"]
MOST = 3
# A stage is told if it moved by at least this share of what all of them did.
SHARE = 0.5

Pair = tuple[Band, Band]


def cold_of(was: Entry, now: Entry) -> Pair | None:
    """The time of the first call on both sides; None if one of them did not measure it."""
    before, after = band_of(was, COLD), band_of(now, COLD)
    return None if before is None or after is None else (before, after)


def stage_of(was: Entry, now: Entry) -> str:
    """The stage of compiling that changed more than all others, with its seconds on both sides; empty if there is none.

    It includes recompiles, which happen after the first call.
    """
    before, after = (each.measurement.stage_seconds if each.measurement else None for each in (was, now))
    if before is None or after is None:
        return ""
    moved = {name: after[name] - before[name] for name in STAGES if name in before and name in after}
    name = max(moved, key=lambda each: abs(moved[each]), default="")
    if not name or not moved[name] or abs(moved[name]) < SHARE * sum(map(abs, moved.values())):
        return ""
    return f"{STAGES[name]} {short(before[name])} -> {short(after[name])} s"


def cold_lines(lanes: Iterable[LaneComparison]) -> list[str]:
    """The sums over the lanes that both sides measured, and the lanes that differ most; empty if there are none."""
    found = [(lane, lane.cold) for lane in lanes if lane.cold is not None]
    if not found:
        return []
    total = summed([pair for _, pair in found])
    lines = [f"first-call seconds (not judged): {total}"]
    found.sort(key=lambda each: abs(each[1][1].value - each[1][0].value), reverse=True)
    for lane, pair in found[:MOST]:
        stage = f"; {lane.stage}" if lane.stage else ""
        lines.append(f"{lane.contract} [{lane.lane}]: {told(pair)}{stage}")
    return lines


def summed(pairs: Sequence[Pair]) -> str:
    """The sums of both sides, as "3.21 -> 4.05 s (+26 %) in 12 lanes"."""
    before, after = (sum(pair[at].value for pair in pairs) for at in (0, 1))
    lanes = f"{len(pairs)} lane{'s' if len(pairs) != 1 else ''}"
    return f"{short(before)} -> {short(after)} s{_share(before, after)} in {lanes}"


def told(pair: Pair) -> str:
    """The times of one lane, with the spread over repeats."""
    before, after = pair
    text = f"{short(before.value)} -> {short(after.value)} s"
    if before.repeats < 2 and after.repeats < 2:
        return text
    return f"{text} ({_spread(before)} -> {_spread(after)})"


def short(seconds: float) -> str:
    """Seconds with three significant digits and no exponent."""
    return f"{seconds:.0f}" if seconds >= 100 else f"{float(f'{seconds:.3g}'):.7f}".rstrip("0").rstrip(".")


def _spread(band: Band) -> str:
    if band.repeats < 2:
        return "once"
    return f"{short(band.low)} to {short(band.high)} in {band.repeats}"


def _share(before: float, after: float) -> str:
    return f" ({100 * (after - before) / before:+.0f} %)" if before > 0 and after < float("inf") else ""
