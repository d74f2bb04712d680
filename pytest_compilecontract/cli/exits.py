"""How a command ends: the lines that it prints and its exit code."""

from __future__ import annotations

import sys
from typing import TextIO

from pytest_compilecontract.compare.gate import Outcome
from pytest_compilecontract.errors import ContractError
from pytest_compilecontract.escaping import one_line, printed

YES, NO, UNREADABLE, NOT_KNOWN = 0, 1, 2, 3
INTERRUPTED = 130


def exit_codes(yes: str, no: str = "", not_known: str = "") -> str:
    """The exit codes in a command's --help."""
    told = {YES: yes, NO: no, UNREADABLE: "a usage error, or a file that cannot be read", NOT_KNOWN: not_known}
    return "Exit codes: " + "; ".join(f"{code} {what}" for code, what in told.items() if what) + "."


def code_of(outcome: Outcome) -> int:
    """The exit code of an answer."""
    return {"yes": YES, "no": NO, "not known": NOT_KNOWN}[outcome]


def say(*lines: str, stream: TextIO | None = None) -> None:
    """Print lines so that no CI workflow takes them for commands; everything except documents is printed here."""
    print("\n".join(map(printed, lines)), file=stream, flush=True)


def refused(error: ContractError) -> int:
    """Print why nothing could be done, and return the exit code."""
    say(f"compilecontract: {one_line(str(error), 1000)}", stream=sys.stderr)
    return UNREADABLE
