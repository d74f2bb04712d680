"""Facts that no limit forbids, for a terminal: each once for all lanes that share it. Nothing here writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from pytest_compilecontract.compare.cold import short
from pytest_compilecontract.escaping import plain
from pytest_compilecontract.facts.measurement import PARTS, Measurement
from pytest_compilecontract.facts.metrics import STAGES
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.judge.tell import told_breaks, told_eager, told_limit_hits, told_recompiles
from pytest_compilecontract.wording import counted, cut, repeated

from .terminal import FAILURE_WIDTH, Line, laid_out, warm_told

# The share of compiling below which a stage is not told.
LEAST = 0.001
_Told = tuple[str, ...]
# The limits whose violation has told the facts of a kind already.
_TOLD_BY = {
    "graph break": ("max_graph_breaks", "fullgraph", "max_graphs"),
    "recompile": ("max_recompiles", "max_graphs"),
    "eager frame": ("max_eager_frames", "fullgraph"),
    "recompile limit": ("allow_recompile_limit",),
}


def fact_lines(entries: Iterable[Entry], *, every: bool) -> list[Line]:
    """Each graph break, recompile and eager frame with its line, reason, guard and hint, by contract.

    Also notes lanes in which every call compiled: then more calls might exceed a limit on recompiles.

    Facts below a violated limit are not repeated, except with `every`.
    """
    contracts: dict[str, dict[_Told, list[str]]] = {}
    for entry in entries:
        if entry.measurement is None or entry.verdict == "reference":
            continue
        told = set() if every else {violation.name for violation in entry.violations}
        for fact, times in Counter(_facts(entry.measurement, told)).items():
            head, *rest = fact
            lanes = contracts.setdefault(entry.contract, {}).setdefault((f"{head}{repeated(times)}", *rest), [])
            lanes.append(entry.lane)
    if not contracts:
        return []
    found = sum(map(len, contracts.values()))
    title = counted(found, "fact") if every else f"{counted(found, 'fact')} that no limit forbids"
    lines = [f"{title}:"]
    for contract, facts in contracts.items():
        lines += [plain(contract), *_by_lanes(facts)]
    return [(cut(line, FAILURE_WIDTH), {}) for line in lines]


def stages_told(seen: Measurement) -> str:
    """How long compiling took, in a sentence; empty if that is not known, or nothing was compiled."""
    took = f"compiling took {found}" if (found := by_stage(seen)) else ""
    return "; ".join(filter(None, (took, warm_told(seen), goodput_told(seen))))


def goodput_told(seen: Measurement) -> str:
    """Where the time of the test's own loop went; empty if it was not measured."""
    found = seen.goodput
    if found is None:
        return ""
    parts = ", ".join(f"{name} {short(seconds)} s" for name in PARTS if (seconds := found.seconds[name]))
    told = f"goodput {found.share:.0%} in {counted(found.warmed_up + found.steady, 'step')} ({parts})"
    if found.eager_step_seconds is None or found.step_seconds is None:
        return told
    if found.break_even is None:
        return f"{told}, and compiling never pays off: a step is no faster than in eager"
    return f"{told}, and compiling pays off after {counted(found.break_even, 'step')}"


def by_stage(seen: Measurement) -> str:
    """The seconds of compiling, in total and by stage; empty if they are not known, or nothing was compiled."""
    stages = seen.stage_seconds or {}
    took = sum(stages.values())
    told = {name: stages[key] for key, name in STAGES.items() if key in stages and stages[key] >= LEAST * took}
    parts = [f"{name} {short(seconds)} s" for name, seconds in told.items()]
    return f"{short(took)} s: {', '.join(parts)}" if took else ""


def _by_lanes(facts: dict[_Told, list[str]]) -> Iterator[str]:
    by_lanes: dict[str, list[_Told]] = {}
    for fact, lanes in facts.items():
        by_lanes.setdefault(", ".join(map(plain, lanes)), []).append(fact)
    for names, told in by_lanes.items():
        yield f"  in {names}:"
        for fact in told:
            yield from (f"    {line}" for line in fact)


def _facts(seen: Measurement, told: set[str]) -> Iterator[_Told]:
    every = (
        ("graph break", told_breaks(seen.graph_breaks or ())),
        ("recompile", told_recompiles(seen.compiled_again or ())),
        ("eager frame", [fact for each in seen.frames_run_eager or () for fact in told_eager([each])]),
        ("recompile limit", told_limit_hits(seen.limit_hits or ())),
    )
    calls = seen.calls or ()
    if len(calls) > 1 and all(call.phase != "steady" for call in calls):
        made = "both" if len(calls) == 2 else f"all {len(calls)}"
        yield (f"calls: {made} compiled, so none was steady",)
    if warm := warm_told(seen):
        yield (f"warm start: {warm}",)
    if goodput := goodput_told(seen):
        yield (goodput,)
    for kind, found in every:
        if not told.intersection(_TOLD_BY[kind]):
            for first, *rest in map(laid_out, found):
                yield (f"{kind}: {first}", *rest)
