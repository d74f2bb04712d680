"""Metrics: one record for each metric of a lane, which says how it is compared, shown, joined and recorded.

A new metric is one record here, the field of `Measurement` that holds it, and the code that reads it: a probe, and
`compare.tell` if it has facts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from . import joins
from .measurement import Measurement, backends_of

Better = Literal["lower", "higher"]
Lines = Literal["own", "of a break", "none"]
Join = Callable[[Sequence[Any]], Any]
Count = Callable[[Measurement], int | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One metric of a lane.

    `field` is the field of a measurement that holds it, and the key of the reason why it was not measured; by default
    the metric's name.

    A metric with a `label` is compared between two runs. `better` is the better direction; None if neither is. A
    `banded` one varies from run to run: a value within the spread over repeats (`--contract-repeat`) is not a change,
    and without a spread on both sides it is not compared. A count with a `band` of its own may be judged by that width
    alone (0.05 is 5 %), or by the policy's. `gates`: whether it gates in the default policy. A `young` one is missing
    in receipts of older versions of this package, and is not compared with those. `cause` orders the metrics of a
    drift: the lowest number is closest to the root cause and reported first, one without a number last. `lines` is
    how it belongs to lines of the user's code: each of its facts has its "own", or one that may follow from that "of a
    break"; or it has "none", and follows from those that have.

    `beyond`: by how much more than its spread a banded one has to move, where the policy does not say (1.0 is twice).

    `count` is its number in a summary, in the order of the records; `noun` is its singular and plural. `shown` says
    whether the terminal shows it always, if it is not 0, or only with -v; `on_device`: only if it was measured;
    `shown_unknown`: also that it was not measured. `trended` ones are drawn over environments.

    `steady`: whether it is measured in steady steps on a GPU, after the counted calls. `of_device`: whether it is
    another on each type of device, where it could be measured on both.

    `join` combines the values of several measurements of one test; `kept`: whether a baseline keeps it.
    """

    name: str
    field: str = ""
    label: str = ""
    better: Better | None = None
    banded: bool = False
    band: float | None = None
    beyond: float | None = None
    gates: bool = False
    young: bool = False
    cause: int = 0
    lines: Lines | None = None
    noun: tuple[str, str] = ("", "")
    count: Count | None = None
    shown: Literal["always", "if any", "in full"] = "in full"
    on_device: bool = False
    shown_unknown: bool = True
    trended: bool = False
    steady: bool = False
    of_device: bool = False
    join: Join = joins.added
    kept: bool = True

    @property
    def at(self) -> str:
        """The field of a measurement that has it."""
        return self.field or self.name


def _length(field: str) -> Count:
    def count(seen: Measurement) -> int | None:
        facts = getattr(seen, field)
        return None if facts is None else len(facts)

    return count


def _number(field: str) -> Count:
    def count(seen: Measurement) -> int | None:
        number: int | None = getattr(seen, field)
        return number

    return count


def _split(seen: Measurement) -> int | None:
    return None if seen.backend_calls == seen.graphs else seen.backend_calls


def _hunted(seen: Measurement) -> int | None:
    return None if seen.hunted is None else seen.hunted.sequences


