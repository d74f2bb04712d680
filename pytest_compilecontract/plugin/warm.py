"""The warm start of a contract: its test runs once more, in a second process with the compile caches of this one.

Elsewhere: how that process is started and followed (`launch`), what it does (`rank`), and the limits (`judge.budget`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_compilecontract.facts.measurement import NO_DYNAMO, NOT_STARTED_AGAIN, Measurement, WarmStart
from pytest_compilecontract.facts.metrics import combined
from pytest_compilecontract.judge.alike import OF_RANKS, differing

from .current import State
from .launch import RankRun, launched_again
from .settings import Settings


def started_again(state: State, settings: Settings, measured: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    """The measurements of a run, the last of them with what a second process compiled, if one is asked for."""
    asked = settings.warm or state.contract.limits.starts_again
    if not asked or not measured or state.lane.reference:
        return measured
    *others, last = measured
    warm, why = None, _why_not(state, measured)
    if not why:
        warm, why = _warm(
            launched_again(state.contract.item, state.lane, state.variables, settings.timeout), combined(measured)
        )
    return (*others, replace(last, warm=warm, unmeasured=last.unmeasured | ({"warm": why} if why else {})))


def _why_not(state: State, measured: Sequence[Measurement]) -> str:
    """Why no second process can say what a restart costs; empty if it can."""
    if not state.noted or state.cut_short or any(each.raised for each in measured):
        return NOT_STARTED_AGAIN
    if state.contract.ladder:
        return "a ladder is not started again"
    if state.lane.is_xla:
        return NO_DYNAMO
    if state.lane.ranks is not None:
        return "a lane with ranks is not started again"
    if any(each.hunted for each in measured):
        return "each process draws calls of its own"
    return next((each.unmeasured["caches"] for each in measured if each.caches is None), "")


def _warm(run: RankRun, first: Measurement) -> tuple[WarmStart | None, str]:
    """What the second process compiled, or None and the reason."""
    if run.end.kind != "passed" or not run.measurements or run.cut_short:
        return None, f"the second process {run.end.kind}: {run.cut_short or run.end.reason}"
    second = combined(run.measurements)
    if other := differing({"first": first, "second": second}, OF_RANKS):
        return None, f"the second process compiled something else: {', '.join(other)} differ"
    found = WarmStart(
        frames=(second.first_compiles or 0) + len(second.recompiles or ()),
        stage_seconds=second.stage_seconds,
        caches=second.caches,
        cache_bypasses=second.cache_bypasses,
    )
    return found, second.unmeasured.get("stage_seconds") or second.unmeasured.get("caches") or ""
