"""Ranks compared with one another: which failed first, and how those that finished differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_compilecontract.facts.collectives import told
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.ranks import RankEnd
from pytest_compilecontract.facts.verdict import AGREE, Bound, Violation, violated
from pytest_compilecontract.wording import counted

# What torch, gloo and NCCL say where a rank that another one talks to is gone, or does not answer.
_OF_A_NEIGHBOUR = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "gloo/transport",
    "socket timeout",
    "remote process exited",
    "ncclremoteerror",
    "nccl watchdog",
    "watchdog caught collective operation timeout",
    "timed out waiting",
    "some operations have failed or timed out",
)
_CONNECTION_TYPES = ("DistNetworkError", "DistStoreError", "ConnectionResetError", "BrokenPipeError")
# Which end is the cause of the others, the first of them first; of one kind the earliest.
_ORDER = ("failed", "lost", "hung", "failed by a neighbour", "waited", "stopped")
# Told of each rank where ranks differ, and no more.
_TOLD = 8


def is_of_a_neighbour(exception: str, said: str) -> bool:
    """Whether an exception is only the effect of another rank's end."""
    text = said.lower()
    return exception.rpartition(".")[2] in _CONNECTION_TYPES or any(each in text for each in _OF_A_NEIGHBOUR)


def to_blame(ends: Sequence[RankEnd]) -> RankEnd | None:
    """The rank whose end caused that of the others; None if all passed, or all were skipped.

    A rank that failed or was lost comes before one that hung, then those that lost a connection, and then those that
    waited or were stopped. A rank that was skipped while others were not has failed.
    """
    if len({each.kind for each in ends} - {"passed"}) == 0 or all(each.kind == "skipped" for each in ends):
        return None
    ended = [each for each in ends if each.kind != "passed"]
    return min(ended, key=lambda each: (_weight(each), each.seconds, each.rank))


def _weight(end: RankEnd) -> int:
    kind = "failed by a neighbour" if end.connection else "failed" if end.kind in ("skipped", "lost") else end.kind
    return _ORDER.index(kind)


def disagreement(seen: Mapping[int, Measurement]) -> Violation | None:
    """How the measurements of ranks differ where they must agree; None if they agree.

    If one rank compiles alone, or makes its collectives in another order, the others wait forever.
    """
    names, facts = [], []
    for name, read in _ALIKE.items():
        found = {rank: read(each) for rank, each in seen.items()}
        if len(set(found.values())) > 1:
            names.append(name)
            facts.append((f"{name} differ", *(f"rank {rank}: {found[rank]}" for rank in sorted(found)[:_TOLD])))
    if not facts:
        return None
    return violated(Bound(name=AGREE, allows=None, given=False), f"{', '.join(names)} differ between ranks", facts)


def _graphs(seen: Measurement) -> str:
    if seen.graphs is None:
        return "not measured"
    split = f", handed to a backend {seen.backend_calls} times" if seen.backend_calls not in (None, seen.graphs) else ""
    return f"{counted(seen.graphs, 'graph')}{split}"


def _breaks(seen: Measurement) -> str:
    if seen.graph_breaks is None:
        return "not measured"
    return "; ".join(f"{each.location}: {each.kind}" for each in seen.graph_breaks) or "none"


def _recompiles(seen: Measurement) -> str:
    if seen.compiled_again is None:
        return "not measured"
    return "; ".join(f"{each.location or each.frame}: {each.kind}" for each in seen.compiled_again) or "none"


def _eager(seen: Measurement) -> str:
    if seen.frames_run_eager is None:
        return "not measured"
    return "; ".join(f"{each.location or each.frame}: {each.cause}" for each in seen.frames_run_eager) or "none"


def _collectives(seen: Measurement) -> str:
    return "not measured" if seen.collectives is None else told(seen.collectives.compiled)


_ALIKE: dict[str, Callable[[Measurement], str]] = {
    "graphs": _graphs,
    "graph breaks": _breaks,
    "recompiles": _recompiles,
    "eager frames": _eager,
    "collectives": _collectives,
}
