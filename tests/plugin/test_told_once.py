"""Facts that lanes of a contract have in common are printed for the first of them, and each lane has its command."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_compilecontract.plugin.told_once import ToldOnce
from pytest_compilecontract.plugin.workers import ENTRY

FACTS = '  max_graph_breaks=0: measured 1\n    m.py:7 in broken: print("break")\n      Failed to trace builtin operator'
OTHER = FACTS.replace("m.py:7", "m.py:9")


def text_of(lane: str, facts: str = FACTS) -> str:
    return (
        f"max_graph_breaks: 1 > 0\nviolated: test, lane {lane}\n{facts}\nrerun this lane alone:\npytest 'test[{lane}]'"
    )


def report_of(request: pytest.FixtureRequest, lane: str, facts: str = FACTS, contract: str = "test") -> Any:
    """The report that pytest makes of a lane that the plugin fails with this text."""
    with pytest.raises(pytest.fail.Exception) as caught:
        pytest.fail(text_of(lane, facts), pytrace=False)
    shown = request.node.repr_failure(caught)
    report = pytest.TestReport(f"test[{lane}]", ("test.py", 1, "test"), {}, "failed", shown, "call")
    vars(report)[ENTRY] = {"entry": {"contract": contract, "lane": lane}}
    return report


def printed(told: ToldOnce, report: pytest.TestReport) -> str:
    told.pytest_runtest_logreport(report)
    return report.longreprtext


def test_the_second_lane_points_to_the_first(request: pytest.FixtureRequest) -> None:
    told = ToldOnce("")

    assert printed(told, report_of(request, "aot")) == text_of("aot")
    for lane in ("inductor", "cudagraphs"):
        assert printed(told, report_of(request, lane)) == text_of(lane, "  as in lane aot, above")


def test_a_report_that_is_text_alone_is_shortened_too(request: pytest.FixtureRequest) -> None:
    told = ToldOnce("")
    printed(told, report_of(request, "aot"))
    second = report_of(request, "inductor")
    second.longrepr = text_of("inductor")

    assert printed(told, second) == text_of("inductor", "  as in lane aot, above")


def test_what_differs_is_printed(request: pytest.FixtureRequest) -> None:
    told = ToldOnce("")
    printed(told, report_of(request, "aot"))

    assert printed(told, report_of(request, "inductor", OTHER)) == text_of("inductor", OTHER)
    assert printed(told, report_of(request, "inductor", contract="other")) == text_of("inductor")
    assert printed(told, report_of(request, "cudagraphs", OTHER)) == text_of(
        "cudagraphs", "  as in lane inductor, above"
    )


def test_a_lane_that_fails_again_is_printed_again(request: pytest.FixtureRequest) -> None:
    told = ToldOnce("")
    printed(told, report_of(request, "aot"))

    assert printed(told, report_of(request, "aot")) == text_of("aot")


def test_two_lines_are_sooner_read_than_looked_up(request: pytest.FixtureRequest) -> None:
    told, short = ToldOnce(""), "  max_graphs=0: measured 1\n    m.py:7 in whole"
    printed(told, report_of(request, "aot", short))

    assert printed(told, report_of(request, "inductor", short)) == text_of("inductor", short)


def test_a_worker_sends_everything(request: pytest.FixtureRequest) -> None:
    told = ToldOnce("gw0")

    assert [printed(told, report_of(request, lane)) for lane in ("aot", "inductor")] == [
        text_of("aot"),
        text_of("inductor"),
    ]


def test_a_traceback_is_left_as_it_is(request: pytest.FixtureRequest) -> None:
    def fails() -> None:
        raise ValueError(text_of("aot"))

    told, texts = ToldOnce(""), []
    for lane in ("aot", "inductor"):
        with pytest.raises(ValueError, match="violated") as caught:
            fails()
        report = report_of(request, lane)
        report.longrepr = request.node.repr_failure(caught)
        before = report.longreprtext
        assert printed(told, report) == before
        texts.append(before)
    assert texts[0] == texts[1]


def test_the_line_of_pytests_own_summary_stays(request: pytest.FixtureRequest) -> None:
    told = ToldOnce("")
    printed(told, report_of(request, "aot"))
    second = report_of(request, "inductor")

    printed(told, second)

    assert second.longrepr.reprcrash.message.startswith("Failed: max_graph_breaks: 1 > 0")
