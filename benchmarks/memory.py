"""Peak memory of a contract above what its test holds, beside the same checks written by hand.

    python benchmarks/memory.py [--mib 128] [--steps 2] [--backend aot_eager] [--float64]

Each row is a fresh process on the CPU. Its peak is Linux's `VmHWM`, reset once the model is made and has been compiled
and run at a small size, so that torch's own libraries and Dynamo's imports are not counted. All figures are multiples
of the bytes of the model's parameters. With backend aot_eager compiled has eager's bits, so there is no float64 run;
`--float64` makes one all the same. By hand: `run` compares the outputs of eager and of torch.compile; `train` does
whole AdamW steps on two copies of the model, one compiled, and compares what both have learned.
"""

from __future__ import annotations

import argparse
import copy
import gc
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, nargs="+", default=[128], help="MiB of parameters")
    parser.add_argument("--steps", type=int, nargs="+", default=[2], help="calls, or training steps")
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--float64", action="store_true", help="as if a bit differed")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        if options.float64:
            from pytest_compilecontract.measure import numerics

            numerics.all_alike = lambda _: False
        measure(options.one, options.mib[0], options.steps[0], options.backend)
        return
    print(
        "| | MiB of parameters | calls or steps | by hand | under contract | contract - by hand | contract / by hand |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for mib in options.mib:
        for steps in options.steps:
            for what in ("run", "train"):
                asked = ["--mib", str(mib), "--steps", str(steps), "--backend", options.backend]
                asked += ["--float64"] if options.float64 else []
                hand, held = (peak_of(f"{what}-{how}", asked) for how in ("by-hand", "contract"))
                print(f"| {what} | {mib} | {steps} | {hand:.2f} | {held:.2f} | {held - hand:.2f} | {held / hand:.2f} |")


def peak_of(one: str, asked: list[str]) -> float:
    command = [sys.executable, __file__, "--one", one, *asked]
    return float(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()[-1])


def measure(one: str, mib: int, steps: int, backend: str) -> None:
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    what, _, how = one.partition("-")
    work: Callable[[Any, Any], None] = {
        ("run", "by-hand"): lambda model, x: run_by_hand(model, x, steps, backend),
        ("train", "by-hand"): lambda model, x: train_by_hand(model, x, steps, backend),
        ("run", "contract"): lambda model, x: hold("run", model, x, steps, backend),
        ("train", "contract"): lambda model, x: hold("train", model, x, steps, backend),
    }[what, how]

    def made(layers: int) -> Any:
        return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))

    x = torch.randn(4, WIDTH)
    work(made(1), x)
    torch._dynamo.reset()
    model = made(mib * 2**20 // (4 * WIDTH * WIDTH))
    gc.collect()
    before = reset_peak()
    work(model, x)
    print((memory("VmHWM") - before) / (mib * 2**20))


def run_by_hand(model: Any, x: Any, steps: int, backend: str) -> None:
    import torch

    compiled = torch.compile(model, backend=backend)
    for _ in range(steps):
        torch.testing.assert_close(compiled(x), model(x))


def train_by_hand(model: Any, x: Any, steps: int, backend: str) -> None:
    import torch

    other = copy.deepcopy(model)
    for each, forward in ((model, model), (other, torch.compile(other, backend=backend))):
        optimizer = torch.optim.AdamW(each.parameters())
        for _ in range(steps):
            forward(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        del optimizer
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def hold(what: str, model: Any, x: Any, steps: int, backend: str) -> None:
    import torch

    from pytest_compilecontract.facts.lanes import Lane
    from pytest_compilecontract.facts.limits import limits_from
    from pytest_compilecontract.measure.compile_lane import CompileLane
    from pytest_compilecontract.measure.isolation import isolated

    lane, limits = Lane(name="memory", backend=backend), limits_from([("memory", {})], test="memory")
    with isolated(lane):
        compile_lane = CompileLane(lane, limits, ROOT)
        if what == "run":
            compile_lane.run(model, *[(x,)] * steps)
        else:
            compile_lane.train(model, [(x,)] * steps, optimizer=torch.optim.AdamW, loss=mean_square)
        compile_lane.close()
    (found,) = compile_lane.measurements
    assert found.numerics is not None
    assert not found.numerics.differences


def mean_square(output: Any) -> Any:
    return output.square().mean()


def reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def memory(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main()
