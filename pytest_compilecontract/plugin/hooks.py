"""Hooks of a session that holds contracts: they fetch, call, and hand back. torch is imported when a contract runs."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
import unittest
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_compilecontract.baselines.gone import Collected, collected_from, gone
from pytest_compilecontract.baselines.kept import refusal
from pytest_compilecontract.errors import ReceiptError, UsageError
from pytest_compilecontract.escaping import as_tests, plain, printed, typed
from pytest_compilecontract.facts.ladder import NAME as FRONTIER
from pytest_compilecontract.facts.ladder import TRAIN, Rung, Step, completed, rung
from pytest_compilecontract.facts.lanes import Lane, chosen, narrowed
from pytest_compilecontract.facts.limits import OBSERVED, Limits, limits_from
from pytest_compilecontract.facts.receipt import environment_key
from pytest_compilecontract.files.journal import ENDED
from pytest_compilecontract.files.sense import name_fault
from pytest_compilecontract.report.baselines import baseline_lines, drift_text, record_lines
from pytest_compilecontract.report.gone import gone_lines
from pytest_compilecontract.report.terminal import Line, failure_text, headline, summary_lines

from .history import History, Summary
from .lost_device import Child, Parent, leave_worker
from .session import UNKNOWN, Judged, Session, Subject, failed, judged, over_repeats, over_walk, unmeasured
from .settings import DEFAULT_LANES, Settings, set_options, settings_from
from .timeout import ends_within, uncaptured_stderr

if TYPE_CHECKING:
    from pytest_compilecontract.baselines.store import Recorded
    from pytest_compilecontract.facts.measurement import Measurement
    from pytest_compilecontract.facts.receipt import Entry, Environment
    from pytest_compilecontract.measure.compile_lane import CompileLane, Observation

FIXTURE = "compile_lane"
OLDEST_TORCH = (2, 11)
# The lane of a test that compiles by itself: nothing but its body says how.
BODY = Lane(name="body", backend="")
# Limits that only a comparison with eager, or a lane, gives a meaning.
NEED_FIXTURE = (
    "numerics",
    "rtol",
    "atol",
    "check_grads",
    "check_state_dict",
    "lanes",
    "frontier",
    "min_frontier",
    "capture_targets",
    "keeps_outputs",
    "cudagraphs",
    "max_kernels",
    "max_kernels_ratio",
    "max_host_syncs",
    "max_memory_ratio",
    "max_memory_growth",
    "min_speedup",
)


@dataclass(kw_only=True, slots=True)
class Contract:
    """A collected test that is a contract, in one lane.

    A `bare` one compiles by itself. Where its marker is `inherited` from a class or module, it is a contract only if it
    compiles anything: its neighbours may be ordinary tests. `runs` are its repeats so far, of which `number` is the one
    that runs, `judged` is the verdict over them, and `whole` says that this one went through to it. On a ladder `rung`
    is the one that runs, and `steps` are those that have.
    """

    item: pytest.Item
    limits: Limits
    lane: Lane
    bare: bool
    inherited: bool = False
    compile_lane: CompileLane | None = None
    seen: Observation | None = None
    judged: Judged | None = None
    drifted: str = ""
    started: float = 0.0
    unusable: str | None = None
    runs: list[Judged] = field(default_factory=list)
    number: int = 1
    whole: bool = False
    card: str = ""
    lost: bool = False
    rung: Rung | None = None
    steps: list[Step] = field(default_factory=list)
    # Why the test is not to be run at all, which fails it; and what is otherwise in the lane than around the test.
    refused: str = ""
    notes: tuple[str, ...] = ()
    # The body is running; a part of it, which has a report of its own, failed; the test ended by itself, in its midst.
    running: bool = False
    failed_within: bool = False
    # A rung of its ladder cannot run here.
    cannot_climb: bool = False
    cut_short: str = ""

    @property
    def goes_on(self) -> bool:
        """Whether another repeat could tell more."""
        return self.whole and self.judged is not None and self.judged.entry.verdict != "broken"

    @property
    def name(self) -> str:
        """pytest's node id without the lane."""
        nodeid = self.item.nodeid
        return nodeid if self.bare else contract_name(nodeid, self.item.name, self.lane.name)


CONTRACT = pytest.StashKey[Contract]()
# Where a worker of pytest-xdist leaves what is wrong with the markers, for the controller to say.
PROBLEMS = "compile_contract_problems"
# On the report of a test that lost its process the CUDA device, and on xdist's that its worker ended.
LOST = "compile_contract_lost"
REPLACED = "compile_contract_replaced"
# On the report with which a worker says what it is about to run.
BEGUN = "compile_contract_begun"
# A lane of which only its test's name is known.
UNKNOWN_LANE = Lane(name="unknown", backend="")
_CANNOT_RUN = "lane {} cannot run here: "


