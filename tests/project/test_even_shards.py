"""Shards of real runs: the receipts of docs/receipts, cut by their own times, take about as long as one another."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pytest_compilecontract.facts.receipt import Receipt
from pytest_compilecontract.facts.shards import planned
from pytest_compilecontract.files.receipt import from_json

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "ci"))
import packed  # noqa: E402

NAMES = [name for name in packed.digests() if name.startswith("models/")]


def efficiency(receipt: Receipt, *, known: bool) -> float:
    """What eight machines do, by what they could: the sum of all times, by eight times the longest shard's."""
    seconds = {entry.test: entry.seconds for entry in receipt.entries if entry.measurement is not None}
    shards = planned({entry.test: True for entry in receipt.entries}, seconds if known else {}, 8)
    loads = [sum(seconds.get(test, 0.0) for test in shard.tests) for shard in shards]
    return sum(loads) / (8 * max(loads))


@pytest.fixture(scope="module")
def measured() -> tuple[list[float], list[float]]:
    receipts = [from_json(packed.unpacked(name), name=name) for name in NAMES]
    return [efficiency(each, known=True) for each in receipts], [efficiency(each, known=False) for each in receipts]


def test_what_the_page_says_of_evenness_is_so(measured: tuple[list[float], list[float]]) -> None:
    page = (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
    by_time, without = measured

    told = re.search(r"is (\d\.\d\d) to (\d\.\d\d) with times, and (\d\.\d\d) to (\d\.\d\d) without", page)

    assert told is not None
    assert told.groups() == tuple(f"{each:.2f}" for each in (min(by_time), max(by_time), min(without), max(without)))


def test_times_make_each_run_more_even(measured: tuple[list[float], list[float]]) -> None:
    assert all(by_time > without for by_time, without in zip(*measured, strict=True))
