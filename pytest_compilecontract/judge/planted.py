"""Judging a run with a planted fault: whether it failed, by what, and what would have noticed a fault that passed.

A failing lane alone proves nothing: it has to fail because of the fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_compilecontract.facts.faults import (
    NUMERICS,
    RAISES,
    DeviceFault,
    Factor,
    Fault,
    FrameGivenBack,
    GradientFault,
    GradOff,
    GraphBreakMore,
    GraphSkipped,
    HalfInside,
    HostSync,
    KernelMore,
    LimitReached,
    MemoryKept,
    RecompileMore,
)
from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.planted import Noticed
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.verdict import Violation

from .agreement import SAME_AS
from .alike import BY_LIMIT

LONGEST = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """What a run with a planted fault showed.

    `entry` is None if nothing was judged. `drifted` are the metrics that differ from its baseline. `own` is the type
    of what the test itself raised, `asserted` whether it was an assertion.
    """

    entry: Entry | None
    drifted: tuple[str, ...] = ()
    own: str = ""
    asserted: bool = False


def judged(fault: Fault, shown: Shown) -> tuple[Noticed, str]:
    """The outcome of a planted fault, and what caused it."""
    right = list(dict.fromkeys(_right(fault, shown)))
    if right:
        return "noticed", ", ".join(right)
    red = list(dict.fromkeys(_red(shown)))
    return ("another reason", ", ".join(red)) if red else ("not noticed", "")


def _right(fault: Fault, shown: Shown) -> Iterator[str]:
    """What failed for the right reason."""
    entry = shown.entry
    if entry is not None:
        wrong = fault.kinds & kinds_of(entry.measurement)
        names = {*fault.limits, *((NUMERICS,) if wrong else ())}
        raised = entry.measurement.raised if entry.measurement is not None else None
        if raised is not None and not _may_raise(fault, raised.type):
            names.discard(RAISES)
        yield from (each.limit for each in entry.violations if each.name in names or _between_lanes(fault, each, entry))
        if raised is not None and raised.asserted:
            yield "an assertion in the test"
    yield from (f"baseline: {metric}" for metric in shown.drifted if metric in fault.metrics)
    if shown.asserted:
        yield "an assertion in the test"
    elif shown.own and RAISES in fault.limits and _may_raise(fault, shown.own):
        yield f"{shown.own} in the test"


def _between_lanes(fault: Fault, violation: Violation, entry: Entry) -> bool:
    """Whether a lane differs from another one (`same_as`) in what the fault changes."""
    if violation.name != SAME_AS:
        return False
    told = {fact[0] for fact in violation.facts}
    if any(f"{BY_LIMIT[each]} differ" in told for each in fault.limits if each in BY_LIMIT):
        return True
    beside = entry.measurement.beside if entry.measurement is not None else None
    return beside is not None and any(each.kind in fault.kinds for each in beside.differences)


def _may_raise(fault: Fault, type_: str) -> bool:
    """Whether the fault can raise this exception. A warning that was turned into an error does not show the fault."""
    return type_ in fault.raised if fault.raised else not type_.endswith("Warning")


def _red(shown: Shown) -> Iterator[str]:
    """Everything that failed, for any reason."""
    entry = shown.entry
    if entry is not None:
        yield from (_told(each, entry) for each in entry.violations)
        if entry.verdict != "held" and not entry.violations:
            yield f"{entry.verdict}: {entry.reason}"[:LONGEST]
    yield from (f"baseline: {metric}" for metric in shown.drifted)
    if shown.own:
        yield f"{shown.own} in the test"


def _told(violation: Violation, entry: Entry) -> str:
    kinds = sorted(kinds_of(entry.measurement)) if violation.name == NUMERICS else []
    if violation.name == RAISES and entry.measurement is not None and entry.measurement.raised is not None:
        kinds = [entry.measurement.raised.type]
    return f"{violation.limit}: {', '.join(kinds)}" if kinds else violation.limit


def kinds_of(seen: Measurement | None) -> frozenset[str]:
    """The kinds of difference from eager that a measurement has."""
    if seen is None or seen.numerics is None:
        return frozenset()
    return frozenset(each.kind for each in seen.numerics.differences)


WITHIN_ROUNDING = "no limit: the gradient is not compared, or its difference is within the rule's tolerance"
NOT_COMPARED = "no limit: what the fault changed is not compared"


def advised(fault: Fault, limits: Limits, seen: Measurement | None, *, backward: bool) -> str:
    """What would notice a fault in a lane in which nothing did.

    `seen` is what the lane shows without it. `backward`: the program asks for gradients.
    """
    if isinstance(fault, DeviceFault):
        return _advised_on_device(fault, seen)
    counts: dict[type[Fault], tuple[str, Sequence[object] | None]] = {
        GraphBreakMore: ("max_graph_breaks", seen.graph_breaks if seen else None),
        RecompileMore: ("max_recompiles", seen.compiled_again if seen else None),
        FrameGivenBack: ("max_eager_frames", seen.lost_frames if seen else None),
    }
    if type(fault) in counts:
        name, facts = counts[type(fault)]
        return f"{name}={len(facts or ())} would notice it"
    if isinstance(fault, LimitReached):
        return "allow_recompile_limit=False would notice it"
    if limits.numerics is None:
        return "nothing is compared (numerics=None): numerics='fp64' would notice it"
    if seen is None or seen.numerics is None:
        return "nothing is compared with eager: use compile_lane.run, train or compare"
    if isinstance(fault, GradientFault):
        if limits.check_grads is False or not backward:
            return "check_grads=True would notice it"
        # 1 % may be rounding in a narrow precision; what is doubled, missing or NaN is not looked at.
        return WITHIN_ROUNDING if isinstance(fault, GradOff) else NOT_COMPARED
    if limits.rtol is not None or limits.atol is not None:
        return "a smaller rtol= or atol= would notice it"
    # What is doubled, as in the third call, is within no tolerance.
    if type(fault) in (HalfInside, Factor):
        # Without the fault, bits that are all the same ask for no rule.
        method = seen.numerics.method
        rule = "the rule" if method in (limits.numerics, "bitwise") else f"{method} without a float64 run"
        return f"a smaller rtol= would notice it: the difference is within the tolerance of {rule}"
    return NOT_COMPARED


def _advised_on_device(fault: Fault, seen: Measurement | None) -> str:
    if isinstance(fault, GraphSkipped):
        return "cudagraphs='required' would notice it"
    if isinstance(fault, HostSync):
        syncs = sum(each.count for each in seen.host_syncs or ()) if seen else 0
        return f"max_host_syncs={syncs} would notice it"
    if isinstance(fault, KernelMore):
        kernels = seen.kernels.compiled.total if seen and seen.kernels else None
        return f"max_kernels={'N' if kernels is None else kernels} would notice it"
    assert isinstance(fault, MemoryKept)
    return "max_memory_growth=0 would notice it, with compile_lane.run or train"
