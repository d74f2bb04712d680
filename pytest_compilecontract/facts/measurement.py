"""Measurements: what one contract showed in one lane, as frozen data. Nothing here imports torch or pytest."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from pytest_compilecontract.wording import counted

from .collectives import Collectives
from .structure import Placements, SavedBytes

RecompileKind = Literal["dynamic", "guard", "instance", "wrapper", "backend", "invalidated", "reset"]
RECOMPILE_KINDS: dict[RecompileKind, str] = {
    "dynamic": "a size or number that had been specialized became dynamic",
    "guard": "another guard failed",
    "instance": "another instance of the class",
    "wrapper": "a library module that shares its frame with others",
    "backend": "another backend",
    "invalidated": "what the code was compiled for no longer exists",
    "reset": "torch._dynamo.reset() was called in the test",
}
EagerCause = Literal[
    "graph break",
    "error",
    "suppressed error",
    "nothing to compile",
    "nothing more to compile",
    "by request",
    "raises in eager too",
    "skipped",
]
WhyEager = Literal["skipped", "graph break", "frame"]
Phase = Literal["cold", "warm-up", "steady"]
# Of an eager frame: there was nothing in it, or nobody could have run it to its end.
_NOTHING_LOST = ("nothing to compile", "raises in eager too")
# Why a metric that only a GPU can feed is None where it means nothing: a limit on it is then not judged.
NO_CUDA = "no CUDA device"
NOT_ASKED = "the lane asks for no CUDA graphs"
NO_CACHES = "only Inductor's graphs are in torch's compile caches"
NOT_STARTED_AGAIN = "a run beside the verdict, or one that did not end, is not started again"
NO_DYNAMO = "XLA compiles it, not Dynamo"
# Why a limit is not judged in a lane that has no such thing, rather than exceeded.
MEANINGLESS = (NO_CUDA, NOT_ASKED, NO_CACHES, NOT_STARTED_AGAIN, NO_DYNAMO)
# In `caches`, by the name of the cache for people.
CACHE_MISSES = {"fx_graph_miss": "FX graph cache", "aot_autograd_miss": "AOTAutograd cache"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Location:
    """A line of Python. `file` is relative to the project, or to the folder that packages are installed in.

    `scope` is the class in which the function is defined, if any: it distinguishes one `forward` from another.
    """

    file: str
    line: int
    function: str
    source: str = ""
    scope: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphBreak:
    """One distinct graph break: a user line and torch's kind for it.

    `events` is how often Dynamo broke there: a frame that is compiled again breaks again, and a break in an inlined
    callee also breaks its caller. `stacks` are the inlined stacks that it was seen under, outermost call first, each
    with `location` as its innermost line outside torch and Python, if it has one.
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

    `guard` is the failed guard that explains most, in torch's words; `guards` has one for each older entry, newest
    first. `location` is the user's line that the guard refers to, if torch names one. `meaning` explains the guard
    where torch's words do not. `hint` says what would avoid the recompile, if that is known. `entries` are the cache
    entries that the frame uses from now on, of the `limit` at which Dynamo stops compiling it.
    """

    frame: Location
    kind: RecompileKind
    guard: str
    guards: tuple[str, ...] = ()
    location: Location | None = None
    meaning: str = ""
    continuation: bool = False
    module: str | None = None
    hint: str = ""
    entries: int | None = None
    limit: int | None = None

    @property
    def used(self) -> str:
        """How near the frame is to the recompile limit: "3 of 8 cache entries used"; empty if that is not known."""
        if self.entries is None or self.limit is None:
            return ""
        return f"{self.entries} of {self.limit} cache entries used"


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameGuards:
    """The guards of one cache entry of a frame, all of which a call has to pass to run its code; by torch's names."""

    frame: Location
    kinds: dict[str, int]
    continuation: bool = False

    @property
    def count(self) -> int:
        return sum(self.kinds.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheBypass:
    """A graph that torch did not look up in one of its compile caches, nor keeps there; `reason` is torch's."""

    cache: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EagerFrame:
    """A frame that Dynamo tried to compile and that fell back to eager; "by request" of a stance or a setting."""

    frame: Location
    cause: EagerCause
    reason: str
    location: Location | None = None
    continuation: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class EagerOps:
    """Operators that ran in eager in a steady call, from one place.

    `why` is "skipped" if they are in a frame that Dynamo never tries to compile (torch's own or installed code, after
    a graph break in it), "graph break" if they are the call that breaks the graph, such as `.item()` or a disabled
    function, and "frame" if another metric reports their frame: it fell back, or reached the recompile limit.
    `frame` is the frame that ran in eager, called `name`; `location` is the innermost line outside torch and Python
    that leads there; `broke` is the graph break in the frame or below it. `operators` are counts by torch's names.
    """

    why: WhyEager
    operators: dict[str, int]
    frame: Location | None = None
    name: str = ""
    location: Location | None = None
    broke: Location | None = None

    @property
    def place(self) -> tuple[object, ...]:
        """What tells these operators from those of another place."""
        return self.why, self.frame, self.name, self.location, self.broke

    @property
    def told(self) -> str:
        """The operators, as "4 linear, 4 relu"."""
        return ", ".join(f"{count} {name}" for name, count in self.operators.items())

    @property
    def sentence(self) -> str:
        """What ran in eager, and why Dynamo never tries to compile it."""
        torchs = self.frame is not None and self.frame.file.startswith("torch/")
        whose = "it is torch's own code" if torchs else "Dynamo skips it"
        broke = f" and broke at {self.broke.file}:{self.broke.line}" if self.broke is not None else ""
        return f"all of {self.name} runs in eager, {self.told}: {whose}{broke}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOperators:
    """The operators of one steady call of the compiled target: how many ran compiled, and how many in eager.

    Compiled operators are those of the graphs that ran; eager ones are those dispatched outside of them. `modules` and
    `lines` have both numbers by the module's path, and by the line outside torch and Python. The call is the last one;
    where earlier calls, which took other ways, ran more operators in eager, theirs are added (`joined`).
    """

    compiled: int
    eager: int
    modules: dict[str, tuple[int, int]] = field(default_factory=dict)
    lines: dict[str, tuple[int, int]] = field(default_factory=dict)
    groups: tuple[EagerOps, ...] = ()

    @property
    def skipped(self) -> tuple[EagerOps, ...]:
        """Those that ran in eager in frames that no other metric reports."""
        return tuple(each for each in self.groups if each.why == "skipped")

    def joined(self, other: StepOperators) -> StepOperators:
        """The same, with what another call ran in eager and this one did not; of each place, the call with more."""
        groups = {each.place: each for each in self.groups}
        for each in other.groups:
            known = groups.get(each.place)
            if known is None or sum(known.operators.values()) < sum(each.operators.values()):
                groups[each.place] = each
        return StepOperators(
            compiled=self.compiled,
            eager=max(self.eager, other.eager),
            modules=_more_eager(self.modules, other.modules),
            lines=_more_eager(self.lines, other.lines),
            groups=tuple(groups.values()),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitHit:
    """A frame that Dynamo refused to compile again; from then on, calls that match no older entry run in eager."""

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
class Compiled:
    """One use of torch.compile: its arguments, and the backend that Dynamo passed its graphs to.

    `options` are as Python writes them. `location` is the line that called torch.compile or, if that is not known, the
    first frame that was compiled. `by_torch`: one of torch's own functions called it, such as torch.cond in eager.
    `contrary` says how it contradicts the lane: then the lane is unverified.
    """

    backend: str
    mode: str | None = None
    dynamic: bool | None = None
    fullgraph: bool = False
    options: dict[str, str] = field(default_factory=dict)
    graphs: int = 0
    location: Location | None = None
    by_torch: bool = False
    contrary: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call, or one training step, of the compiled target.

    `seconds` is wall time. `phase` is "cold" for the first call, "warm-up" for a later one that compiled something,
    "steady" for one that did not. `graphs_executed` is how many compiled graphs ran in it (forward graphs). `attempted`
    says whether Dynamo tried to compile a frame in it, `raised` whether it ended in an exception.
    """

    phase: Phase
    seconds: float
    graphs_executed: int | None
    attempted: bool | None = None
    raised: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One difference between compiled and eager: where, of which kind, and a sentence with the numbers."""

    at: str
    kind: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Numerics:
    """The comparison of compiled with eager.

    `method` is the rule that judged ("fp64", "allclose", "bitwise"); `note` says why it is not the requested one.
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
    """What compiling changed in a module's type and its `state_dict` keys; empty if nothing."""

    keys_added: tuple[str, ...] = ()
    keys_removed: tuple[str, ...] = ()
    type_changed: str = ""

    def __bool__(self) -> bool:
        return bool(self.keys_added or self.keys_removed or self.type_changed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Raised:
    """An exception that the compiled run raised and eager did not; `out_of_memory`: the device ran out of memory.

    `asserted`: an assertion of the project failed, in its own code or in a testing function that it called.
    """

    type: str
    message: str
    location: Location | None = None
    out_of_memory: bool = False
    asserted: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RaisedInBoth:
    """An exception with which both eager and the compiled run ended: in which call, and how many calls were left.

    `unit` is what a call is called ("call", "step"), and `at` has its number, too. The calls that were left are not in
    the measurement.
    """

    type: str
    message: str
    at: str
    left: int = 0
    unit: str = ""

    def __post_init__(self) -> None:
        # What an older version wrote has `at` alone.
        if not self.unit:
            object.__setattr__(self, "unit", self.at.partition(" ")[0])

    def __str__(self) -> str:
        raised = f"{self.type}: {self.message}" if self.message else self.type
        after = f"; the {counted(self.left, self.unit)} after it never ran" if self.left else ""
        return f"eager raises in {self.at}, as compiled does: {raised}{after}"


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphSkip:
    """Work that ran outside of CUDA graphs although they were requested: torch's reason, and the user's line if known.

    `split`: the graph was partitioned around it, and the rest of it is still recorded.
    """

    reason: str
    location: Location | None = None
    split: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphStep:
    """How often compiled functions were run to warm up, recorded, replayed, or run without a CUDA graph in one step."""

    warmed_up: int = 0
    recorded: int = 0
    replayed: int = 0
    ran_eager: int = 0

    def __add__(self, other: GraphStep) -> GraphStep:
        return GraphStep(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphFailure:
    """Why a run does not use CUDA graphs as requested: what happened, how often in how many steady steps; or torch's
    reason for skipping a graph, and where.

    `cause` is torch's reason for a skip without the numbers and names that follow it.
    """

    kind: Literal["skipped", "never replayed", "recorded again", "ran without"]
    times: int = 0
    steps: int = 0
    reason: str = ""
    location: Location | None = None

    @property
    def cause(self) -> str:
        return self.reason.partition(":")[0].partition(" in ")[0]

    def __str__(self) -> str:
        within = f"in {self.steps} steady steps"
        match self.kind:
            case "skipped":
                return self.reason
            case "never replayed":
                return f"no CUDA graph was replayed {within}"
            case "recorded again":
                return f"recorded again after warm-up: {self.times} times {within}"
            case "ran without":
                return f"ran without a CUDA graph: {self.times} times {within}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaGraphs:
    """CUDA graphs: over the counted calls, then over `steady_steps` identical steps.

    `launches` are the CUDA graphs launched in one of those steps, by the profiler; `step` is what the taps saw in the
    same step. A recording replays once as well. `partitions` are the parts of graphs that were split.
    """

    calls: tuple[GraphStep, ...] = ()
    steady: GraphStep | None = None
    steady_steps: int = 0
    step: GraphStep | None = None
    launches: int | None = None
    partitions: int = 0
    skips: tuple[GraphSkip, ...] = ()

    @property
    def recorded(self) -> int:
        """Recordings over the counted calls."""
        return sum(each.recorded for each in self.calls)

    @property
    def replayed(self) -> int:
        """Replays over the counted calls, without the first of each recording."""
        return sum(each.replayed for each in self.calls)

    @property
    def recorded_again(self) -> int:
        """Recordings in steady steps, including the profiled one: there should be none."""
        return sum(each.recorded for each in (self.steady, self.step) if each is not None)

    def failures(self, *, whole: bool) -> tuple[GraphFailure, ...]:
        """Why this is not a run under CUDA graphs; with `whole`, graphs that were split count too."""
        found = [
            GraphFailure(kind="skipped", reason=each.reason, location=each.location)
            for each in self.skips
            if whole or not each.split
        ]
        steady = self.steady
        if steady is None:
            return tuple(found)
        # The step that is profiled is one more of them.
        every = [steady, self.step] if self.step is not None else [steady]
        outside = sum(each.warmed_up + each.ran_eager for each in every)
        steps = self.steady_steps + len(every) - 1
        if not steady.replayed:
            found.append(GraphFailure(kind="never replayed", steps=steps))
        if self.recorded_again:
            found.append(GraphFailure(kind="recorded again", times=self.recorded_again, steps=steps))
        if outside:
            found.append(GraphFailure(kind="ran without", times=outside, steps=steps))
        return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """What the device ran in one step.

    `total` is the number of kernels: Triton's, those of libraries (cuBLAS, cuDNN, attention), and torch's own. Copies
    and fills belong to the driver and are not counted. `names` are short names with their counts, `attention` the
    attention backends that ran.
    """

    total: int
    triton: int = 0
    library: int = 0
    copies: int = 0
    fills: int = 0
    names: dict[str, int] = field(default_factory=dict)
    attention: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StepKernels:
    """The kernels of one steady step, compiled and eager."""

    compiled: Kernels
    eager: Kernels

    @property
    def ratio(self) -> float:
        """Compiled divided by eager."""
        return self.compiled.total / self.eager.total if self.eager.total else math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSync:
    """A line of the user's code that made the CPU wait for the device, and how often in one steady step."""

    location: Location | None
    count: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Device memory of a steady step, in bytes: the peak of what the step holds, including its parameters and inputs.

    `pool_bytes` are those of CUDA graphs, a part of `peak_bytes`. `growth_bytes` is what each of the later steady
    steps left allocated, 0 if not all of them did.
    """

    peak_bytes: int
    eager_peak_bytes: int
    pool_bytes: int = 0
    growth_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Compiled divided by eager."""
        return self.peak_bytes / self.eager_peak_bytes if self.eager_peak_bytes else math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Device seconds of one steady step: median and quartiles of the samples."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Steady steps timed on the device, eager and compiled alternately, and the wall seconds that compiling took."""

    eager: Timing
    compiled: Timing
    samples: int
    compile_seconds: float

    @property
    def speedup(self) -> float:
        """Eager divided by compiled, of the medians."""
        return self.eager.median / self.compiled.median

    @property
    def spread(self) -> tuple[float, float]:
        """The speedup by opposite quartiles: a value in this range cannot be distinguished from it."""
        return self.eager.low / self.compiled.high, self.eager.high / self.compiled.low

    @property
    def break_even(self) -> int | None:
        """The number of steps after which compiling has paid for itself; None if a step is no faster."""
        gained = self.eager.median - self.compiled.median
        return math.ceil(self.compile_seconds / gained) if gained > 0 else None

    def share_compiling(self, steps: int) -> float:
        """The share of a run of this many steps that is spent compiling."""
        return self.compile_seconds / (self.compile_seconds + steps * self.compiled.median)


# Where the time of a loop goes, in the order of a report.
PARTS = ("compile", "warm-up", "steady", "checkpoint", "data")


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """The wall seconds of a test's own loop by its parts: PARTS.

    `warmed_up` are the steps in which something was compiled, `steady` the others; what compiling took is not in their
    seconds. `step_seconds` is the median of a steady step, `eager_step_seconds` that of the same step in eager, if the
    test made some.
    """

    seconds: dict[str, float]
    warmed_up: int
    steady: int
    step_seconds: float | None = None
    eager_step_seconds: float | None = None

    @property
    def share(self) -> float:
        """The goodput: the share of steady steps in the whole, from 0 to 1."""
        whole = sum(self.seconds.values())
        return self.seconds["steady"] / whole if whole else 0.0

    @property
    def break_even(self) -> int | None:
        """The step at which compiling has paid for itself: so many compiled steps, with all that compiling and warm-up
        took, are no slower than as many in eager. None if a step is no faster, or that is not known.
        """
        if self.step_seconds is None or self.eager_step_seconds is None:
            return None
        gained = self.eager_step_seconds - self.step_seconds
        warm_up = self.seconds["warm-up"] - self.warmed_up * self.step_seconds
        return math.ceil((self.seconds["compile"] + max(warm_up, 0.0)) / gained) if gained > 0 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptureTargets:
    """The classes in a contract's `capture_targets`: those with an operation in some graph, and the others."""

    requested: tuple[str, ...]
    compiled: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStart:
    """What a second process compiled for the same test, started from the compile caches that this one left.

    `frames` is the code that Dynamo compiled, which no cache keeps; the other fields are those of a measurement.
    """

    frames: int | None = None
    stage_seconds: dict[str, float] | None = None
    caches: dict[str, int] | None = None
    cache_bypasses: tuple[CacheBypass, ...] | None = None

    @property
    def seconds(self) -> float | None:
        """The seconds of all compiling."""
        return None if self.stage_seconds is None else sum(self.stage_seconds.values())

    @property
    def misses(self) -> int | None:
        """Look-ups in a cache that found nothing or that it does not take: what was compiled again."""
        if self.caches is None or self.cache_bypasses is None:
            return None
        return missed(self.caches) + len(self.cache_bypasses)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hunted:
    """How many sequences of calls a hunt checked, with how many calls in all; and the shortest that failed, as a test.

    `ended` says what ended it before it had drawn the requested number.
    """

    sequences: int
    calls: int
    counterexample: tuple[str, ...] = ()
    ended: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Every metric of one contract in one lane.

    A metric that is None was not measured, and `unmeasured` says why, by the metric's name. Seconds are wall time.

    backend           the backends that graphs were passed to; the lane's if there was no graph
    graphs            Dynamo graphs that the backend compiled without an error
    backend_calls     times that a graph was passed to a backend (DDP passes one graph in pieces)
    ops_captured      call nodes in `graphs`; `operations` counts them by name
    first_compiles    code installed for a frame that had none; `continuations` of them are resume functions
    recompiles        code installed for a frame that had some
    graph_breaks      distinct breaks; `break_events` counts each time Dynamo broke
    backward_graphs   distinct compiled backward graphs reached by the losses
    graphs_executed   compiled graphs run, over all calls
    stage_seconds     seconds of all compiling by stage, each without the stages within it
    guards            the guards of each cache entry that was compiled
    caches            hits and misses of torch's compile caches: the state of the disk, not a property of the model;
                      `cache_bypasses` are the graphs that a cache does not take, with torch's reasons
    warm              what a second process compiled that started from the caches of this one, if one was started
    counters          Dynamo's raw counters, as torch keeps them
    resets            times torch._dynamo.reset() was called; `dropped` is what the same compiled callable had to
                      compile again after one: first compiles by torch's count, recompiles to the user
    eager_by_request  frames that ran in eager because a stance or a setting said so
    doubts            why a count is uncertain, besides the disagreements; the lane is unverified then, too
    processes         how other processes were started: what they compile is not measured
    compiles          the arguments of each torch.compile whose graphs were passed to a backend
    cut_short         what ended the test early: the counts until then are incomplete
    disagreements     where the second way of counting found another number; the lane is unverified then
    overhead_seconds  the CPU time of one cached call outside its graphs: guards and dispatch
    capture_targets   the classes that the contract names, found in a graph or not
    operators_run     the operators of one steady call, compiled and eager
    hunted            what a hunt checked; the other metrics are those of the sequence that failed or compiled most
    collectives       the collectives that the calls run in process groups, in lanes with ranks
    placements        where the parameters are on a device mesh after the calls
    saved_bytes       the bytes that autograd saves for the backward, where a limit asks for them
    recomputed_graphs compiled graphs of a forward that ran again in a backward, as under a checkpoint
    overwritten       outputs that a later call changed after they were returned
    beside            results compared with those of the lane that `same_as` names
    goodput           where the time of the test's own loop goes, if it says which parts it has
    cuda_graphs, kernels, host_syncs, memory, speed
                      of steady steps on a CUDA device, after the counted calls
    """

    backend: str = ""
    graphs: int | None = None
    backend_calls: int | None = None
    ops_captured: int | None = None
    operations: dict[str, int] | None = None
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
    raised_in_both: RaisedInBoth | None = None
    cold_seconds: float | None = None
    warmup_seconds: float | None = None
    steady_seconds: float | None = None
    overhead_seconds: float | None = None
    stage_seconds: dict[str, float] | None = None
    guards: tuple[FrameGuards, ...] | None = None
    caches: dict[str, int] | None = None
    cache_bypasses: tuple[CacheBypass, ...] | None = None
    warm: WarmStart | None = None
    counters: dict[str, dict[str, int]] | None = None
    capture_targets: CaptureTargets | None = None
    operators_run: StepOperators | None = None
    collectives: Collectives | None = None
    placements: Placements | None = None
    saved_bytes: SavedBytes | None = None
    recomputed_graphs: int | None = None
    overwritten: tuple[str, ...] | None = None
    hunted: Hunted | None = None
    beside: Numerics | None = None
    goodput: Goodput | None = None
    cuda_graphs: CudaGraphs | None = None
    kernels: StepKernels | None = None
    host_syncs: tuple[HostSync, ...] | None = None
    memory: Memory | None = None
    speed: Speed | None = None
    processes: tuple[str, ...] = ()
    compiles: tuple[Compiled, ...] | None = None
    cut_short: str = ""
    disagreements: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    unmeasured: dict[str, str] = field(default_factory=dict)

    @property
    def elsewhere(self) -> str:
        """A note on other processes; empty if none was started."""
        if not self.processes:
            return ""
        return f"processes were started ({', '.join(self.processes)}), and what they compile is not counted here"

    @property
    def lost_frames(self) -> tuple[EagerFrame, ...] | None:
        """The eager frames that had something to compile and to run; the others lose nothing by running in eager."""
        if self.eager_frames is None:
            return None
        lost = tuple(frame for frame in self.eager_frames if frame.cause not in _NOTHING_LOST)
        return lost + (self.eager_by_request or ())

    @property
    def skipped_frames(self) -> tuple[EagerFrame, ...]:
        """The frames that Dynamo skips by rule and whose operators ran eager in a steady call, if one was recorded."""
        return tuple(map(_skipped, self.operators_run.skipped)) if self.operators_run is not None else ()

    @property
    def frames_run_eager(self) -> tuple[EagerFrame, ...] | None:
        """All frames with something to compile that ran in eager: Dynamo fell back, or skips them by rule."""
        return None if self.lost_frames is None else self.lost_frames + self.skipped_frames

    @property
    def eager_ops(self) -> int | None:
        """Operators of a steady call that ran in eager, for any reason."""
        return None if self.operators_run is None else self.operators_run.eager

    @property
    def collectives_made(self) -> int | None:
        """Collectives over the calls, compiled."""
        return None if self.collectives is None else self.collectives.total

    @property
    def sharded(self) -> int | None:
        """Parameters that are DTensors after the compiled calls."""
        return None if self.placements is None else self.placements.total

    @property
    def bytes_saved(self) -> int | None:
        """Bytes saved for the backward, compiled."""
        return None if self.saved_bytes is None else self.saved_bytes.compiled

    @property
    def compiled_again(self) -> tuple[Recompile, ...] | None:
        """The recompiles, and what was compiled again because a reset had dropped it."""
        return None if self.recompiles is None else self.recompiles + (self.dropped or ())

    @property
    def guards_a_call(self) -> int | None:
        """The most guards that a call has to pass to run a frame's code."""
        return None if self.guards is None else max((each.count for each in self.guards), default=0)

    @property
    def cache_misses(self) -> int | None:
        """Graphs that were in none of torch's compile caches, counted for each cache; None if one was not asked."""
        return None if self.caches is None else missed(self.caches)

    @property
    def compile_seconds(self) -> float | None:
        """The seconds of all compiling."""
        return None if self.stage_seconds is None else sum(self.stage_seconds.values())

    @property
    def warm_seconds(self) -> float | None:
        """The seconds of all compiling in a process that starts from warm caches."""
        return None if self.warm is None else self.warm.seconds

    @property
    def warm_misses(self) -> int | None:
        """What such a process compiles again."""
        return None if self.warm is None else self.warm.misses

    @property
    def kernels_a_step(self) -> int | None:
        """Kernels of a steady step, compiled."""
        return None if self.kernels is None else self.kernels.compiled.total

    @property
    def peak_bytes(self) -> int | None:
        """The peak memory of a compiled steady step on the device."""
        return None if self.memory is None else self.memory.peak_bytes

    @property
    def device_seconds(self) -> float | None:
        """The median of a steady step on the device, compiled."""
        return None if self.speed is None else self.speed.compiled.median


def without(measurement: Measurement, metric: str, reason: str) -> Measurement:
    """The measurement with the reason why it lacks a metric."""
    return replace(measurement, unmeasured=measurement.unmeasured | {metric: reason})


def backends_of(compiles: tuple[Compiled, ...] | None) -> str:
    """The backends that graphs were passed to, each once; without those of torch's own compiles."""
    return ", ".join(dict.fromkeys(each.backend for each in compiles or () if not each.by_torch))


def _more_eager(one: dict[str, tuple[int, int]], other: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """The numbers of operators, compiled and eager, by place: of each, those of the call with more in eager."""
    more = {at: both for at, both in other.items() if at not in one or one[at][1] < both[1]}
    return {at: both for at, both in sorted({**one, **more}.items()) if at in one or both[1]}


def missed(caches: dict[str, int]) -> int:
    """The look-ups that found nothing, in all caches."""
    return sum(count for name, count in caches.items() if name in CACHE_MISSES)


def _skipped(found: EagerOps) -> EagerFrame:
    assert found.frame is not None
    return EagerFrame(frame=found.frame, cause="skipped", reason=found.sentence, location=found.location)


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