class Hooks:
    """The plugin, switched on."""

    def __init__(self, config: pytest.Config) -> None:
        try:
            settings = settings_from(
                root=config.rootpath,
                asked=config.getoption("--contract-lanes"),
                configured=config.getini("contract_lanes"),
                report=config.getoption("--contract-report"),
                invocation=config.invocation_params.dir,
                baselines=config.getoption("--contract-baselines"),
                record=config.getoption("--contract-record"),
                accepted=config.getoption("--contract-accept-reason"),
                repeat=config.getoption("--contract-repeat") or 1,
                overrides=config.getoption("--contract-set") or (),
                observe=bool(config.getoption("--contract-observe")),
                timeout=config.getoption("--contract-timeout"),
                timed=bool(config.getoption("--contract-speed")),
                rest=config.getoption("--contract-rest"),
                allow_unmeasured=bool(config.getoption("--contract-allow-unmeasured")),
                variables=os.environ,
            )
            self.history = History(settings=settings)
            if config.getoption("--contract-bisect") and settings.repeat > 1:
                raise UsageError("--contract-bisect runs a lane once a stage: leave out --contract-repeat")
            if config.getoption("--contract-plant") is not None:
                _refuse_beside_plant(config)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
        self.session = Session(settings=settings, each=config.getoption("dist", "no") == "each")
        self._held: Summary | None = None
        self._recorded: Recorded | None = None
        self._worker = str(getattr(config, "workerinput", {}).get("workerid", ""))
        self._problem = ""
        self._collected: Collected | None = None
        self._deselected = False
        self._gone: tuple[str, ...] = ()
        self._told_defaults = False
        self._place: tuple[str, Environment] | None = None
        # As it is while pytest is set up: later on it is a test's.
        self._stderr = sys.stderr if self._settings.timeout is None else uncaptured_stderr()
        self._lost: set[str] = set()
        # Who runs a contract more than once surrounds each run, and says so here.
        self.runs_once: Callable[[pytest.Item, Contract], bool] = lambda _item, _contract: True
        self._surrounds = False
        # The variables of the environment as they are before the first test.
        self._variables: dict[str, str] = {}
        # What workers run now, by its test, as they have said.
        self._begun: dict[str, dict[str, Any]] = {}
        self._parent = Parent()
        config.pluginmanager.register(self._parent, "compilecontract-parent")
        if self._settings.rest is not None:
            config.pluginmanager.register(Child(self._settings.rest), "compilecontract-child")

    @property
    def _settings(self) -> Settings:
        return self.session.settings

    def pytest_sessionstart(self) -> None:
        if self._settings.rest is not None:
            return
        try:
            self.session.open_journal(self._worker)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error

    # collecting

    # First, so that the lane is the first of a test's parameters.
    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if FIXTURE not in metafunc.fixturenames:
            return
        try:
            limits = self._limits(metafunc.definition)
        except UsageError:
            limits = Limits()  # said once all tests are collected
        if limits.frontier is not None:
            reason = "--contract-lanes leaves ladders out"
            marks = [pytest.mark.skip(reason=reason)] if self._settings.asked_for_lanes else []
            metafunc.parametrize(FIXTURE, [pytest.param(FRONTIER, marks=marks)], ids=[FRONTIER], indirect=True)
            return
        wanted = limits.lanes
        lanes = narrowed(self._settings.lanes, wanted)
        if lanes:
            names = [lane.name for lane in lanes]
            metafunc.parametrize(FIXTURE, names, ids=names, indirect=True)
            return
        skip = pytest.mark.skip(reason=f"not among the lanes chosen ({_names(self._settings.lanes)})")
        known = [name for name in wanted or () if name in self._settings.known]
        metafunc.parametrize(FIXTURE, [pytest.param(name, marks=skip) for name in known], ids=known, indirect=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        problems: dict[str, None] = {}
        for item in items:
            try:
                self._take(item)
                if CONTRACT in item.stash or self._settings.observe:
                    _refuse_name(item)
            except UsageError as error:
                problems[str(error)] = None
        problems.update(dict.fromkeys(self._named_alike(items)))
        if not problems:
            self._collected = self._collection(config, items)
            return
        message = "\n".join(problems)
        if not self._worker:
            raise pytest.UsageError(message)
        # pytest-xdist would lose a worker's exception, and trip over the tests that the worker did not run.
        config.workeroutput[PROBLEMS] = message  # type: ignore[attr-defined]
        items.clear()

    def _named_alike(self, items: list[pytest.Item]) -> Iterator[str]:
        """Tests with one name between them: what one of them shows would hide what the other does."""
        first: dict[str, pytest.Item] = {}
        for item in items:
            if CONTRACT not in item.stash and not (self._settings.observe and isinstance(item, pytest.Function)):
                continue
            other = first.setdefault(item.nodeid, item)
            if other is not item:
                where = f"in {other.path} and in {item.path}" if other.path != item.path else f"twice in {item.path}"
                yield (
                    f"{_test(item)}: two tests have this name ({where}): pytest names a file outside of its root "
                    "folder by less than its path; give --rootdir a folder that has both, or rename one"
                )

    def _collection(self, config: pytest.Config, items: list[pytest.Item]) -> Collected:
        contracts = [item.stash[CONTRACT].name for item in items if CONTRACT in item.stash]
        names = [*contracts, *(item.nodeid for item in items)]
        return collected_from(names, config.args, root=config.rootpath, invocation=config.invocation_params.dir)

    def pytest_collection_finish(self) -> None:
        self._variables = dict(os.environ)

    def pytest_deselected(self) -> None:
        self._deselected = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if message := getattr(node, "workeroutput", {}).get(PROBLEMS):
            raise pytest.UsageError(message)

    def _take(self, item: pytest.Item) -> None:
        fixtures = getattr(item, "fixturenames", ())
        bare = FIXTURE not in fixtures
        if bare and item.get_closest_marker("compile_contract") is None:
            return
        limits = self._limits(item)
        if bare:
            own = {name for mark in item.own_markers if mark.name == "compile_contract" for name in mark.kwargs}
            if given := [name for name in NEED_FIXTURE if name in own]:
                raise UsageError(f"{_test(item)}: {given[0]} needs the {FIXTURE} fixture (the test compiles by itself)")
            # A unittest.TestCase has no other place for a marker than its class.
            own_class = isinstance(item.parent, pytest.Class) and issubclass(item.parent.obj, unittest.TestCase)
            nodes = (item, item.parent) if own_class and item.parent else (item,)
            inherited = not any(mark.name == "compile_contract" for node in nodes for mark in node.own_markers)
            # A ladder of a class or module is for those of its tests that lanes can run.
            limits = replace(limits, frontier=None, min_frontier=None)
            item.stash[CONTRACT] = Contract(item=item, limits=limits, lane=BODY, bare=True, inherited=inherited)
            return
        if limits.lanes is not None:
            self._check_lanes(item, limits.lanes)
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if FIXTURE not in parameters:
            raise UsageError(f"{_test(item)}: {FIXTURE} needs a test function that pytest can run once a lane")
        if limits.frontier is not None:
            item.stash[CONTRACT] = Contract(item=item, limits=limits, lane=self._top(item, limits.frontier), bare=False)
            return
        lane = self._settings.known[parameters[FIXTURE]]
        item.stash[CONTRACT] = Contract(item=item, limits=limits, lane=lane, bare=False)

    def _top(self, item: pytest.Item, names: tuple[str, ...]) -> Lane:
        try:
            return rung(names, self._settings.known).lane
        except UsageError as error:
            raise UsageError(f"{_test(item)}: {error}") from error

    def _check_lanes(self, item: pytest.Item, names: tuple[str, ...]) -> None:
        try:
            chosen(names, self._settings.known)
        except UsageError as error:
            raise UsageError(f"{_test(item)}: {error}") from error

    def _limits(self, node: pytest.Item) -> Limits:
        marks = list(node.iter_markers_with_node("compile_contract"))[::-1]
        for _, mark in marks:
            if mark.args:
                raise UsageError(f"{_test(node)}: compile_contract takes keywords only, got {mark.args[0]!r}")
        return limits_from(
            [("" if where is node else where.name, mark.kwargs) for where, mark in marks], test=_test(node)
        )

    # running

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        contract = item.stash.get(CONTRACT, None)
        if contract is None or self._parent.lost or not self.runs_once(item, contract):
            return (yield)
        with self.surrounded(contract):
            return (yield)

    @staticmethod
    def contract_of(item: pytest.Item) -> Contract | None:
        """What the item is, if it is a contract."""
        return item.stash.get(CONTRACT, None)

    @property
    def lost(self) -> bool:
        """Whether this process has lost its CUDA device, so that another runs what is left."""
        return self._parent.lost

    @contextlib.contextmanager
    def surrounded(self, contract: Contract) -> Iterator[None]:
        """One run of a contract in the surroundings of its lane, as if it had not run before."""
        assert not self._surrounds, "a run has one lane, and so one surroundings"
        self._surrounds = True
        try:
            with self._surrounded(contract):
                yield
        finally:
            self._surrounds = False

    @contextlib.contextmanager
    def _surrounded(self, contract: Contract) -> Iterator[None]:
        contract.judged, contract.drifted, contract.seen, contract.whole = None, "", None, False
        contract.refused, contract.notes, contract.failed_within, contract.cut_short = "", (), False, ""
        contract.unusable = no_torch()
        if contract.unusable is None:
            _take_card(self._worker)
            missing = contract.rung.missing if contract.rung is not None else ""
            self._look_at_compile(contract)
            contract.unusable = None if contract.bare or contract.refused else missing or _unavailable(contract.lane)
            contract.card = "" if contract.bare or contract.refused or contract.unusable else _card(contract.lane)
        stack = contextlib.ExitStack()
        try:
            if contract.unusable is None:
                # Before the lane's settings are set, which are none of the environment's.
                self.where()
                try:
                    contract.notes += stack.enter_context(_surroundings(contract, self._settings.overrides))
                except UsageError as error:
                    contract.unusable = str(error)
                except Exception as error:  # noqa: BLE001 - a setting that this torch does not take, say
                    contract.unusable = f"{type(error).__name__}: {error}"
            if contract.number == 1:
                contract.started = time.perf_counter()
            if contract.unusable is None and self._settings.rest is None:
                # What a child's death loses, knows who started it.
                self._begin(contract)
            try:
                yield
            finally:
                self.session.end(contract.item.nodeid)
        finally:
            self._leave(contract, stack)

    def _look_at_compile(self, contract: Contract) -> None:
        """What stands in the place of torch.compile compiles no lane; for other tests it is their project's."""
        from pytest_compilecontract.measure.probes.availability import replaced_compile
        from pytest_compilecontract.measure.probes.source import Paths

        if contract.lane.reference or not (found := replaced_compile(Paths(self._settings.root))):
            return
        if contract.bare:
            contract.notes = (f"torch.compile has been replaced by {found}",)
        else:
            contract.refused = f"torch.compile has been replaced by {found}: a lane is compiled by torch's own"

    def _begin(self, contract: Contract) -> None:
        """Note which lane runs from now on. A worker tells its controller, which hears no more of it if it dies."""
        self.session.begin(self.subject(contract))
        if not self._worker:
            return
        from pytest_compilecontract.files.receipt import entry_to_data, environment_to_data

        item = contract.item
        # pytest passes over a setup that passed: nobody but the controller's own hook takes notice of this one.
        report = pytest.TestReport(
            nodeid=item.nodeid, location=item.location, keywords={}, outcome="passed", longrepr=None, when="setup"
        )
        _, environment = self.where()
        begun = failed(self.subject(contract), ENDED, None)
        vars(report)[BEGUN] = {"entry": entry_to_data(begun), "environment": environment_to_data(environment)}
        item.ihook.pytest_runtest_logreport(report=report)

    def _leave(self, contract: Contract, stack: contextlib.ExitStack) -> None:
        if not contract.lost:
            stack.close()
            return
        if self._worker:
            leave_worker()
        self._parent.lost = True
        # What is on the device cannot be put back; all else is as it was.
        with contextlib.suppress(Exception):
            stack.close()

    def where(self) -> tuple[str, Environment]:
        """The environment of this process, and the key that entries know it by."""
        if self._place is None:
            from pytest_compilecontract.facts.receipt import fingerprint
            from pytest_compilecontract.measure.environment import with_overrides

            # A body may be running, and have variables of its own.
            environment = _environment(self._settings.root, self._variables or os.environ)
            environment = with_overrides(environment, self._settings.overrides)
            self._place = fingerprint(environment), environment
        return self._place

    # Inside pytest's own wrappers, so that its log handlers are set when they are to be left out.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        __tracebackhide__ = True  # of what a fixture raises, pytest shows the fixture's lines
        contract = item.stash.get(CONTRACT, None)
        if contract is None:
            return (yield)
        if contract.unusable is not None:
            pytest.skip(_CANNOT_RUN.format(contract.lane.name) + contract.unusable)
        if contract.refused:
            pytest.fail(contract.refused, pytrace=False)
        if not contract.bare:
            from pytest_compilecontract.measure.compile_lane import CompileLane

            climbs = contract.rung is not None and TRAIN in (contract.limits.frontier or ())
            contract.compile_lane = CompileLane(
                contract.lane,
                contract.limits,
                self._settings.root,
                timed=self._settings.timed,
                trains=contract.rung.trains if contract.rung is not None and climbs else None,
            )
            contract.compile_lane.open = False  # until the body of the test
        from pytest_compilecontract.measure.probes.trace import quiet

        with quiet(), _said_in_one_line():
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        __tracebackhide__ = True
        with _said_in_one_line():
            return (yield)

    def lane_of(self, item: pytest.Item) -> CompileLane:
        """The lane that the fixture gives to a test."""
        contract = item.stash.get(CONTRACT, None)
        if contract is None or contract.compile_lane is None:
            pytest.fail(f"{FIXTURE} runs a test once a lane: ask for it as an argument of the test", pytrace=False)
        return contract.compile_lane

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        contract = item.stash.get(CONTRACT, None)
        if contract is None:
            return (yield)
        from pytest_compilecontract.measure.probes.device import lost
        from pytest_compilecontract.measure.runner import BrokenLane, DeviceLost

        cause: BaseException | None = None
        # A plugin that reruns what failed does so in the same surroundings.
        contract.running, contract.failed_within, contract.cut_short = True, False, ""
        # A process that loses its device could not say any more where it ran.
        self.where()
        try:
            with self._observed(contract), ends_within(self._settings.timeout, self._hangs, self._stderr):
                result = yield
        except BrokenLane as error:
            contract.lost = isinstance(error, DeviceLost)
            result, cause = None, error.__cause__
        except UsageError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        except (pytest.skip.Exception, unittest.SkipTest) as skipped:
            if not self._failed_before_skipping(contract, skipped):
                raise
            if contract.rung is not None:
                return None
            raise pytest.fail.Exception(_failure(contract), pytrace=False) from None
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # SystemExit too: pytest makes a failure of it, and goes on
            contract.lost = bool(lost(error))
            contract.cut_short = _said_at_the_end(error)
            self._judge_what_there_is(contract)
            raise
        finally:
            contract.running = False
        if (outcome := unittest_outcome(item)) is not None:
            if not isinstance(outcome, pytest.skip.Exception):
                contract.cut_short = _said_at_the_end(outcome)
                self._judge_what_there_is(contract)
            elif self._failed_before_skipping(contract, outcome):
                _forget_skips(item)
                raise pytest.fail.Exception(_failure(contract), pytrace=False)
            return result
        run = self._judge(contract)
        if contract.rung is not None:
            contract.judged = run
            return result
        if run is not None:
            # A plugin that reruns what failed asks for no band: its last run stands alone.
            contract.runs = [*contract.runs[: contract.number - 1], run]
            contract.judged = over_repeats(contract.runs)
            contract.whole = True
        contract.drifted = self.drift(contract)
        said = [_failure(contract)] if contract.judged is not None and contract.judged.failed else []
        if contract.drifted:
            said.append(contract.drifted)
        if said:
            # `--pdb` stops where the traceback ends: for a lane that raised, at the line that did.
            trace = cause.__traceback__ if cause is not None else None
            raise pytest.fail.Exception("\n".join(said), pytrace=False).with_traceback(trace)
        return result

    def _hangs(self, frame: FrameType | None) -> NoReturn:
        """End a test that has run too long, where it is now."""
        from pytest_compilecontract.measure.probes.source import Paths

        paths, at = Paths(self._settings.root), ""
        while frame is not None and not at:
            if paths.is_users(frame.f_code.co_filename):
                at = f", at {paths.location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)}"
            frame = frame.f_back
        pytest.fail(f"no end after {self._settings.timeout:g} s (--contract-timeout){at}", pytrace=False)

    @contextlib.contextmanager
    def _observed(self, contract: Contract) -> Iterator[None]:
        from pytest_compilecontract.measure.compile_lane import observing
        from pytest_compilecontract.measure.probes.source import Paths
        from pytest_compilecontract.measure.probes.trace import quiet

        with quiet():
            if contract.compile_lane is not None:
                contract.compile_lane.open = True
                try:
                    with contract.compile_lane.body():
                        yield
                finally:
                    contract.compile_lane.open = False
                return
            with observing(Paths(self._settings.root)) as contract.seen:
                yield

    def drift(self, contract: Contract) -> str:
        """What to say if the lane is not what its baseline says; empty where it is."""
        entry = contract.judged.entry if contract.judged is not None else None
        if entry is None or entry.verdict == "broken":
            return ""
        try:
            held = self.history.hold(entry, self.where()[1], _torch_defaults())
        except ReceiptError as error:
            return f"the baseline of this lane: {error}"
        if held is None or not held.failed or self.history.is_recorded(entry, held):
            return ""
        return drift_text(held.lane, held.found, held.record, refusal(entry))

    def subject(self, contract: Contract) -> Subject:
        return Subject(
            contract=contract.name,
            lane=contract.lane,
            test=contract.item.nodeid,
            limits=contract.limits,
            environment=self.where()[0],
            worker=self._worker,
            card=contract.card,
            notes=contract.notes,
        )

    def _judge(self, contract: Contract) -> Judged | None:
        """What this run measured, judged by itself; None where there is nothing to hold."""
        import torch

        if contract.inherited and contract.number == 1 and _nothing_compiled(contract):
            return None
        measured = _measured(contract)
        if contract.cut_short:
            measured = tuple(replace(each, cut_short=contract.cut_short) for each in measured)
        return judged(
            self.subject(contract),
            measurements=measured,
            seconds=time.perf_counter() - contract.started,
            torch_version=torch.__version__,
        )

    def _failed_before_skipping(self, contract: Contract, skipped: BaseException) -> bool:
        """Judge a test that skips itself; what does not fail by what it had measured is not judged at all."""
        if contract.number > 1:
            contract.judged = over_repeats(contract.runs, f"repeat {contract.number} was skipped: {skipped}")
        else:
            contract.cut_short = _said_at_the_end(skipped)
            self._judge_what_there_is(contract)
        if contract.judged is not None and contract.judged.failed:
            return True
        contract.judged = None
        return False

    def _judge_what_there_is(self, contract: Contract) -> None:
        """Judge what a test that ended by itself had measured, beside its own reason; not if it compiled nothing."""
        if _nothing_compiled(contract):
            return
        contract.judged = self._judge(contract)
        if contract.judged is not None and contract.judged.failed:
            contract.item.add_report_section("call", "compile contract", _failure(contract))

    # reporting

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report: pytest.TestReport = yield
        contract = item.stash.get(CONTRACT, None)
        if contract is None or (call.when != "call" and report.outcome == "passed"):
            return report
        if contract.running:
            # A subtest of a test that is still running.
            contract.failed_within |= report.failed
            return report
        if (entry := self._entry(contract, call, report)) is not None:
            self.attach(report, entry, contract)
        if contract.lost:
            vars(report)[LOST] = True
        return report

    def attach(
        self, report: pytest.TestReport, entry: Entry, contract: Contract | None = None, *, unusable: bool = False
    ) -> None:
        """Send an entry with a report: pytest and pytest-xdist carry its own attributes from worker to controller.

        `unusable`: it was to be measured here, and cannot be.
        """
        from pytest_compilecontract.files.receipt import entry_to_data, environment_to_data

        _, environment = self.where()
        kept: dict[str, Any] = {"entry": entry_to_data(entry), "environment": environment_to_data(environment)}
        if contract is not None and contract.notes and entry.verdict != "unmeasured":
            kept["notes"] = list(contract.notes)
        if entry.verdict == "unmeasured" and (unusable or (contract is not None and contract.unusable is not None)):
            kept["unusable"] = entry.reason
        # A table of some size, so once for each process.
        vars(report)["compile_contract"] = kept if self._told_defaults else {**kept, "defaults": _torch_defaults()}

    def _entry(self, contract: Contract, call: pytest.CallInfo[None], report: pytest.TestReport) -> Entry | None:
        if contract.inherited and contract.judged is None:
            return None
        if call.when == "teardown" and call.excinfo is not None and isinstance(call.excinfo.value, SKIPS):
            return None  # what the test has shown stays
        if contract.limits.frontier is not None:
            return self._entry_of_rung(contract, call)
        if not contract.bare and contract.lane not in self._settings.lanes:
            # Left out by who chose the lanes: as little a part of the run as a test that was not selected.
            return None
        entry = contract.judged.entry if contract.judged is not None else None
        failed_by_us = contract.drifted or (contract.judged is not None and contract.judged.failed)
        if failed_by_us:
            return entry
        if call.excinfo is None and (report.failed or contract.failed_within):
            # What pytest or a plugin makes of a test that went through: XPASS(strict), a subtest that failed.
            entry = failed(self.subject(contract), failure_without_exception(report, contract.failed_within), entry)
        elif call.excinfo is not None:
            if isinstance(call.excinfo.value, SKIPS):
                expected = isinstance(call.excinfo.value, pytest.xfail.Exception) and not str(call.excinfo.value)
                said = "expected to fail" if expected else said_by(call.excinfo)
                said = said.removeprefix(_CANNOT_RUN.format(contract.lane.name))
                entry = unmeasured(self.subject(contract), said)
            else:
                reason = own_failure(call) + (f" (in repeat {contract.number})" if self._settings.repeat > 1 else "")
                entry = failed(self.subject(contract), reason, entry)
        return entry

    def _entry_of_rung(self, contract: Contract, call: pytest.CallInfo[None]) -> Entry | None:
        """The entry of a ladder that its own test ended; a rung that went through is no entry of its own."""
        if call.excinfo is None or isinstance(call.excinfo.value, pytest.skip.Exception):
            return None
        steps, measured, reason = contract.steps, None, own_failure(call)
        if contract.rung is not None:
            steps = [*steps, Step(name=contract.rung.name, verdict="failed", reason=reason)]
        elif contract.judged is not None:
            # The walk is over, and what it shared with other tests failed after it.
            measured = contract.judged.entry
        walked = completed(steps, contract.limits.frontier or ())
        return replace(failed(self._climber(contract), reason, measured), frontier=walked)

    def _climber(self, contract: Contract) -> Subject:
        """The contract in the lane that its whole ladder comes to, whichever of its rungs ran last."""
        names = contract.limits.frontier or ()
        return replace(self.subject(contract), lane=rung(names, self._settings.known).lane)

    @staticmethod
    def why_skipped(report: pytest.TestReport) -> str:
        """The reason of a skip, without pytest's place and word for it."""
        said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return said.removeprefix("Skipped: ").removeprefix(_CANNOT_RUN.format(FRONTIER))

    @staticmethod
    def add_to_reason(reports: list[pytest.TestReport], said: list[str]) -> None:
        """Say more of why a lane failed: in its report, and in the entry that goes with it."""
        report = next(report for report in reports if report.failed)
        report.longrepr = "\n".join([str(report.longrepr), *said])
        if (kept := vars(report).get("compile_contract")) is not None:
            entry = kept["entry"]
            vars(report)["compile_contract"] = {
                **kept,
                "entry": {**entry, "reason": "; ".join(filter(None, (entry.get("reason", ""), said[0])))},
            }

    def finish_walk(self, contract: Contract, reports: list[pytest.TestReport]) -> None:
        """Judge a walk that is over, on the report of the highest rung that ran."""
        walked = completed(contract.steps, contract.limits.frontier or ())
        climber = self._climber(contract)
        report = next((each for each in reports if each.when == "call"), reports[-1])
        if not contract.runs:
            reason = walked.left_out()
            self.attach(report, replace(unmeasured(climber, reason), frontier=walked), unusable=contract.cannot_climb)
            return
        contract.judged, contract.rung = over_walk(climber, contract.runs, walked), None
        contract.lane = climber.lane
        contract.drifted = self.drift(contract)
        said = [_failure(contract)] if contract.judged.failed else []
        if said and contract.item.config.getoption("--contract-bisect"):
            said.append("where it broke: not looked for in a ladder, whose failing rung names what was added")
        if contract.drifted:
            said.append(contract.drifted)
        if said:
            report.outcome, report.longrepr = "failed", "\n".join(said)
        self.attach(report, contract.judged.entry, contract, unusable=contract.cannot_climb)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if self._begun.pop(nodeid, None) is not None:
            self.session.end(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if begun := getattr(report, BEGUN, None):
            if not self._worker:
                self._begun[report.nodeid] = begun
                self.session.begun(begun)
            return
        kept = getattr(report, "compile_contract", None)
        if getattr(report, LOST, False):
            self._lost.add(report.nodeid)
        if getattr(report, REPLACED, False):
            return
        if kept is not None:
            self._told_defaults = True
            self.session.receive(kept)
        elif str(report.when) == "???":  # pytest-xdist's word for a test whose worker died
            self._lose(report)

    def _lose(self, report: pytest.TestReport) -> None:
        reason = next(iter(str(report.longrepr).splitlines()), "")
        if (begun := self._begun.get(report.nodeid)) is not None:
            self.session.lose_begun(begun, reason)
            return
        # It died before it could say what it was about to run.
        name = report.nodeid.rpartition("::")[2]
        parameters = name.partition("[")[2].removesuffix("]")
        lanes = (*self._settings.lanes, Lane(name=FRONTIER))
        fitting = [each for each in lanes if parameters == each.name or parameters.startswith(f"{each.name}-")]
        if len(fitting) == 1:
            contract = contract_name(report.nodeid, name, fitting[0].name)
            self.session.lose(contract, fitting[0], report.nodeid, reason)
        elif fitting:
            names = _names(tuple(fitting))
            self.session.lose(report.nodeid, UNKNOWN_LANE, report.nodeid, f"{reason} (in one of the lanes {names})")
        elif self._settings.observe:
            # Nobody knows whether it compiled anything.
            self.session.lose(report.nodeid, BODY, report.nodeid, reason, OBSERVED)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        if crashitem in self._lost:
            # Its failure is reported: that the worker ended is what it was to do, and no second one.
            report.outcome = "passed"
            vars(report)[REPLACED] = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        return ("worker replaced", "", "WORKER REPLACED") if getattr(report, REPLACED, False) else None

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._worker or self._settings.rest is not None:
            return
        if session.exitstatus == pytest.ExitCode.INTERRUPTED:
            self.session.cut_off = "it was interrupted"
        elif session.exitstatus == pytest.ExitCode.INTERNAL_ERROR:
            self.session.cut_off = "pytest failed by itself"
        try:
            self.session.write_report()
            self._hold_to_history()
        except ReceiptError as error:
            self._problem = str(error)
        if unmeasured_all := "" if self._settings.allow_unmeasured else self.session.nothing_measured():
            self._problem = "\n".join(
                filter(None, (self._problem, f"{unmeasured_all} (--contract-allow-unmeasured if that is right)"))
            )
        if self._problem and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _hold_to_history(self) -> None:
        entries, environments = self.session.entries.values(), self.session.environments
        # Before recording, which would make this run its own baseline.
        self._held = self.history.summary(entries, environments, self.session.defaults)
        if not self._settings.rank:
            self._recorded = self.history.record(entries, environments, self.session.defaults)
        self._gone = self._find_gone()
        problems = [plain(line) for line in self.history.rotten(self._held)]
        compared = any(each.lane.compared for each in self._held.held)
        if self._settings.asked_for_baselines and self._settings.record is None and not compared:
            problems.append(f"nothing was compared with the baselines in {self._settings.baselines}")
        self._problem = "\n".join(problems)

    def _find_gone(self) -> tuple[str, ...]:
        """Contracts that the baselines have and the project has no more; removed by a recording of all there is."""
        if self._collected is None:
            return ()
        baselines, root = self.history.baselines, self._settings.root
        keys = {environment_key(each) for name, each in self.session.environments.items() if name != UNKNOWN}
        found = {key: gone(baselines, key, self._collected, root) for key in sorted(keys)}
        if self._trims:
            for key, contracts in found.items():
                baselines.remove(key, contracts)
        return tuple(dict.fromkeys(contract for contracts in found.values() for contract in contracts))

    @property
    def _trims(self) -> bool:
        """Whether this run recorded everything: no part of the tests, no part of the lanes."""
        whole = self._settings.record == "all" and not self._settings.rank
        return whole and not self._deselected and not self._settings.asked_for_lanes

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        rows = self.history.marked(self.session.rows(), self._held)
        verbosity = terminalreporter.verbosity
        terminalreporter.write_sep("=", headline(rows, self.session.torch_versions()))
        for text, markup in summary_lines(rows, verbosity):
            terminalreporter.write_line(printed(text), **markup)
        told = gone_lines(self._gone, str(self._settings.baselines), removed=self._trims)
        for text, markup in (*self._history_lines(), *told):
            terminalreporter.write_line(printed(text), **markup)
        if overrides := self._settings.overrides:
            said = ", ".join(f"{name}={value!r}" for name, value in overrides.items())
            terminalreporter.write_line(f"not as users have it, so held to no baseline: {said}", yellow=True)
        if self._settings.repeat > 1 and self.session.entries:
            climbed = any(entry.frontier is not None for entry in self.session.entries.values())
            once = ", each ladder climbed once" if climbed else ""
            terminalreporter.write_line(f"each lane was measured {self._settings.repeat} times{once}")
        for note in self.session.notes:
            terminalreporter.write_line(f"not as around the test: {note}", yellow=True)
        if self._settings.rank and (self._settings.report is not None or self._settings.record is not None):
            ranks = ["what this process measured goes to a folder of its own"] if self._settings.report else []
            ranks += ["the baselines are those of rank 0, which records them"] if self._settings.record else []
            terminalreporter.write_line(f"RANK={self._settings.rank}: {'; '.join(ranks)}")
        if self._problem:
            terminalreporter.write_line(f"ERROR: {self._problem}", red=True)
        elif self._settings.report is not None:
            file = self._settings.report / "receipt.json"
            kept = (
                "" if self.session.entries else " (nothing was measured: one that was there before is left as it was)"
            )
            terminalreporter.write_line(f"receipt: {file}{kept}")

    def _history_lines(self) -> list[Line]:
        if self._recorded is not None:
            return record_lines(self._recorded, str(self._settings.baselines))
        if self._held is None or not self._settings.baselines.is_dir():
            return []
        held = self._held.held
        lanes = [(each.found, each.lane) for each in held]
        mode = next((each.record for each in held if each.lane.verdict == "improved"), "changed")
        return baseline_lines(lanes, len(self._held.new), self._held.known, mode)


def _refuse_beside_plant(config: pytest.Config) -> None:
    """What cannot be done in a run that plants faults."""
    for option in ("--contract-repeat", "--contract-bisect", "--contract-record"):
        if config.getoption(option):
            raise UsageError(f"--contract-plant runs a lane once a fault: leave out {option}")


def _test(item: pytest.Item) -> str:
    """The test as its author wrote it: one, whatever its lanes and parameters."""
    return item.nodeid.partition("[")[0]


def _refuse_name(item: pytest.Item) -> None:
    """Refuse a test that no receipt could name."""
    if fault := name_fault(item.nodeid):
        raise UsageError(f"{plain(_test(item))}: {fault} (another name for the file would do)")


def contract_name(nodeid: str, name: str, lane: str) -> str:
    """pytest's node id without the lane, the first in the brackets: `test_x[inductor-64]` becomes `test_x[64]`."""
    test, _, parameters = name.partition("[")
    others = parameters.removesuffix("]").removeprefix(lane)
    path = nodeid.removesuffix(name)
    return f"{path}{test}[{others.removeprefix('-')}]" if others else f"{path}{test}"


def _failure(contract: Contract) -> str:
    assert contract.judged is not None
    entry = contract.judged.entry
    own = contract.bare or contract.limits.frontier is not None
    lane = "" if own or contract.lane.name in DEFAULT_LANES else f" --contract-lanes={contract.lane.name}"
    repeats = max(entry.repeats, contract.number)
    repeat = f" --contract-repeat={repeats}" if repeats > 1 else ""
    given = set_options(contract.item.config.getoption("--contract-set") or ())
    return failure_text(
        entry.contract,
        entry.lane,
        entry.violations,
        contract.judged.doubts,
        f"pytest --compile-contracts{lane}{repeat}{given} {typed(as_tests(entry.test))}",
        unsteady=contract.judged.unsteady,
    )


SKIPS = (pytest.skip.Exception, pytest.xfail.Exception)
SUBTEST_FAILED = "the test failed in call: a subtest failed"


def failure_without_exception(report: pytest.TestReport, subtest: bool) -> str:
    """What a test that raised nothing failed by, in one line."""
    said = next((line.strip() for line in str(report.longrepr or "").splitlines() if line.strip()), "")
    return SUBTEST_FAILED if subtest else f"the test failed in {report.when}: {said or 'pytest says no more'}"


def _said_at_the_end(error: BaseException) -> str:
    """What ended a test before its end, in one line."""
    said = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def own_failure(call: pytest.CallInfo[None]) -> str:
    """What a test that failed by itself failed by, in one line."""
    assert call.excinfo is not None
    return f"the test failed in {call.when}: {call.excinfo.typename}: {said_by(call.excinfo)}"


def said_by(raised: pytest.ExceptionInfo[BaseException]) -> str:
    """The first line of an exception's message, or its type's name."""
    return next(iter(str(raised.value).splitlines()), "") or raised.typename


def unittest_outcome(item: pytest.Item) -> BaseException | None:
    """What ended a unittest.TestCase method. It is not raised: pytest reports it in place of what its hooks raise."""
    kept = getattr(item, "_excinfo", None)
    return kept[0].value if kept else None


def _forget_skips(item: pytest.Item) -> None:
    """Let pytest report what its hooks raise: it takes the first outcome of a unittest.TestCase method instead."""
    kept = vars(item)["_excinfo"]
    kept[:] = [each for each in kept if not isinstance(each.value, pytest.skip.Exception)]


def _measured(contract: Contract) -> tuple[Measurement, ...]:
    if contract.compile_lane is not None:
        return tuple(contract.compile_lane.measurements)
    return (contract.seen.measurement,) if contract.seen is not None else ()


def _nothing_compiled(contract: Contract) -> bool:
    return not any(
        each.backend_calls or each.eager_frames or each.eager_by_request or each.raised for each in _measured(contract)
    )


def _names(lanes: tuple[Lane, ...]) -> str:
    return ", ".join(lane.name for lane in lanes)


@contextlib.contextmanager
def _said_in_one_line() -> Iterator[None]:
    """What a fixture asks of the lane in vain fails it without a traceback."""
    __tracebackhide__ = True
    try:
        yield
    except UsageError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


@contextlib.contextmanager
def _surroundings(contract: Contract, defaults: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
    from pytest_compilecontract.measure.isolation import isolated
    from pytest_compilecontract.measure.probes.canary import canary
    from pytest_compilecontract.measure.probes.trace import quiet

    with isolated(None if contract.bare else contract.lane, defaults) as replaced:
        if not contract.lane.reference:
            # Before the test can be in its way: what it finds later, it remembers from here.
            with quiet():
                canary()
        yield replaced


@functools.cache
def no_torch() -> str | None:
    """Why nothing can be measured in this process, or None."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library of torch's is missing
        return f"torch cannot be imported ({str(error).splitlines()[0]})"
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if release < OLDEST_TORCH:
        return f"torch {torch.__version__} is older than {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}, the oldest supported"
    return None


def _torch_defaults() -> dict[str, str]:
    from pytest_compilecontract.measure.environment import torch_defaults

    return torch_defaults()


@functools.cache
def _take_card(worker: str) -> None:
    from pytest_compilecontract.measure.probes.device import take_card

    take_card(worker)


@functools.cache
def _card(lane: Lane) -> str:
    from pytest_compilecontract.measure.probes.availability import device_of
    from pytest_compilecontract.measure.probes.device import card

    return card(device_of(lane))


def _unavailable(lane: Lane) -> str | None:
    from pytest_compilecontract.measure.probes.availability import unavailable as reason

    return reason(lane)


def _environment(root: Path, variables: Mapping[str, str]) -> Environment:
    from pytest_compilecontract.measure.environment import current_environment

    return current_environment(root, variables)
