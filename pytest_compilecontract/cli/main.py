"""The `compilecontract` command. No torch here.

Exit codes: 0 yes, 1 no (a lane drifted or broke; a file does not match the schema), 2 a usage error or a file that
cannot be read, 3 not known.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from pytest_compilecontract.baselines.document import from_document as baseline_from_document
from pytest_compilecontract.baselines.store import read_folder
from pytest_compilecontract.compare.comparison import compare
from pytest_compilecontract.compare.drift import Comparison
from pytest_compilecontract.compare.gate import Answer, answer
from pytest_compilecontract.compare.matrix import Matrix, matrix
from pytest_compilecontract.compare.policy import DEFAULT_POLICY, Policy, read_policy
from pytest_compilecontract.compare.waivers import Waiver, read_waivers, rotten, waived
from pytest_compilecontract.errors import ContractError, ReceiptError, UsageError
from pytest_compilecontract.escaping import one_line, printed, printed_json
from pytest_compilecontract.facts.receipt import RECEIPT, Receipt
from pytest_compilecontract.files import journal as journals
from pytest_compilecontract.files.codec import document_from_json
from pytest_compilecontract.files.receipt import read_receipt, receipt_from_document, write_receipt
from pytest_compilecontract.files.whole import read_bytes, write_bytes
from pytest_compilecontract.measure.environment import plugin_version
from pytest_compilecontract.report import document
from pytest_compilecontract.report.comparison import answer_lines, comparison_lines, rotten_lines, title, totals
from pytest_compilecontract.report.junit import junit
from pytest_compilecontract.report.matrix import markdown, terminal_lines
from pytest_compilecontract.report.page import page
from pytest_compilecontract.report.planted import planted_lines
from pytest_compilecontract.report.terminal import Row, headline, row_of, summary_lines
from pytest_compilecontract.upgrade.bump import add_arguments, bump
from pytest_compilecontract.upgrade.changed_defaults import explained, explained_line, refuse_other_torch, trial_in
from pytest_compilecontract.wording import counted

from .check import add_commands
from .selftest import add_command as add_selftest

YES, NO, UNREADABLE, NOT_KNOWN = 0, 1, 2, 3
INTERRUPTED = 130
MOST_ERRORS = 20
FORMATS_TOLD = {
    "terminal": "text",
    "markdown": "Markdown for a pull request or a job's summary",
    "json": "JSON (its schema is in the package)",
    "junit": "JUnit XML, a test case a lane",
    "html": "one HTML page that needs no network",
}
FORMATS = tuple(FORMATS_TOLD)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if sys.stdout is None:
        # Closed by whoever called, as in `compilecontract show receipt.json >&-`: there is nobody to tell.
        return UNREADABLE
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A receipt's text is UTF-8, and the terminal may not be.
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    own, passed_on = _divided(words)
    chosen = _parser().parse_args(own)
    chosen.passed_on = passed_on
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
    except OSError as error:
        # A disk that is full, a name that is too long: never an answer, and exit code 1 would be one.
        try:
            sys.stdout.flush()
        except OSError:
            # Python flushes once more at its exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _refused(UsageError(f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)))
    return code


def _divided(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of this command, and those behind -- that `bump` passes on to pytest."""
    if words[:1] != ["bump"] or "--" not in words:
        return list(words), []
    at = words.index("--")
    return list(words[:at]), list(words[at + 1 :])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="compilecontract", description="Work with what compile contracts measured.")
    parser.add_argument(
        "--version", action="version", version=f"compilecontract {plugin_version() or '(not installed)'}"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    validate = commands.add_parser("validate", help="check receipts, baselines and matrices against the JSON Schema")
    validate.add_argument("files", metavar="FILE", type=Path, nargs="+", help="a receipt.json, baseline or matrix")
    validate.set_defaults(command=_validate)

    show = commands.add_parser("show", help="print a receipt's contracts as pytest's summary does")
    show.add_argument("file", metavar="FILE", type=Path, help="a receipt.json")
    louder = show.add_mutually_exclusive_group()
    louder.add_argument("-v", "--verbose", dest="verbosity", action="store_const", const=1, help="a line a lane")
    louder.add_argument("-q", "--quiet", dest="verbosity", action="store_const", const=-1, help="only what is not held")
    show.set_defaults(command=_show, verbosity=0)

    recover = commands.add_parser("recover", help="write the receipt of a run that was killed, from its journal")
    recover.add_argument("folder", metavar="DIR", type=Path, help="the folder that --contract-report named")
    recover.set_defaults(command=_recover)

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
    add_selftest(commands)

    table = commands.add_parser("matrix", help="print verdicts, lanes down and environments across")
    table.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="a receipt or folder each, the oldest first")
    table.add_argument("--format", choices=FORMATS, default="terminal", help="what to print (default: terminal)")
    table.add_argument("--output", metavar="FILE", type=Path, help="write it to a file instead")
    for kind in FORMATS[1:]:
        table.add_argument(f"--{kind}", metavar="FILE", type=Path, help=f"also write it as {FORMATS_TOLD[kind]}")
    table.add_argument("--policy", metavar="FILE", type=Path, help="what gates and what may be open, in TOML")
    table.add_argument("--waivers", metavar="FILE", type=Path, help="drift that is known and tolerated, in TOML")
    table.add_argument("-v", "--verbose", action="store_true", help="also the lanes that held everywhere")
    table.set_defaults(command=_matrix)

    both = commands.add_parser(
        "bump",
        help="run the suite on two releases of torch, and answer the gate's question",
        usage="compilecontract bump [SPEC ...] [--from SPEC ...] [options] [-- PYTEST_ARGUMENT ...]",
        description="Run the project's tests before and after an upgrade, on the same commit, and print the matrix and "
        "the gate's answer. Exit code 0 yes, 1 no, 2 unusable input, 3 not known.",
        epilog="What follows -- is for pytest, on both sides: compilecontract bump torch==2.12.1 -- -k router",
    )
    add_arguments(both)
    both.set_defaults(command=_bump)
    return parser


