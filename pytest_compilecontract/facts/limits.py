"""Limits: what an author allows compiling to do, as data and as markers state it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.wording import meant

from .ladder import faults
from .lanes import FAKE, MOST_RANKS, PROCESS_GROUPS, is_ranks

LARGEST_COUNT = 10**9
LONGEST_SHOWN = 80
Rule = Literal["fp64", "allclose", "bitwise"]
Graphs = Literal["required", "partitioned"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one contract allows. None means that the author did not say; then the default rule is used, if there is one.

    `numerics` is the exception: its default is "fp64", and None is the author's "do not compare". `check_grads` None
    compares gradients where the contract trains. `lanes` None is every lane that was chosen. `ranks` and
    `process_group` are those of its lanes, whatever these say themselves.
    """

    max_recompiles: int | None = None
    max_graph_breaks: int | None = None
    max_graphs: int | None = None
    max_eager_frames: int | None = None
    max_eager_ops: int | None = None
    min_ops_captured: int | None = None
    fullgraph: bool | None = None
    allow_recompile_limit: bool | None = None
    check_grads: bool | None = None
    check_state_dict: bool | None = None
    rtol: float | None = None
    atol: float | None = None
    numerics: Rule | None = "fp64"
    lanes: tuple[str, ...] | None = None
    frontier: tuple[str, ...] | None = None
    min_frontier: str | None = None
    capture_targets: tuple[str, ...] | None = None
    keeps_outputs: bool | None = None
    cudagraphs: Graphs | None = None
    max_guards: int | None = None
    max_cold_seconds: float | None = None
    max_warm_seconds: float | None = None
    max_warm_misses: int | None = None
    max_cache_misses: int | None = None
    max_cache_bypasses: int | None = None
    max_kernels: int | None = None
    max_kernels_ratio: float | None = None
    max_host_syncs: int | None = None
    max_memory_ratio: float | None = None
    max_memory_growth: int | None = None
    min_speedup: float | None = None
    ranks: int | None = None
    process_group: str | None = None
    ranks_agree: bool | None = None
    max_collectives: int | None = None
    same_collectives: bool | None = None
    same_placements: bool | None = None
    max_saved_ratio: float | None = None
    max_recomputed_graphs: int | None = None
    same_as: str | None = None

    @property
    def starts_again(self) -> bool:
        """Whether a second process has to be started to judge them."""
        return self.max_warm_seconds is not None or self.max_warm_misses is not None

    def to_dict(self) -> dict[str, object]:
        """The limits that the author gave, as plain data, without those that equal the default."""
        unsaid = Limits()
        given: dict[str, object] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if value != getattr(unsaid, each.name):
                given[each.name] = list(value) if isinstance(value, tuple) else value
        return given


# What a test that is only observed allows: everything. It has no author to have said less.
OBSERVED = Limits(max_eager_frames=LARGEST_COUNT, min_ops_captured=0, allow_recompile_limit=True, numerics=None)
# The same, as an entry has it.
OBSERVED_LIMITS = OBSERVED.to_dict()


def limits_from(markers: Sequence[tuple[str, Mapping[str, object]]], *, test: str) -> Limits:
    """The limits of a test from its markers, outermost first, each as (where it is, its keywords); the nearer wins.

    `where` is empty for the test's own marker.

    Raises:
        UsageError: a name that is not a limit, a value of the wrong type, or limits that contradict one another.
    """
    values: dict[str, Any] = {}
    for where, keywords in markers:
        at = f"{test}: {where}" if where else test
        for name, value in keywords.items():
            if name not in LIMITS:
                raise _refusal(f"{at}: unknown limit {name!r}{meant(name, LIMITS)}")
            kind = LIMITS[name].kind
            if name == "capture_targets" and isinstance(value, (list, tuple)):
                value = [f"{each.__module__}.{each.__qualname__}" if isinstance(each, type) else each for each in value]
            if not kind.accepts(value):
                raise _refusal(f"{at}: {name}: expected {kind.text}, got {_shown(value)}")
            if isinstance(value, (list, tuple)):
                # The order of a ladder is its meaning, and a rung twice a mistake.
                value = tuple(value) if name == "frontier" else tuple(dict.fromkeys(value))
            values[name] = value
    limits = Limits(**values)
    if found := "; ".join(_contradictions(limits)):
        raise _refusal(f"{test}: {found}")
    return limits


