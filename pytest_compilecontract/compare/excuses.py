"""Excuses: why a change between two sides is not drift. Each is a rule with a name, which reports show.

Each exists because of something that torch did: its docstring names the case, if possible by its program in
tests/corpus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.receipt import Entry

from .bands import Direction
from .drift import Fact
from .identity import break_keys, comparable, reasons_key
from .tell import READERS, read_limits, without


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What a rule judges: a metric that changed, and everything known about both sides.

    `other_torch` says whether the two ran on different releases; `came` and `went` are the facts behind the change.
    """

    old: Entry
    new: Entry
    other_torch: bool
    metric: str
    direction: Direction
    came: tuple[Fact, ...] = ()
    went: tuple[Fact, ...] = ()

    @property
    def was(self) -> Measurement:
        """What was measured before; every metric is None if nothing was."""
        return self.old.measurement or Measurement()

    @property
    def now(self) -> Measurement:
        """What was measured after; every metric is None if nothing was."""
        return self.new.measurement or Measurement()

    @property
    def worse(self) -> bool:
        """Whether it counts as worse."""
        return self.direction == "worse"


@dataclass(frozen=True, kw_only=True, slots=True)
class Excuse:
    """A rule, its name in reports, and the direction that it gives a change."""

    name: str
    applies: Callable[[Change], bool]
    becomes: Callable[[Change], Direction] = lambda change: "changed"


# Recompiles


def had_nothing_to_recompile(change: Change) -> bool:
    """Whether one side captured nothing, and so recompiled nothing, where the other captured something.

    Module hooks that count their calls keep a frame eager up to torch 2.11, and from 2.12 on it is captured
    (`hooks_of_modules`): what recompiles there does so for the first time.
    """
    graphs = change.was.graphs, change.now.graphs
    if None in graphs or (graphs[0] == 0) == (graphs[1] == 0):
        return False
    # Frames with no graph in them, for a break that comes first, may be compiled again.
    captured_nothing = change.was if graphs[0] == 0 else change.now
    return not captured_nothing.recompiles


def moved_with_its_break(change: Change) -> bool:
    """Whether a break is gone, and the recompiles of its resume function are now recompiles of the whole frame.

    From torch 2.14 on, reading a ContextVar no longer breaks (`contextvar_read`): the value that recompiled the resume
    function now recompiles the whole frame.
    """
    was, now = change.was, change.now
    if was.graph_breaks is None or now.graph_breaks is None or was.recompiles is None or now.recompiles is None:
        return False
    breaks = ([key for each in found for key in break_keys(each)] for found in (was.graph_breaks, now.graph_breaks))
    old, new = map(Counter, comparable(*breaks))
    if new - old or not old - new:
        return False
    # A recompile's key begins with its frame: file and function.
    recompiles = (READERS["recompiles"](each) for each in (was, now))
    old, new = map(Counter, comparable(*([key[:2] for key, _ in facts.of] for facts in recompiles if facts)))
    return not new - old


def reported_differently(change: Change) -> bool:
    """Whether torch gave the same guards for all recompiles, and only the one that is reported first differs.

    Receipts of older versions of this package have the guard of the oldest entry, "tensor 'x' size mismatch", even if
    that size is dynamic in a newer entry, which failed on the user's own branch.
    """
    if change.was.recompiles is None or change.now.recompiles is None:
        return False
    sides = (change.was.recompiles, change.now.recompiles)
    was, now = comparable(*([reasons_key(each) for each in side] for side in sides))
    return Counter(was) == Counter(now)


# Operations


def traced_differently(change: Change) -> bool:
    """Whether another torch captures the same code as different operations: `add_(x, alpha=a)` for `mul` and `add_`.

    An optimizer step is 34 operations up to torch 2.11, and 23 from 2.12 on (`lr_float_changes`). Nothing was lost if
    no break or eager frame was added, no fewer graphs ran, and there are as many fewer graphs as there are fewer
    recompiles; the reverse for a gain. On the same torch, other operations mean that the captured code changed.
    """
    was, now = change.was, change.now
    if not change.other_torch or was.operations is None or now.operations is None:
        return False
    if was.recompiles is None or now.recompiles is None or was.graphs is None or now.graphs is None:
        return False
    if was.graphs_executed is None or now.graphs_executed is None or _facts_lost(change):
        return False
    lost = now.graphs_executed - was.graphs_executed
    if lost < 0 if change.worse else lost > 0:
        return False
    return was.graphs - now.graphs == len(was.recompiles) - len(now.recompiles)


def _facts_lost(change: Change) -> bool:
    """Whether a break or eager frame was added (for a gain: removed), or this is unknown."""
    for read in (READERS["graph_breaks"], READERS["eager_frames"]):
        before, after = read(change.was), read(change.now)
        if before is None or after is None:
            return True
        if without(after.of, before.of) if change.worse else without(before.of, after.of):
            return True
    return False