def _validate(chosen: argparse.Namespace) -> int:
    return max(_validate_file(path) for path in chosen.files)


def _validate_file(path: Path) -> int:
    try:
        found = document_from_json(read_bytes(path), name=str(path))
        kind = _kind_of(found)
        errors = list(islice(_schema_errors(found, kind), MOST_ERRORS + 1))
    except ReceiptError as error:
        return _refused(error)
    for line in errors[:MOST_ERRORS]:
        _say(f"{one_line(str(path))}: {line}")
    if len(errors) > MOST_ERRORS:
        _say(f"{one_line(str(path))}: more than {MOST_ERRORS} errors, the others are not shown")
    if errors:
        return NO
    try:
        size = _READERS[kind](found, str(path))
    except ReceiptError as error:
        _say(str(error))
        return NO
    _say(f"{one_line(str(path))}: matches the schema (format {found['format']}, {size})")
    return YES


def _kind_of(found: dict[str, Any]) -> str:
    """Which of the documents it is meant to be, by the key that no other has."""
    if "entries" not in found and "contracts" in found:
        return "baseline"
    return "matrix" if "entries" not in found and "rows" in found else "receipt"


def _receipt_size(found: dict[str, Any], name: str) -> str:
    return counted(len(receipt_from_document(found, name=name).entries), "entry", "entries")


def _baseline_size(found: dict[str, Any], name: str) -> str:
    contracts = baseline_from_document(found, name=name).contracts
    return counted(sum(map(len, contracts.values())), "lane", "lanes")


def _matrix_size(found: dict[str, Any], name: str) -> str:
    made = document.document_from_data(found, name=name)
    return f"{counted(len(made.rows), 'lane', 'lanes')}, {counted(len(made.columns), 'environment', 'environments')}"


# What each document must be beyond its schema; they give its size in words.
_READERS = {"receipt": _receipt_size, "baseline": _baseline_size, "matrix": _matrix_size}


