"""What `--contract-observe` costs a suite that knows nothing of it, in CPU seconds.

    python benchmarks/observe.py [--rounds 5] -- [pytest's arguments]

The suite runs in a process of its own, in turn with the option and without, the first of each pair changing from pair
to pair. Counted are the CPU seconds of the process and its children, from start to end. One pair ahead fills the
compile caches and is not counted; those caches are the suite's own in both cases.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import subprocess
import sys
from importlib.metadata import version

WITHOUT: tuple[str, ...] = ("-p", "no:compilecontract")
WITH: tuple[str, ...] = ("--compile-contracts", "--contract-observe")


def cpu_seconds(arguments: list[str], options: tuple[str, ...]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT")
    arguments = parser.parse_args()
    seconds: dict[tuple[str, ...], list[float]] = {WITHOUT: [], WITH: []}
    for turn in range(arguments.rounds + 1):
        for options in (WITHOUT, WITH) if turn % 2 else (WITH, WITHOUT):
            taken = cpu_seconds(arguments.arguments, options)
            if turn:
                seconds[options].append(taken)
                print(f"{turn}: {'with' if options is WITH else 'without'}: {taken:.2f} s", file=sys.stderr, flush=True)
    pairs = [with_ / without for without, with_ in zip(seconds[WITHOUT], seconds[WITH], strict=True)]
    plain, observed = statistics.median(seconds[WITHOUT]), statistics.median(seconds[WITH])
    print(f"torch {version('torch')}, pytest {version('pytest')}, Python {platform.python_version()}")
    print(f"{observed:.2f} s with, {plain:.2f} s without, medians of {arguments.rounds}")
    print(f"ratio {observed / plain:.3f}, pairs {min(pairs):.3f} to {max(pairs):.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
