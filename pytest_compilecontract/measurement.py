"""Measurements: what one contract showed in one lane, as frozen data. Nothing here imports torch or pytest."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

RecompileKind = Literal["dynamic", "guard", "instance", "wrapper", "backend", "invalidated", "reset"]
EagerCause = Literal["graph break", "error", "suppressed error", "nothing to compile", "by request"]
Phase = Literal["cold", "warm-up", "steady"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Location:
    """A line of Python. `file` is relative to the project, or to the folder that packages are installed in."""

    file: str
    line: int
    function: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphBreak:
    """One distinct graph break: a user line and torch's kind for it.

    `events` is how often Dynamo broke there: a frame that is compiled again breaks again, and a break in an inlined
    callee is met by its caller too. `stacks` are the inlined stacks it was seen under, outermost call first, each
    ending with `location`.
    """

    location: Location
    kind: str
    reason: str
    explanation: str = ""
    hints: tuple[str, ...] = ()
    registry_id: str | None = None
    whole_frame: bool = False
    events: int = 1
    stacks: tuple[tuple[Location, ...], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Recompile:
    """Code compiled again for a frame that already had compiled code.

    `guard` is the failed guard that tells most, in torch's words; `guards` has one for each older entry, newest first.
    `location` is the user line that the guard speaks of, where torch names one.
    """

    frame: Location
    kind: RecompileKind
    guard: str
    guards: tuple[str, ...] = ()
    location: Location | None = None
    continuation: bool = False
    module: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EagerFrame:
    """A frame that Dynamo meant to compile and gave back to eager; "by request" of a stance or a setting."""

    frame: Location
    cause: EagerCause
    reason: str
    location: Location | None = None
    continuation: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitHit:
    """A frame that Dynamo refused to compile again; calls that no older entry serves run eager from then on."""

    frame: Location
    limit: str
    reason: str
    guard: str = ""
    continuation: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileFailure:
    """An exception while compiling: the backend's, or Dynamo's own."""

    frame: Location
    type: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call, or one training step, of the compiled target.

    `seconds` is wall time. `phase` is "cold" for the first call, "warm-up" for a later one that compiled something,
    "steady" for one that did not. `graphs_executed` is how many compiled graphs ran in it (forward graphs).
    """

    phase: Phase
    seconds: float
    graphs_executed: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One thing in which compiled was not as eager: where, what kind, and a sentence with the figures."""

    at: str
    kind: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Numerics:
    """Compiled against eager.

    `method` is the rule that judged ("fp64", "allclose", "bitwise"); `note` says why another than the one asked for.
    `worst_error` and `eager_error` are the largest absolute errors against the reference, over all tensors.
    `uncompared` are outputs of which nothing could be compared, each with the reason.
    """

    method: str
    note: str = ""
    compared: int = 0
    worst_at: str = ""
    worst_error: float | None = None
    eager_error: float | None = None
    uncompared: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StateChange:
    """What compiling did to a module's identity and its `state_dict` keys; empty when nothing."""

    keys_added: tuple[str, ...] = ()
    keys_removed: tuple[str, ...] = ()
    type_changed: str = ""

    def __bool__(self) -> bool:
        return bool(self.keys_added or self.keys_removed or self.type_changed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Raised:
    """An exception that the compiled run raised and eager did not."""

    type: str
    message: str
    location: Location | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Every metric of one contract in one lane.

    A metric that is None was not measured, and `unmeasured` says why, by the metric's name. Seconds are wall time.

    graphs            Dynamo graphs whose backend returned
    backend_calls     times a backend was handed a graph (DDP hands it one graph in pieces)
    ops_captured      call nodes in `graphs`
    first_compiles    code installed for a frame that had none; `continuations` of them resume after a graph break
    recompiles        code installed for a frame that had some
    graph_breaks      distinct breaks; `break_events` counts each time Dynamo broke
    backward_graphs   distinct compiled backward graphs reached by the losses
    graphs_executed   compiled graphs run, over all calls
    caches            hits and misses of torch's compile caches: the state of the disk, not a property of the model
    counters          Dynamo's raw counters, as torch keeps them
    resets            times torch._dynamo.reset() was called; `dropped` is what the same compiled callable had to
                      compile again after one: first compiles by torch's count, recompiles to who pays for them
    eager_by_request  frames that ran eager since a stance or a setting said so
    doubts            why a count is not certain, beside the disagreements; then the lane is unverified too
    disagreements     where the second way of counting found another number; then the lane is unverified
    overhead_seconds  the CPU time of one cached call that is not the graph: guards and dispatch
    """

    backend: str = ""
    graphs: int | None = None
    backend_calls: int | None = None
    ops_captured: int | None = None
    first_compiles: int | None = None
    continuations: int | None = None
    recompiles: tuple[Recompile, ...] | None = None
    graph_breaks: tuple[GraphBreak, ...] | None = None
    break_events: int | None = None
    eager_frames: tuple[EagerFrame, ...] | None = None
    limit_hits: tuple[LimitHit, ...] | None = None
    backend_failures: tuple[CompileFailure, ...] | None = None
    errors_suppressed: tuple[CompileFailure, ...] | None = None
    backward_graphs: int | None = None
    graphs_executed: int | None = None
    resets: int | None = None
    dropped: tuple[Recompile, ...] | None = None
    eager_by_request: tuple[EagerFrame, ...] | None = None
    calls: tuple[Call, ...] | None = None
    numerics: Numerics | None = None
    state_change: StateChange | None = None
    raised: Raised | None = None
    cold_seconds: float | None = None
    warmup_seconds: float | None = None
    steady_seconds: float | None = None
    overhead_seconds: float | None = None
    caches: dict[str, int] | None = None
    counters: dict[str, dict[str, int]] | None = None
    disagreements: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    unmeasured: dict[str, str] = field(default_factory=dict)

    @property
    def lost_frames(self) -> tuple[EagerFrame, ...] | None:
        """The eager frames that had something to compile; the others lose nothing by being eager."""
        if self.eager_frames is None:
            return None
        lost = tuple(frame for frame in self.eager_frames if frame.cause != "nothing to compile")
        return lost + (self.eager_by_request or ())

    @property
    def compiled_again(self) -> tuple[Recompile, ...] | None:
        """The recompiles, and what was compiled again since a reset had dropped it."""
        return None if self.recompiles is None else self.recompiles + (self.dropped or ())


def combined(parts: tuple[Measurement, ...]) -> Measurement:
    """One measurement for a test that measured several times: counts add up, facts follow one another."""
    if len(parts) == 1:
        return parts[0]
    whole: dict[str, Any] = {}
    for each in fields(Measurement):
        whole[each.name] = _joined(each.name, [getattr(part, each.name) for part in parts])
    return replace(Measurement(), **whole)


def _joined(name: str, values: list[Any]) -> Any:
    if name == "unmeasured":
        return {key: reason for value in values for key, reason in value.items()}
    if name == "backend":
        return ", ".join(dict.fromkeys(values))
    if name == "graph_breaks" and None not in values:
        return merge_breaks([each for value in values for each in value])
    if name in ("numerics", "state_change", "raised"):
        return _joined_optional(name, [value for value in values if value is not None])
    if name == "calls":
        # A part that makes its own calls does not hide the calls of another.
        return tuple(item for value in values if value is not None for item in value) or None
    if name.endswith("_seconds"):
        known = [value for value in values if value is not None]
        return sum(known) if known else None
    if any(value is None for value in values):
        return None
    if isinstance(values[0], dict):
        return _joined_dicts(values)
    if isinstance(values[0], tuple):
        return tuple(item for value in values for item in value)
    return sum(values)


def _joined_optional(name: str, values: list[Any]) -> Any:
    if not values:
        return None
    if name == "raised":
        return values[0]
    if name == "state_change":
        return next((value for value in values if value), values[0])
    worst = max(values, key=lambda each: (bool(each.differences), each.worst_error or 0.0))
    return replace(
        worst,
        compared=sum(each.compared for each in values),
        note="; ".join(dict.fromkeys(each.note for each in values if each.note)),
        uncompared=tuple(item for each in values for item in each.uncompared),
        differences=tuple(item for each in values for item in each.differences),
    )


def _joined_dicts(values: list[dict[str, Any]]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for value in values:
        for key, item in value.items():
            if isinstance(item, dict):
                joined[key] = _joined_dicts([joined.get(key, {}), item])
            else:
                joined[key] = joined.get(key, 0) + item
    return joined


def merge_breaks(events: list[GraphBreak]) -> tuple[GraphBreak, ...]:
    """Distinct breaks, in the order first seen. Two events are one break if line and kind agree."""
    distinct: dict[tuple[str, int, str], GraphBreak] = {}
    for event in events:
        key = (event.location.file, event.location.line, event.kind)
        known = distinct.get(key)
        if known is None:
            distinct[key] = event
            continue
        distinct[key] = replace(
            known,
            events=known.events + event.events,
            whole_frame=known.whole_frame or event.whole_frame,
            stacks=known.stacks + tuple(stack for stack in event.stacks if stack not in known.stacks),
        )
    return tuple(distinct.values())
