"""Goodput: the time of a loop in the parts that it names, of which none is counted twice or left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from holding import hold, lane_of, measured

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.measurement import PARTS, Goodput, Measurement
from pytest_compilecontract.facts.metrics import combined
from pytest_compilecontract.lane import CompileLane
from pytest_compilecontract.measure.goodput import Parts
from pytest_compilecontract.measure.probes.compiling import GONE, Compiling
from pytest_compilecontract.report.facts import goodput_told

pytestmark = pytest.mark.torch

X = torch.ones(4, 4)


def found_in(measurement: Measurement) -> Goodput:
    assert measurement.goodput is not None, measurement.unmeasured.get("goodput")
    return measurement.goodput


def looped(compile_lane: CompileLane, sizes: list[int], **slow: float) -> float:
    """Steps of so many rows, each part as slow as said; the seconds of all by a clock of its own."""

    def batches() -> Iterator[torch.Tensor]:
        for size in sizes:
            time.sleep(slow.get("data", 0.0))
            yield torch.ones(size, 4)

    compiled = compile_lane.compile(lambda x: (x + 1).sin())
    with compile_lane.observe() as seen, seen.goodput() as run:
        started = time.perf_counter()
        for batch in run.data(batches()):
            with run.step():
                compiled(batch)
                time.sleep(slow.get("step", 0.0))
            with run.checkpoint():
                time.sleep(slow.get("checkpoint", 0.0))
        return time.perf_counter() - started
    raise AssertionError


def test_the_parts_are_the_whole_and_each_has_its_own() -> None:
    with lane_of() as compile_lane:
        whole = looped(compile_lane, [4, 4, 4, 4], step=0.05, checkpoint=0.02, data=0.03)

    found = found_in(compile_lane.measurements[-1])
    assert (found.warmed_up, found.steady) == (1, 3)
    assert sum(found.seconds.values()) == pytest.approx(whole, rel=0.05, abs=0.01)
    least = {"steady": 0.15, "checkpoint": 0.08, "data": 0.12, "warm-up": 0.05, "compile": 1e-4}
    assert all(found.seconds[part] >= seconds for part, seconds in least.items())
    assert found.step_seconds is not None
    assert found.step_seconds >= 0.05


def test_a_step_that_recompiles_is_warm_up() -> None:
    with lane_of() as compile_lane:
        looped(compile_lane, [4, 4, 5, 5, 5])

    found = found_in(compile_lane.measurements[-1])
    assert (found.warmed_up, found.steady) == (2, 3)


def test_it_is_in_the_entry_and_told() -> None:
    entry = hold(lambda lane: looped(lane, [4, 4, 4]), numerics=None)

    assert entry.verdict == "held"
    assert goodput_told(measured(entry)).startswith("goodput ")
    assert "in 3 steps (compile " in goodput_told(measured(entry))


def ticking(*times: float) -> Parts:
    ticks = iter(times)
    return Parts(now=lambda: next(ticks))


def test_each_second_is_in_one_part() -> None:
    """What lies between two parts is in the later one; a step in eager, and what is before it, in none."""
    run = ticking(0.0, 1.0, 4.0, 6.0, 9.0, 11.0, 20.0, 24.0, 25.0)

    run.start()
    with run.step():
        run._compiling._begin()
        run._compiling._end()
    with run.checkpoint():
        pass
    with run.step():
        pass
    with run.eager():
        pass
    with run.step():
        pass
    run.stop()

    found, why = run.found()
    assert found is not None
    assert why == ""
    assert found.seconds == {"compile": 3.0, "warm-up": 3.0, "checkpoint": 3.0, "steady": 3.0, "data": 0.0}
    assert (found.step_seconds, found.eager_step_seconds) == (1.5, 4.0)


@pytest.mark.parametrize(
    ("step", "eager", "expected"),
    [
        # 12 s of compiling and warm-up, of which one step would have been made anyhow.
        pytest.param(1.0, 2.0, 11, id="a second a step"),
        pytest.param(1.0, 12.0, 1, id="at once"),
        pytest.param(2.0, 2.0, None, id="no faster"),
        pytest.param(1.0, None, None, id="no step in eager"),
        pytest.param(None, 2.0, None, id="no steady step"),
    ],
)
def test_the_step_at_which_compiling_has_paid_for_itself(
    step: float | None, eager: float | None, expected: int | None
) -> None:
    seconds = dict.fromkeys(PARTS, 0.0) | {"compile": 10.0, "warm-up": 2.0}

    found = Goodput(seconds=seconds, warmed_up=1, steady=4, step_seconds=step, eager_step_seconds=eager)

    assert found.break_even == expected
    if expected is not None and step is not None and eager is not None:
        compiled = [12.0 + (steps - 1) * step for steps in (expected - 1, expected)]
        assert compiled[1] <= expected * eager
        assert expected == 1 or compiled[0] > (expected - 1) * eager


def test_without_a_step_it_is_not_known() -> None:
    with lane_of() as compile_lane, compile_lane.observe() as seen, seen.goodput():
        pass

    assert compile_lane.measurements[-1].goodput is None
    assert compile_lane.measurements[-1].unmeasured["goodput"] == "no step was made inside goodput()"


def test_it_is_not_known_once_dynamo_was_reset() -> None:
    """torch removes the callbacks, and what was compiled after that would pass for a step."""
    with lane_of() as compile_lane:
        compiled = compile_lane.compile(lambda x: x + 1)
        with compile_lane.observe() as seen, seen.goodput() as run:
            for _ in range(2):
                with run.step():
                    torch._dynamo.reset()
                    compiled(X)

    assert compile_lane.measurements[-1].goodput is None
    assert compile_lane.measurements[-1].unmeasured["goodput"] == GONE


def test_a_test_that_asks_for_none_has_none_and_no_reason() -> None:
    with lane_of() as compile_lane, compile_lane.observe():
        compile_lane.compile(lambda x: x + 1)(X)

    assert compile_lane.measurements[-1].goodput is None
    assert "goodput" not in compile_lane.measurements[-1].unmeasured


def test_a_part_inside_of_another_is_refused() -> None:
    run = Parts()
    with pytest.raises(UsageError, match="goodput: checkpoint inside of step"), run.step(), run.checkpoint():
        pass


def test_two_in_one_block_are_refused() -> None:
    with lane_of() as compile_lane, compile_lane.observe() as seen:
        with seen.goodput():
            pass
        with pytest.raises(UsageError, match="one in each"), seen.goodput():
            pass


def test_two_loops_of_a_test_are_told_together() -> None:
    with lane_of() as compile_lane:
        for count in (2, 3):
            with compile_lane.observe() as seen, seen.goodput() as run:
                for _ in range(count):
                    with run.step():
                        compile_lane.compile(lambda x: x.sin() + count)(torch.ones(4))  # noqa: B023 - called at once

        first, second = compile_lane.measurements
        both = combined((first, second)).goodput

    assert first.goodput is not None
    assert second.goodput is not None
    assert both is not None
    assert both.warmed_up + both.steady == 5
    assert sum(both.seconds.values()) == pytest.approx(
        sum(first.goodput.seconds.values()) + sum(second.goodput.seconds.values())
    )
    assert both.step_seconds is None


def test_one_loop_of_which_it_is_not_known_makes_it_unknown_for_all() -> None:
    with lane_of() as compile_lane:
        with compile_lane.observe() as seen, seen.goodput() as run, run.step():
            compile_lane.compile(torch.sin)(torch.ones(4))
        with compile_lane.observe() as seen, seen.goodput():
            pass

        both = combined(tuple(compile_lane.measurements))

    assert both.goodput is None
    assert both.unmeasured["goodput"] == "no step was made inside goodput()"


class Hand:
    """A clock that is set by hand."""

    at = 0.0

    def __call__(self) -> float:
        return self.at

    def fail_at(self, at: float, error: type[Exception]) -> None:
        """Raise at this time."""
        self.at = at
        raise error


def test_what_a_part_took_that_raised_is_in_no_other() -> None:
    """A test may go on: where there is no checkpoint yet, or where eager has not enough memory."""
    clock = Hand()
    run = Parts(now=clock)
    run.start()

    with pytest.raises(FileNotFoundError), run.checkpoint():
        clock.fail_at(10.0, FileNotFoundError)
    with pytest.raises(MemoryError), run.eager():
        clock.fail_at(30.0, MemoryError)
    with run.step():
        clock.at = 31.0

    found, _ = run.found()
    assert found is not None
    assert found.seconds == dict.fromkeys(PARTS, 0.0) | {"checkpoint": 10.0, "steady": 1.0}
    assert found.eager_step_seconds is None


def test_it_is_not_known_once_a_step_was_not_finished() -> None:
    """Its seconds are no progress, and would be part of whatever comes next."""
    clock = Hand()
    run = Parts(now=clock)
    run.start()

    with pytest.raises(MemoryError), run.step():
        clock.fail_at(10.0, MemoryError)
    with run.step():
        clock.at = 11.0

    assert run.found() == (None, "a step was not finished: MemoryError")


def test_what_another_thread_still_compiles_is_in_each_step_that_it_takes() -> None:
    clock = Hand()
    run = Parts(now=clock)
    run.start()

    with run.step():
        run._compiling._begin()
        clock.at = 5.0
    with run.step():
        clock.at = 9.0
        run._compiling._end()
        clock.at = 10.0
    with run.step():
        clock.at = 12.0

    found, _ = run.found()
    assert found is not None
    assert found.seconds == dict.fromkeys(PARTS, 0.0) | {"compile": 9.0, "warm-up": 1.0, "steady": 2.0}
    assert (found.warmed_up, found.steady) == (2, 1)


def test_a_part_after_the_end_is_refused_and_takes_nothing_back() -> None:
    with lane_of() as compile_lane, compile_lane.observe() as seen:
        with seen.goodput() as run, run.step():
            pass
        with pytest.raises(UsageError, match="goodput: step after the end of its `with` block"), run.step():
            pass

    assert found_in(compile_lane.measurements[-1]).steady == 1


# The probe


def test_the_callbacks_are_gone_afterwards() -> None:
    from torch._dynamo.callback import callback_handler

    before = [*callback_handler.start_callbacks], [*callback_handler.end_callbacks]
    timed = Compiling()
    timed.start()
    torch.compile(lambda x: x - 1, backend="eager")(X)

    timed.stop()

    assert timed.taken() > 0
    assert ([*callback_handler.start_callbacks], [*callback_handler.end_callbacks]) == before


@pytest.mark.parametrize("handler", [None, object()])
def test_without_callbacks_nothing_is_known(handler: Any) -> None:
    timed = Compiling()
    with mock.patch("torch._dynamo.callback.callback_handler", handler):
        timed.start()

    assert timed.unknown == "this torch has no callbacks around compiling"
    assert timed.taken() == 0.0
    timed.stop()
