"""The table of `compilecontract modes`: lanes side by side, what each costs and gains. Data in, lines out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_compilecontract.compare.cold import short
from pytest_compilecontract.escaping import plain
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.wording import counted

from .color import Paint, unpainted
from .table import TableCell, table_lines

NOT_MEASURED = "not measured"
Read = Callable[[Measurement], str | None]


def _seconds(name: str) -> Read:
    def read(seen: Measurement) -> str | None:
        value = getattr(seen, name)
        return None if value is None else f"{short(value)} s"

    return read


def _number(name: str) -> Read:
    def read(seen: Measurement) -> str | None:
        value = getattr(seen, name)
        return None if value is None else str(value)

    return read


def _memory(seen: Measurement) -> str | None:
    return None if seen.peak_bytes is None else f"{seen.peak_bytes / 2**20:.1f} MiB"


def _speedup(seen: Measurement) -> str | None:
    if seen.speed is None:
        return None
    low, high = seen.speed.spread
    return f"{seen.speed.speedup:.2f} ({low:.2f} to {high:.2f})"


def _break_even(seen: Measurement) -> str | None:
    if seen.speed is None:
        return None
    return "never" if seen.speed.break_even is None else counted(seen.speed.break_even, "step")


def _attention(seen: Measurement) -> str | None:
    return None if seen.kernels is None else ", ".join(seen.kernels.compiled.attention) or "none"


# Each row by what it is called, how it is read, and the field whose reason says why it is not known.
ROWS: dict[str, tuple[Read, str]] = {
    "compiling": (_seconds("compile_seconds"), "stage_seconds"),
    "compiling, caches warm": (_seconds("warm_seconds"), "warm"),
    "first call": (_seconds("cold_seconds"), "calls"),
    "steady call": (_seconds("steady_seconds"), "calls"),
    "steady step on the device": (_seconds("device_seconds"), "speed"),
    "speedup over eager": (_speedup, "speed"),
    "pays off after": (_break_even, "speed"),
    "guards per call": (_number("guards_a_call"), "guards"),
    "kernels per step": (_number("kernels_a_step"), "kernels"),
    "peak memory": (_memory, "memory"),
    "attention": (_attention, "kernels"),
}


def mode_lines(entries: Sequence[Entry], width: int | None, paint: Paint = unpainted) -> list[str]:
    """The table, and below it why what is not measured is not, by reason.

    Lanes that measured nothing, and rows that no lane measured, are only named there.
    """
    shown = [entry for entry in entries if entry.measurement is not None] or entries
    rows: list[tuple[str, Sequence[TableCell]]] = [
        ("verdict", [TableCell(each.verdict, says=each.verdict) for each in shown])
    ]
    whys: dict[str, dict[str, list[str]]] = {}
    for name, (read, field) in ROWS.items():
        texts = [read(entry.measurement) if entry.measurement is not None else None for entry in entries]
        for entry, text in zip(entries, texts, strict=True):
            if text is None:
                whys.setdefault(_why(entry, field), {}).setdefault(name, []).append(entry.lane)
        if any(texts):
            told = [text for entry, text in zip(entries, texts, strict=True) if entry in shown]
            rows.append((name, [TableCell(text or NOT_MEASURED) for text in told]))
    lines = table_lines([plain(each.lane) for each in shown], rows, width, paint)
    return [*lines, *(["", f"{NOT_MEASURED}:"] if whys else []), *(_told(why, of) for why, of in whys.items())]


def _why(entry: Entry, field: str) -> str:
    if entry.measurement is None:
        return entry.reason or "the lane measured nothing"
    return entry.measurement.unmeasured.get(field, "no call was steady" if field == "calls" else "nothing measured it")


def _told(why: str, of: dict[str, list[str]]) -> str:
    """A reason, with the rows and lanes that it is the reason of."""
    lanes = dict.fromkeys(lane for each in of.values() for lane in each)
    rows = "all of it" if len(of) == len(ROWS) else ", ".join(of)
    return f"  {plain(', '.join(lanes))}: {rows}: {plain(why)}"
