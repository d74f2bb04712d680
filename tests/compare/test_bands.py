"""Bands: the range of a metric over repeats, in words, and when two ranges are apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.receipts import HOLDING, an_entry

from pytest_compilecontract.compare.bands import Band, Direction, band_of, direction_between
from pytest_compilecontract.facts.metrics import METRICS, Better

STEADY = METRICS["steady_seconds"]


def a_band(low: float, high: float, repeats: int = 3) -> Band:
    return Band(value=(low + high) / 2, low=low, high=high, repeats=repeats)


@pytest.mark.parametrize(
    ("band", "text"),
    [
        (Band(value=0.5, low=0.5, high=0.5, repeats=1), "0.5 measured once"),
        (a_band(100.0, 100.0, repeats=2), "100 over 2 repeats"),
        (a_band(0.12345, 2.0), "0.123 to 2 over 3 repeats"),
    ],
    ids=["once", "the same twice", "a range"],
)
def test_a_band_in_words(band: Band, text: str) -> None:
    assert str(band) == text


def test_a_band_is_that_of_the_repeats_and_a_single_run_has_its_value() -> None:
    seen = replace(HOLDING, steady_seconds=2.0)
    spread = {"steady_seconds": (1.0, 4.0)}

    assert band_of(an_entry(seen, repeats=3, spread=spread), STEADY) == Band(value=2.0, low=1.0, high=4.0, repeats=3)
    assert band_of(an_entry(seen, repeats=2, spread=spread), STEADY) == Band(value=2.0, low=1.0, high=4.0, repeats=2)
    assert band_of(an_entry(seen, repeats=1, spread=spread), STEADY) == Band(value=2.0, low=2.0, high=2.0, repeats=1)
    assert band_of(an_entry(seen, repeats=3), STEADY) == Band(value=2.0, low=2.0, high=2.0, repeats=1)


def test_a_band_without_a_value_has_its_middle_and_without_both_there_is_none() -> None:
    bare = replace(HOLDING, steady_seconds=None)

    middle = band_of(an_entry(bare, repeats=3, spread={"steady_seconds": (1.0, 4.0)}), STEADY)

    assert middle == Band(value=2.5, low=1.0, high=4.0, repeats=3)
    assert band_of(an_entry(bare), STEADY) is None
    assert band_of(an_entry(None), STEADY) is None


@pytest.mark.parametrize(
    ("was", "now", "width", "better", "direction"),
    [
        pytest.param((1, 2), (2, 3), 0.0, "lower", None, id="they touch"),
        pytest.param((2, 3), (1, 2), 0.0, "lower", None, id="they touch below"),
        pytest.param((1, 2), (3, 4), 0.0, "lower", "worse", id="above, lower is better"),
        pytest.param((1, 2), (3, 4), 0.0, "higher", "better", id="above, higher is better"),
        pytest.param((3, 4), (1, 2), 0.0, "lower", "better", id="below, lower is better"),
        pytest.param((3, 4), (1, 2), 0.0, "higher", "worse", id="below, higher is better"),
        pytest.param((1, 2), (3, 4), 0.5, "lower", None, id="as far as the width, of the smaller"),
        pytest.param((1, 2), (3, 4), 0.49, "lower", "worse", id="further than the width, of the smaller"),
        pytest.param((1, 2), (4, 5), 0.5, "higher", None, id="as far as the width, of the larger"),
        pytest.param((1, 2), (4, 5), 0.49, "higher", "better", id="further than the width, of the larger"),
        pytest.param((4, 5), (1, 2), 0.5, "higher", None, id="below by the width, of the larger"),
        pytest.param((3, 4), (1, 2), 0.5, "lower", None, id="below by the width, of the smaller"),
    ],
)
def test_a_band_is_worse_or_better_where_it_is_further_off_than_the_width(
    was: tuple[float, float], now: tuple[float, float], width: float, better: Better, direction: Direction | None
) -> None:
    assert direction_between(a_band(*was), a_band(*now), width, better) == direction
