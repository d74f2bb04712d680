"""The `compilecontract` command. No torch here.

Exit codes: 0 yes, 1 no (a lane drifted or broke; a file does not match the schema), 2 a usage error or a file that
cannot be read, 3 not known.
"""

# ruff: noqa: T201 - what this module prints is what it is for

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from pytest_compilecontract.baseline import read_folder
from pytest_compilecontract.checking import add_commands
from pytest_compilecontract.drift import Comparison, compare
from pytest_compilecontract.environment import plugin_version
from pytest_compilecontract.errors import ContractError, ReceiptError, UsageError
from pytest_compilecontract.gate import Answer, answer
from pytest_compilecontract.matrix import matrix
from pytest_compilecontract.policy import DEFAULT_POLICY, Policy, read_policy
from pytest_compilecontract.receipt import (
    RECEIPT,
    Entry,
    Receipt,
    document_from_json,
    one_line,
    read_bytes,
    read_receipt,
    receipt_from_document,
)
from pytest_compilecontract.report.comparison import answer_lines, comparison_lines, rotten_lines, title, totals
from pytest_compilecontract.report.matrix import markdown, terminal_lines
from pytest_compilecontract.report.terminal import Row, counts_of, headline, summary_lines
from pytest_compilecontract.trying import explained, explained_line, refuse_other_torch, trial_in
from pytest_compilecontract.waivers import read_waivers, rotten, waived

YES, NO, UNREADABLE, NOT_KNOWN = 0, 1, 2, 3
INTERRUPTED = 130
MOST_ERRORS = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if sys.stdout is None:
        # Closed by whoever called, as in `compilecontract show receipt.json >&-`: there is nobody to tell.
        return UNREADABLE
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A receipt's text is UTF-8, and the terminal may not be.
            stream.reconfigure(errors="backslashreplace")
    chosen = _parser().parse_args(arguments)
    try:
        code: int = chosen.command(chosen)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone, as in `compilecontract show receipt.json | head`. Python flushes once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREADABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    except ContractError as error:
        return _refused(error)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="compilecontract", description="Work with what compile contracts measured.")
    parser.add_argument(
        "--version", action="version", version=f"compilecontract {plugin_version() or '(not installed)'}"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    validate = commands.add_parser("validate", help="check receipts against the JSON Schema")
    validate.add_argument("files", metavar="FILE", type=Path, nargs="+", help="a receipt.json")
    validate.set_defaults(command=_validate)

    show = commands.add_parser("show", help="print a receipt's contracts as pytest's summary does")
    show.add_argument("file", metavar="FILE", type=Path, help="a receipt.json")
    louder = show.add_mutually_exclusive_group()
    louder.add_argument("-v", "--verbose", dest="verbosity", action="store_const", const=1, help="a line a lane")
    louder.add_argument("-q", "--quiet", dest="verbosity", action="store_const", const=-1, help="only what is not held")
    show.set_defaults(command=_show, verbosity=0)

    for name, help_, command in (
        ("compare", "print every drift between two runs", _compare),
        ("gate", "may we upgrade? exit code 0 yes, 1 no, 2 unusable input, 3 not known", _gate),
    ):
        two = commands.add_parser(name, help=help_, description=help_)
        two.add_argument(
            "old", metavar="OLD", type=Path, help=f"a receipt, a folder with a {RECEIPT}, or one of baselines"
        )
        two.add_argument("new", metavar="NEW", type=Path, help="the same, of the newer run")
        two.add_argument("--policy", metavar="FILE", type=Path, help="what gates and what may be open, in TOML")
        two.add_argument("--waivers", metavar="FILE", type=Path, help="drift that is known and tolerated, in TOML")
        louder = two.add_mutually_exclusive_group()
        louder.add_argument("-v", "--verbose", dest="verbosity", action="store_const", const=1, help="all that changed")
        louder.add_argument("-q", "--quiet", dest="verbosity", action="store_const", const=-1, help="the result alone")
        if name == "compare":
            two.add_argument(
                "--try-settings",
                action="store_true",
                help="rerun what drifted, on NEW's torch with OLD's defaults, and name the setting that explains it",
            )
            two.add_argument(
                "--python",
                metavar="PATH",
                help="the interpreter with NEW's torch, for --try-settings (default: this one)",
            )
        two.set_defaults(command=command, verbosity=0)

    add_commands(commands)

    table = commands.add_parser("matrix", help="print verdicts, lanes down and environments across")
    table.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="a receipt or folder each, the oldest first")
    table.add_argument("--format", choices=("terminal", "markdown"), default="terminal", help="(default: terminal)")
    table.add_argument("--policy", metavar="FILE", type=Path, help="what gates and what may be open, in TOML")
    table.add_argument("--waivers", metavar="FILE", type=Path, help="drift that is known and tolerated, in TOML")
    table.add_argument("-v", "--verbose", action="store_true", help="also the lanes that held everywhere")
    table.set_defaults(command=_matrix)
    return parser


