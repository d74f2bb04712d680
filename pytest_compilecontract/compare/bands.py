"""Bands: the range of a varying metric over the repeats of one side, and how far apart two ranges are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_compilecontract.facts.metrics import Better, Metric
from pytest_compilecontract.facts.receipt import Entry

Direction = Literal["worse", "better", "changed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """The range of a banded metric over the repeats of one side; a single value without repeats."""

    value: float
    low: float
    high: float
    repeats: int

    def __str__(self) -> str:
        if self.repeats < 2:
            return f"{_short(self.value)} measured once"
        band = _short(self.low) if self.low == self.high else f"{_short(self.low)} to {_short(self.high)}"
        return f"{band} over {self.repeats} repeats"


def band_of(entry: Entry, metric: Metric) -> Band | None:
    """The band of one metric; None where it was not measured."""
    value = getattr(entry.measurement, metric.name) if entry.measurement is not None else None
    if entry.repeats > 1 and metric.name in entry.spread:
        low, high = entry.spread[metric.name]
        return Band(value=(low + high) / 2 if value is None else value, low=low, high=high, repeats=entry.repeats)
    return None if value is None else Band(value=value, low=value, high=value, repeats=1)


def direction_between(was: Band, now: Band, width: float, better: Better | None) -> Direction | None:
    """The direction in which the newer band lies; None if it is within `width` of the older, relative to the larger.

    If lower is better, `width` is relative to the smaller.
    """
    if not (now.low > was.high or now.high < was.low):
        return None
    near = (was.high, now.low) if now.low > was.high else (was.low, now.high)
    if not abs(near[1] - near[0]) > width * (max if better == "higher" else min)(near):
        return None
    return "better" if (near[1] > near[0]) == (better == "higher") else "worse"


def _short(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.3g}"
