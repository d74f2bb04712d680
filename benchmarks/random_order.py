"""Verdicts by random order: the corpus and the contract suite again and again, shuffled, on workers of pytest-xdist.

    python benchmarks/random_order.py FOLDER --sessions 50
    python benchmarks/random_order.py FOLDER --sessions 50 --suite corpus --at-once 4
    python benchmarks/random_order.py FOLDER --report

Every session shuffles all tests by its own seed and is one line of FOLDER/sessions.jsonl, so that a run that was ended
goes on where it was. What differs from the first session of its suite is printed, and any difference is exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "corpus")]

from corpus import TESTS, lay_out, read_cases  # noqa: E402

SEED = "COMPILECONTRACT_SHUFFLE"
SESSIONS = "sessions.jsonl"
SECONDS = 3600
# What a session may measure otherwise without saying anything else.
EXACT = ("graphs", "recompiles", "graph_breaks", "eager_frames", "limit_hits", "ops_captured", "graphs_executed")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Shuffle all tests: this file is the plugin of the sessions that it starts. Every worker has the same order."""
    if seed := os.environ.get(SEED):
        items.sort(key=lambda item: item.nodeid)
        random.Random(int(seed)).shuffle(items)


def main() -> int:
    arguments = parsed()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    suites = [arguments.suite] if arguments.suite else ["corpus", "contracts"]
    if not arguments.report:
        done = {(each["suite"], each["seed"]) for each in known(arguments.folder)}
        jobs = [(suite, seed) for seed in range(1, arguments.sessions + 1) for suite in suites]
        left = [job for job in jobs if job not in done]
        with ThreadPoolExecutor(arguments.at_once) as pool:
            for line in pool.map(lambda job: run(arguments, *job), left):
                with (arguments.folder / SESSIONS).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(
                    f"{line['suite']} {line['seed']}: {len(line['lanes'])} lanes, {line['seconds']:.0f} s", flush=True
                )
    return report(arguments.folder)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=1, help="sessions beside one another, each of --workers")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--suite", choices=("corpus", "contracts"))
    parser.add_argument("--lanes", default="capture,aot", help="of the contract suite; the corpus names its own")
    parser.add_argument("--report", action="store_true", help="compare the sessions that are there")
    return parser.parse_args()


def run(arguments: argparse.Namespace, suite: str, seed: int) -> dict[str, Any]:
    """One session: the verdict and the exact counts of each lane."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        where, options = ROOT, ["contracts", f"--contract-lanes={arguments.lanes}"]
        if suite == "corpus":
            where, options = Path(scratch) / "project", [TESTS]
            lay_out(where, [case for case in read_cases().values() if not case.alone])
        inherited = os.environ.get("PYTHONPATH", "")
        command = [sys.executable, "-m", "pytest", "--compile-contracts", f"--contract-report={scratch}/report", "-q"]
        command += ["-p", "no:cacheprovider", "-p", "random_order", "-n", str(arguments.workers), *options]
        environment = {
            **os.environ,
            SEED: str(seed),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks"), *sys.path[:2], *filter(None, [inherited])]),
            "TORCHINDUCTOR_CACHE_DIR": str(Path(scratch) / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        ended = subprocess.run(command, cwd=where, env=environment, capture_output=True, timeout=SECONDS, check=False)
        receipt = Path(scratch) / "report" / "receipt.json"
        entries = json.loads(receipt.read_text(encoding="utf-8"))["entries"] if receipt.is_file() else []
    return {
        "suite": suite,
        "seed": seed,
        "seconds": round(time.monotonic() - started, 1),
        "exit": ended.returncode,
        "lanes": {f"{each['contract']} [{each['lane']}]": shown(each) for each in entries},
    }


def shown(entry: dict[str, Any]) -> dict[str, Any]:
    """The verdict of an entry, and the counts that must be the same in any order."""
    seen = entry.get("measurement") or {}
    counts = {name: len(seen[name]) if isinstance(seen.get(name), list) else seen.get(name) for name in EXACT}
    operators = seen.get("operators_run") or {}
    return {"verdict": entry["verdict"], **counts, "eager_ops": operators.get("eager")}


def known(folder: Path) -> list[dict[str, Any]]:
    path = folder / SESSIONS
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def report(folder: Path) -> int:
    """Print each suite's figures and every difference from its first session; 1 where there is one."""
    code = 0
    sessions = known(folder)
    for suite in dict.fromkeys(each["suite"] for each in sessions):
        mine = [each for each in sessions if each["suite"] == suite]
        found = list(differences(mine))
        lanes = sum(len(each["lanes"]) for each in mine)
        verdicts = sum(1 for _, kind, _ in found if kind == "verdict")
        differ = f"{verdicts} verdicts and {len(found) - verdicts} counts differ"
        print(f"{suite}: {len(mine)} sessions, {lanes} lanes, {differ}")
        for where, kind, what in found:
            print(f"  {where}: {kind} {what}")
        code = code or bool(found)
    return code


def differences(sessions: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    first = sessions[0]["lanes"]
    for each in sessions[1:]:
        for lane in sorted({*first, *each["lanes"]}):
            was, now = first.get(lane, {}), each["lanes"].get(lane, {})
            for kind in {**was, **now}:
                if was.get(kind) != now.get(kind):
                    yield f"seed {each['seed']}, {lane}", kind, f"{was.get(kind)} -> {now.get(kind)}"


if __name__ == "__main__":
    sys.exit(main())