def _validate(chosen: argparse.Namespace) -> int:
    return max(_validate_file(path) for path in chosen.files)


def _validate_file(path: Path) -> int:
    try:
        document = document_from_json(read_bytes(path), name=str(path))
        errors = list(islice(_schema_errors(document), MOST_ERRORS + 1))
    except ReceiptError as error:
        return _refused(error)
    for line in errors[:MOST_ERRORS]:
        print(f"{one_line(str(path))}: {line}")
    if len(errors) > MOST_ERRORS:
        print(f"{one_line(str(path))}: more than {MOST_ERRORS} errors, the others are not shown")
    if errors:
        return NO
    try:
        receipt = receipt_from_document(document, name=str(path))
    except ReceiptError as error:
        print(error)
        return NO
    print(f"{one_line(str(path))}: matches the schema (format {receipt.format}, {_size(receipt)})")
    return YES


def _size(receipt: Receipt) -> str:
    count = len(receipt.entries)
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _schema_errors(document: dict[str, Any]) -> Iterator[str]:
    """What in `document` does not match the schema that this package ships, a line each."""
    # Both take longer to import than the rest of the command, and only this asks for them.
    import msgspec
    from jsonschema import Draft202012Validator

    shipped = msgspec.json.decode(files("pytest_compilecontract").joinpath("schemas/receipt.schema.json").read_bytes())
    for mismatch in Draft202012Validator(shipped).iter_errors(document):
        yield from _lines(mismatch)


def _lines(error: Any) -> Iterator[str]:
    if error.validator == "anyOf":
        # Of "a measurement or null", the measurement is meant if it is the right kind of thing and wrong inside.
        branches: dict[int, list[Any]] = {}
        for each in error.context:
            branches.setdefault(each.schema_path[0], []).append(each)
        meant = [inside for inside in branches.values() if not any(_is_other_kind(each) for each in inside)]
        if len(meant) == 1:
            for each in meant[0]:
                yield from _lines(each)
            return
    place = error.json_path.removeprefix("$").removeprefix(".")
    yield one_line(f"{place}: {_said(error)}" if place else _said(error))


def _is_other_kind(error: Any) -> bool:
    return not error.relative_path and error.validator in ("type", "enum")


def _said(error: Any) -> str:
    if error.validator in ("additionalProperties", "required"):
        return str(error.message)
    found = one_line(repr(error.instance), 60)
    if error.validator == "anyOf":
        return f"expected {' or '.join(map(_alternative, error.validator_value))}, got {found}"
    if error.validator == "type":
        return f"expected {error.validator_value}, got {found}"
    if error.validator == "enum":
        return f"expected {_alternative(error.schema)}, got {found}"
    if error.validator == "const":
        return f"expected {error.validator_value!r}, got {found}"
    return f"expected {error.validator} {error.validator_value}, got {found}"


def _alternative(schema: Any) -> str:
    if "enum" in schema:
        return " or ".join(map(repr, schema["enum"]))
    return str(schema["type"] if "type" in schema else schema["$ref"].rpartition("/")[2])


def _show(chosen: argparse.Namespace) -> int:
    try:
        receipt = read_receipt(chosen.file)
    except ReceiptError as error:
        return _refused(error)
    if not receipt.entries:
        _print_summary([], "", chosen.verbosity)
    for name in dict.fromkeys(entry.environment for entry in receipt.entries):
        rows = [_row(entry) for entry in receipt.entries if entry.environment == name]
        _print_summary(rows, receipt.environments[name].torch or "", chosen.verbosity)
    return YES


