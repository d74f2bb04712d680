"""Running: who runs a contract, how often, and how it is isolated. Other tests run as usual.

`Runs` has the current run, and enters isolation once for each: its settings are those of the lane that runs, and of no
other. A strategy (a ladder, repeats, the stages of torch, planted faults) runs a contract several times; if none takes
it, pytest runs it once, isolated here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import pytest

# As the plugins that rerun tests do: pytest has no other way to run one again, and provides for it there.
from _pytest.runner import runtestprotocol

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.escaping import plain, printed
from pytest_compilecontract.facts.ladder import Rung, Step
from pytest_compilecontract.facts.lanes import FAKE, Lane
from pytest_compilecontract.facts.limits import OBSERVED
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.measure.installed import no_torch

from .another import Another
from .current import Current, State
from .item import BODY, Contract, contract_of
from .judged import Judged
from .lost_device import Parent, leave_worker
from .process import Process, gpu_of, no_ranks, unavailable
from .session import Session
from .settings import Settings
from .workers import ENTRY, tell_begun, tell_over, tell_shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The outcome of one run of a contract in a lane.

    `reports` are pytest's, of its phases. `judged` is None if nothing was measured or judged; then `skipped` says why,
    if the test was skipped; `unusable`: because the lane cannot run here.
    """

    reports: tuple[pytest.TestReport, ...]
    state: State
    skipped: str | None = None

    @property
    def judged(self) -> Judged | None:
        return self.state.judged

    @property
    def entry(self) -> Entry | None:
        return self.judged.entry if self.judged is not None else None

    @property
    def failed(self) -> bool:
        """Whether pytest has a failure to report, in any phase or of a part of the body."""
        return any(report.failed for report in self.reports) or self.state.failed_within

    @property
    def unusable(self) -> bool:
        return self.state.unusable is not None

    @property
    def trained(self) -> bool:
        return self.state.compile_lane is not None and self.state.compile_lane.trained


@dataclass(frozen=True, kw_only=True, slots=True)
class Broke:
    """Where a lane breaks: the lane of the first failing stage, the stage, and whether its numbers are wrong."""

    lane: Lane
    told: str
    numbers: bool


class Strategy(Protocol):
    """A way to run a contract more than once, as one test."""

    def takes(self, contract: Contract) -> bool:
        """Whether this contract is run in this way."""

    def reports(self, turn: Turn) -> list[pytest.TestReport]:
        """Run it, and return its reports, except for the teardown of wider fixtures."""


