"""`compilecontract selftest`: plant every possible fault in built-in contracts, and report which are noticed.

They are written to a temporary folder and run by a pytest that reads no other file. No torch here.
"""

# ruff: noqa: T201 - what this module prints is what it is for

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_compilecontract.errors import ReceiptError, UsageError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.facts.faults import KNOWN, DeviceFault, GraphSkipped
from pytest_compilecontract.facts.planted import survivors
from pytest_compilecontract.facts.receipt import RECEIPT, Receipt
from pytest_compilecontract.files.receipt import read_receipt
from pytest_compilecontract.report.planted import line_of, planted_lines

from .exits import NO, YES, exit_codes

LANES = "capture,aot"
_CONTRACTS = '''\
"""Contracts that hold, and together have a place for every fault."""

import torch
from torch import nn

from pytest_compilecontract import compile_contract


def batches(count=3):
    return [(torch.linspace(-1, 1, 32).reshape(4, 8) * (1 + number),) for number in range(count)]


class Block(nn.Module):
    """Two matrix products, with what their gradients need."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(x)))


class Counts(nn.Module):
    """Writes to a buffer, and returns its input in another shape."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(8))

    def forward(self, x):
        self.steps.add_(x.mean(0))
        return x.view(-1), x * self.steps


@compile_contract(fullgraph=True, max_graph_breaks=0, max_recompiles=0, check_grads=True)
def test_a_call(compile_lane):
    """Correct numbers and gradients, in one graph."""
    compile_lane.run(Block(), *batches())


@compile_contract(fullgraph=True, max_graph_breaks=0, max_recompiles=0)
def test_state(compile_lane):
    """Buffers and shared memory, as in eager."""
    with torch.no_grad():
        compile_lane.run(Counts(), *batches())


@compile_contract(fullgraph=True, max_graph_breaks=0, max_recompiles=0)
def test_training(compile_lane):
    """Parameters and gradients, step by step."""
    compile_lane.train(Block(), batches(), optimizer=torch.optim.AdamW)


@compile_contract(max_graph_breaks=1, max_recompiles=0)
def test_two_graphs(compile_lane):
    """A known graph break."""

    def breaks(x):
        x = torch.sin(x) + 1
        torch._dynamo.graph_break()
        return torch.cos(x) * x

    compile_lane.run(breaks, *batches())
'''
# Exact, for no fault of a device may hide in the room that a limit leaves.
_ON_A_DEVICE = """\
import torch

from pytest_compilecontract import compile_contract

X = torch.linspace(-1, 1, 32).reshape(4, 8)


@compile_contract(max_kernels=2, max_host_syncs=0, max_memory_growth=0, lanes=["capture", "aot"])
def test_kernels(compile_lane):
    compile_lane.run(lambda x: x.sin().cos(), *[(X,)] * 3)
"""
_RECORDED = """\
import torch

from pytest_compilecontract import compile_contract

X = torch.linspace(-1, 1, 32).reshape(4, 8)


@compile_contract(cudagraphs="required", lanes=["cudagraphs"])
def test_recorded(compile_lane):
    with torch.no_grad():
        compile_lane.run(lambda x: x.sin().cos(), *[(X,)] * 4)
"""
_DEVICE = "import torch; print(torch.cuda.is_available())"


