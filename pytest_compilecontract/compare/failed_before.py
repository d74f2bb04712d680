"""Lanes whose test failed by itself before and that hold now: nothing can be worse, or it is not known.

What such a lane did before is known up to the failure at most. It is good news if there is nothing now that could have
come with the upgrade: no break, recompile or other fact that it had not shown by then, and no less captured.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.metrics import METRICS
from pytest_compilecontract.facts.own_failure import OwnFailure
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.wording import counted

from .by_rank import moves
from .drift import Verdict
from .policy import Policy
from .tell import READERS, Facts, read_errors

# Without them nothing is known of the lane now.
_NEEDED = ("errors", "graph_breaks", "recompiles", "eager_frames")
# What a lane has that is as it should be: the names in a compiled module's state dict, the calls of its ranks.
_STANDING = ("state_dict", "collectives")


def since_failure(old: Entry, new: Entry, policy: Policy, *, one_device: bool) -> tuple[Verdict, str] | None:
    """The verdict, with its reason, of a lane that failed by itself before and holds now; None for any other lane."""
    own = old.own_failure
    if own is None or old.verdict != "broken" or new.verdict != "held" or _raised(old):
        return None
    if why := next(_unknown(own, old, new, policy, one_device=one_device), ""):
        return "unverified", f"not known before: {old.reason}; {why}"
    if _captured_nothing(new):
        return "unmeasured", f"nothing was captured now, and not known before: {old.reason}"
    return "improved", f"failed by itself before, and holds now: {old.reason}"


def _raised(entry: Entry) -> bool:
    """Whether compiling itself raised: a fault of the lane, and not of its test."""
    return entry.measurement is not None and entry.measurement.raised is not None


def _captured_nothing(entry: Entry) -> bool:
    """Whether it captured nothing, and its limits do not ask for that: what raised before may be passed over now."""
    meant = entry.limits.get("max_graphs") == 0
    return entry.measurement is not None and entry.measurement.graphs == 0 and not meant


def _unknown(own: OwnFailure, old: Entry, new: Entry, policy: Policy, *, one_device: bool) -> Iterator[str]:
    """Why it is not known that nothing is worse now."""
    if own.phase != "call" or not own.exception:
        yield "its body did not fail"
    if own.of_environment:
        yield "the environment may have been at fault"
    if not one_device:
        yield "it ran on another device"
    if old.frontier is not None or new.frontier is not None:
        yield "a ladder is compared by its rungs"
    was, now = old.measurement or Measurement(), new.measurement or Measurement()
    if now.cut_short:
        yield f"the test ended early now: {now.cut_short}"
    if now.graphs is None:
        yield "graphs not measured now"
    if (now.ops_captured or 0) < (was.ops_captured or 0):
        yield f"it had captured {counted(was.ops_captured or 0, 'operation')} by then, and {now.ops_captured} now"
    if len(now.calls or ()) < len(was.calls or ()):
        yield f"it had made {counted(len(was.calls or ()), 'call')} by then, and {len(now.calls or ())} now"
    yield from _facts(old, new, policy)


def _facts(old: Entry, new: Entry, policy: Policy) -> Iterator[str]:
    """The metrics that show something now which they had not shown by then, and those that are not measured now."""
    was, now = old.measurement or Measurement(), new.measurement or Measurement()
    found = {
        "errors": (read_errors(old), read_errors(new)),
        **{k: (read(was), read(now)) for k, read in READERS.items()},
    }
    for metric, (before, after) in found.items():
        if metric not in policy.gate or metric in _STANDING:
            continue
        if after is None:
            if metric in _NEEDED or before is not None:
                yield f"{METRICS[metric].label} not measured now"
        elif moves(before or Facts(of=(), count=0), after, old, new, READERS.get(metric)).came:
            yield f"{METRICS[metric].label} {after.count} now, which may be new"
