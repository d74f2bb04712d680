"""The plugin as pytest loads it: options and the fixture. `hooks` has what `--compile-contracts` adds."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_compilecontract.measure.compile_lane import CompileLane

    from .hooks import Parts

PARTS: pytest.StashKey[Parts] = pytest.StashKey()
MARKER = (
    "compile_contract(**limits): what compiling may do in this test, held with --compile-contracts "
    "(max_recompiles, max_graph_breaks, ...; see pytest_compilecontract.compile_contract)"
)
NEED_SWITCH = (
    "--contract-lanes",
    "--contract-report",
    "--contract-baselines",
    "--contract-record",
    "--contract-accept-reason",
    "--contract-repeat",
    "--contract-set",
    "--contract-observe",
    "--contract-timeout",
    "--contract-speed",
    "--contract-warm",
    "--contract-bisect",
    "--contract-allow-unmeasured",
    "--contract-plant",
    "--contract-evidence",
    "--contract-evidence-all",
    "--contract-shard",
    "--contract-times",
    "--contract-rest",
    "--contract-rank",
)
MODES = ("new", "changed", "all")
ALL_FAULTS = "all"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("compile contracts", "torch.compile contracts")
    group.addoption(
        "--compile-contracts", action="store_true", help="check every compile contract against its limits, in each lane"
    )
    group.addoption(
        "--contract-lanes",
        metavar="A,B",
        default=None,
        help="the lanes to run, or 'all' (default: ini option contract_lanes, else capture,aot,inductor)",
    )
    group.addoption(
        "--contract-report", metavar="DIR", default=None, help="write DIR/receipt.json and the page DIR/index.html"
    )
    group.addoption(
        "--contract-baselines",
        metavar="DIR",
        default=None,
        help="compare every lane with the baselines in DIR; fail if none was compared (default: contracts/baselines)",
    )
    group.addoption(
        "--contract-record",
        metavar="MODE",
        nargs="?",
        const="all",
        type=_mode,
        default=None,
        help="record what this run measured as the baseline: only new lanes, only changed lanes, or all (default)",
    )
    group.addoption(
        "--contract-accept-reason",
        metavar="WHY",
        default=None,
        help="also record lanes that are broken, over their limits or capture nothing; the baseline keeps the reason",
    )
    group.addoption(
        "--contract-repeat",
        metavar="N",
        type=_repeats,
        default=None,
        help="measure each lane N times: a lane whose counts differ is unstable, times and sizes are compared as "
        "ranges",
    )
    group.addoption(
        "--contract-set",
        metavar="NAME=VALUE",
        action="append",
        default=None,
        help="override a torch setting in every lane (torch._dynamo.config.recompile_limit=4); the receipt records "
        "it, and baselines are not compared",
    )
    group.addoption(
        "--contract-observe",
        action="store_true",
        default=None,
        help="measure every test that compiles anything, marked or not; unmarked tests fail only on drift",
    )
    group.addoption(
        "--contract-timeout",
        metavar="SECONDS",
        type=_seconds,
        default=None,
        help="end a lane whose test runs longer; it is broken (default: no limit)",
    )
    group.addoption(
        "--contract-speed",
        action="store_const",
        const=True,
        default=None,
        help="time every lane on a CUDA device, eager against compiled (default: only those with a min_speedup limit)",
    )
    group.addoption(
        "--contract-warm",
        action="store_const",
        const=True,
        default=None,
        help="start each lane again in a second process from its compile caches, and measure what that compiles again "
        "(default: only those with a max_warm_seconds or max_warm_misses limit)",
    )
    group.addoption(
        "--contract-bisect",
        action="store_const",
        const=True,
        default=None,
        help="rerun a lane that fails to compile or differs from eager through capture, AOTAutograd, decompositions "
        "and Inductor, and name the first stage that fails",
    )
    group.addoption(
        "--contract-allow-unmeasured",
        action="store_const",
        const=True,
        default=None,
        help="do not fail a session in which no lane could be measured (default: fail with the reason)",
    )
    group.addoption(
        "--contract-plant",
        metavar="KIND,...",
        nargs="?",
        const=ALL_FAULTS,
        type=_faults,
        default=None,
        help="rerun each lane that holds with one planted fault at a time, each of which must make it fail (default: "
        "all kinds)",
    )
    group.addoption(
        "--contract-evidence",
        metavar="DIR",
        nargs="?",
        const="",
        default=None,
        help="rerun each lane that is not held with torch's structured trace enabled, and save the trace, graphs, "
        "generated code and guards in DIR (default: 'evidence' in the folder of --contract-report, else in the "
        "current folder)",
    )
    group.addoption(
        "--contract-evidence-all",
        action="store_const",
        const=True,
        default=None,
        help="with --contract-evidence: also of lanes that hold, to compare with those of another torch",
    )
    group.addoption(
        "--contract-shard",
        metavar="I/N",
        type=_shard,
        default=None,
        help="run only shard I of N, for example 2/8; shards take about the same time, and compilecontract merge "
        "merges their receipts",
    )
    group.addoption(
        "--contract-times",
        metavar="RECEIPT",
        default=None,
        help="with --contract-shard: a receipt with the duration of each test, the same for every shard (default: the "
        "one in the folder of --contract-report, if it is of a whole run)",
    )
    # How a process that lost its CUDA device tells the one that replaces it what is left to run.
    group.addoption("--contract-rest", default=None, help=argparse.SUPPRESS)
    # How a process that launches ranks tells each which one it is, and the folder of the launch.
    group.addoption("--contract-rank", default=None, help=argparse.SUPPRESS)
    parser.addini("contract_lanes", "lanes that compile contracts run in", type="args", default=[])


def _mode(text: str) -> str:
    if text not in MODES:
        known = ", ".join(MODES)
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {known} (before a path, write --contract-record=all)")
    return text


def _faults(text: str) -> str:
    from pytest_compilecontract.errors import UsageError
    from pytest_compilecontract.facts.faults import chosen

    try:
        chosen([each.strip() for each in text.split(",")] if text != ALL_FAULTS else [])
    except UsageError as error:
        raise argparse.ArgumentTypeError(f"{error}; before a path, write --contract-plant={ALL_FAULTS}") from None
    return text


def _shard(text: str) -> tuple[int, int]:
    from pytest_compilecontract.facts.shards import MOST_SHARDS

    index, slash, of = text.partition("/")
    numbers = [int(each) for each in (index, of) if each.isascii() and each.isdecimal() and len(each) < 6]
    if not slash or len(numbers) < 2 or not 1 <= numbers[0] <= numbers[1] <= MOST_SHARDS:
        raise argparse.ArgumentTypeError(
            f"expected I/N such as 2/8, with I from 1 to N and N at most {MOST_SHARDS}, got {text!r}"
        )
    return numbers[0], numbers[1]


def _repeats(text: str) -> int:
    from pytest_compilecontract.files.project import MOST_REPEATS

    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MOST_REPEATS):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to {MOST_REPEATS}, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    from pytest_compilecontract.files.project import LONGEST_SECONDS

    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, got {text!r}")
    return seconds


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    if config.getoption("--compile-contracts"):
        from .hooks import switch_on

        config.stash[PARTS] = switch_on(config)
    elif used := [name for name in NEED_SWITCH if config.getoption(name) is not None]:
        raise pytest.UsageError(f"{used[0]} does nothing without --compile-contracts")


@pytest.fixture
def compile_lane(request: pytest.FixtureRequest) -> Iterator[CompileLane]:
    """The lane that this test runs in: `run`, `train`, `compile` and `observe` in it; its `device` and `dtype`."""
    parts = request.config.stash.get(PARTS, None)
    if parts is None:
        pytest.skip("compile contracts run with --compile-contracts")
    lane = parts.phases.lane_of(request.node)
    yield lane
    lane.close()