def _contradictions(limits: Limits) -> Iterator[str]:
    if limits.fullgraph:
        for name in ("max_graph_breaks", "max_eager_frames"):
            if value := getattr(limits, name):
                yield f"fullgraph=True contradicts {name}={value}"
        if limits.max_graphs == 0:
            yield "fullgraph=True contradicts max_graphs=0"
    if limits.numerics in (None, "bitwise"):
        for name in ("rtol", "atol"):
            value = getattr(limits, name)
            if value is not None:
                yield f"numerics={limits.numerics!r} contradicts {name}={value!r}"
    if limits.numerics is None and limits.check_grads:
        yield "numerics=None contradicts check_grads=True"
    yield from _contradictions_of_ladder(limits)
    yield from _contradictions_of_ranks(limits)
    yield from _contradictions_of_another(limits)
    yield from _contradictions_of_warm_start(limits)
    if limits.min_ops_captured and limits.max_graphs == 0:
        yield f"min_ops_captured={limits.min_ops_captured} contradicts max_graphs=0"


def _contradictions_of_ladder(limits: Limits) -> Iterator[str]:
    if limits.frontier is None:
        if limits.min_frontier is not None:
            yield f"min_frontier={limits.min_frontier!r} needs frontier"
        return
    if limits.lanes is not None:
        yield "frontier has lanes of its own, so it contradicts lanes"
    if limits.max_cold_seconds is not None:
        # A rung runs once, by which seconds can only be held, and not violated.
        yield f"max_cold_seconds={limits.max_cold_seconds!r} is judged over repeats, so it contradicts frontier"
    yield from faults(limits.frontier, limits.min_frontier)


def _contradictions_of_another(limits: Limits) -> Iterator[str]:
    if limits.same_as is None:
        return
    if limits.frontier is not None:
        yield f"frontier runs lanes of its own, so it contradicts same_as={limits.same_as!r}"
    if limits.ranks is not None:
        yield f"same_as={limits.same_as!r} runs both lanes in one process, so it contradicts ranks={limits.ranks}"


def _contradictions_of_warm_start(limits: Limits) -> Iterator[str]:
    for name in ("max_warm_seconds", "max_warm_misses"):
        value = getattr(limits, name)
        if value is not None and limits.frontier is not None:
            yield f"{name}={value!r} starts one lane again, so it contradicts frontier"
        if value is not None and limits.ranks is not None:
            yield f"{name}={value!r} starts one process again, so it contradicts ranks={limits.ranks}"


def _contradictions_of_ranks(limits: Limits) -> Iterator[str]:
    if limits.ranks is None:
        if limits.process_group is not None:
            yield f"process_group={limits.process_group!r} needs ranks"
        return
    if limits.frontier is not None:
        yield f"frontier runs in one process, so it contradicts ranks={limits.ranks}"
    if limits.process_group == FAKE:
        given = limits.numerics if limits.numerics in ("allclose", "bitwise") else None
        for name, value in {"numerics": given, "rtol": limits.rtol, "atol": limits.atol}.items():
            if value is not None:
                yield f"process_group='fake' moves no data, so it contradicts {name}={value!r}"


def _refusal(message: str) -> UsageError:
    return UsageError(f"{message} (known limits: {', '.join(sorted(LIMITS))})")