def _print_summary(rows: Sequence[Row], torch_version: str, verbosity: int) -> None:
    print(headline(rows, torch_version))
    for text, _ in summary_lines(rows, verbosity):
        print(text)


def _row(entry: Entry) -> Row:
    counts = counts_of(entry.measurement) if entry.measurement else {}
    return Row(contract=entry.contract, lane=entry.lane, verdict=entry.verdict, counts=counts, reason=entry.reason)


def _compare(chosen: argparse.Namespace) -> int:
    try:
        if chosen.python is not None and not chosen.try_settings:
            raise UsageError("--python does nothing without --try-settings")
        comparison, found, policy = _compared(chosen)
        if chosen.try_settings:
            refuse_other_torch(chosen.python or sys.executable, _read(chosen.new))
    except ContractError as error:
        return _refused(error)
    quiet = [title(comparison), totals(comparison)]
    lines = quiet if chosen.verbosity < 0 else comparison_lines(comparison, everything=chosen.verbosity > 0)
    print("\n".join([*lines, *rotten_lines(found)]), flush=True)
    if chosen.try_settings:
        _try_settings(chosen, policy)
    return _code(found)


def _try_settings(chosen: argparse.Namespace, policy: Policy) -> None:
    """Print, lane by lane, which of torch's changed defaults explains the drift; progress goes to stderr."""
    run = trial_in(chosen.python or sys.executable, lambda text: print(one_line(text), file=sys.stderr, flush=True))
    shown = ""
    for each in explained(_read(chosen.old), _read(chosen.new), policy, run):
        lane = f"{each.lane.contract} [{each.lane.lane}]"
        if lane != shown:
            print(f"\n{one_line(lane)}")
            shown = lane
        print(explained_line(each), flush=True)
    if not shown:
        print("nothing drifted, so no setting was tried")


def _gate(chosen: argparse.Namespace) -> int:
    try:
        comparison, found, policy = _compared(chosen)
    except ContractError as error:
        return _refused(error)
    lines = answer_lines(comparison, found, policy)
    print("\n".join(lines[-1:] if chosen.verbosity < 0 else lines))
    return _code(found)


def _matrix(chosen: argparse.Namespace) -> int:
    """Print the matrix; its exit code is the gate's from the first environment to the last."""
    try:
        policy = read_policy(chosen.policy) if chosen.policy else DEFAULT_POLICY
        waivers = read_waivers(chosen.waivers) if chosen.waivers else ()
        today = datetime.date.today()
        found = matrix([_read(path) for path in chosen.runs], policy, waivers, today)
    except ContractError as error:
        return _refused(error)
    if chosen.format == "markdown":
        print(markdown(found), end="")
    else:
        print("\n".join(terminal_lines(found, everything=chosen.verbose)))
    if not found.comparisons:
        return NOT_KNOWN
    last = found.comparisons[-1]
    said = rotten(last, waivers, today, whole=True)
    for line in said:
        print(one_line(line, 1000), file=sys.stderr)
    return _code(answer(last, policy, said))


def _compared(chosen: argparse.Namespace) -> tuple[Comparison, Answer, Policy]:
    policy = read_policy(chosen.policy) if chosen.policy else DEFAULT_POLICY
    waivers = read_waivers(chosen.waivers) if chosen.waivers else ()
    today = datetime.date.today()
    comparison = waived(compare(_read(chosen.old), _read(chosen.new), policy), waivers, today)
    return comparison, answer(comparison, policy, rotten(comparison, waivers, today, whole=True)), policy


def _read(path: Path) -> Receipt:
    if not path.is_dir():
        return read_receipt(path)
    if (path / RECEIPT).exists():
        return read_receipt(path / RECEIPT)
    return read_folder(path)


def _code(found: Answer) -> int:
    return {"yes": YES, "no": NO, "not known": NOT_KNOWN}[found.outcome]


def _refused(error: ContractError) -> int:
    print(f"compilecontract: {one_line(str(error), 1000)}", file=sys.stderr)
    return UNREADABLE
