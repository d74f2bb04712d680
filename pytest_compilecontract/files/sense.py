"""What is valid in a file beyond its types: bounds of numbers, names, and values that must agree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.facts.limits import LARGEST_COUNT
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.receipt import ORDER, Entry, Receipt, is_time

# Of bytes, and of what a limit on them has measured.
LARGEST_SIZE = 2**63 - 1
# JSON has no such numbers. They are written as these strings, where a number is expected and nowhere else.
NON_FINITE = ("nan", "inf", "-inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """The valid values of a field: the minimum and maximum of a number, or that a text is a name."""

    least: float = 0
    most: float = math.inf
    finite: bool = False
    names: bool = False

    def fault(self, value: object) -> str:
        """What is wrong with a value of the field's type; empty if nothing. NaN is not out of bounds."""
        if isinstance(value, str):
            return (name_fault(value) if self.names else "") or (
                f"expected a number, got {value!r}" if self.finite and value in NON_FINITE else ""
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            return ""
        # An integer is finite, also one that no float can hold.
        if self.finite and isinstance(value, float) and not math.isfinite(value):
            return f"expected a number, got {value}"
        if value < self.least:
            return f"expected at least {self.least}, got {one_line(str(value), 40)}"
        return f"expected at most {self.most}, got {one_line(str(value), 40)}" if value > self.most else ""


_COUNT = Bounds(most=LARGEST_COUNT)
_SIZE = Bounds(most=LARGEST_SIZE)
_SECONDS = Bounds(finite=True)
_NAME = Bounds(names=True)
# What names something that is looked for, made a folder of, or run; and what holds such names as its keys.
_NAMES = ("contract", "lane", "test", "environment", "environments", "contracts", "contracts.*")
# Torch's own counters say what torch likes.
_FREE = ("counters", "caches", "spread")


@cache
def bounds_of(owner: str, name: str, type_: object) -> Bounds | None:
    """The bounds of this field of a dataclass, or of its elements; None if every value is valid."""
    if name.partition(".")[0] in _FREE:
        return None
    if type_ is str:
        return _NAME if name in _NAMES else None
    if type_ in (int, float) and owner in ("Drift", "MatrixChange"):
        return None  # of any metric, by its own bounds in the receipt
    if type_ is int:
        return _SIZE if name.endswith("bytes") or owner == "Violation" else _COUNT
    if type_ is float:
        return _SECONDS if name.removesuffix(".*").endswith("seconds") or owner == "Timing" else None
    return None


def name_fault(name: str) -> str:
    """Why a text cannot be the name of a test or lane, or would be taken for an option; empty if it can."""
    if not name.strip():
        return f"expected a name, got {name!r}"
    option = name.startswith("-")
    return f"expected a name that does not begin with '-', got {one_line(repr(name), 80)}" if option else ""


def refuse_inconsistent(receipt: Receipt, document: Mapping[str, object]) -> None:
    if not is_time(receipt.created):
        raise ReceiptError(f"expected a time such as 2026-01-31T12:00:00Z, got {receipt.created!r}", at="created")
    # By the document's own numbering: the receipt's entries have been sorted.
    entries = document.get("entries")
    written = [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    places = sorted(range(len(written)), key=lambda at: tuple(written[at].get(name, "") for name in ORDER))
    for index, entry in sorted(zip(places, receipt.entries, strict=True), key=lambda pair: pair[0]):
        if entry.environment not in receipt.environments:
            raise ReceiptError(f"{entry.environment!r} is not in environments", at=f"entries[{index}].environment")
        if entry.verdict == "held" and not written[index].get("measurement"):
            raise ReceiptError("'held' without a measurement", at=f"entries[{index}].verdict")
        for at, fault in entry_faults(entry):
            raise ReceiptError(fault, at=f"entries[{index}].{at}")


def is_consistent(receipt: Receipt) -> bool:
    """Whether `refuse_inconsistent` has nothing to refuse. False also if only the document could tell."""
    nothing = Measurement()
    return is_time(receipt.created) and all(
        entry.environment in receipt.environments
        and not (entry.verdict == "held" and entry.measurement == nothing)
        and next(entry_faults(entry), None) is None
        for entry in receipt.entries
    )


def entry_faults(entry: Entry) -> Iterator[tuple[str, str]]:
    """Contradictions in an entry whose values are each valid, with their places."""
    if entry.verdict == "held" and entry.violations:
        yield "verdict", "'held' with violations"
    if entry.verdict == "held" and entry.measurement is None:
        yield "verdict", "'held' without a measurement"
    yield from lane_faults(entry.measurement, entry.repeats, entry.spread)


def lane_faults(
    measurement: Measurement | None, repeats: int, spread: Mapping[str, tuple[float, float]]
) -> Iterator[tuple[str, str]]:
    """Contradictions in a lane, of a receipt or a baseline, with their places."""
    yield from spread_faults(repeats, spread)
    for at, fault in _miscounted(measurement) if measurement is not None else ():
        yield f"measurement.{at}", fault


def spread_faults(repeats: int, spread: Mapping[str, tuple[float, float]]) -> Iterator[tuple[str, str]]:
    """Bands that cannot have been measured, with their places in the entry.

    Fewer than one repeat, a band of a single run, or bounds that are not in order.
    """
    if repeats < 1:
        yield "repeats", f"expected at least 1, got {repeats}"
    if spread and repeats < 2:
        yield "spread", "a spread without repeats"
    for name, (low, high) in spread.items():
        if not 0 <= low <= high:
            yield f"spread.{name}", f"expected the lowest and the highest value, got {low} and {high}"


def _miscounted(seen: Measurement) -> Iterator[tuple[str, str]]:
    """Parts that are larger than the whole."""
    first, later = seen.first_compiles, seen.continuations
    if first is not None and later is not None and later > first:
        yield "continuations", f"expected at most first_compiles ({first}), got {later}"
    for side in ("compiled", "eager") if seen.kernels is not None else ():
        kernels = getattr(seen.kernels, side)
        if kernels.triton + kernels.library > kernels.total:
            yield f"kernels.{side}", f"expected at most total ({kernels.total}), got {kernels.triton + kernels.library}"
    for side in ("compiled", "eager") if seen.speed is not None else ():
        timing = getattr(seen.speed, side)
        if not timing.low <= timing.median <= timing.high:
            found = f"{timing.low}, {timing.median} and {timing.high}"
            yield f"speed.{side}", f"expected low, median and high in order, got {found}"
