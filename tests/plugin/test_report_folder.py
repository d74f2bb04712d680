"""The page beside the receipt: when it is written, and that nothing depends on it. No torch is needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.sessions import UNUSED

from pytest_compilecontract.files.receipt import read_receipt
from pytest_compilecontract.plugin.run_page import command_of

SUITE = """
    from pytest_compilecontract import compile_contract

    @compile_contract(lanes=["capture"])
    def test_block(compile_lane):
        pass
"""
NO_TORCH = "raise ImportError('no <torch> {when}')"
OPTIONS = ("--compile-contracts", "--contract-report=out", "--contract-allow-unmeasured")


@pytest.fixture(autouse=True)
def _without_others(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    # (`pytester` first, which takes the variable away.)
    monkeypatch.setenv("PYTEST_ADDOPTS", UNUSED)


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_block=SUITE, torch=NO_TORCH.format(when="today"))
    pytester.syspathinsert()
    return pytester


def test_a_report_has_a_page_that_answers(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess(*OPTIONS)

    page = (suite.path / "out" / "index.html").read_text(encoding="utf-8")
    assert "The one contract is unmeasured." in page
    assert "no &lt;torch&gt; today" in page
    assert "--compile-contracts --contract-report=out" in page
    assert read_receipt(suite.path / "out" / "receipt.json").command.endswith(" ".join(OPTIONS))
    result.stdout.fnmatch_lines([f"receipt: {suite.path}/out/receipt.json", f"page: {suite.path}/out/index.html"])


def test_without_a_report_there_is_no_page(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("--compile-contracts")

    result.stdout.no_fnmatch_line("page: *")


def test_another_page_is_left_alone(suite: pytest.Pytester) -> None:
    own = suite.path / "out" / "index.html"
    own.parent.mkdir()
    own.write_text("<title>mine</title>")

    result = suite.runpytest_subprocess(*OPTIONS)

    assert own.read_text() == "<title>mine</title>"
    assert read_receipt(suite.path / "out" / "receipt.json").entries
    result.stdout.fnmatch_lines([f"no page was written: {own}: exists and is not a page written by this plugin"])
    assert result.ret == pytest.ExitCode.OK


def test_the_page_of_an_earlier_run_is_replaced(suite: pytest.Pytester) -> None:
    suite.runpytest_subprocess(*OPTIONS)
    suite.makepyfile(torch=NO_TORCH.format(when="tomorrow"))

    suite.runpytest_subprocess(*OPTIONS)

    assert "no &lt;torch&gt; tomorrow" in (suite.path / "out" / "index.html").read_text(encoding="utf-8")


def test_whatever_goes_wrong_with_the_page_is_one_line_and_no_verdict(suite: pytest.Pytester) -> None:
    suite.makeconftest(
        """
        from pytest_compilecontract.report import run_page

        def fails(*args, **kwargs):
            raise ValueError("no\\nroom")

        run_page.run_page = fails
        """
    )

    result = suite.runpytest_subprocess(*OPTIONS)

    page = suite.path / "out" / "index.html"
    assert not page.exists()
    assert read_receipt(suite.path / "out" / "receipt.json").entries
    result.stdout.fnmatch_lines([f"no page was written: {page}: could not be made (ValueError: no\\nroom)"])
    assert result.ret == pytest.ExitCode.OK


def test_nothing_measured_leaves_an_earlier_page(suite: pytest.Pytester) -> None:
    suite.runpytest_subprocess(*OPTIONS)
    before = (suite.path / "out" / "index.html").read_bytes()

    result = suite.runpytest_subprocess(*OPTIONS, "-k", "nothing")

    assert (suite.path / "out" / "index.html").read_bytes() == before
    result.stdout.no_fnmatch_line("page: *")


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        pytest.param(["-k", "a and b"], "pytest -k 'a and b'", id="quoted"),
        pytest.param(["/proj/tests", "--rootdir=/proj"], "pytest '<root>/tests' '--rootdir=<root>'", id="folders"),
        pytest.param(["--api-token=abc", "-q"], "pytest --api-token=... -q", id="a secret"),
        pytest.param(["--password", "abc", "-q"], "pytest --password ... -q", id="a secret that follows"),
    ],
)
def test_the_command_without_folders_and_secrets(
    arguments: list[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/pytest"])

    assert command_of(arguments, Path("/proj")) == command


def test_a_module_that_was_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/lib/pytest/__main__.py"])

    assert command_of(["-q"], Path("/proj")) == "python -m pytest -q"
