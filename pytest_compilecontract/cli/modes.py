"""`compilecontract modes`: run a sample in the lanes, and print side by side what each costs and gains. No torch."""

from __future__ import annotations

import argparse
import sys

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.receipt import in_order
from pytest_compilecontract.report.color import paint_of
from pytest_compilecontract.report.modes import mode_lines
from pytest_compilecontract.report.table import room

from .check import add_arguments, measured
from .exits import YES, exit_codes, say


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `modes` to the command line."""
    told = "run a module in the lanes, and compare what each costs to compile with what it gains"
    command = commands.add_parser("modes", help=told, description=told, epilog=exit_codes("the table is printed"))
    add_arguments(command)
    command.set_defaults(command=_modes, named="modes")


def _modes(chosen: argparse.Namespace) -> int:
    receipt = measured(chosen, "--contract-warm", "--contract-speed")
    entries = in_order(receipt.entries)
    if all(each.measurement is None for each in entries):
        reason = next((each.reason for each in entries if each.reason), "no lane was chosen")
        raise UsageError(f"{chosen.sample}: no lane can run here: {reason}")
    torch = next((each.torch for each in receipt.environments.values() if each.torch), "")
    say(f"torch {torch}: {chosen.sample}", *mode_lines(entries, room(sys.stdout), paint_of(chosen.colors)))
    return YES
