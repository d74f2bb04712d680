"""Cold compile of the block that repeats against the whole model, by depth: a ratio, measured side by side.

    python benchmarks/regional.py                       depths 2, 4 and 8, twice each in turn
    python benchmarks/regional.py --record docs/regional.md

Each measurement is a process of its own with empty caches: the first training step, forward and backward, of the stack
in contracts/policies/regional.py under Inductor. What is compared is CPU time, which a busy machine moves least.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
WAYS = ("region", "whole")
WIDTH = 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", default="2,4,8", metavar="N,N")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--one", nargs=2, metavar=("WAY", "DEPTH"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measured(chosen.one[0], int(chosen.one[1]))))
        return 0
    rows = []
    for depth in map(int, chosen.depths.split(",")):
        found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for _ in range(chosen.rounds):
            for way in WAYS:
                found[way].append(child(way, depth))
                print(f"depth {depth}, {way}: {found[way][-1]}", file=sys.stderr, flush=True)
        rows.append(row(depth, found))
    text = "\n".join([*HEAD, *rows, ""])
    print(text)
    if chosen.record:
        record(chosen.record, text)
    return 0


HEAD = (
    "| blocks | graphs, region | graphs, whole | region, CPU s | whole, CPU s | whole / region |",
    "| --- | --- | --- | --- | --- | --- |",
)


def row(depth: int, found: dict[str, list[dict[str, float]]]) -> str:
    seconds = {way: statistics.median(each["seconds"] for each in found[way]) for way in WAYS}
    graphs = {way: int(found[way][0]["graphs"]) for way in WAYS}
    ratio = seconds["whole"] / seconds["region"]
    return (
        f"| {depth} | {graphs['region']} | {graphs['whole']} "
        f"| {seconds['region']:.1f} | {seconds['whole']:.1f} | {ratio:.2f} |"
    )


def child(way: str, depth: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        fixed = {"TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__)), "--one", way, str(depth)]
        ran = subprocess.run(command, env={**os.environ, **fixed}, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(ran.stdout))


def measured(way: str, depth: int) -> dict[str, float]:
    """CPU seconds of this process and of the compilers it started, for the first step."""
    import torch
    from torch._dynamo.utils import counters

    from contracts.policies.regional import Block, Stack, compile_regions

    torch.manual_seed(0)
    model = Stack([Block(WIDTH) for _ in range(depth)], WIDTH)
    x = torch.randn(8, WIDTH)
    model(x).square().mean().backward()  # what eager loads once
    before = cpu_seconds()
    if way == "region":
        compile_regions(model, Block, lambda block: block.compile())
    else:
        model.compile()
    model(x).square().mean().backward()
    return {"seconds": cpu_seconds() - before, "graphs": counters["stats"]["unique_graphs"]}


def cpu_seconds() -> float:
    uses = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def record(path: Path, table: str) -> None:
    import torch

    today = datetime.datetime.now(datetime.UTC).date()
    text = (
        "# Regional compile: what it saves\n\n"
        "The cold compile time of a training step with Inductor: a repeated block that is compiled once, against the "
        "whole model.\nCPU seconds, alternating, each in a new process with empty caches: "
        "`benchmarks/regional.py`\n"
        f"on {today}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}, one compile thread.\n\n"
        f"{table}\n"
        "A region costs the same at every depth. On a CPU, Inductor also writes one kernel for equal blocks of a whole "
        "model, so\nthe ratio is smaller than where each block has kernels of its own.\n"
    )
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


if __name__ == "__main__":
    raise SystemExit(main())
