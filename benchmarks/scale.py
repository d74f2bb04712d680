"""How compare and the matrix scale: 100,000 lane entries in 5 environments, beside json.loads of the same bytes.

    python benchmarks/scale.py                       20,000 lanes x 5 environments, about 400 MB in a temporary folder
    python benchmarks/scale.py --lanes 2000 --runs 3

Each step runs in a process of its own. Seconds are those of the CPU, which another load on the machine does not change
much; the peak is that of the process's resident memory, without what the interpreter had before it read anything. Each
lane has what a lane of this project's own contracts has: a few calls, Dynamo's counters, now and then a break or a
recompile. The goals: read and compare within 3 times of the parse, the HTML page within 10, memory within 4 times the
files' size. Exit code 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_compilecontract.compare.comparison import compare
from pytest_compilecontract.compare.gate import answer
from pytest_compilecontract.compare.matrix import matrix
from pytest_compilecontract.facts.measurement import (
    Call,
    EagerFrame,
    GraphBreak,
    Location,
    Measurement,
    Numerics,
    Recompile,
    StateChange,
)
from pytest_compilecontract.facts.receipt import Entry, Environment, Receipt
from pytest_compilecontract.files.receipt import read_receipt, write_receipt
from pytest_compilecontract.report import document
from pytest_compilecontract.report.junit import junit
from pytest_compilecontract.report.matrix import markdown
from pytest_compilecontract.report.page import page

TORCHES = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
LANES = ("aot", "capture", "dynamic", "inductor")
# One lane in so many is not as it was, from the third torch on.
DRIFTS_ONE_IN = 50
GOALS = {"read and compare": 3.0, "HTML page": 10.0}
MEMORY_GOAL = 4.0
MIB = 1024 * 1024


def main() -> int:
    """Make the receipts, run each step, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=20_000, help="lanes in each environment (default: 20000)")
    parser.add_argument("--runs", type=int, default=1, help="the least of so many runs of each step (default: 1)")
    parser.add_argument("--step", choices=(*STEPS, "make"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.step == "make":
        make(chosen.folder, chosen.lanes)
        return 0
    if chosen.step:
        print(json.dumps(measured(STEPS[chosen.step], sorted(chosen.folder.glob("*.json")))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        # Not here: a process is told the peak of the one that started it as its own.
        own = [sys.executable, __file__, "--step", "make", "--folder", folder, "--lanes", str(chosen.lanes)]
        subprocess.run(own, check=True)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        found = {name: least(name, Path(folder), chosen.runs) for name in STEPS}
    return told(found, size, chosen.lanes)


def told(found: dict[str, dict[str, float]], size: int, lanes: int) -> int:
    """Print what was found, and whether a goal was missed."""
    parse = found["json.loads"]
    print(f"{lanes * len(TORCHES):,} entries in {len(TORCHES)} receipts, {size / MIB:.0f} MiB; "
          f"Python {platform.python_version()}, {platform.system()} {platform.machine()}\n")  # fmt: skip
    print("| step | CPU seconds | x json.loads | peak MiB | x the files | written MiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    missed = []
    for name, each in found.items():
        times, weight = each["seconds"] / parse["seconds"], each["peak"] / size
        written = f"{each['written'] / MIB:.1f}" if each["written"] else ""
        print(f"| {name} | {each['seconds']:.1f} | {times:.2f} | {each['peak'] / MIB:.0f} | {weight:.2f} | {written} |")
        if times > GOALS.get(name, times):
            missed.append(f"{name}: {times:.2f} times json.loads, the goal is {GOALS[name]:.0f}")
        if name in GOALS and weight > MEMORY_GOAL:
            missed.append(f"{name}: {weight:.2f} times the files' size in memory, the goal is {MEMORY_GOAL:.0f}")
    print("\n" + ("\n".join(missed) or "every goal was met"))
    return 1 if missed else 0


def least(name: str, folder: Path, runs: int) -> dict[str, float]:
    """One step, in processes of its own."""
    command = [sys.executable, __file__, "--step", name, "--folder", str(folder)]
    ran = [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout)
        for _ in range(runs)
    ]
    return min(ran, key=lambda each: float(each["seconds"]))


def measured(step: Callable[[Sequence[Path]], object], paths: Sequence[Path]) -> dict[str, float]:
    """What one step takes. What it makes is kept until the memory has been asked for."""
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    made = step(paths)
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    written = len(made) if isinstance(made, str | bytes) else 0
    return {"seconds": seconds, "peak": peak * (1 if sys.platform == "darwin" else 1024), "written": written}


def parsed(paths: Sequence[Path]) -> object:
    return [json.loads(path.read_bytes()) for path in paths]


def read(paths: Sequence[Path]) -> object:
    return [read_receipt(path) for path in paths]


def compared(paths: Sequence[Path]) -> object:
    first, *others = map(read_receipt, paths)
    return [compare(first, each) for each in others]


def found_in(paths: Sequence[Path]) -> Any:
    return matrix(list(map(read_receipt, paths)))


def html(paths: Sequence[Path]) -> str:
    found = found_in(paths)
    return page(found, answer(found.comparisons[-1]), plugin="", created="")


STEPS: dict[str, Callable[[Sequence[Path]], object]] = {
    "json.loads": parsed,
    "read": read,
    "read and compare": compared,
    "HTML page": html,
    "Markdown": lambda paths: markdown(found_in(paths)),
    "JSON": lambda paths: document.to_json(found_in(paths), outcome="no", plugin=""),
    "JUnit XML": lambda paths: junit(found_in(paths)),
}


# The receipts


def make(folder: Path, lanes: int) -> None:
    """Write the receipts."""
    for torch in TORCHES:
        write_receipt(folder / f"{torch}.json", a_receipt(torch, lanes))


def a_receipt(torch: str, lanes: int) -> Receipt:
    environment = Environment(
        torch=torch,
        triton="3.6.0",
        device="A processor",
        processor="A processor",
        python="3.11.7",
        platform="Linux-6.1-x86_64",
        commit="a" * 40,
        dirty=False,
        settings={"torch._inductor.config.compile_threads": "1"},
    )
    entries = tuple(an_entry(number, torch) for number in range(lanes))
    return Receipt(plugin="0.1.0", created="2026-01-31T12:00:00Z", environments={"here": environment}, entries=entries)


def an_entry(number: int, torch: str) -> Entry:
    contract, lane = divmod(number, len(LANES))
    # The same lane is the same in each environment but for its times, and, for some, a drift.
    own, here = random.Random(number), random.Random(f"{number} {torch}")
    name = f"tests/models/test_family_{contract // 40:04}.py::test_model_holds_its_contract[{contract}]"
    kept = a_measurement(own, here, contract)
    if not number % DRIFTS_ONE_IN and TORCHES.index(torch) >= 2:
        kept = replace(kept, recompiles=(*(kept.recompiles or ()), a_recompile(contract, "kwargs['attention_mask']")))
    return Entry(
        contract=name,
        lane=LANES[lane],
        test=f"{name[:-1]}-{LANES[lane]}]",
        verdict="held",
        environment="here",
        limits={"max_recompiles": 2, "fullgraph": None, "numerics": "fp64"},
        lane_settings={"backend": LANES[lane], "dynamic": None, "cache": "lane"},
        measurement=kept,
        seconds=round(here.uniform(0.5, 9.0), 4),
    )


def a_measurement(own: random.Random, here: random.Random, contract: int) -> Measurement:
    graphs = own.randint(1, 4)
    frame = a_line(contract, own.randint(20, 90), "forward")
    calls = [Call(phase="cold", seconds=here.random() * 3, graphs_executed=graphs)]
    calls += [Call(phase="steady", seconds=here.random() / 100, graphs_executed=graphs) for _ in range(2)]
    return Measurement(
        backend="inductor",
        graphs=graphs,
        backend_calls=graphs,
        ops_captured=own.randint(20, 400),
        first_compiles=graphs,
        continuations=graphs - 1,
        recompiles=tuple(a_recompile(contract, f"x{at}") for at in range(own.choice((0, 0, 0, 1)))),
        graph_breaks=tuple(a_break(own, contract, at) for at in range(graphs - 1)),
        break_events=graphs - 1,
        eager_frames=(EagerFrame(frame=frame, cause="nothing to compile", reason="no call of torch in it"),),
        limit_hits=(),
        backend_failures=(),
        errors_suppressed=(),
        backward_graphs=graphs,
        graphs_executed=graphs * 3,
        calls=tuple(calls),
        numerics=Numerics(method="fp64", compared=12, worst_at="output[0]", worst_error=here.random() * 1e-6),
        state_change=StateChange(),
        cold_seconds=here.random() * 3,
        warmup_seconds=0.0,
        steady_seconds=here.random() / 100,
        overhead_seconds=here.random() / 10000,
        caches={"fx_graph_miss": graphs, "fx_graph_hit": 0, "aot_autograd_miss": graphs},
        counters={
            "stats": {"calls_captured": own.randint(20, 400), "unique_graphs": graphs},
            "frames": {"total": graphs, "ok": graphs},
            "aot_autograd": {"total": graphs, "ok": graphs, "autograd_cache_miss": graphs, "autograd_cache_saved": 1},
            "inductor": {"fxgraph_cache_miss": graphs, "pattern_matcher_count": own.randint(1, 30)},
        },
        unmeasured={"warmup_seconds": "no call compiled after the first"},
    )


def a_line(contract: int, line: int, function: str) -> Location:
    return Location(
        file=f"models/family_{contract // 40:04}/modeling.py",
        line=line,
        function=function,
        source=f"hidden_states = self.layers[{contract % 12}](hidden_states, attention_mask=mask)",
    )


def a_recompile(contract: int, name: str) -> Recompile:
    guard = f"tensor '{name}' size mismatch at index 0. expected 8, actual 9"
    return Recompile(frame=a_line(contract, 30, "forward"), kind="dynamic", guard=guard, guards=(guard,))


def a_break(own: random.Random, contract: int, at: int) -> GraphBreak:
    line = a_line(contract, 40 + at, f"block_{at}")
    return GraphBreak(
        location=line,
        kind="Tensor.item()",
        reason="Unsupported Tensor.item() call with capture_scalar_outputs=False",
        explanation="Dynamo does not support tracing `Tensor.item()` with config.capture_scalar_outputs=False.",
        hints=("Set `torch._dynamo.config.capture_scalar_outputs = True` to include these operations in the graph.",),
        registry_id="GB0109",
        events=own.randint(1, 3),
        stacks=((a_line(contract, 20, "forward"), line),),
    )


if __name__ == "__main__":
    sys.exit(main())