def recompiled_more_or_less(change: Change) -> bool:
    """Whether more or fewer operations were captured only because the same code was recompiled more or less often, with
    graphs of the same size.

    From torch 2.13 on, a float argument of an autograd.Function becomes dynamic; before, each value was compiled
    (`grad_reversal_lambda`): 3 recompiles become 1, and 19 captured operations 8.
    """
    was, now = change.was, change.now
    if was.recompiles is None or now.recompiles is None:
        return False
    more = len(now.recompiles) - len(was.recompiles)
    if not change.worse:
        return more > 0
    if more >= 0 or not was.graphs or not now.graphs:
        return False
    return (now.ops_captured or 0) / now.graphs >= (was.ops_captured or 0) / was.graphs


# Kernels


def chosen_by_timing(change: Change) -> bool:
    """Whether Inductor times templates against libraries: which one wins may differ from run to run.

    In different runs of one torch, an RMSNorm layer in `max-autotune` ran 4 to 8 kernels per step, depending on whether
    a template, or cuBLAS with or without split-K, was fastest.
    """
    return any(times_kernels(each.lane_settings) for each in (change.old, change.new))


def times_kernels(lane_settings: Mapping[str, object]) -> bool:
    """Whether Inductor chooses kernels by timing them in this lane."""
    # What an option says wins over a setting.
    tables = (lane_settings.get("inductor"), lane_settings.get("options"))
    asked = {name: value for table in tables if isinstance(table, Mapping) for name, value in table.items()}
    mode = str(lane_settings.get("mode", ""))
    return mode.startswith("max-autotune") or any(asked.get(each) for each in ("max_autotune", "max_autotune_gemm"))


def as_eager_does(change: Change) -> bool:
    """Whether the kernels that were added or removed changed in eager, too: another library is not due to compiling.

    cuBLAS picks different kernels for small matmuls with torch 2.11 and 2.12, also in eager: `sgemm_largek` with
    `scal_kernel`, or a split in two. By name, and never for Triton kernels, which eager does not have. On the same
    torch, other kernels mean that the code changed.
    """
    was, now = change.was.kernels, change.now.kernels
    if was is None or now is None or not change.other_torch or not was.eager.total or not now.eager.total:
        return False
    left = now.compiled.total - was.compiled.total
    for name in {*was.compiled.names, *now.compiled.names}:
        ours = now.compiled.names.get(name, 0) - was.compiled.names.get(name, 0)
        eagers = now.eager.names.get(name, 0) - was.eager.names.get(name, 0)
        if ours * eagers > 0 and not name.startswith("triton_"):
            left -= min(ours, eagers) if ours > 0 else max(ours, eagers)
    return left <= 0 if change.worse else left >= 0


# Any metric


def wrong_results_are_now_correct(change: Change) -> bool:
    """Whether wrong results are now correct, and the contract holds: the counts of the wrong program are no reference.

    From torch 2.12 on, a float on a class is guarded (`class_attr_not_guarded`): the recompile that this costs makes
    the numbers right.
    """
    if change.was.numerics is None or change.now.numerics is None:
        return False
    return change.worse and bool(change.was.numerics.differences) and change.new.verdict == "held"


def runs_no_compiled_graph(old: Entry, new: Entry) -> bool:
    """Whether a side runs no compiled graph at all: then it runs none in its steady calls either.

    If nothing was captured, as around an associative scan of length 0 up to torch 2.13 (`associative_scan_empty`), no
    steady call can have lost its graph.
    """
    return any(each.measurement is not None and each.measurement.graphs_executed == 0 for each in (old, new))


def steady_limit_is_left_out(old: Entry, new: Entry) -> bool:
    """Whether `runs_no_compiled_graph` explains why the two sides exceed different limits."""
    exceeded = [
        read_limits(each, but_steady=False).count - read_limits(each, but_steady=True).count for each in (old, new)
    ]
    return exceeded[0] != exceeded[1]


def _more_went(change: Change) -> Direction:
    return "better" if len(change.went) > len(change.came) else "changed"


# Of several that apply, the first is said. Their change gates nothing but as the improvement that it may be.
_BY_METRIC: dict[str, tuple[Excuse, ...]] = {
    "recompiles": (
        Excuse(name="one side had nothing to recompile", applies=had_nothing_to_recompile),
        Excuse(name="only moved with its graph break", applies=moved_with_its_break, becomes=_more_went),
    ),
    "ops_captured": (
        Excuse(name="traced as different operations", applies=traced_differently),
        Excuse(name="recompiled more or fewer times", applies=recompiled_more_or_less),
    ),
    "kernels_a_step": (
        Excuse(name="kernels chosen by timing", applies=chosen_by_timing),
        Excuse(name="as in eager", applies=as_eager_does),
    ),
}
# Its change stays what it is, and gates nothing.
MENDED = Excuse(
    name="wrong results are now correct", applies=wrong_results_are_now_correct, becomes=lambda change: change.direction
)
# What these excuse is left out, as if both sides had it.
NAMED_OTHERWISE = "the same guards, a different one reported"
NO_GRAPH = "runs no compiled graph at all"
TWO_DEVICES = "depends on the device"


def excuse_for(change: Change) -> Excuse | None:
    """The rule that changes the direction of this change; None if no rule applies."""
    for excuse in _BY_METRIC.get(change.metric, ()):
        if excuse.applies(change) and excuse.becomes(change) != change.direction:
            return excuse
    return None
