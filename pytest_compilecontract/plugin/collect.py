"""Collecting: which tests are contracts, in which lanes, and what is wrong with them, reported all at once."""

from __future__ import annotations

import unittest
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from pytest_compilecontract.baselines.gone import Collected, collected_from
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.ladder import NAME as FRONTIER
from pytest_compilecontract.facts.ladder import rung
from pytest_compilecontract.facts.lanes import FAKE, Lane, chosen, narrowed
from pytest_compilecontract.facts.limits import LIMITS, Limits, limits_from
from pytest_compilecontract.wording import meant

from .item import BODY, CONTRACT, FIXTURE, Contract, contract_of, refuse_name, test_of
from .settings import Settings

# Where a worker of pytest-xdist leaves what is wrong with the markers, for the controller to say.
PROBLEMS = "compile_contract_problems"
# Limits that only a comparison with eager, or a lane, gives a meaning.
NEED_FIXTURE = tuple(name for name, limit in LIMITS.items() if limit.fixture)


class Collecting:
    """The part of the plugin that finds contracts. `collected` are all tests; `deselected`: some were removed.

    `not_found` are the top-level modules that test files import and Python does not find.
    """

    def __init__(self, settings: Settings, worker: str) -> None:
        self._settings = settings
        self._worker = worker
        self.collected: Collected | None = None
        self.deselected = False
        self.not_found: dict[str, None] = {}

    def pytest_exception_interact(
        self, call: pytest.CallInfo[object], report: pytest.CollectReport | pytest.TestReport
    ) -> None:
        error = call.excinfo.value if call.excinfo is not None else None
        cause = error.__cause__ if isinstance(report, pytest.CollectReport) and error is not None else None
        # With a dot, it is in a package that was found.
        if isinstance(cause, ModuleNotFoundError) and cause.name and "." not in cause.name:
            self.not_found[cause.name] = None

    # First, so that the lane is the first of a test's parameters.
    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if FIXTURE not in metafunc.fixturenames:
            return
        try:
            limits = limits_of(metafunc.definition)
        except UsageError:
            limits = Limits()  # said once all tests are collected
        lanes, marks = self._lanes(limits)
        names = [lane if isinstance(lane, str) else lane.name for lane in lanes]
        metafunc.parametrize(FIXTURE, [pytest.param(name, marks=marks) for name in names], ids=names, indirect=True)

    def _lanes(self, limits: Limits) -> tuple[list[Lane | str], list[pytest.MarkDecorator]]:
        """The lanes that a test runs in, and the marks of those that are skipped."""
        if limits.frontier is not None:
            reason = "--contract-lanes excludes ladders"
            return [FRONTIER], [pytest.mark.skip(reason=reason)] if self._settings.asked_for_lanes else []
        if lanes := narrowed(self._settings.lanes, limits.lanes):
            return [*lanes], []
        skip = pytest.mark.skip(reason=f"not among the lanes chosen ({names_of(self._settings.lanes)})")
        return [name for name in limits.lanes or () if name in self._settings.known], [skip]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        problems = dict.fromkeys(self._problems(items))
        problems.update(dict.fromkeys(self._named_alike(items)))
        if not problems:
            contracts = [found.name for item in items if (found := contract_of(item)) is not None]
            self.collected = collected_from(
                [*contracts, *(item.nodeid for item in items)],
                config.args,
                root=config.rootpath,
                invocation=config.invocation_params.dir,
            )
            return
        message = "\n".join(problems)
        if not self._worker:
            raise pytest.UsageError(message)
        # pytest-xdist would lose a worker's exception, and trip over the tests that the worker did not run.
        config.workeroutput[PROBLEMS] = message  # type: ignore[attr-defined]
        items.clear()

    def pytest_deselected(self) -> None:
        self.deselected = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        if message := getattr(node, "workeroutput", {}).get(PROBLEMS):
            raise pytest.UsageError(message)

    def _problems(self, items: list[pytest.Item]) -> Iterator[str]:
        """The errors of each test; from here on, contracts are marked as such."""
        for item in items:
            try:
                if (contract := contract_from(item, self._settings)) is not None:
                    item.stash[CONTRACT] = contract
                if contract is not None or self._settings.observe:
                    refuse_name(item)
            except UsageError as error:
                yield str(error)

    def _named_alike(self, items: list[pytest.Item]) -> Iterator[str]:
        """Tests with the same name, one of which would hide the result of the other."""
        first: dict[str, pytest.Item] = {}
        for item in items:
            if contract_of(item) is None and not (self._settings.observe and isinstance(item, pytest.Function)):
                continue
            other = first.setdefault(item.nodeid, item)
            if other is not item:
                where = f"in {other.path} and in {item.path}" if other.path != item.path else f"twice in {item.path}"
                yield (
                    f"{test_of(item)}: two tests have this name ({where}): pytest shortens the path of a file outside "
                    "its rootdir; give --rootdir a folder that contains both, or rename one"
                )


