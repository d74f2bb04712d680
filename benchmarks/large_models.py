"""Large models under contract on one device: peak memory and seconds, beside the same checks written by hand.

    python benchmarks/large_models.py [--train 1500] [--learn 1500] [--infer 7000] [--lanes inductor,cudagraphs]
        [--steps 3] [--device cuda] [--hows by-hand,contract] [--seconds 480]

A decoder of transformer blocks with random weights in bfloat16, made on the device. `--train` and `--infer` are
millions of parameters; `learn` is `train` with `check_grads=False`: parameters and loss are compared, no gradients.
Each row is a fresh process, which is ended after `--seconds`: its seconds are those after the model is made,
compiling among them; its peaks are what torch's allocator had in use on the device (in brackets: reserved), and
Linux's `VmHWM`. By hand: `infer` compares the outputs of eager and of torch.compile; `train` does AdamW steps on two
copies of the model, one compiled, and compares the parameters.
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
WORDS, BATCH, LENGTH = 32000, 2, 512


class Block(nn.Module):
    """Causal attention and a network of four times the width, each after a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(width // 128, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.into, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.into(self.norms[0](x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Decoder(nn.Module):
    """Words in, the logits of the next words out; words are embedded and told by the same weights."""

    def __init__(self, width: int, blocks: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.words.weight)


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One row: `what` is train, learn or infer, `how` contract or by-hand."""

    what: str
    how: str
    lane: str
    millions: int
    steps: int
    device: str

    @classmethod
    def of(cls, text: str) -> Work:
        what, how, lane, millions, steps, device = text.split(",")
        return cls(what=what, how=how, lane=lane, millions=int(millions), steps=int(steps), device=device)

    def __str__(self) -> str:
        return f"{self.what},{self.how},{self.lane},{self.millions},{self.steps},{self.device}"

    def model(self) -> Decoder:
        parameters = self.millions * 10**6
        width = 4096 if parameters > 4e9 else 2048 if parameters > 5e8 else 256
        words = WORDS if width > 256 else 1000
        blocks = max(round((parameters - words * width) / (12 * width * width)), 1)
        with torch.device(self.device), default_dtype(torch.bfloat16):
            model = Decoder(width, blocks, words)
        for weight in model.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)
        return model.train(self.what != "infer")

    def batches(self, words: int) -> list[tuple[Tensor, ...]]:
        def drawn() -> Tensor:
            return torch.randint(words, (BATCH, LENGTH if words == WORDS else 32), device=self.device)

        return [(drawn(),) if self.what == "infer" else (drawn(), drawn()) for _ in range(self.steps)]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class DevicePeak:
    """The peaks of the allocator over the whole process: measuring a contract starts torch's own anew."""

    def __init__(self) -> None:
        self.used = self.reserved = 0
        self._anew = torch.cuda.reset_peak_memory_stats

    def note(self, *_device: Any) -> None:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            self.used = max(self.used, torch.cuda.max_memory_allocated())
            self.reserved = max(self.reserved, torch.cuda.max_memory_reserved())

    def start_anew(self, *device: Any) -> None:
        self.note()
        self._anew(*device)


def measure(work: Work) -> None:
    """Do the work and print its row."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    peak = DevicePeak()
    model = work.model()
    batches = work.batches(model.words.num_embeddings)
    parameters = sum(each.numel() for each in model.parameters())
    started = time.monotonic()
    with mock.patch.object(torch.cuda, "reset_peak_memory_stats", peak.start_anew):
        found = (under_contract if work.how == "contract" else by_hand)(work, model, batches)
    seconds = time.monotonic() - started
    peak.note()
    device = f"{peak.used / 2**30:.1f} ({peak.reserved / 2**30:.1f})" if peak.reserved else "none"
    cells = (
        work.what, work.lane, work.how, f"{parameters / 1e9:.2f}", device, f"{host_peak() / 2**30:.1f}",
        f"{seconds:.0f}", found,
    )  # fmt: skip
    print("| " + " | ".join(cells) + " |")


def by_hand(work: Work, model: Decoder, batches: list[tuple[Tensor, ...]]) -> str:
    from pytest_compilecontract.facts.lanes import BUILT_IN

    options = BUILT_IN[work.lane].compile_options()
    try:
        if work.what == "infer":
            compiled = torch.compile(model, **options)
            with torch.no_grad():
                for (x,) in batches:
                    torch.testing.assert_close(compiled(x), model(x))
        else:
            other = copy.deepcopy(model)
            for each, forward in ((model, model), (other, torch.compile(other, **options))):
                optimizer = torch.optim.AdamW(each.parameters(), lr=1e-4)
                for x, target in batches:
                    loss_of(forward(x), target).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                del optimizer
            for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(theirs, mine)
    except AssertionError as error:
        return "; ".join(line for line in str(error).splitlines() if line)[:200]
    return "agrees"


def under_contract(work: Work, model: Decoder, batches: list[tuple[Tensor, ...]]) -> str:
    from pytest_compilecontract.facts.lanes import BUILT_IN
    from pytest_compilecontract.facts.limits import limits_from
    from pytest_compilecontract.measure.compile_lane import CompileLane
    from pytest_compilecontract.measure.isolation import isolated

    asked = {"check_grads": False} if work.what == "learn" else {}
    lane, limits = replace(BUILT_IN[work.lane], device=work.device), limits_from([("large", asked)], test="large")
    with isolated(lane):
        compile_lane = CompileLane(lane, limits, ROOT)
        if work.what == "infer":
            with torch.no_grad():
                compile_lane.run(model, *batches)
        else:
            optimizer = lambda of: torch.optim.AdamW(of, lr=1e-4)  # noqa: E731
            compile_lane.train(model, batches, optimizer=optimizer, loss=loss_of)
        compile_lane.close()
    (seen,) = compile_lane.measurements
    if seen.numerics is None:
        return f"numerics not measured: {seen.unmeasured.get('numerics')}"
    first = [f"{each.at}: {each.kind}: {each.detail}" for each in seen.numerics.differences[:3]]
    told = f"{len(seen.numerics.differences)} differences ({'; '.join(first)})" if first else "agrees"
    note = f"; {seen.numerics.note}" if seen.numerics.note else ""
    return f"{told}, judged by {seen.numerics.method}{note}"


def host_peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def row_of(work: Work, seconds: float) -> str:
    command = [sys.executable, __file__, "--one", str(work)]
    try:
        ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        why = f"not done in {seconds:.0f} s"
    else:
        rows = [line for line in ran.stdout.splitlines() if line.startswith("| ")]
        if ran.returncode == 0 and rows:
            return rows[-1]
        last = next(iter(ran.stderr.strip().splitlines()[-1:]), "")
        why = f"exit code {ran.returncode}: {last}"[:200]
    return f"| {work.what} | {work.lane} | {work.how} | {work.millions / 1000:.2f} | | | | {why} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, nargs="*", default=[], help="millions of parameters")
    parser.add_argument("--learn", type=int, nargs="*", default=[], help="millions of parameters")
    parser.add_argument("--infer", type=int, nargs="*", default=[], help="millions of parameters")
    parser.add_argument("--lanes", default="inductor,cudagraphs")
    parser.add_argument("--hows", default="by-hand,contract")
    parser.add_argument("--steps", type=int, default=3, help="training steps, or calls")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=480.0, help="that one row may take")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        # The first that the system ends where memory is short.
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        measure(Work.of(options.one))
        return
    print(f"torch {torch.__version__}, {options.device}, {options.steps} steps or calls\n")
    print("| | lane | | billions of parameters | device, GiB | host, GiB | seconds | found |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for what, sizes in (("train", options.train), ("learn", options.learn), ("infer", options.infer)):
        for millions in sizes:
            for lane in options.lanes.split(","):
                for how in options.hows.split(","):
                    work = Work(
                        what=what, how=how, lane=lane, millions=millions, steps=options.steps, device=options.device
                    )
                    print(row_of(work, options.seconds), flush=True)


if __name__ == "__main__":
    main()
