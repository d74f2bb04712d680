"""Wording: numbers with nouns, and text that fits a width. Data in, text out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def counted(count: int, one: str, many: str = "") -> str:
    """The number with its noun; `many` is the plural if it is more than an added "s"."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def after_break(*, continuation: bool) -> str:
    """A suffix for a function, if what is told is of the resume function after its graph break."""
    return " after its graph break" if continuation else ""


def meant(name: str, known: Iterable[str]) -> str:
    """A suffix for an unknown name: the most similar known one, if any."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def cut(text: str, width: int) -> str:
    """The text, cut to a line of this many characters."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def repeated(times: int) -> str:
    """A suffix for a fact that is shown once but occurred more often."""
    return f" ({times} times)" if times > 1 else ""


def first_line(text: str) -> str:
    """The first line that is not empty."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def first_said(text: str) -> str:
    """The first line of an error's message; with the next one if the first only introduces it."""
    first, _, rest = text.strip().partition("\n")
    # BackendCompilerFailed (torch/_dynamo/exc.py): "backend='inductor' raised:", and what it raised.
    return f"{first.strip()} {first_line(rest)}".strip() if first.endswith(" raised:") else first.strip()


def middle(text: str, width: int) -> str:
    """Text no wider than `width`, cut in the middle: both ends of a test's name distinguish it from others."""
    if len(text) <= width:
        return text
    ahead = (width - 3) // 3
    return text[:ahead] + "..." + text[len(text) - (width - 3 - ahead) :]
