"""Holding a contract inside the test's own process, as the hooks do: isolated, measured, judged."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_compilecontract.facts.lanes import BUILT_IN, Lane
from pytest_compilecontract.facts.limits import limits_from
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.measure.compile_lane import CompileLane
from pytest_compilecontract.measure.endings import BrokenLane
from pytest_compilecontract.measure.isolation import isolated
from pytest_compilecontract.measure.probes.trace import quiet
from pytest_compilecontract.plugin.judged import Subject, judged

ROOT = Path(__file__).parent


def a_lane(lane: str | Lane) -> Lane:
    return BUILT_IN[lane] if isinstance(lane, str) else lane


@contextlib.contextmanager
def lane_of(lane: str | Lane = "aot", **limits: Any) -> Iterator[CompileLane]:
    """A `compile_lane` as the fixture gives it, in the surroundings that the hooks make."""
    with isolated(a_lane(lane)), quiet():
        compile_lane = CompileLane(a_lane(lane), limits_from([("test", limits)], test="test"), ROOT)
        try:
            yield compile_lane
        finally:
            compile_lane.close()


def results_of(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> list[Any]:
    """What a method returns from now on, each time that it is called."""
    found: list[Any] = []
    real = getattr(owner, method)

    def noted(self: Any, *given: Any) -> Any:
        found.append(real(self, *given))
        return found[-1]

    monkeypatch.setattr(owner, method, noted)
    return found


def hold(body: Callable[[CompileLane], Any], *, lane: str | Lane = "aot", **limits: Any) -> Entry:
    """The entry of a test with this body, in this lane, under these limits."""
    with lane_of(lane, **limits) as compile_lane, contextlib.suppress(BrokenLane):
        body(compile_lane)
    subject = Subject(
        contract="test",
        lane=a_lane(lane),
        test=f"test[{a_lane(lane).name}]",
        limits=limits_from([("test", limits)], test="test"),
        environment="here",
        worker="",
    )
    return judged(
        subject, measurements=tuple(compile_lane.measurements), seconds=0.0, torch_version=torch.__version__
    ).entry


def hold_contract(contract: Callable[..., Any], *, lane: str | Lane = "aot", **arguments: Any) -> Entry:
    """The entry of a test of `contracts/`, held in this lane to the limits it is marked with.

    `arguments` are what its other fixtures and parameters would bring. What the test asserts by itself is raised here.
    """
    limits: dict[str, Any] = {}
    for mark in contract.pytestmark:  # type: ignore[attr-defined]
        if mark.name == "compile_contract":
            limits |= mark.kwargs
    limits.pop("lanes", None)

    def body(compile_lane: CompileLane) -> None:
        if "compile_lane" in inspect.signature(contract).parameters:
            contract(compile_lane=compile_lane, **arguments)
            return
        # It compiles by itself.
        with compile_lane.observe():
            contract(**arguments)

    return hold(body, lane=lane, **limits)


def measured(entry: Entry) -> Measurement:
    assert entry.measurement is not None
    return entry.measurement


def kept_limits(entry: Entry) -> tuple[str, dict[str, int | str]]:
    """The verdict, and what was measured by the limit that it does not keep."""
    return entry.verdict, {each.limit: each.measured for each in entry.violations}