def contract_from(item: pytest.Item, settings: Settings) -> Contract | None:
    """The contract of a test, if it is one.

    Raises:
        UsageError: its markers are not valid.
    """
    if FIXTURE not in getattr(item, "fixturenames", ()):
        return _bare(item) if item.get_closest_marker("compile_contract") is not None else None
    limits = limits_of(item)
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    try:
        if limits.lanes is not None:
            chosen(limits.lanes, settings.known)
        if FIXTURE not in parameters:
            raise UsageError(f"{FIXTURE} needs a test function that pytest can run once per lane")
        ladder = limits.frontier
        lane = settings.known[parameters[FIXTURE]] if ladder is None else rung(ladder, settings.known).lane
    except UsageError as error:
        raise UsageError(f"{test_of(item)}: {error}") from error
    limits, lane = in_ranks(limits, lane)
    if limits.same_as is not None:
        _refuse_another(test_of(item), limits.same_as, lane, settings.known)
    return Contract(item=item, limits=limits, lane=lane, bare=False)


def _refuse_another(test: str, name: str, lane: Lane, known: Mapping[str, Lane]) -> None:
    """Refuse a lane that no lane can be held to, or a lane that can be held to none.

    Raises:
        UsageError: it is unknown, compiles nothing, or one of the two has ranks.
    """
    if name not in known:
        raise UsageError(
            f"{test}: same_as: unknown lane {name!r}{meant(name, known)} (known lanes: {', '.join(sorted(known))})"
        )
    if known[name].reference:
        raise UsageError(f"{test}: same_as: lane {name!r} compiles nothing, and every lane is compared with eager")
    if known[name].is_xla:
        raise UsageError(
            f"{test}: same_as: lane {name!r} runs in a process of its own: hold it to another lane instead"
        )
    if ranked := [each.name for each in (lane, known[name]) if each.ranks is not None]:
        raise UsageError(f"{test}: same_as runs both lanes in one process, and lane {ranked[0]!r} has ranks")


def _bare(item: pytest.Item) -> Contract:
    """The contract of a test that compiles by itself."""
    limits = limits_of(item)
    own = {name for mark in item.own_markers if mark.name == "compile_contract" for name in mark.kwargs}
    if given := [name for name in NEED_FIXTURE if name in own]:
        raise UsageError(f"{test_of(item)}: {given[0]} needs the {FIXTURE} fixture (the test compiles by itself)")
    # A unittest.TestCase has no other place for a marker than its class.
    own_class = isinstance(item.parent, pytest.Class) and issubclass(item.parent.obj, unittest.TestCase)
    nodes = (item, item.parent) if own_class and item.parent else (item,)
    inherited = not any(mark.name == "compile_contract" for node in nodes for mark in node.own_markers)
    # A ladder of a class or module is for those of its tests that lanes can run.
    limits = replace(limits, frontier=None, min_frontier=None)
    limits, lane = in_ranks(limits, BODY)
    return Contract(item=item, limits=limits, lane=lane, bare=True, inherited=inherited)


def in_ranks(limits: Limits, lane: Lane) -> tuple[Limits, Lane]:
    """The lane with the ranks of its contract, and the limits without those that do not apply to it."""
    if limits.ranks is not None:
        group = limits.process_group or (lane.process_group if lane.ranks is not None else None)
        lane = replace(lane, ranks=limits.ranks, process_group=group)
    if lane.process_group == FAKE:
        limits = replace(limits, numerics=None)
    return limits, lane


def limits_of(node: pytest.Item) -> Limits:
    """The limits of a test, from its markers and those of its class and module.

    Raises:
        UsageError: a marker has an unknown or invalid limit.
    """
    marks = list(node.iter_markers_with_node("compile_contract"))[::-1]
    for _, mark in marks:
        if mark.args:
            raise UsageError(f"{test_of(node)}: compile_contract takes keywords only, got {mark.args[0]!r}")
    return limits_from(
        [("" if where is node else where.name, mark.kwargs) for where, mark in marks], test=test_of(node)
    )


def names_of(lanes: tuple[Lane, ...]) -> str:
    return ", ".join(lane.name for lane in lanes)
