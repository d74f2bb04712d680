"""Tracebacks that pytest's log capture holds: what is alive because of them, and what really is kept."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from pytest_compilecontract.measure.probes.logged import forget_tracebacks
from tests.support.sessions import run_session

pytestmark = pytest.mark.torch

CONTRACTS = """
import logging

import torch
from torch._dynamo import register_backend

from pytest_compilecontract import compile_contract

log = logging.getLogger("mine")
errors = []
CALLS = [(torch.ones(3),), (torch.ones(3),)]


@register_backend
def raises_always(graph, example_inputs):
    raise RuntimeError("never")


@register_backend
def logs_while_compiling(graph, example_inputs):
    try:
        raise KeyError("no cache entry")
    except KeyError:
        log.warning("compiling without the cache", exc_info=True)
    return graph


@register_backend
def logs_the_error(graph, example_inputs):
    try:
        raise KeyError("no cache entry")
    except KeyError as error:
        log.warning("compiling without the cache: %s", error)
    return graph


@register_backend
def keeps_its_error(graph, example_inputs):
    try:
        raise KeyError("no cache entry")
    except KeyError as error:
        errors.append(error)
        log.warning("compiling without the cache", exc_info=True)
    return graph


def f(x):
    return x.sin() + 1


def keeping(compile_lane):
    held = []

    def wrap(target):
        compiled = compile_lane.compile(target)

        def call(x):
            held.append(x)
            return compiled(x)

        return call

    return wrap


@compile_contract(lanes=["logs"])
def test_holds_a_backend_that_logs(compile_lane, caplog):
    compile_lane.run(f, *CALLS)
    assert "KeyError: 'no cache entry'" in caplog.text
    assert "no cache entry" in caplog.records[-1].exc_text


@compile_contract(lanes=["raises"], max_eager_frames=9, min_ops_captured=0)
def test_holds_what_dynamo_suppresses_and_logs(compile_lane):
    compile_lane.run(f, *CALLS)


@compile_contract(lanes=["raises"], max_eager_frames=9, min_ops_captured=0)
def test_breaks_what_is_kept_beside_a_suppressed_error(compile_lane):
    compile_lane.run(f, *CALLS, compile_with=keeping(compile_lane))


@compile_contract(lanes=["logs"])
def test_breaks_what_is_kept_beside_a_logged_error(compile_lane):
    compile_lane.run(f, *CALLS, compile_with=keeping(compile_lane))


@compile_contract(lanes=["says"])
def test_holds_a_backend_that_logs_the_error_in_its_message(compile_lane, caplog):
    compile_lane.run(f, *CALLS)
    assert "compiling without the cache: 'no cache entry'" in caplog.text


@compile_contract(lanes=["says"])
def test_breaks_what_is_kept_beside_an_error_in_a_message(compile_lane):
    compile_lane.run(f, *CALLS, compile_with=keeping(compile_lane))


@compile_contract(lanes=["keeps"])
def test_breaks_an_error_that_the_backend_keeps(compile_lane):
    compile_lane.run(f, *CALLS)
"""
LANES = """
[tool.compilecontract.lanes.raises]
backend = "raises_always"
dynamo = { suppress_errors = true }

[tool.compilecontract.lanes.logs]
backend = "logs_while_compiling"

[tool.compilecontract.lanes.says]
backend = "logs_the_error"

[tool.compilecontract.lanes.keeps]
backend = "keeps_its_error"
"""


def test_what_a_captured_traceback_holds_is_not_kept_by_the_program(tmp_path: Path) -> None:
    (tmp_path / "test_logs.py").write_text(CONTRACTS, encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(LANES, encoding="utf-8")
    command = ["--compile-contracts", "--contract-lanes=all", "--contract-report=report", "-p", "no:cacheprovider"]

    ran = run_session([sys.executable, "-m", "pytest", *command], cwd=tmp_path, timeout=300)

    assert ran.returncode == 1, ran.stdout
    receipt = json.loads((tmp_path / "report" / "receipt.json").read_text(encoding="utf-8"))
    found = {each["contract"].rpartition("::test_")[2]: each for each in receipt["entries"]}
    assert len(found) == 7
    for name, entry in found.items():
        kinds = {each["kind"] for each in entry["measurement"]["numerics"]["differences"]}
        assert kinds == ({"memory"} if name.startswith("breaks") else set()), name
        assert entry["verdict"] == ("violated" if name.startswith("breaks") else "held"), name


class Keeping(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def failing(logger: logging.Logger) -> None:
    try:
        raise ValueError("here")
    except ValueError:
        logger.warning("failed", exc_info=True)


def test_only_what_was_logged_below_the_code_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    logger, handler = logging.getLogger("tests.of.logged"), Keeping()
    monkeypatch.setattr(logger, "handlers", [handler])

    def run() -> None:
        failing(logger)

    run()
    failing(logger)
    logger.warning("no exception", exc_info=True)

    forget_tracebacks(run.__code__)

    within, outside, empty = handler.records
    assert within.exc_info is None
    assert within.exc_text is not None
    assert within.exc_text.endswith("ValueError: here")
    assert outside.exc_info is not None
    assert outside.exc_info[0] is ValueError
    assert empty.exc_info == (None, None, None)


def test_a_message_with_an_exception_becomes_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    logger, handler = logging.getLogger("tests.of.messages"), Keeping()
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)

    def run() -> None:
        try:
            raise ValueError("here")
        except ValueError as error:
            logger.warning("failed: %s", error)
            logger.warning("failed: %(why)s", {"why": error})
            logger.warning(error)
            logger.warning("failed: %d", error)

    run()
    logger.warning("failed: %s", ValueError("there"))

    forget_tracebacks(run.__code__)

    *told, unreadable, outside = handler.records
    assert [(each.getMessage(), each.args) for each in told] == [
        ("failed: here", None),
        ("failed: here", None),
        ("here", None),
    ]
    assert unreadable.args
    assert isinstance(outside.args, tuple)
    assert isinstance(outside.args[0], ValueError)
