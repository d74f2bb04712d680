"""`compilecontract show` and `recover`: a receipt as pytest's summary, and the receipt of a killed run, recovered."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pytest_compilecontract.baselines.store import FOLDER
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.escaping import one_line, printed, typed
from pytest_compilecontract.facts.receipt import RECEIPT, Receipt, environment_key, in_order
from pytest_compilecontract.files import journal as journals
from pytest_compilecontract.files.receipt import write_receipt
from pytest_compilecontract.files.run_log import is_held
from pytest_compilecontract.report.color import marked
from pytest_compilecontract.report.facts import fact_lines
from pytest_compilecontract.report.planted import planted_lines
from pytest_compilecontract.report.terminal import Row, headline, row_of, summary_lines
from pytest_compilecontract.shell import PROGRAM, in_shell
from pytest_compilecontract.wording import counted

from .exits import YES, exit_codes, say
from .runs import read_each


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `show` and `recover` to the command line."""
    show = commands.add_parser(
        "show", help="print a receipt's contracts as pytest's summary does", epilog=exit_codes("printed")
    )
    show.add_argument(
        "file", metavar="RUN", type=Path, help="a receipt.json, a folder with a receipt.json, or a folder of baselines"
    )
    louder = show.add_mutually_exclusive_group()
    louder.add_argument("-v", "--verbose", dest="verbosity", action="store_const", const=1, help="one line per lane")
    louder.add_argument("-q", "--quiet", dest="verbosity", action="store_const", const=-1, help="only what is not held")
    show.add_argument(
        "--facts",
        action="store_true",
        help="also list each graph break, recompile and eager frame, with its line and reason",
    )
    show.set_defaults(command=_show, verbosity=0)

    recover = commands.add_parser(
        "recover", help="write the receipt of a run that was killed, from its journal", epilog=exit_codes("written")
    )
    recover.add_argument("folder", metavar="DIR", type=Path, help="the folder given to --contract-report")
    recover.set_defaults(command=_recover)


def _show(chosen: argparse.Namespace) -> int:
    found = read_each(chosen.file)
    for at, (path, receipt) in enumerate(found):
        if len(found) > 1:
            say(*([""] if at else []), f"{one_line(path.name)}:")
        _show_one(chosen, receipt)
    return YES


def _show_one(chosen: argparse.Namespace, receipt: Receipt) -> None:
    if not receipt.entries:
        _print_summary([], "", chosen)
    for name in dict.fromkeys(entry.environment for entry in receipt.entries):
        rows = [row_of(entry) for entry in in_order(receipt.entries) if entry.environment == name]
        _print_summary(rows, receipt.environments[name].torch or "", chosen)
    if chosen.facts:
        say(*(text for text, _ in fact_lines(receipt.entries, every=True) or [("no facts to show", {})]))
    if any(entry.planted for entry in receipt.entries):
        say(*(text for text, _ in planted_lines(receipt.entries, chosen.verbosity)))
    if Path(FOLDER).is_dir() and not _is_within(chosen.file, Path(FOLDER)):
        # A receipt has what was measured, and not what a baseline made of it.
        words = [PROGRAM, "compare", str(_baselines_of(receipt)), str(chosen.file)]
        command = typed(in_shell(words, Path.cwd()))
        say(f"held means within its limits; to compare with the baselines: {printed(command)}")


def _baselines_of(receipt: Receipt) -> Path:
    """The baselines of the receipt's own environment, if they are there: of several, one has to be named."""
    keys = {environment_key(each) for each in receipt.environments.values()}
    own = Path(FOLDER, *keys)
    return own if len(keys) == 1 and own.is_dir() else Path(FOLDER)


def _recover(chosen: argparse.Namespace) -> int:
    journal, file = chosen.folder / journals.NAME, chosen.folder / RECEIPT
    if is_held(journal):
        raise UsageError(f"{one_line(str(chosen.folder))}: a running session is writing there")
    if not journal.exists():
        ended = "its run ended, and its receipt is there" if file.exists() else "no run was killed there"
        raise UsageError(f"{one_line(str(chosen.folder))}: nothing to recover: {ended}")
    found = journals.recovered(journal)
    write_receipt(file, found.receipt)
    journals.remove(journal)
    say(f"{one_line(str(file))}: written ({counted(len(found.receipt.entries), 'entry', 'entries')})")
    for test in found.running:
        say(f"{journals.ENDED}: {one_line(test)}")
    for line in found.torn:
        say(f"left out: {one_line(line)}")
    return YES


def _is_within(run: Path, folder: Path) -> bool:
    return run.resolve().is_relative_to(folder.resolve())


def _print_summary(rows: Sequence[Row], torch_version: str, chosen: argparse.Namespace) -> None:
    lines = summary_lines(rows, chosen.verbosity)
    say(headline(rows, torch_version), *(marked(*each) if chosen.colors else each[0] for each in lines))
