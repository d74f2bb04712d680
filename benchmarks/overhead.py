"""What holding contracts costs, beside the same contracts written by hand.

    python benchmarks/overhead.py [--rounds 10] [--only NAME] [--record docs/overhead.md]

The three contracts of both_ways.py run in one pytest session, by hand and with the plugin, in turn and in random order.
Reported is the ratio of their CPU seconds (the process and its children; set-up and tear-down of each test included),
the median over the rounds, for backend eager, aot_eager, and Inductor with a filled and with an empty cache. Then the
start-up of an unrelated pytest run with the plugin installed and off, against `-p no:compilecontract`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

CASES = Path(__file__).with_name("both_ways.py")
CONTRACTS = ("infer", "train", "break")
# Name, backend, lane, empty cache each time.
KINDS = (
    ("eager", "eager", "shared-capture", False),
    ("aot_eager", "aot_eager", "shared-aot", False),
    ("Inductor, warm cache", "inductor", "shared-inductor", False),
    ("Inductor, cold cache", "inductor", "inductor", True),
)
LANES = """
[tool.compilecontract.lanes]
shared-capture = {backend = "eager", cache = "shared"}
shared-aot = {backend = "aot_eager", cache = "shared"}
shared-inductor = {backend = "inductor", cache = "shared"}
"""


def cpu_seconds() -> float:
    used = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


class Timer:
    """A pytest plugin of the child: shuffles the ways within each turn and times every test as a whole."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        turns = {item: item.callspec.params["turn"] for item in items}
        random.shuffle(items)
        items.sort(key=lambda item: turns[item])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[Any]:
        started = cpu_seconds()
        result = yield
        if item.callspec.params["turn"]:  # the first turn imports and fills caches
            name = item.originalname.removeprefix("test_")
            self.seconds.setdefault(name, []).append(cpu_seconds() - started)
        return result


def child(lane: str) -> int:
    """Run the cases here, and print the times as the last line."""
    timer = Timer()
    options = ["-q", "--compile-contracts", f"--contract-lanes={lane}", "-p", "no:cacheprovider"]
    code = pytest.main([*options, "test_both_ways.py"], plugins=[timer])
    print("\n" + json.dumps(timer.seconds))
    return int(code)


def timed(backend: str, lane: str, *, cold: bool, rounds: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(CASES, Path(folder, "test_both_ways.py"))
        Path(folder, "pyproject.toml").write_text(LANES, encoding="utf-8")
        surroundings = {
            **os.environ,
            "BOTH_WAYS_BACKEND": backend,
            "BOTH_WAYS_COLD": str(int(cold)),
            "BOTH_WAYS_TURNS": str(rounds + 1),
            "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "cache")),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, __file__, "--child", lane]
        run = subprocess.run(command, cwd=folder, env=surroundings, text=True, capture_output=True)
    if run.returncode:
        raise SystemExit(f"the contracts did not pass:\n{run.stdout}\n{run.stderr}")
    measured: dict[str, list[float]] = json.loads(run.stdout.splitlines()[-1])
    return measured


def ratio(name: str, seconds: dict[str, list[float]]) -> tuple[str, float, float]:
    """The plugin's CPU seconds over the hand's, medians added up over the contracts; and the hand's."""
    medians = {key: statistics.median(each) for key, each in seconds.items()}
    for contract in CONTRACTS:
        hand, plugin = medians[f"{contract}_by_hand"], medians[f"{contract}_by_plugin"]
        print(f"{name}: {contract}: {plugin / hand:.3f} ({hand * 1000:.0f} ms by hand)", flush=True)
    hand = sum(medians[f"{contract}_by_hand"] for contract in CONTRACTS)
    return name, sum(medians[f"{contract}_by_plugin"] for contract in CONTRACTS) / hand, hand


def start_up(rounds: int = 20) -> tuple[float, float]:
    """Median CPU milliseconds that the installed plugin adds to an unrelated pytest run, and those of the run."""
    samples: dict[str, list[float]] = {"with": [], "without": []}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_nothing.py").write_text("def test_nothing():\n    pass\n", encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder]
        for _ in range(rounds + 1):
            for name, extra in (("with", []), ("without", ["-p", "no:compilecontract"])):
                started = cpu_seconds()
                subprocess.run([*command, *extra], check=True, capture_output=True)
                samples[name].append(cpu_seconds() - started)
    medians = {name: statistics.median(each[1:]) * 1000 for name, each in samples.items()}
    return medians["with"] - medians["without"], medians["without"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", default="", help="a part of the name of what to compare")
    parser.add_argument("--record", metavar="FILE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments.child)
    rows = [
        ratio(name, timed(backend, lane, cold=cold, rounds=arguments.rounds))
        for name, backend, lane, cold in KINDS
        if arguments.only in name
    ]
    added, alone = start_up()
    lines = [
        "# Overhead\n",
        f"`benchmarks/overhead.py --rounds {arguments.rounds}` on {datetime.date.today().isoformat()}: torch "
        f"{version('torch')}, pytest {version('pytest')}, Python {platform.python_version()}, {platform.machine()} "
        "CPU, one thread.\n",
        "CPU seconds of three contracts run by the plugin, divided by those of the same three written by hand with",
        "`CompileCounterWithBackend`, `counters` and `assert_close`, interleaved in one pytest session; medians of the",
        "rounds.\n",
        "| backend | plugin / by hand | by hand, seconds |",
        "| --- | --- | --- |",
        *(f"| {name} | {value:.3f} | {seconds:.2f} |" for name, value, seconds in rows),
        f"\nStart-up of an unrelated pytest run with the plugin installed and not enabled: {added:+.1f} ms CPU "
        f"relative to {alone:.0f} ms "
        "(medians of 20, interleaved).\n",
    ]
    text = "\n".join(lines)
    print(text)
    if arguments.record:
        Path(arguments.record).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