def _shown(value: object) -> str:
    """Any value as text for a message: its `repr` may be endless, or raise."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a user's class, or a number with too many digits
        return f"a {type(value).__name__}"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_COUNT


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_tolerance(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


def _is_rule(value: object) -> bool:
    return value is None or (isinstance(value, str) and value in ("fp64", "allclose", "bitwise"))


def _is_group(value: object) -> bool:
    return isinstance(value, str) and value in PROCESS_GROUPS


def _is_factor(value: object) -> bool:
    return _is_tolerance(value) and value != 0


def _is_graphs(value: object) -> bool:
    return isinstance(value, str) and value in ("required", "partitioned")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _are_lanes(value: object) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(each, str) and each for each in value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """The values that a limit accepts, in words and as a check."""

    text: str
    accepts: Callable[[object], bool]


_COUNT = Kind(text=f"a whole number from 0 to {LARGEST_COUNT}", accepts=_is_count)
_FLAG = Kind(text="True or False", accepts=_is_flag)
_TOLERANCE = Kind(text="a finite number of at least 0", accepts=_is_tolerance)
_FACTOR = Kind(text="a finite number above 0", accepts=_is_factor)
_LANES = Kind(text="a list of lane names", accepts=_are_lanes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """One limit of a contract.

    `metric` is the field of a measurement that it is checked against, `measures` the name of the metric where a field
    has several. `fixture`: it only means something with a
    comparison with eager, or with a lane. `optional`: it is not judged if the device or the lane has no such thing.
    `bounds`: whether a limit on a number is the most or the least that is allowed.
    """

    name: str
    kind: Kind
    metric: str = ""
    measures: str = ""
    fixture: bool = False
    optional: bool = False
    bounds: Literal["most", "least"] | None = None

    @property
    def counted(self) -> str:
        """What a limit on a number counts, in words: "graph breaks" for `max_graph_breaks`."""
        return self.name.partition("_")[2].replace("_", " ")


LIMITS: dict[str, Limit] = {
    each.name: each
    for each in (
        Limit(name="max_recompiles", bounds="most", kind=_COUNT, metric="recompiles"),
        Limit(name="max_graph_breaks", bounds="most", kind=_COUNT, metric="graph_breaks"),
        Limit(name="max_graphs", bounds="most", kind=_COUNT, metric="graphs"),
        Limit(name="max_eager_frames", bounds="most", kind=_COUNT, metric="eager_frames"),
        Limit(name="max_eager_ops", bounds="most", kind=_COUNT, metric="operators_run"),
        Limit(name="min_ops_captured", bounds="least", kind=_COUNT, metric="ops_captured"),
        Limit(name="max_guards", bounds="most", kind=_COUNT, metric="guards"),
        Limit(name="max_cache_misses", bounds="most", kind=_COUNT, metric="caches", optional=True),
        Limit(name="max_cache_bypasses", bounds="most", kind=_COUNT, metric="cache_bypasses", optional=True),
        Limit(name="max_warm_misses", bounds="most", kind=_COUNT, metric="warm", measures="warm_misses", optional=True),
        # Judged over repeats, in `judge.budget`.
        Limit(name="max_cold_seconds", bounds="most", kind=_FACTOR, metric="stage_seconds"),
        Limit(
            name="max_warm_seconds", bounds="most", kind=_FACTOR, metric="warm", measures="warm_seconds", optional=True
        ),
        Limit(name="fullgraph", kind=_FLAG),
        Limit(name="allow_recompile_limit", kind=_FLAG, metric="limit_hits"),
        Limit(
            name="numerics",
            kind=Kind(text="'fp64', 'allclose', 'bitwise' or None", accepts=_is_rule),
            metric="numerics",
            fixture=True,
        ),
        Limit(name="rtol", kind=_TOLERANCE, metric="numerics", fixture=True),
        Limit(name="atol", kind=_TOLERANCE, metric="numerics", fixture=True),
        Limit(name="check_grads", kind=_FLAG, metric="numerics", fixture=True),
        Limit(name="check_state_dict", kind=_FLAG, metric="state_change", fixture=True),
        Limit(name="lanes", kind=_LANES, fixture=True),
        Limit(name="frontier", kind=Kind(text="a list of rungs, the lowest first", accepts=_are_lanes), fixture=True),
        Limit(name="min_frontier", kind=Kind(text="the name of a rung", accepts=_is_name), fixture=True),
        Limit(
            name="capture_targets",
            kind=Kind(text="a list of classes, or of their names", accepts=_are_lanes),
            metric="capture_targets",
            fixture=True,
        ),
        Limit(
            name="cudagraphs",
            kind=Kind(text="'required' or 'partitioned'", accepts=_is_graphs),
            metric="cuda_graphs",
            fixture=True,
            optional=True,
        ),
        Limit(name="max_kernels", bounds="most", kind=_COUNT, metric="kernels", fixture=True, optional=True),
        Limit(name="max_kernels_ratio", bounds="most", kind=_TOLERANCE, metric="kernels", fixture=True, optional=True),
        Limit(name="max_host_syncs", bounds="most", kind=_COUNT, metric="host_syncs", fixture=True, optional=True),
        Limit(name="max_memory_ratio", bounds="most", kind=_FACTOR, metric="memory", fixture=True, optional=True),
        Limit(name="max_memory_growth", bounds="most", kind=_COUNT, metric="memory", fixture=True, optional=True),
        Limit(name="min_speedup", bounds="least", kind=_FACTOR, metric="speed", fixture=True, optional=True),
        Limit(name="keeps_outputs", kind=_FLAG, metric="overwritten", fixture=True, optional=True),
        Limit(name="ranks", kind=Kind(text=f"a whole number from 2 to {MOST_RANKS}", accepts=is_ranks)),
        Limit(name="process_group", kind=Kind(text="'gloo', 'nccl' or 'fake'", accepts=_is_group)),
        Limit(name="ranks_agree", kind=_FLAG),
        Limit(name="max_collectives", bounds="most", kind=_COUNT, metric="collectives", fixture=True),
        Limit(name="same_collectives", kind=_FLAG, metric="collectives", fixture=True),
        Limit(name="same_placements", kind=_FLAG, metric="placements", fixture=True),
        Limit(name="max_saved_ratio", bounds="most", kind=_TOLERANCE, metric="saved_bytes", fixture=True),
        Limit(name="max_recomputed_graphs", bounds="most", kind=_COUNT, metric="recomputed_graphs"),
        Limit(name="same_as", kind=Kind(text="the name of a lane", accepts=_is_name), fixture=True),
    )
}
