"""The `compilecontract` command: parser, dispatch and exit codes. Each command has its own module.

Exit codes: 0 yes, 1 no (a lane drifted or broke; a file does not match the schema), 2 a usage error or a file that
cannot be read, 3 not known. No torch here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

from pytest_compilecontract.errors import ContractError, UsageError
from pytest_compilecontract.measure.environment import plugin_version
from pytest_compilecontract.report.color import CHOICES, wanted

from . import bump, check, compare, matrix, merge, modes, page, schema, selftest, show, validate, waive
from .exits import INTERRUPTED, UNREADABLE, refused

ENDS = (
    "Exit codes: 0 yes, 1 no, 2 a usage error or a file that cannot be read, 3 not known. COMMAND --help has its own."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if sys.stdout is None:
        # Closed by whoever called, as in `compilecontract show receipt.json >&-`: there is nobody to tell.
        return UNREADABLE
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A receipt's text is UTF-8, and the terminal may not be.
            stream.reconfigure(errors="backslashreplace")
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    words = list(sys.argv[1:] if arguments is None else arguments)
    own, passed_on = _divided(words)
    chosen = parser().parse_args(own)
    chosen.passed_on = passed_on
    chosen.colors = wanted(chosen.color, sys.stdout)
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
        return refused(error)
    except OSError as error:
        # A disk that is full, a name that is too long: never an answer, and exit code 1 would be one.
        try:
            sys.stdout.flush()
        except OSError:
            # Python flushes once more at its exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return refused(UsageError(f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)))
    return code


def _complete() -> None:
    """Complete the words for a shell that requests it, and exit (see docs/reference.md)."""
    with contextlib.suppress(ImportError):
        import argcomplete

        argcomplete.autocomplete(parser())


def _divided(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of this command, and those after -- that `bump` passes to pytest."""
    if words[:1] != ["bump"] or "--" not in words:
        return list(words), []
    at = words.index("--")
    return list(words[:at]), list(words[at + 1 :])


def parser() -> argparse.ArgumentParser:
    """The command line, every command with its own."""
    parser = argparse.ArgumentParser(
        prog="compilecontract",
        description="Compare, judge and inspect the measurements of compile contracts.",
        epilog=ENDS,
    )
    parser.add_argument(
        "--version", action="version", version=f"compilecontract {plugin_version() or '(not installed)'}"
    )
    _add_color(parser, "auto")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    # In the order in which --help names them.
    validate.add_command(commands)
    show.add_commands(commands)
    page.add_command(commands)
    compare.add_commands(commands)
    waive.add_command(commands)
    check.add_commands(commands)
    modes.add_command(commands)
    selftest.add_command(commands)
    schema.add_command(commands)
    merge.add_command(commands)
    matrix.add_command(commands)
    bump.add_command(commands)
    for each in commands.choices.values():
        # Before the command or behind it; what is said before it is not to be unsaid by a default.
        _add_color(each, argparse.SUPPRESS)
    return parser


def _add_color(parser: argparse.ArgumentParser, default: str) -> None:
    told = "color verdicts (default: auto, in a terminal)"
    parser.add_argument("--color", default=default, choices=CHOICES, help=told)
