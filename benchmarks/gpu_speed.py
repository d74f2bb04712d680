"""What compiling gains on a GPU, beside what the GPU can do: python benchmarks/gpu_speed.py [--json FILE]

A chain of pointwise operations, a small MLP of twenty layers, and a transformer block, for inference and for training;
eager against Inductor, with and without CUDA graphs. Steps are timed as contracts with `min_speedup` are (CUDA events,
eager and compiled in turn, the L2 cache overwritten before each). Beside each is its physical limit: the bytes that a
step has to move at least, over the bandwidth that a large copy reaches on this GPU, or for the block the operations of
its matrix products over the rate that a large product reaches, whichever takes longer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pytest_compilecontract.facts.measurement import Speed
from pytest_compilecontract.measure.probes import kernels, speed

LANES: dict[str, dict[str, Any]] = {"inductor": {}, "cudagraphs": {"mode": "reduce-overhead"}}
MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A program: `make(run)` is one step of it, `bytes` and `flops` are what no step can do without."""

    name: str
    target: Any
    make: Callable[[Any], Callable[[], object]]
    bytes: int
    flops: int = 0


def chain(value: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        value = (value.sin() + 1).relu() * 2
    return value


class Block(nn.Module):
    """A transformer block: attention and a feed-forward part, each with a norm before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        batch, length, width = value.shape
        parts = self.qkv(self.before_attention(value)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        value = value + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return value + self.down(nn.functional.gelu(self.up(self.before_feed(value))))


def mlp() -> nn.Sequential:
    layers = [layer for _ in range(20) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(*layers).cuda()


def cases() -> list[Case]:
    big = torch.randn(4096, 4096, device="cuda")
    learned = big.clone().requires_grad_()
    upstream = torch.ones_like(big)
    rows = torch.randn(32, 256, device="cuda")
    small = mlp()
    weights = sum(each.nbytes for each in small.parameters())
    batch, length, width = 8, 1024, 1024
    tokens = torch.randn(batch, length, width, device="cuda", dtype=torch.bfloat16)
    block = Block(width, 16).to("cuda", torch.bfloat16)
    held = sum(each.nbytes for each in block.parameters())
    # Per token: 12 width^2 weights, and half of the products of attention, which is causal.
    products = 2 * batch * length * (12 * width * width + length * width)

    def infer(value: torch.Tensor) -> Callable[[Any], Callable[[], object]]:
        def make(run: Any) -> Callable[[], object]:
            def step() -> object:
                with torch.no_grad():
                    return run(value)

            return step

        return make

    def train_chain(run: Any) -> Callable[[], object]:
        def step() -> None:
            learned.grad = None
            run(learned).backward(upstream)

        return step

    def train(model: nn.Module, value: torch.Tensor) -> Callable[[Any], Callable[[], object]]:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

        def make(run: Any) -> Callable[[], object]:
            def step() -> None:
                run(value).float().square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

            return step

        return make

    return [
        Case(name="chain of 24 pointwise, infer", target=chain, make=infer(big), bytes=2 * big.nbytes),
        # Forward reads x and writes y; backward reads x and the gradient, and writes one.
        Case(name="chain of 24 pointwise, train", target=chain, make=train_chain, bytes=5 * big.nbytes),
        Case(name="MLP of 20 layers, infer", target=small, make=infer(rows), bytes=weights),
        # Read forward and backward, gradients written and read, weights written.
        Case(name="MLP of 20 layers, train", target=small, make=train(small, rows), bytes=6 * weights),
        Case(
            name="transformer block, infer",
            target=block,
            make=infer(tokens),
            bytes=held + 2 * tokens.nbytes,
            flops=products,
        ),
        Case(
            name="transformer block, train",
            target=block,
            make=train(block, tokens),
            bytes=6 * held + 4 * tokens.nbytes,
            flops=3 * products,
        ),
    ]


def reached() -> tuple[float, float]:
    """Bytes a second of a large copy, and operations a second of a large product in bfloat16, on this GPU."""
    source = torch.empty(2048 * MIB, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    copied = best(lambda: target.copy_(source))
    multiplied = best(lambda: square @ square)
    return 2 * source.nbytes / copied, 2 * 8192**3 / multiplied


def best(step: Callable[[], object]) -> float:
    made = speed.Step(run=step, around=contextlib.nullcontext)
    return min(speed.timed(made, made, samples=15, seconds=5)[1])


def measured(case: Case, options: dict[str, Any]) -> tuple[Speed, int, int]:
    """The speed of a case in a lane, and its kernels, compiled and eager."""
    torch.compiler.reset()
    eager = case.make(case.target)
    began = time.perf_counter()
    compiled = case.make(torch.compile(case.target, **options))
    for _ in range(4):
        compiled()
    torch.cuda.synchronize()
    spent = time.perf_counter() - began
    steps = [speed.Step(run=each, around=contextlib.nullcontext) for each in (eager, compiled)]
    of_eager, of_compiled = speed.timed(steps[0], steps[1])
    found = Speed(
        eager=speed.timing(of_eager),
        compiled=speed.timing(of_compiled),
        samples=len(of_compiled),
        compile_seconds=spent,
    )
    counts = [kernels.read_profile(kernels.profiled(each)).kernels.total for each in (compiled, eager)]
    return found, counts[0], counts[1]


def row(case: Case, lane: str, found: Speed, counts: tuple[int, int], bandwidth: float, rate: float) -> list[str]:
    low, high = found.spread
    limit = max(case.bytes / bandwidth, case.flops / rate)
    return [
        case.name,
        lane,
        f"{found.eager.median * 1e6:.1f}",
        f"{found.compiled.median * 1e6:.1f}",
        f"{found.speedup:.2f} ({low:.2f} to {high:.2f})",
        f"{limit * 1e6:.1f} {'bytes' if case.bytes / bandwidth >= case.flops / rate else 'products'}",
        f"{limit / found.compiled.median:.0%}",
        f"{counts[1]} / {counts[0]}",
        f"{found.compile_seconds:.1f}",
        "never" if found.break_even is None else str(found.break_even),
        f"{found.share_compiling(1000):.0%}",
    ]


HEAD = [
    "program",
    "lane",
    "eager us",
    "compiled us",
    "speedup",
    "limit us",
    "of it reached",
    "kernels eager / compiled",
    "compile s",
    "pays after steps",
    "share of 1000 steps compiling",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, default=None, help="write the samples' medians and quartiles there, too")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing is timed", file=sys.stderr)
        return 2
    torch.set_float32_matmul_precision("high")
    bandwidth, rate = reached()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: a large copy reaches {bandwidth / 1e12:.2f} TB/s, "
        f"a large product in bfloat16 {rate / 1e12:.0f} TFLOPS\n"
    )
    print("| " + " | ".join(HEAD) + " |\n|" + " --- |" * len(HEAD), flush=True)
    kept = []
    for case in cases():
        for lane, options in LANES.items():
            found, ours, eager = measured(case, options)
            cells = row(case, lane, found, (ours, eager), bandwidth, rate)
            print("| " + " | ".join(cells) + " |", flush=True)
            kept.append(dict(zip(HEAD, cells, strict=True)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