def _schema_errors(found: dict[str, Any], kind: str) -> Iterator[str]:
    """What in the document does not match the schema that this package ships, a line each."""
    # Both take longer to import than the rest of the command, and only this asks for them.
    import msgspec
    from jsonschema import Draft202012Validator

    shipped = files("pytest_compilecontract").joinpath(f"schemas/{kind}.schema.json").read_bytes()
    for mismatch in Draft202012Validator(msgspec.json.decode(shipped)).iter_errors(found):
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
    receipt = read_receipt(chosen.file)
    if not receipt.entries:
        _print_summary([], "", chosen.verbosity)
    for name in dict.fromkeys(entry.environment for entry in receipt.entries):
        rows = [row_of(entry) for entry in receipt.entries if entry.environment == name]
        _print_summary(rows, receipt.environments[name].torch or "", chosen.verbosity)
    if any(entry.planted for entry in receipt.entries):
        _say(*(text for text, _ in planted_lines(receipt.entries, chosen.verbosity)))
    return YES


def _recover(chosen: argparse.Namespace) -> int:
    journal, file = chosen.folder / journals.NAME, chosen.folder / RECEIPT
    found = journals.recovered(journal)
    write_receipt(file, found.receipt)
    journals.remove(journal)
    _say(f"{one_line(str(file))}: written ({counted(len(found.receipt.entries), 'entry', 'entries')})")
    for test in found.running:
        _say(f"{journals.ENDED}: {one_line(test)}")
    for line in found.torn:
        _say(f"left out: {one_line(line)}")
    return YES


def _print_summary(rows: Sequence[Row], torch_version: str, verbosity: int) -> None:
    _say(headline(rows, torch_version), *(text for text, _ in summary_lines(rows, verbosity)))


def _compare(chosen: argparse.Namespace) -> int:
    if chosen.python is not None and not chosen.try_settings:
        raise UsageError("--python does nothing without --try-settings")
    sides = _compared(chosen)
    if chosen.try_settings:
        refuse_other_torch(chosen.python or sys.executable, sides.new)
    quiet = [title(sides.comparison), totals(sides.comparison)]
    lines = quiet if chosen.verbosity < 0 else comparison_lines(sides.comparison, everything=chosen.verbosity > 0)
    _say(*lines, *rotten_lines(sides.found))
    if chosen.try_settings:
        _try_settings(chosen, sides)
    return _code(sides.found)


def _try_settings(chosen: argparse.Namespace, sides: _Compared) -> None:
    """Print, lane by lane, which of torch's changed defaults explains the drift; progress goes to stderr."""
    run = trial_in(chosen.python or sys.executable, lambda text: _say(one_line(text), stream=sys.stderr))
    shown = ""
    for each in explained(sides.old, sides.new, sides.policy, run):
        lane = f"{each.lane.contract} [{each.lane.lane}]"
        if lane != shown:
            _say("", one_line(lane))
            shown = lane
        _say(explained_line(each))
    if not shown:
        _say("nothing drifted, so no setting was tried")


def _gate(chosen: argparse.Namespace) -> int:
    sides = _compared(chosen)
    lines = answer_lines(sides.comparison, sides.found, sides.policy)
    _say(*(lines[-1:] if chosen.verbosity < 0 else lines))
    return _code(sides.found)


def _matrix(chosen: argparse.Namespace) -> int:
    """Print or write the matrix; its exit code is the gate's from the first environment to the last."""
    wanted = _wanted(chosen)
    policy, waivers = _policy(chosen), _waivers(chosen)
    today = datetime.date.today()
    found = matrix([_read(path) for path in chosen.runs], policy, waivers, today)
    last = found.comparisons[-1] if found.comparisons else None
    said = rotten(last, waivers, today, whole=not last.stopped) if last else ()
    answered = answer(last, policy, said) if last else None
    # Each is written before the next is made: of a large matrix they need not all be there at once.
    for kind, path in wanted:
        write_bytes(path, _rendered(kind, found, answered, policy, chosen.verbose))
        _say(f"wrote {one_line(str(path), 1000)}", stream=sys.stderr)
    if chosen.output is None:
        sys.stdout.write(_rendered(chosen.format, found, answered, policy, chosen.verbose).decode())
    for line in said:
        _say(one_line(line, 1000), stream=sys.stderr)
    return _code(answered) if answered else NOT_KNOWN


