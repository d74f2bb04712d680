"""`compilecontract merge`: merge the receipts of all shards of a suite into one."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_compilecontract.compare.merge import merged
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.facts.receipt import RECEIPT, Receipt
from pytest_compilecontract.files.receipt import read_receipt, write_receipt
from pytest_compilecontract.wording import counted

from .exits import YES, exit_codes, say
from .runs import receipt_file


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `merge` to the command line."""
    told = "merge the receipts of all shards of a suite into one (pytest --contract-shard)"
    command = commands.add_parser("merge", help=told, description=told, epilog=exit_codes("written"))
    command.add_argument(
        "runs", metavar="RECEIPT", type=Path, nargs="+", help=f"a {RECEIPT} or its folder, one for each shard"
    )
    command.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the receipt to write")
    command.set_defaults(command=_merge)


def _merge(chosen: argparse.Namespace) -> int:
    receipts: dict[str, Receipt] = {}
    for run in chosen.runs:
        file = receipt_file(run)
        if str(file) in receipts:
            raise UsageError(f"{file} is named twice")
        if file.resolve() == chosen.output.resolve():
            raise UsageError(f"{chosen.output}: is a receipt to read, write the merged one to another file")
        receipts[str(file)] = read_receipt(file)
    made = merged(receipts)
    write_receipt(chosen.output, made)
    parts = counted(len(receipts), "shard")
    say(f"wrote {one_line(str(chosen.output), 1000)}: {counted(len(made.entries), 'entry', 'entries')} of {parts}")
    return YES
