"""Colours of a terminal: verdicts, and the gate's answer. Text in, text with escape sequences out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Literal, TextIO

Choice = Literal["auto", "always", "never"]
CHOICES: tuple[Choice, ...] = ("auto", "always", "never")

_RED, _GREEN, _YELLOW, _BOLD = "31", "32", "33", "1"
_VERDICTS = {
    **dict.fromkeys(("broken", "drifted", "violated", "over its limits"), _RED),
    **dict.fromkeys(("held", "improved"), _GREEN),
    **dict.fromkeys(("waived", "unstable", "unverified", "unmeasured", "missing", "new"), _YELLOW),
}
_VERDICT = re.compile(rf"(\s*)({'|'.join(_VERDICTS)})(?![\w-])")
_ANSWER = re.compile(r"(may we upgrade from .*\? )(yes|no|not known)(?=$|:)", re.IGNORECASE)
_ANSWERS = {"yes": _GREEN, "no": _RED, "not known": _YELLOW}
_MARKUP = {"red": _RED, "green": _GREEN, "yellow": _YELLOW, "bold": _BOLD}


def wanted(choice: Choice, stream: TextIO) -> bool:
    """Whether a stream is to have colours; where nothing is chosen, as NO_COLOR, FORCE_COLOR and the stream say."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def marked(text: str, markup: Mapping[str, bool]) -> str:
    """A line with the markup that pytest's terminal writer takes."""
    codes = [_MARKUP[name] for name, on in markup.items() if on and name in _MARKUP]
    return _in(";".join(codes), text) if codes else text


def cell(text: str) -> str:
    """A cell that begins with its verdict; one that does not is left alone."""
    found = _VERDICT.match(text)
    if found is None:
        return text
    return f"{found[1]}{_in(_VERDICTS[found[2]], found[2])}{text[found.end() :]}"


def line(text: str) -> str:
    """A line of a comparison: a lane's verdict at its beginning, the gate's answer at its end."""
    if (found := _ANSWER.match(text)) is not None:
        rest = text[found.end() :]
        return f"{found[1]}{_in(f'{_BOLD};{_ANSWERS[found[2].lower()]}', found[2])}{rest}"
    return cell(text) if not text.startswith(" ") else text


def _in(codes: str, text: str) -> str:
    return f"\x1b[{codes}m{text}\x1b[0m"