_ALL = (
    # What a summary counts, in its order. Most are compared too.
    Metric(
        name="graphs",
        label="graphs",
        lines="none",
        noun=("graph", "graphs"),
        count=_number("graphs"),
        shown="always",
        trended=True,
    ),
    Metric(
        name="graph_breaks",
        label="graph breaks",
        better="lower",
        gates=True,
        cause=3,
        lines="own",
        noun=("break", "breaks"),
        count=_length("graph_breaks"),
        shown="always",
        trended=True,
        join=joins.breaks,
    ),
    Metric(
        name="recompiles",
        label="recompiles",
        better="lower",
        gates=True,
        cause=4,
        lines="own",
        noun=("recompile", "recompiles"),
        count=_length("compiled_again"),
        shown="always",
        trended=True,
    ),
    # Those that lost something by being eager.
    Metric(
        name="eager_frames",
        label="eager frames",
        better="lower",
        gates=True,
        cause=5,
        lines="of a break",
        noun=("eager frame", "eager frames"),
        count=_length("frames_run_eager"),
        shown="if any",
    ),
    Metric(
        name="limit_hits",
        label="recompile limit hits",
        better="lower",
        gates=True,
        cause=6,
        lines="of a break",
        noun=("limit hit", "limit hits"),
        count=_length("limit_hits"),
        shown="if any",
    ),
    Metric(name="resets", noun=("reset", "resets"), count=_number("resets"), shown="if any", shown_unknown=False),
    Metric(
        name="hunted",
        noun=("sequence hunted", "sequences hunted"),
        count=_hunted,
        shown="if any",
        on_device=True,
        join=joins.first,
        kept=False,
    ),
    Metric(
        name="ops_captured",
        label="ops captured",
        better="higher",
        banded=True,
        band=0.05,
        gates=True,
        cause=9,
        lines="none",
        noun=("op", "ops"),
        count=_number("ops_captured"),
    ),
    Metric(
        name="graphs_executed",
        label="graphs executed",
        noun=("executed", "executed"),
        count=_number("graphs_executed"),
    ),
    Metric(
        name="backward_graphs",
        label="backward graphs",
        noun=("backward", "backward"),
        count=_number("backward_graphs"),
        # No backward is counted unless a loss was followed.
        shown_unknown=False,
    ),
    Metric(
        name="collectives",
        label="collectives",
        better="lower",
        gates=True,
        young=True,
        noun=("collective", "collectives"),
        count=_number("collectives_made"),
        on_device=True,
        join=joins.collectives,
    ),
    # Where DDP splits a graph, there are more of these than Dynamo makes.
    Metric(
        name="backend_calls",
        label="graphs for the backend",
        noun=("graph for the backend", "graphs for the backend"),
        count=_split,
        on_device=True,
    ),
    Metric(
        name="placements",
        label="placements of parameters",
        better="lower",
        gates=True,
        young=True,
        noun=("DTensor", "DTensors"),
        count=_number("sharded"),
        shown="if any",
        on_device=True,
        join=joins.placements,
    ),
    Metric(
        name="bytes_saved",
        field="saved_bytes",
        label="bytes saved for the backward",
        better="lower",
        banded=True,
        band=0.05,
        gates=True,
        young=True,
        noun=("byte saved", "bytes saved"),
        count=_number("bytes_saved"),
        on_device=True,
        join=joins.saved,
        # Attention keeps other tensors with each of its backends.
        of_device=True,
    ),
    Metric(
        name="recomputed_graphs",
        label="recomputed graphs",
        better="lower",
        gates=True,
        young=True,
        noun=("recomputed graph", "recomputed graphs"),
        count=_number("recomputed_graphs"),
        shown="if any",
        on_device=True,
    ),
    Metric(
        name="guards_a_call",
        field="guards",
        label="guards per call",
        better="lower",
        banded=True,
        band=0.25,
        young=True,
        kept=False,
    ),
    Metric(name="caches", kept=False),
    Metric(
        name="cache_bypasses",
        noun=("cache bypass", "cache bypasses"),
        count=_length("cache_bypasses"),
        shown="if any",
        on_device=True,
        kept=False,
    ),
    Metric(
        name="warm_misses",
        field="warm",
        noun=("warm miss", "warm misses"),
        count=_number("warm_misses"),
        shown="if any",
        on_device=True,
        join=joins.first,
        kept=False,
    ),
    # What only a GPU can feed: counted where it was measured.
    Metric(
        name="kernels_a_step",
        field="kernels",
        label="kernels per steady step",
        better="lower",
        banded=True,
        band=0.1,
        gates=True,
        noun=("kernel", "kernels"),
        count=_number("kernels_a_step"),
        on_device=True,
        join=joins.worst(lambda each: each.compiled.total),
        steady=True,
    ),
    Metric(
        name="eager_kernels",
        field="kernels",
        noun=("in eager", "in eager"),
        count=lambda seen: None if seen.kernels is None else seen.kernels.eager.total,
        on_device=True,
        steady=True,
    ),
    Metric(
        name="cuda_graphs",
        label="CUDA graph skips",
        better="lower",
        gates=True,
        noun=("CUDA graph", "CUDA graphs"),
        count=lambda seen: None if seen.cuda_graphs is None else seen.cuda_graphs.recorded,
        on_device=True,
        join=joins.cuda_graphs,
        steady=True,
    ),
    Metric(
        name="replays",
        field="cuda_graphs",
        noun=("replay", "replays"),
        count=lambda seen: None if seen.cuda_graphs is None else seen.cuda_graphs.replayed,
        on_device=True,
        steady=True,
    ),
    Metric(
        name="host_syncs",
        label="host syncs per steady step",
        better="lower",
        gates=True,
        noun=("host sync", "host syncs"),
        count=lambda seen: sum(each.count for each in seen.host_syncs) if seen.host_syncs else None,
        on_device=True,
        steady=True,
    ),
    # What else is compared.
    Metric(name="errors", field="backend_failures", label="errors", better="lower", gates=True, cause=1, lines="own"),
    Metric(name="limits", label="limits exceeded", better="lower", gates=True, cause=12, lines="none"),
    Metric(name="frontier", label="frontier", better="higher", gates=True),
    Metric(name="capture", label="capture lost", better="lower", gates=True, cause=7, lines="none"),
    Metric(name="fullgraph", label="fullgraph", better="higher", gates=True, cause=11, lines="none"),
    Metric(
        name="eager_ops",
        field="operators_run",
        label="operators in skipped frames",
        noun=("operator", "operators"),
        better="lower",
        gates=True,
        young=True,
        cause=8,
        lines="of a break",
        trended=True,
        join=joins.operators,
    ),
    Metric(name="numerics", label="numeric differences", better="lower", gates=True, cause=2, join=joins.numerics),
    Metric(
        name="state_dict",
        field="state_change",
        label="state dict changes",
        better="lower",
        gates=True,
        cause=10,
        join=joins.first_change,
    ),
    # What moves by itself.
    *(
        Metric(
            name=name,
            label=label,
            better="lower",
            banded=True,
            noun=("s", "s"),
            trended=name == "cold_seconds",
            of_device=True,
            join=joins.seconds,
            kept=False,
        )
        for name, label in (
            ("cold_seconds", "first-call seconds"),
            ("warmup_seconds", "seconds of the calls that compile"),
            ("steady_seconds", "steady-call seconds"),
            ("overhead_seconds", "overhead seconds per call"),
        )
    ),
    *(
        Metric(
            name=name,
            field=field,
            label=label,
            better="lower",
            banded=True,
            beyond=1.0,
            noun=("s", "s"),
            of_device=True,
            kept=False,
        )
        for name, field, label in (
            ("compile_seconds", "stage_seconds", "seconds of compiling"),
            ("warm_seconds", "warm", "seconds of compiling from warm caches"),
        )
    ),
    Metric(
        name="peak_bytes",
        field="memory",
        label="peak bytes per steady step",
        better="lower",
        banded=True,
        join=joins.worst(lambda each: each.growth_bytes or each.ratio),
        steady=True,
    ),
    Metric(
        name="device_seconds",
        field="speed",
        label="device seconds per steady step",
        better="lower",
        banded=True,
        join=joins.worst(lambda each: -each.speedup),
        kept=False,
        steady=True,
    ),
    # What is told and not compared.
    Metric(name="overwritten", steady=True),
    Metric(name="backend", join=joins.first_said),
    Metric(name="calls", join=joins.calls, kept=False),
    Metric(name="compiles", kept=False),
    Metric(name="counters", kept=False),
    Metric(name="capture_targets", lines="none", join=joins.targets),
    Metric(name="beside", join=joins.numerics, kept=False),
    Metric(name="goodput", join=joins.loops, kept=False),
    Metric(name="raised", join=joins.first),
    Metric(name="raised_in_both", join=joins.first),
    Metric(name="doubts", join=joins.once),
    Metric(name="disagreements", join=joins.once),
    Metric(name="cut_short", join=joins.first_said),
    Metric(name="unmeasured", join=joins.reasons),
)
KNOWN: dict[str, Metric] = {each.name: each for each in _ALL}
# Those that are compared.
METRICS: dict[str, Metric] = {name: each for name, each in KNOWN.items() if each.label}
# Those that a summary counts, in its order.
COUNTS: dict[str, Metric] = {name: each for name, each in KNOWN.items() if each.count is not None}
# Without a direction there is no worse, so nothing to gate by.
GATEABLE = tuple(name for name, metric in METRICS.items() if metric.better)
BANDS = {name: width for name, metric in METRICS.items() for width in (metric.band, metric.beyond) if width is not None}
BANDED = tuple(name for name, metric in METRICS.items() if metric.banded)
# What a call takes, by its phase.
SECONDS = tuple(name for name, metric in METRICS.items() if metric.join is joins.seconds)
# Those whose number is compared as it is: neither direction is worse.
PLAIN = tuple(name for name, metric in METRICS.items() if metric.better is None)
# Those whose facts have lines, the closest to the root cause first, and those that are counted of such facts.
LINED = tuple(
    each.name for each in sorted(METRICS.values(), key=lambda each: each.cause) if each.lines in ("own", "of a break")
)
FOLLOWING = tuple(name for name, metric in METRICS.items() if metric.lines == "none")
# The fields of both: what a limit that follows from lines is held against.
OF_LINES = frozenset(each.at for each in _ALL if each.lines is not None)
# Shown over environments: counts, and last the seconds of the first call.
TRENDED = tuple(name for name, metric in METRICS.items() if metric.trended)
# The exact counts of what Dynamo did that the terminal shows: the same each time that a test is run.
REPEATED = tuple(name for name, metric in COUNTS.items() if metric.lines is not None and metric.shown != "in full")
# The fields of what is measured in steady steps on a GPU.
STEADY = tuple(dict.fromkeys(each.at for each in _ALL if each.steady))
# Those that are not compared between two devices, and their fields.
OF_DEVICE = frozenset(each.name for each in _ALL if each.of_device or each.steady)
FIELDS_OF_DEVICE = frozenset(KNOWN[name].at for name in OF_DEVICE)
# The stages of compiling, each as its documentation spells it.
STAGES = {
    "dynamo": "Dynamo",
    "aot_autograd": "AOTAutograd",
    "inductor": "Inductor",
    "code_generation": "code generation",
}
# The fields of a measurement that a baseline leaves out: what a run took is not what a later one is held to.
NOT_KEPT = frozenset(each.at for each in _ALL if not each.kept)
_JOINS: dict[str, Join] = {each.at: each.join for each in _ALL if each.join is not joins.added}


def count_of(name: str, seen: Measurement) -> int | None:
    """The count of a metric in a measurement; None if it was not measured."""
    count = COUNTS[name].count
    assert count is not None
    return count(seen)


def combined(parts: tuple[Measurement, ...]) -> Measurement:
    """One measurement for a test that measured several times: counts are added, facts concatenated."""
    if len(parts) == 1:
        return parts[0]
    whole: dict[str, Any] = {}
    for each in fields(Measurement):
        join = _JOINS.get(each.name, joins.added)
        whole[each.name] = join([getattr(part, each.name) for part in parts])
    whole["backend"] = backends_of(whole["compiles"]) or whole["backend"]
    if "goodput" in whole["unmeasured"]:
        # Of one of the loops, so that what is known of the others is not the whole.
        whole["goodput"] = None
    return replace(Measurement(), **whole)
