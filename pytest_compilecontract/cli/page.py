"""`compilecontract page`: a receipt as a page that shows what happened on each line of the project's source."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.facts.receipt import PAGE, RECEIPT, timestamp
from pytest_compilecontract.facts.rerun import start_of
from pytest_compilecontract.files.pages import write_page
from pytest_compilecontract.files.receipt import read_receipt
from pytest_compilecontract.files.sources import read_sources
from pytest_compilecontract.files.whole import write_bytes
from pytest_compilecontract.measure.environment import checkout_of, plugin_version
from pytest_compilecontract.report.run_page import run_page
from pytest_compilecontract.report.run_view import named_files, run_view

from .exits import YES, exit_codes, say
from .runs import receipt_file, start_here


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `page` to the command line."""
    made = commands.add_parser(
        "page",
        help="write a receipt as an HTML page: what ran compiled, what broke and why, next to your source",
        epilog=exit_codes("written"),
    )
    made.add_argument("run", metavar="RECEIPT", type=Path, help="a receipt.json, or the folder that it is in")
    made.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help=f"the page to write (default: {PAGE} beside the receipt)"
    )
    made.add_argument(
        "--root",
        metavar="FOLDER",
        type=Path,
        default=Path(),
        help="the project whose source is shown (default: the current folder)",
    )
    made.set_defaults(command=_page)


def _page(chosen: argparse.Namespace) -> int:
    file = receipt_file(chosen.run)
    if file != chosen.run and not file.exists():
        raise UsageError(f"{chosen.run}: contains no {RECEIPT} (a page shows a run, not baselines)")
    receipt = read_receipt(file)
    if not chosen.root.is_dir():
        raise UsageError(f"{chosen.root}: no such folder (--root expects the project's folder)")
    output = chosen.output or file.with_name(PAGE)
    if output.resolve() == file.resolve():
        raise UsageError(f"{output}: is the receipt to read, write the page to another file")
    sources = read_sources(chosen.root, named_files(receipt))
    made = run_page(
        run_view(receipt, sources, checkout=checkout_of(chosen.root)),
        receipt,
        root=chosen.root.resolve().name,
        plugin=plugin_version() or "",
        created=timestamp(),
        beside=Path(os.path.relpath(file.resolve().parent, output.resolve().parent)).as_posix(),
        start=start_here(start_of(receipt.command), (each.torch for each in receipt.environments.values())),
    )
    if chosen.output is None:
        write_page(output, made)
    else:
        write_bytes(output, made.encode(errors="backslashreplace"))
    say(f"wrote {one_line(str(output), 1000)}")
    return YES
