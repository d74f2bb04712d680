"""The phases of a contract's run: its lane is created before setup, and its measurement is judged after the body."""

from __future__ import annotations

import contextlib
import sys
import unittest
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import pytest

from pytest_compilecontract import clock
from pytest_compilecontract.errors import UsageError, message_of
from pytest_compilecontract.facts.ladder import TRAIN
from pytest_compilecontract.measure.installed import torch_version

from .current import Current, State
from .item import FIXTURE
from .judged import Judged, judged, over_repeats
from .results import Results, failure_of
from .run import Runs, say
from .settings import Settings
from .timeout import ends_within, uncaptured_stderr
from .warm import started_again

if TYPE_CHECKING:
    from pytest_compilecontract.facts.measurement import Measurement
    from pytest_compilecontract.measure.compile_lane import CompileLane


class Phases:
    """The part of the plugin that is active while a contract runs. Without `holds`, another process judges it."""

    def __init__(self, settings: Settings, runs: Runs, results: Results, *, holds: bool = True) -> None:
        self._settings = settings
        self._holds = holds
        self._runs = runs
        self._results = results
        # As it is while pytest is set up: later on it is a test's.
        self._stderr = sys.stderr if settings.timeout is None else uncaptured_stderr()

    # Inside pytest's own wrappers, so that its log handlers are set when they are to be left out.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        __tracebackhide__ = True  # of what a fixture raises, pytest shows the fixture's lines
        current = self._runs.of(item)
        if current is None:
            return (yield)
        current.set_up()
        if current.state.unusable is not None:
            current.turn_away()
            pytest.skip(f"lane {current.state.lane.name} cannot run here: {current.state.unusable}")
        if current.state.refused:
            pytest.fail(current.state.refused, pytrace=False)
        if not current.state.contract.bare:
            current.give(self._compile_lane(current.state))
        from pytest_compilecontract.measure.probes.trace import quiet

        with quiet(), _said_in_one_line():
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        __tracebackhide__ = True
        with _said_in_one_line():
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        current = self._runs.of(item)
        if current is None:
            return (yield)
        current.begin_body()
        # A process that loses its device could no longer say where it ran.
        self._runs.process.where()
        _draw_as_before(current)
        try:
            hangs = partial(self._hangs, current)
            with self._observed(current), ends_within(self._settings.timeout, hangs, self._stderr):
                result = yield
        except BaseException as error:
            current.end_body()
            failure = self._after_raising(current, error)
            if failure is error:
                raise
            if failure is None:
                return None
            raise failure from None
        current.end_body()
        if (outcome := unittest_outcome(item)) is not None:
            self._after_unittest(current, outcome)
            return result
        if (failure := self._judge_whole(current)) is not None:
            raise failure
        return result

    def lane_of(self, item: pytest.Item) -> CompileLane:
        """The lane that the fixture gives to a test."""
        current = self._runs.of(item)
        if current is None or current.state.compile_lane is None:
            pytest.fail(f"{FIXTURE} runs a test once per lane: request it as an argument of the test", pytrace=False)
        return current.state.compile_lane

    def _compile_lane(self, state: State) -> CompileLane:
        from pytest_compilecontract.measure.beside import Lanes
        from pytest_compilecontract.measure.compile_lane import CompileLane
        from pytest_compilecontract.measure.hunt import Examples, allow_fixture, draws_examples

        climbs = state.rung is not None and TRAIN in state.contract.ladder
        made = CompileLane(
            state.lane,
            state.contract.limits,
            self._settings.root,
            timed=self._settings.timed,
            trains=state.rung.trains if state.rung is not None and climbs else None,
        )
        made.open = False  # until the body of the test
        test = getattr(state.contract.item, "obj", None)
        if draws_examples(test):
            allow_fixture(test)
            made.measurements = Examples(state.contract.limits, reference=state.lane.reference)
        elif state.another is not None:
            made.beside = Lanes(lane=state.another.lane.name, others=state.another.kept)
        else:
            made.beside = Lanes(keeps=state.keeps)
        return made

    @contextlib.contextmanager
    def _observed(self, current: Current) -> Iterator[None]:
        from pytest_compilecontract.measure.compile_lane import observing
        from pytest_compilecontract.measure.noise_runs import telling
        from pytest_compilecontract.measure.probes.source import Paths
        from pytest_compilecontract.measure.probes.trace import quiet

        with quiet(), telling(partial(say, current.state.contract.item)):
            if (lane := current.state.compile_lane) is not None:
                lane.open = True
                try:
                    with lane.body():
                        yield
                finally:
                    lane.open = False
                return
            with observing(Paths(self._settings.root)) as seen:
                current.observe(seen)
                yield

    def _hangs(self, current: Current, frame: FrameType | None) -> NoReturn:
        """End a test that has run too long, where it is now."""
        from pytest_compilecontract.measure.probes.source import Paths

        found = Paths(self._settings.root).innermost(frame)
        at = f", at {found}" if found is not None else ""
        current.overrun()
        pytest.fail(f"did not end within {self._settings.timeout:g} s (--contract-timeout){at}", pytrace=False)

    # after the body

    def _after_raising(self, current: Current, error: BaseException) -> BaseException | None:
        """What is reported to pytest for a body that raised: its exception, another failure, or nothing."""
        from pytest_compilecontract.measure.endings import BrokenLane, DeviceLost
        from pytest_compilecontract.measure.hunt import NotHeld
        from pytest_compilecontract.measure.probes.device import lost

        if isinstance(error, BrokenLane):
            if isinstance(error, DeviceLost):
                current.lose_device()
            if isinstance(error, NotHeld):
                error.examples.tell(error)
            return self._judge_whole(current, cause=error.__cause__)
        if isinstance(error, UsageError):
            return pytest.fail.Exception(str(error), pytrace=False)
        if isinstance(error, (pytest.skip.Exception, unittest.SkipTest)):
            if not self._failed_before_skipping(current, error):
                return error
            return None if current.state.rung is not None else self._failure(current)
        if not isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            # SystemExit too: pytest makes a failure of it, and goes on.
            if lost(error):
                current.lose_device()
            self._judge_what_there_is(current, error)
        return error

    def _after_unittest(self, current: Current, outcome: BaseException) -> None:
        """Judge a unittest.TestCase method that ended early: pytest reports what ended it."""
        if not isinstance(outcome, pytest.skip.Exception):
            self._judge_what_there_is(current, outcome)
        elif self._failed_before_skipping(current, outcome):
            _forget_skips(current.state.contract.item)
            raise self._failure(current)

    def _judge_whole(self, current: Current, *, cause: BaseException | None = None) -> BaseException | None:
        """Judge a body that ran to its end, or ended in a lane that raised; returns the failure for pytest, if any."""
        if not self._holds:
            return None
        run = self._judged(current.state)
        if current.state.rung is not None:
            current.judge(over_repeats([run]) if run is not None else None)
            return None
        if run is not None:
            # A plugin that reruns what failed asks for no band: its last run stands alone.
            current.judge_whole(run)
        current.drift(self._results.drift(current.state.judged))
        if not current.state.failed:
            return None
        # `--pdb` stops where the traceback ends: for a lane that raised, at the line that did.
        return self._failure(current).with_traceback(cause.__traceback__ if cause is not None else None)

    def _failure(self, current: Current) -> BaseException:
        state = current.state
        said = [failure_of(state)] if state.judged is not None and state.judged.failed else []
        return pytest.fail.Exception("\n".join([*said, *filter(None, [state.drifted])]), pytrace=False)

    def _judged(self, state: State) -> Judged | None:
        """What this run measured, judged by itself; None where there is nothing to hold."""
        if state.contract.inherited and state.number == 1 and _nothing_compiled(state):
            return None
        measured = measured_in(state)
        if state.cut_short:
            measured = tuple(replace(each, cut_short=state.cut_short) for each in measured)
        measured = started_again(state, self._settings, measured)
        return judged(
            state.subject(self._runs.process),
            measurements=measured,
            seconds=clock.seconds() - state.started,
            torch_version=torch_version(),
            other=state.another.lane if state.another is not None else None,
        )

    def _failed_before_skipping(self, current: Current, skipped: BaseException) -> bool:
        """Judge a test that skips itself; without a failure in what it measured, it is not judged at all."""
        if not self._holds:
            return False
        state = current.state
        if state.earlier:
            current.judge(over_repeats(state.earlier, f"repeat {state.number} was skipped: {skipped}"))
        else:
            self._judge_what_there_is(current, skipped)
        found = current.state.judged
        if found is not None and found.failed:
            return True
        current.judge(None)
        return False

    def _judge_what_there_is(self, current: Current, ended: BaseException) -> None:
        """Judge what a test that ended by itself had measured, besides its own reason; not if it compiled nothing."""
        current.cut(_said_at_the_end(ended))
        if not self._holds or _nothing_compiled(current.state):
            return
        found = self._judged(current.state)
        current.judge(found)
        if found is not None and found.failed:
            current.state.contract.item.add_report_section("call", "compile contract", failure_of(current.state))


