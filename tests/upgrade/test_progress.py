"""Progress of long work: one line that fits, and what it says."""

from __future__ import annotations

import io

import pytest
from support.receipts import an_entry

from pytest_compilecontract.cli.check import _going_on
from pytest_compilecontract.files.course import Course
from pytest_compilecontract.upgrade.progress import Progress, fitted

TEST = "tests/models/test_transformer.py::test_a_block_of_some_kind[inductor]"


def running(lane: str, *, done: int) -> Course:
    return Course(count=3, done=done, running={f"test_sample[{lane}]": an_entry(lane=lane)})


@pytest.mark.parametrize("width", [40, 79, 199])
def test_a_line_says_all_but_the_beginning_of_what_runs(width: int) -> None:
    line = fitted("torch 2.11.0+cu130: 12 of 300 tests, 3 min 5 s", TEST, width)

    assert len(line) <= width
    if width >= 79:
        assert line.startswith("torch 2.11.0+cu130: 12 of 300 tests, 3 min 5 s  ")
        assert line.endswith("[inductor]")
    assert (TEST in line) == (width == 199)


def test_a_live_line_replaces_the_one_before_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_compilecontract.upgrade.progress.EVERY_SECONDS", 0.0)
    monkeypatch.setenv("COLUMNS", "80")
    out = io.StringIO()
    progress = Progress(stream=out, prefix="bump", live=True)

    progress.now("torch 2.11.0: 1 of 2 tests, 3 s", TEST)
    progress.now("torch 2.11.0: 2 of 2 tests, 4 s", "\x1b[2Jtest")
    progress.stage("done")

    first, second, end = out.getvalue().split("\r\x1b[K")[1:]
    assert len(first) == 79
    assert "\n" not in first + second
    assert second == "torch 2.11.0: 2 of 2 tests, 4 s  test"
    assert end == "bump: done\n"


def test_where_lines_stay_one_is_written_after_each_long_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("pytest_compilecontract.upgrade.progress.time.monotonic", lambda: now)
    out = io.StringIO()
    progress = Progress(stream=out, prefix="bump")

    for seconds in (1, 59, 60, 61, 100, 119, 120):
        now = float(seconds)
        progress.now(f"torch 2.11.0: 1 of 2 tests, {seconds} s", "test")
        if seconds == 100:
            progress.stage("done")
    now = 160.0
    progress.now("bump: installing")

    assert out.getvalue().splitlines() == [
        "bump: torch 2.11.0: 1 of 2 tests, 60 s, running test",
        "bump: done",
        "bump: installing",
    ]


@pytest.mark.parametrize(
    ("course", "told"),
    [
        pytest.param(Course(), "starting, 3 s", id="nothing-yet"),
        pytest.param(Course(count=3), "starting, 3 s", id="collected"),
        pytest.param(running("eager", done=0), "lane eager, 1 of 3, 3 s", id="the-first-runs"),
        pytest.param(running("aot", done=1), "lane aot, 2 of 3, 3 s", id="the-second-runs"),
        pytest.param(Course(count=3, done=3), "ending, 3 s", id="none-runs"),
    ],
)
def test_check_says_which_lane_runs_of_how_many_and_for_how_long(course: Course, told: str) -> None:
    assert _going_on(course, 3.2) == told