def _wanted(chosen: argparse.Namespace) -> list[tuple[str, Path]]:
    """The files to write, each with its format."""
    named = [(chosen.format, chosen.output), *((kind, getattr(chosen, kind)) for kind in FORMATS[1:])]
    wanted = [(kind, path) for kind, path in named if path is not None]
    places: dict[Path, str] = {}
    for run in chosen.runs:
        for path in (run, *(run.rglob("*.json") if run.is_dir() else ())):
            places[_place(path)] = "is a run to read" if path == run else f"is of {run}, a run to read"
    for given in filter(None, (chosen.policy, chosen.waivers)):
        places[_place(given)] = "is read, too"
    for _, path in wanted:
        if why := places.get(_place(path)):
            raise UsageError(f"{path}: {why}, write the matrix to another file")
        places[_place(path)] = "is named twice"
    return wanted


def _place(path: Path) -> Path:
    """Where a path leads; two that lead to one file are the same."""
    try:
        return path.resolve()
    except RuntimeError as error:
        # So Python 3.11 and 3.12 say it.
        raise UsageError(f"{path}: a link that leads to itself") from error


def _rendered(kind: str, found: Matrix, answered: Answer | None, policy: Policy, everything: bool) -> bytes:
    if kind == "markdown":
        return _lined(markdown(found).splitlines())
    if kind == "json":
        outcome = answered.outcome if answered else "not known"
        made = document.to_json(found, outcome=outcome, plugin=plugin_version() or "")
        return printed_json(made.decode()).encode()
    if kind == "junit":
        return junit(found, policy).encode()
    if kind == "html":
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        return page(found, answered, plugin=plugin_version() or "", created=now).encode()
    return _lined(terminal_lines(found, everything=everything))


def _lined(lines: Iterable[str]) -> bytes:
    return "".join(f"{printed(line)}\n" for line in lines).encode(errors="backslashreplace")


def _bump(chosen: argparse.Namespace) -> int:
    return _code(bump(chosen, chosen.passed_on))


def _policy(chosen: argparse.Namespace) -> Policy:
    return read_policy(chosen.policy) if chosen.policy else DEFAULT_POLICY


def _waivers(chosen: argparse.Namespace) -> tuple[Waiver, ...]:
    return read_waivers(chosen.waivers) if chosen.waivers else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Compared:
    """Two runs as read, how they differ by the policy, and what the gate makes of it."""

    old: Receipt
    new: Receipt
    policy: Policy
    comparison: Comparison
    found: Answer


def _compared(chosen: argparse.Namespace) -> _Compared:
    policy, waivers, today = _policy(chosen), _waivers(chosen), datetime.date.today()
    old, new = _read(chosen.old), _read(chosen.new)
    comparison = waived(compare(old, new, policy), waivers, today)
    said = rotten(comparison, waivers, today, whole=not comparison.stopped)
    return _Compared(old=old, new=new, policy=policy, comparison=comparison, found=answer(comparison, policy, said))


def _read(path: Path) -> Receipt:
    if not path.is_dir():
        return read_receipt(path)
    if (path / journals.NAME).exists():
        # Beside it may lie the receipt of an earlier run, which would pass for this one's.
        raise ReceiptError(f"{path}: its run did not end (`compilecontract recover {path}` writes the receipt)")
    if (path / RECEIPT).exists():
        return read_receipt(path / RECEIPT)
    return read_folder(path)


def _code(found: Answer) -> int:
    return {"yes": YES, "no": NO, "not known": NOT_KNOWN}[found.outcome]


def _say(*lines: str, stream: TextIO | None = None) -> None:
    """Print lines, the only way that anything but a document is printed here: no workflow obeys one of them."""
    print("\n".join(map(printed, lines)), file=stream, flush=True)


def _refused(error: ContractError) -> int:
    _say(f"compilecontract: {one_line(str(error), 1000)}", stream=sys.stderr)
    return UNREADABLE