def _draw_as_before(current: Current) -> None:
    """Begin with the random numbers of the first run: fixtures that it set up for this one, too, drew some then."""
    from pytest_compilecontract.measure.probes.randomness import generators, put_back

    if current.state.random is None:
        current.draw_from(generators())
    else:
        put_back(dict(current.state.random))


def unittest_outcome(item: pytest.Item) -> BaseException | None:
    """What ended a unittest.TestCase method. It is not raised: pytest reports it in place of what its hooks raise."""
    kept = getattr(item, "_excinfo", None)
    return kept[0].value if kept else None


def _forget_skips(item: pytest.Item) -> None:
    """Let pytest report what its hooks raise: for a unittest.TestCase method, it prefers the first outcome."""
    kept = vars(item)["_excinfo"]
    kept[:] = [each for each in kept if not isinstance(each.value, pytest.skip.Exception)]


def _said_at_the_end(error: BaseException) -> str:
    """What ended a test early, in one line."""
    said = next(iter(message_of(error).splitlines()), "")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def measured_in(state: State) -> tuple[Measurement, ...]:
    if state.compile_lane is not None:
        return tuple(state.compile_lane.measurements)
    return (state.seen.measurement,) if state.seen is not None else ()


def _nothing_compiled(state: State) -> bool:
    return not compiled_anything(measured_in(state))


def compiled_anything(measured: Iterable[Measurement]) -> bool:
    """Whether a test that may not be a contract compiled anything to check."""
    return any(each.backend_calls or each.eager_frames or each.eager_by_request or each.raised for each in measured)


@contextlib.contextmanager
def _said_in_one_line() -> Iterator[None]:
    """Fail without a traceback when a fixture uses the lane wrongly."""
    __tracebackhide__ = True
    try:
        yield
    except UsageError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
