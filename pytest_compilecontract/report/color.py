"""Colors of a terminal: verdicts and the gate's answer. Text and its meaning in, text with escape sequences out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Literal, TextIO

Choice = Literal["auto", "always", "never"]
CHOICES: tuple[Choice, ...] = ("auto", "always", "never")

_RED, _GREEN, _YELLOW, _BOLD = "31", "32", "33", "1"
OVER_ITS_LIMITS = "over its limits"
_CODES = {
    **dict.fromkeys(("broken", "drifted", "violated", OVER_ITS_LIMITS), _RED),
    **dict.fromkeys(("held", "improved"), _GREEN),
    **dict.fromkeys(("waived", "unstable", "unverified", "unmeasured", "missing", "new"), _YELLOW),
    "yes": f"{_BOLD};{_GREEN}",
    "no": f"{_BOLD};{_RED}",
    "not known": f"{_BOLD};{_YELLOW}",
}
_MARKUP = {"red": _RED, "green": _GREEN, "yellow": _YELLOW, "bold": _BOLD}


# What colors a text by the verdict or the answer that it gives.
Paint = Callable[[str, str], str]


def wanted(choice: Choice, stream: TextIO) -> bool:
    """Whether to use colors on a stream; "auto" follows NO_COLOR, FORCE_COLOR and whether it is a terminal."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def marked(text: str, markup: Mapping[str, bool]) -> str:
    """A line with the markup of pytest's terminal writer."""
    codes = [_MARKUP[name] for name, on in markup.items() if on and name in _MARKUP]
    return _in(";".join(codes), text) if codes else text


def painted(text: str, says: str) -> str:
    """A text in the color of its verdict or answer; any other text is unchanged."""
    codes = _CODES.get(says)
    return text if codes is None else _in(codes, text)


def unpainted(text: str, says: str) -> str:
    """The text without a color."""
    return text


def paint_of(colors: bool) -> Paint:
    """`painted` if colors are wanted, else `unpainted`."""
    return painted if colors else unpainted


def _in(codes: str, text: str) -> str:
    return f"\x1b[{codes}m{text}\x1b[0m"