ENDS = exit_codes("every fault that can be planted here is noticed", no="one is not noticed")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `selftest` to the command line."""
    told = "plant every kind of fault in built-in contracts, and report whether each is noticed"
    command = commands.add_parser("selftest", help=told, description=told, epilog=ENDS)
    command.add_argument("--lanes", metavar="A,B", default=LANES, help=f"(default: {LANES})")
    command.add_argument("-v", "--verbose", action="store_true", help="one line per fault")
    command.set_defaults(command=_selftest)


def _selftest(chosen: argparse.Namespace) -> int:
    on_cuda = _asked_torch()
    if on_cuda is None:
        print("selftest: torch cannot be imported here, so nothing can be compiled", file=sys.stderr)
        return NO
    everywhere = [each.name for each in KNOWN.values() if not isinstance(each, DeviceFault)]
    receipts = [_measured(_CONTRACTS, chosen.lanes, everywhere), *(on_device() if on_cuda else ())]
    return _told(receipts, verbose=chosen.verbose, on_cuda=on_cuda)


def on_device() -> list[Receipt]:
    """The outcome of the faults that need a CUDA device."""
    faults = [each.name for each in KNOWN.values() if isinstance(each, DeviceFault)]
    faults.remove(GraphSkipped.name)
    return [
        _measured(_ON_A_DEVICE, "capture,aot", faults),
        _measured(_RECORDED, "cudagraphs", [GraphSkipped.name]),
    ]


def _told(receipts: list[Receipt], *, verbose: bool, on_cuda: bool) -> int:
    """Print the outcome of every fault, and whether all were noticed."""
    entries = [entry for receipt in receipts for entry in receipt.entries]
    for text, _ in planted_lines(entries, 1 if verbose else 0)[1:]:
        print(text)
    planted = [each for entry in entries for each in entry.planted]
    tried = {each.fault for each in planted if each.outcome != "not applicable"}
    # Each has its place in one of these contracts; those of a device need one.
    missing = [name for name, fault in KNOWN.items() if name not in tried and not isinstance(fault, DeviceFault)]
    if on_cuda:
        missing += [name for name, fault in KNOWN.items() if name not in tried and isinstance(fault, DeviceFault)]
    else:
        device = [name for name, fault in KNOWN.items() if isinstance(fault, DeviceFault)]
        print(f"not planted without a CUDA device: {', '.join(device)}")
    for name in missing:
        why = next((each for each in planted if each.fault == name), None)
        print(f"not planted anywhere: {line_of(why) if why is not None else name}")
    failed = [entry for entry in entries if entry.verdict not in ("held", "unmeasured", "reference")]
    for entry in failed:
        print(one_line(f"{entry.contract} [{entry.lane}]: {entry.verdict}: {entry.reason}", 1000))
    said = [each.torch for receipt in receipts for each in receipt.environments.values() if each.torch]
    left = survivors(planted)
    counts = [each for each in planted if each.outcome != "not applicable"]
    if not (failed or missing or left) and counts:
        print(f"all planted faults were noticed ({len(counts)} of {len(counts)}), on torch {said[0]}")
        return YES
    noticed = len(counts) - len(left)
    print(f"NOT all planted faults were noticed ({noticed} of {len(counts)}), on torch {', '.join(said[:1])}")
    return NO


def _asked_torch() -> bool | None:
    """Whether torch has a CUDA device; None if it cannot be imported."""
    ran = subprocess.run([sys.executable, "-c", _DEVICE], capture_output=True, text=True, check=False)
    return ran.stdout.strip() == "True" if ran.returncode == 0 else None


def _measured(contracts: str, lanes: str, faults: list[str]) -> Receipt:
    """The receipt of the contracts, run in a child process.

    Raises:
        UsageError: no lane could be run; the message says why.
    """
    with tempfile.TemporaryDirectory(prefix="compilecontract-") as name:
        folder = Path(name)
        (folder / "test_selftest.py").write_text(contracts, encoding="utf-8")
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--no-header", "--noconftest"]
        command += ["-p", "no:cacheprovider", "-p", "pytest_compilecontract.plugin", f"--rootdir={folder}"]
        command += ["-c", str(folder / "pytest.ini"), "--compile-contracts", f"--contract-plant={','.join(faults)}"]
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
    if all(entry.verdict == "unmeasured" for entry in receipt.entries):
        reasons = "; ".join(dict.fromkeys(entry.reason for entry in receipt.entries)) or "no contract was measured"
        raise UsageError(f"selftest: no lane can run here: {reasons}")
    return receipt
