"""`compilecontract selftest`: every fault that can be planted, planted in contracts of its own, and noticed or not.

They are written to a folder that is gone afterwards, and held by a pytest that hears of no other file. No torch here.
"""

# ruff: noqa: T201 - what this module prints is what it is for

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from pytest_compilecontract.errors import ReceiptError, UsageError
from pytest_compilecontract.plant.faults import KNOWN, DeviceFault
from pytest_compilecontract.plant.outcome import survivors
from pytest_compilecontract.receipt import RECEIPT, Receipt, one_line, read_receipt
from pytest_compilecontract.report.planted import line_of, planted_lines, title

YES, NO = 0, 1
LANES = "capture,aot"
_CONTRACTS = '''\
"""Contracts that hold, and together have a place for every fault."""

import torch
from torch import nn

from pytest_compilecontract import compile_contract


def batches(count=4):
    return [(torch.linspace(-1, 1, 32).reshape(4, 8) * (1 + number),) for number in range(count)]


class Block(nn.Module):
    """Two products, and what their gradients need."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(x)))


class Counts(nn.Module):
    """Writes to a buffer, and gives out its input by another shape."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(8))

    def forward(self, x):
        self.steps.add_(x.mean(0))
        return x.view(-1), x * self.steps


@compile_contract(fullgraph=True, max_graph_breaks=0, max_recompiles=0, check_grads=True, max_host_syncs=0)
def test_a_call(compile_lane):
    """Right numbers and gradients, in one graph."""
    compile_lane.run(Block(), *batches())


@compile_contract(fullgraph=True, max_graph_breaks=0, max_recompiles=0, max_host_syncs=0)
def test_state(compile_lane):
    """Buffers and shared memory, as eager has them."""
    with torch.no_grad():
        compile_lane.run(Counts(), *batches())


@compile_contract(fullgraph=True, max_graph_breaks=0, max_recompiles=0, max_host_syncs=0)
def test_training(compile_lane):
    """What is learned, step by step."""
    compile_lane.train(Block(), batches(), optimizer=torch.optim.AdamW)


@compile_contract(max_graph_breaks=1, max_recompiles=0, max_host_syncs=0)
def test_two_graphs(compile_lane):
    """A break that is known."""

    def breaks(x):
        x = torch.sin(x) + 1
        torch._dynamo.graph_break()
        return torch.cos(x) * x

    compile_lane.run(breaks, *batches())


@compile_contract(max_graph_breaks=0, max_recompiles=0, max_kernels=2, max_host_syncs=0)
def test_kernels(compile_lane):
    """As many kernels as there are operations."""
    compile_lane.run(lambda x: x.sin().cos(), *batches())
'''


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `selftest` to the command line."""
    told = "plant every fault in contracts of its own, and say whether each is noticed"
    command = commands.add_parser("selftest", help=told, description=told)
    command.add_argument("--lanes", metavar="A,B", default=LANES, help=f"(default: {LANES})")
    command.add_argument("-v", "--verbose", action="store_true", help="a line a fault")
    command.set_defaults(command=_selftest)


def _selftest(chosen: argparse.Namespace) -> int:
    if find_spec("torch") is None:
        print("selftest: torch is not installed here, so nothing can be compiled", file=sys.stderr)
        return NO
    receipt = _measured(chosen.lanes)
    torch = next((each.torch for each in receipt.environments.values() if each.torch), "")
    entries = receipt.entries
    for text, _ in planted_lines(entries, 1 if chosen.verbose else 0)[1:]:
        print(text)
    planted = [each for entry in entries for each in entry.planted]
    tried = {each.fault for each in planted if each.outcome != "not applicable"}
    nowhere = [name for name in KNOWN if name not in tried]
    for name in nowhere:
        why = next((each for each in planted if each.fault == name), None)
        print(f"planted nowhere: {line_of(why) if why is not None else name}")
    failed = [entry for entry in entries if entry.verdict not in ("held", "unmeasured", "reference")]
    for entry in failed:
        print(one_line(f"{entry.contract} [{entry.lane}]: {entry.verdict}: {entry.reason}", 1000))
    print(f"{title(entries)}, on torch {torch}")
    # A card's faults need one; of all others each has its place.
    missing = [name for name in nowhere if not isinstance(KNOWN[name], DeviceFault)]
    return NO if failed or missing or survivors(planted) or not tried else YES


def _measured(lanes: str) -> Receipt:
    """The receipt of the contracts, held in a child.

    Raises:
        UsageError: no lane could be run, and why.
    """
    with tempfile.TemporaryDirectory(prefix="compilecontract-") as name:
        folder = Path(name)
        (folder / "test_selftest.py").write_text(_CONTRACTS, encoding="utf-8")
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--no-header", "--noconftest"]
        command += ["-p", "no:cacheprovider", "-p", "pytest_compilecontract.plugin", f"--rootdir={folder}"]
        command += ["-c", str(folder / "pytest.ini"), "--compile-contracts", "--contract-plant=all"]
        command += [f"--contract-lanes={lanes}", f"--contract-report={folder}", str(folder / "test_selftest.py")]
        variables = {name: value for name, value in os.environ.items() if name != "PYTEST_PLUGINS"}
        variables |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
        ran = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
        try:
            receipt = read_receipt(folder / RECEIPT)
        except ReceiptError as error:
            said = [*ran.stderr.splitlines(), *ran.stdout.splitlines()]
            told = next((each.removeprefix("ERROR: ") for each in said if each.startswith("ERROR")), "")
            raise UsageError(f"selftest: {told or f'pytest ended with exit code {ran.returncode}'}") from error
    ran_somewhere = [entry for entry in receipt.entries if entry.verdict != "unmeasured"]
    if not ran_somewhere:
        reasons = "; ".join(dict.fromkeys(entry.reason for entry in receipt.entries)) or "no contract was measured"
        raise UsageError(f"selftest: no lane can run here: {reasons}")
    return receipt
