"""Facts that lanes of a contract have in common are printed for the first of them, and each lane has its command."""

from __future__ import annotations

from types import SimpleNamespace
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


def printed(*reports: pytest.TestReport) -> list[str]:
    """What pytest prints of each of its failures."""
    summary = ToldOnce().pytest_terminal_summary(SimpleNamespace(stats={"failed": [*reports]}))
    next(summary)
    texts = [report.longreprtext for report in reports]
    summary.close()
    return texts


def test_the_later_lanes_point_to_the_first(request: pytest.FixtureRequest) -> None:
    lanes = ("aot", "inductor", "cudagraphs")

    assert printed(*(report_of(request, lane) for lane in lanes)) == [
        text_of("aot"),
        text_of("inductor", "  as in lane aot, above"),
        text_of("cudagraphs", "  as in lane aot, above"),
    ]


def test_a_report_that_is_text_alone_is_shortened_too(request: pytest.FixtureRequest) -> None:
    second = report_of(request, "inductor")
    second.longrepr = text_of("inductor")

    assert printed(report_of(request, "aot"), second)[1] == text_of("inductor", "  as in lane aot, above")


def test_what_differs_is_printed(request: pytest.FixtureRequest) -> None:
    assert printed(
        report_of(request, "aot"),
        report_of(request, "inductor", OTHER),
        report_of(request, "inductor", contract="other"),
        report_of(request, "cudagraphs", OTHER),
    )[1:] == [
        text_of("inductor", OTHER),
        text_of("inductor"),
        text_of("cudagraphs", "  as in lane inductor, above"),
    ]


def test_a_lane_that_fails_again_is_printed_again(request: pytest.FixtureRequest) -> None:
    assert printed(*(report_of(request, "aot") for _ in range(2))) == [text_of("aot")] * 2


def test_two_lines_are_sooner_read_than_looked_up(request: pytest.FixtureRequest) -> None:
    short = "  max_graphs=0: measured 1\n    m.py:7 in whole"

    assert printed(*(report_of(request, lane, short) for lane in ("aot", "inductor")))[1] == text_of("inductor", short)


def test_the_reports_are_whole_again_once_they_were_printed(request: pytest.FixtureRequest) -> None:
    reports = [report_of(request, lane) for lane in ("aot", "inductor")]

    printed(*reports)

    assert [each.longreprtext for each in reports] == [text_of("aot"), text_of("inductor")]


# Fails two lanes alike. A plugin sorts the first, and reads both.
FAKED = """
import pytest

def pytest_configure(config):
    config.pluginmanager.register(Reads())

class Reads:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        lane = item.callspec.params["lane"]
        report.compile_contract = {"entry": {"contract": "test", "lane": lane}}
        return report

    def pytest_report_teststatus(self, report):
        if report.failed and "[one]" in report.nodeid:
            return SORTED

    def pytest_terminal_summary(self, terminalreporter):
        for report in terminalreporter.stats["failed"]:
            terminalreporter.write_line(f"read {'m.py:7' in report.longreprtext}")
"""
FAILING = """
import pytest

@pytest.mark.parametrize("lane", ["one", "two"])
def test_it(lane):
    pytest.fail(f"lane {lane}\\n  max=0: 1\\n    m.py:7 in broken\\n      why", pytrace=False)
"""


@pytest.mark.parametrize(
    ("sorted_as", "said", "read"),
    [
        pytest.param('("failed", "F", "FAILED")', ["  as in lane one, above"], 2, id="both are printed"),
        # As plugins do that know which tests are flaky: the first is never printed.
        pytest.param('("quarantined", "q", "QUARANTINED")', [], 1, id="the first is printed nowhere"),
    ],
)
def test_only_what_pytest_prints_above_is_left_out(
    pytester: pytest.Pytester, sorted_as: str, said: list[str], read: int
) -> None:
    pytester.makeconftest(FAKED.replace("SORTED", sorted_as))
    pytester.makepyfile(FAILING)

    result = pytester.runpytest_inprocess("-p", "no:compilecontract", "-p", "no:cacheprovider", plugins=[ToldOnce()])

    assert [line for line in result.outlines if "as in lane" in line] == said
    assert [line for line in result.outlines if line.startswith("read")] == ["read True"] * read


def test_a_traceback_is_left_as_it_is(request: pytest.FixtureRequest) -> None:
    def fails() -> None:
        raise ValueError(text_of("aot"))

    reports = []
    for lane in ("aot", "inductor"):
        with pytest.raises(ValueError, match="violated") as caught:
            fails()
        report = report_of(request, lane)
        report.longrepr = request.node.repr_failure(caught)
        reports.append(report)
    before = [each.longreprtext for each in reports]

    assert printed(*reports) == before
    assert before[0] == before[1]


def test_the_line_of_pytests_own_summary_stays(request: pytest.FixtureRequest) -> None:
    second = report_of(request, "inductor")

    printed(report_of(request, "aot"), second)

    assert second.longrepr.reprcrash.message.startswith("Failed: max_graph_breaks: 1 > 0")
