"""Print what each contract of ranks costs, as a table of docs/distributed.md: ci/python ci/costs.py receipt.json..."""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_compilecontract.facts.collectives import by_kind
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.files.receipt import read_receipt

COLUMNS = ("contract", "ranks", "graphs", "breaks", "recompiles", "run again", "DTensors", "collectives", "as eager")


def row(entry: Entry) -> tuple[str, ...]:
    """The cells of one lane."""
    name = entry.contract.rpartition("::test_")[2].partition("[")[0].replace("_", " ")
    ranks = f"{entry.lane_settings['ranks']}" + (", fake" if entry.lane_settings.get("process_group") == "fake" else "")
    seen = entry.measurement
    if seen is None:
        return name, ranks, entry.verdict, *[""] * (len(COLUMNS) - 3)
    return name, ranks, *cells(seen)


def cells(seen: Measurement) -> tuple[str, ...]:
    """The cells of a measurement; what was not measured is a question mark."""
    made = seen.collectives
    kinds = "?" if made is None else ", ".join(f"{times} {kind}" for kind, times in by_kind(made.compiled).items())
    alike = made is not None and made.eager is not None and by_kind(made.compiled) == by_kind(made.eager)
    counts = (
        seen.graphs,
        None if seen.graph_breaks is None else len(seen.graph_breaks),
        None if seen.recompiles is None else len(seen.recompiles),
        seen.recomputed_graphs,
        seen.sharded,
    )
    return *("?" if each is None else str(each) for each in counts), kinds or "none", "yes" if alike else "no"


def table(entries: list[Entry]) -> list[str]:
    """The lines of the table, each contract once."""
    rows = dict.fromkeys(row(each) for each in entries if "ranks" in each.lane_settings)
    return [f"| {' | '.join(each)} |" for each in (COLUMNS, ("---",) * len(COLUMNS), *rows)]


if __name__ == "__main__":
    found = [entry for name in sys.argv[1:] for entry in read_receipt(Path(name)).entries]
    print("\n".join(table(found)))