class Runs:
    """The runs of contracts, one at a time."""

    def __init__(self, session: Session, process: Process) -> None:
        self.process = process
        self._session = session
        self._settings = session.settings
        self._current: Current | None = None
        self._surrounds = False

    def of(self, item: pytest.Item) -> Current | None:
        """The current run of a test, or its last one; None if it is not a contract."""
        current = self._current
        return current if current is not None and current.state.contract.item is item else None

    def conclude(self, state: State) -> None:
        """Make this run the one that further reports of the test are about."""
        self._current = Current(state)

    @contextlib.contextmanager
    def surrounded(self, current: Current) -> Iterator[None]:
        """One isolated run of a contract in its lane, as if it had not run before."""
        assert not self._surrounds, "a run has one lane, and so one surroundings"
        self._surrounds, self._current = True, current
        stack = contextlib.ExitStack()
        try:
            self._prepare(current, stack)
            try:
                yield
            except (KeyboardInterrupt, SystemExit, pytest.exit.Exception) as error:
                # Its end is not this run's: what it had begun is lost, and the journal is to say so.
                if isinstance(error, pytest.exit.Exception):
                    said = f"pytest.exit was called while this lane ran: {plain(str(error))}"
                    self._session.cut(current.state.contract.item.nodeid, said)
                raise
            except BaseException:
                self._end(current.state)
                raise
            self._end(current.state)
        finally:
            self._surrounds = False
            self._leave(current, stack)

    def _end(self, state: State) -> None:
        self._session.end(state.contract.item.nodeid)
        if state.in_journal and self.process.worker:
            tell_over(state.contract.item)

    def keep(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Keep the entry of a report that is held back: until it is heard, the process may end."""
        sent = vars(report).get(ENTRY)
        if sent is None:
            return
        if self.process.worker:
            tell_shown(item, sent)
        else:
            self._session.receive(sent)

    def _prepare(self, current: Current, stack: contextlib.ExitStack) -> None:
        self._look(current)
        if current.state.unusable is None:
            # Before the lane's settings are set, which are none of the environment's.
            self.process.where()
            try:
                current.note(*stack.enter_context(_surroundings(current.state, self._settings)))
            except UsageError as error:
                current.cannot_run(str(error))
            except Exception as error:  # noqa: BLE001 - a setting that this torch does not take, say
                current.cannot_run(f"{type(error).__name__}: {error}")
        current.start()
        if current.state.unusable is None and self._settings.rest is None and current.state.in_journal:
            # What a child's death loses, knows who started it.
            subject = replace(current.state.subject(self.process), lane=current.state.in_lane)
            self._session.begin(subject, self.process.where(subject.lane)[1])
            if self.process.worker:
                tell_begun(current.state.contract.item, subject, self.process)

    def _look(self, current: Current) -> None:
        """Check whether the lane can run here, and on which device.

        That of XLA may be of an older torch, in its own process.
        """
        current.cannot_run(no_torch(current.state.lane))
        if current.state.unusable is not None:
            return
        self.process.take_gpu()
        self._look_at_compile(current)
        state = current.state
        if state.refused or (state.contract.bare and state.lane.ranks is None):
            return
        if state.contract.bare:
            current.cannot_run(no_ranks(state.lane))
            return
        missing = state.rung.missing if state.rung is not None else ""
        if state.another is not None and (cannot := state.another.lane.unusable):
            missing = f"lane {state.another.lane.name!r}, which same_as names, cannot run here: {cannot}"
        current.cannot_run(missing or unavailable(state.lane))
        current.place_on("" if current.state.unusable else gpu_of(state.lane))

    def _look_at_compile(self, current: Current) -> None:
        """Refuse a replaced torch.compile in a lane; for other tests, it is the project's choice."""
        from pytest_compilecontract.measure.probes.availability import replaced_compile
        from pytest_compilecontract.measure.probes.source import Paths

        if current.state.lane.reference or not (found := replaced_compile(Paths(self._settings.root))):
            return
        if current.state.contract.bare:
            current.note(f"torch.compile has been replaced by {found}")
        else:
            current.refuse(f"torch.compile has been replaced by {found}: a lane needs torch's own")

    def _leave(self, current: Current, stack: contextlib.ExitStack) -> None:
        if not current.state.lost:
            stack.close()
            return
        if self.process.worker:
            leave_worker()
        self.process.lost = True
        # What is on the device cannot be put back; all else is as it was.
        with contextlib.suppress(Exception):
            stack.close()


class Turn:
    """A contract that a strategy runs, until the next test. Before each run, what pytest keeps in the item is reset."""

    def __init__(
        self,
        runs: Runs,
        contract: Contract,
        nextitem: pytest.Item | None,
    ) -> None:
        self.contract = contract
        # Known where somebody has looked for it.
        self.broke: Broke | None = None
        # What runs in the contract's own lane are compared with.
        self.another: Another | None = None
        self._random: Mapping[str, object] | None = None
        self._runs = runs
        self._nextitem = nextitem
        item = contract.item
        self._before = len(item._report_sections), len(item.user_properties)
        self._torn_down = False

    @property
    def process(self) -> Process:
        return self._runs.process

    @property
    def state(self) -> State:
        """The state of the current run, or of the last one."""
        current = self._runs.of(self.contract.item)
        assert current is not None, "no run has begun"
        return current.state

    def say(self, text: str) -> None:
        """Report what is running."""
        say(self.contract.item, text)

    def run_once(
        self,
        lane: Lane,
        *,
        rung: Rung | None = None,
        steps: Sequence[Step] = (),
        after: Run | None = None,
        last: bool = False,
        noted: bool = True,
        keeps: bool = False,
    ) -> Run:
        """Run the contract in this lane, `after` the previous repeat; the `last` run tears down for the next test.

        Other runs only tear down to the item's parent, so that all runs share wider fixtures. A run that is not `noted`
        looks for something beside the verdict, as in `more`: it is in no journal, and its parts are not reported. One
        that `keeps` keeps its results for another lane.
        """
        item = self.contract.item
        self.forget()
        state = State(contract=self.contract, lane=lane, rung=rung, steps=tuple(steps), noted=noted, held_back=True)
        own = lane.name == self.contract.lane.name
        state = replace(state, keeps=keeps, another=self.another if own else None, random=self._random)
        if after is not None:
            assert after.state.own is not None
            state = replace(state, earlier=(*after.state.earlier, after.state.own), started=after.state.started)
        current = Current(state)
        self._torn_down = last
        with self._runs.surrounded(current):
            reports = runtestprotocol(item, log=False, nextitem=self._nextitem if last else item.parent)  # type: ignore[arg-type]
        self._random = current.state.random
        # A failure that was expected is reported as if it were one.
        skips = [each for each in reports if each.skipped and not hasattr(each, "wasxfail")]
        skipped = [current.state.turned_away or _why_skipped(each) for each in skips]
        return Run(reports=tuple(reports), state=current.state, skipped=skipped[0] if skipped else None)

    def run_plainly(self) -> list[pytest.TestReport]:
        """Run the test as pytest does, in no lane; wider fixtures stay for the next one."""
        item = self.contract.item
        self.forget()
        return [*runtestprotocol(item, log=False, nextitem=item.parent)]  # type: ignore[arg-type]

    @contextlib.contextmanager
    def more(self, reports: Sequence[pytest.TestReport]) -> Iterator[None]:
        """Runs that are made after the one of these reports, which are heard as well if a run ends the session."""
        from pytest_compilecontract.measure.noise_runs import Kept, keeping

        current, output = self._runs.of(self.contract.item), self.output()
        state = current.state if current is not None else None
        self.keep(reports)
        try:
            # Nothing that they look for changes what eager computes.
            with keeping(Kept()):
                yield
        except BaseException:
            for each in reports:
                self.contract.item.ihook.pytest_runtest_logreport(report=each)
            raise
        finally:
            if state is not None:
                self._runs.conclude(state)
            self.forget()
            self.contract.item._report_sections.extend(output[0])
            self.contract.item.user_properties.extend(output[1])

    def keep(self, reports: Sequence[pytest.TestReport]) -> None:
        """Keep what is known so far of the contract."""
        for each in reports:
            self._runs.keep(self.contract.item, each)

    def conclude(self, state: State) -> None:
        """Make this run the one that further reports of the test are about."""
        self._runs.conclude(state)

    def forget(self) -> None:
        """Remove what a run has left in the item: its output, its properties, and the instance of its class."""
        item, (sections, properties) = self.contract.item, self._before
        del item._report_sections[sections:]
        del item.user_properties[properties:]
        # pytest gives each test an instance of its own, and a repeat is to find no more than a first run does.
        if isinstance(item.parent, pytest.Class) and isinstance(item, pytest.Function) and "_instance" in vars(item):
            item.obj = None
            del vars(item)["_instance"]

    def output(self) -> tuple[list[tuple[str, str, str]], list[tuple[str, object]]]:
        """The output that the last run has left in the item."""
        item, (sections, properties) = self.contract.item, self._before
        return item._report_sections[sections:], item.user_properties[properties:]

    def tear_down_the_rest(self) -> list[pytest.TestReport]:
        """Tear down what the next test does not share; returns a report if that fails."""
        if self._torn_down:
            return []
        item, nextitem = self.contract.item, self._nextitem
        call = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(nextitem), when="teardown")
        return [item.ihook.pytest_runtest_makereport(item=item, call=call)] if call.excinfo is not None else []


