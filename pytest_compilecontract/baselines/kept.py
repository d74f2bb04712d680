"""What a baseline keeps of a lane, and which lanes may be recorded."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

from pytest_compilecontract.facts.measurement import MEANINGLESS, GraphBreak, Measurement, Numerics
from pytest_compilecontract.facts.metrics import NOT_KEPT
from pytest_compilecontract.facts.receipt import Entry

Mode = Literal["new", "changed", "all"]
MODES: tuple[Mode, ...] = ("new", "changed", "all")
# Many small numbers that are one fact together.
COUNTED_BY_NAME = ("operations",)


def refusal(entry: Entry) -> str:
    """Why later runs should not be compared with this one; empty if they may be."""
    if entry.measurement is None:
        return f"nothing was measured ({entry.reason or entry.verdict})"
    if entry.verdict != "held":
        return f"{entry.verdict}: {entry.reason}" if entry.reason else entry.verdict
    if entry.measurement.hunted is not None:
        return "hunted: each run draws different calls"
    if entry.measurement.disagreements:
        return f"two independent counts disagree: {entry.measurement.disagreements[0]}"
    allowed = entry.limits.get("max_graphs") == 0 or entry.limits.get("min_ops_captured") == 0
    if not entry.measurement.graphs and not allowed:
        return "nothing was captured"
    if entry.measurement.limit_hits and not entry.limits.get("allow_recompile_limit"):
        return "the recompile limit was reached"
    if entry.measurement.frames_run_eager and not entry.limits.get("max_eager_frames"):
        return "frames ran in eager"
    return ""


def kept_entry(entry: Entry) -> Entry:
    """The entry reduced to what a baseline keeps, so that both sides of a comparison have the same fields."""
    kept = entry.measurement and kept_measurement(entry.measurement)
    return replace(entry, measurement=kept, spread=kept_spread(entry))


def kept_spread(entry: Entry) -> dict[str, tuple[float, float]]:
    """The bands with three significant digits, rounded outward."""
    return {name: (_down(low), -_down(-high)) for name, (low, high) in sorted(entry.spread.items())}


def _down(value: float) -> float:
    if not math.isfinite(value) or value.is_integer():
        return float(value)
    scale = 10.0 ** (2 - math.floor(math.log10(abs(value))))
    return min(value, math.floor(value * scale) / scale)


def kept_measurement(measurement: Measurement) -> Measurement:
    """The measurement as a baseline keeps it: no times, no cache state, and breaks without incidental details."""
    empty = Measurement()
    changes: dict[str, Any] = {name: getattr(empty, name) for name in NOT_KEPT}
    if measurement.graph_breaks is not None:
        changes["graph_breaks"] = tuple(map(_kept_break, measurement.graph_breaks))
    if measurement.recompiles is not None:
        changes["recompiles"] = tuple(
            replace(each, hint="", entries=None, limit=None) for each in measurement.recompiles
        )
    if measurement.operators_run is not None:
        changes["operators_run"] = replace(measurement.operators_run, modules={}, lines={})
    if measurement.numerics is not None:
        changes["numerics"] = _kept_numerics(measurement.numerics)
    changes["unmeasured"] = {
        name: why
        for name, why in measurement.unmeasured.items()
        # What the device or lane has not is no news of each lane.
        if name not in NOT_KEPT and why not in MEANINGLESS
    }
    return replace(measurement, **changes)


def _kept_break(found: GraphBreak) -> GraphBreak:
    # That a break is met at its own line is said by its line.
    stacks = tuple(stack for stack in found.stacks if stack != (found.location,))
    return replace(found, explanation="", hints=(), stacks=stacks)


def _kept_numerics(found: Numerics) -> Numerics:
    # No two machines have the same last digits.
    return replace(found, worst_error=_rounded(found.worst_error), eager_error=_rounded(found.eager_error))


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.2g}")
