"""Ranks compared with one another: which failed first, and how those that finished differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.ranks import RankEnd
from pytest_compilecontract.facts.verdict import AGREE, Bound, Violation, violated

from .alike import OF_RANKS, differing

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
    found = differing({f"rank {rank}": seen[rank] for rank in sorted(seen)}, OF_RANKS)
    if not found:
        return None
    facts = [each for told in found.values() for each in told]
    return violated(Bound(name=AGREE, allows=None, given=False), f"{', '.join(found)} differ between ranks", facts)