class Once:
    """Isolates the runs of contracts that no strategy takes, however often another plugin reruns them."""

    def __init__(
        self, runs: Runs, strategies: Sequence[Strategy], another: Callable[[], Another | None] | None = None
    ) -> None:
        self._runs = runs
        self._strategies = strategies
        self._another = another

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        contract = contract_of(item)
        if contract is None or self._runs.process.lost or strategy_of(self._strategies, contract) is not None:
            return (yield)
        another = self._another() if self._another is not None else None
        with self._runs.surrounded(Current(State(contract=contract, lane=contract.lane, another=another))):
            return (yield)


class Often:
    """Runs contracts more than once: the first strategy that takes one runs it. Without its device it runs nothing.

    `others` runs the tests that are not contracts, if anything has to be known of them.
    """

    def __init__(self, runs: Runs, strategies: Sequence[Strategy], others: Strategy | None = None) -> None:
        self._runs = runs
        self._strategies = strategies
        self._others = others
        self._parent = Parent()

    # First, so that nothing of a test runs here once the device is lost.
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if self._runs.process.lost:
            return _reported(item, lambda: self._parent.reports(item))
        contract = contract_of(item)
        strategy = strategy_of(self._strategies, contract) if contract is not None else self._others
        if strategy is None:
            return None
        contract = contract or Contract(item=item, limits=OBSERVED, lane=BODY, bare=True)
        turn = Turn(self._runs, contract, nextitem)
        return _reported(item, lambda: [*strategy.reports(turn), *turn.tear_down_the_rest()])


def _reported(item: pytest.Item, run: Callable[[], Sequence[pytest.TestReport]]) -> Literal[True]:
    """Run a test and report the outcome, as pytest does, so that nothing else runs it."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in run():
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def say(item: pytest.Item, text: str) -> None:
    """Report what a test is doing, if pytest has a terminal in this process and is not quiet."""
    plugins = item.config.pluginmanager
    reporter, capturing = plugins.getplugin("terminalreporter"), plugins.getplugin("capturemanager")
    if reporter is None or item.config.option.verbose < 0:
        return
    with capturing.global_and_fixture_disabled() if capturing is not None else contextlib.nullcontext():
        reporter.ensure_newline()
        reporter.write_line(printed(plain(f"{item.name}: {text}")))


def strategy_of(strategies: Sequence[Strategy], contract: Contract) -> Strategy | None:
    """The first strategy that takes a contract."""
    return next((each for each in strategies if each.takes(contract)), None)


def _why_skipped(report: pytest.TestReport) -> str:
    """The reason of a skip, without pytest's location and prefix."""
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return said.removeprefix("Skipped: ")


@contextlib.contextmanager
def _surroundings(state: State, settings: Settings) -> Iterator[tuple[str, ...]]:
    from pytest_compilecontract.measure.group import faked
    from pytest_compilecontract.measure.isolation import isolated
    from pytest_compilecontract.measure.probes.canary import canary
    from pytest_compilecontract.measure.probes.trace import quiet

    group = faked(state.lane) if state.lane.process_group == FAKE else contextlib.nullcontext()
    lane = None if state.contract.bare else state.lane
    with group, isolated(lane, settings.overrides, again=settings.again) as replaced:
        if not state.lane.reference:
            # Before the test can be in its way: what it finds later, it remembers from here.
            with quiet():
                canary()
        yield replaced
