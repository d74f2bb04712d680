"""Ranks held to one process: what a run in ranks returned, compared with what eager returns without them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_compilecontract.facts.measurement import Difference

from .judging import Runs, judged
from .rule import Tolerance
from .snapshot import Opaque, Run, Snapshot
from .two_lanes import KINDS, told

KIND = "one process"
OUTPUT = "output"


def held_to_one_process(ranks: Run, alone: Run, tolerance: Tolerance, side: str) -> Iterator[Difference]:
    """Where the results of a run in ranks are not those of one process; `side` says which run it is.

    Both add up in an order of their own, so equal bits are not asked for. Modules, which ranks wrap, are not results.
    """
    left_out = {at for run in (ranks, alone) for at in _modules(run)}
    ours, theirs = (_results(run, left_out) for run in (ranks, alone))
    runs = Runs(eager=theirs, compiled=ours, again=theirs, bias=False)
    found = judged(runs, replace(tolerance, method="allclose")).numerics
    for each in found.differences:
        if each.kind in KINDS:
            detail = f"{each.kind}: {told(each.at, ours, theirs, (side, KIND))}"
            yield replace(each, kind=KIND, detail=detail)


def _results(run: Run, left_out: set[str]) -> Run:
    output = run.groups.get(OUTPUT, Snapshot())
    nodes = {at: node for at, node in output.nodes.items() if at not in left_out}
    return Run(groups={OUTPUT: Snapshot(nodes=nodes)})


def _modules(run: Run) -> Iterator[str]:
    output = run.groups.get(OUTPUT, Snapshot())
    return (at for at, node in output.nodes.items() if isinstance(node, Opaque) and not node.unread)
