"""Wording: numbers with nouns, and text that fits a width. Data in, text out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def counted(count: int, one: str, many: str = "") -> str:
    """The number with its noun; `many` where the plural has more than an "s"."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def meant(name: str, known: Iterable[str]) -> str:
    """What to put behind a name that is not known: the one that is most like it, if any is."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def cut(text: str, width: int) -> str:
    """The text, no longer than a line of so many characters."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def repeated(times: int) -> str:
    """What to put behind a thing that is told once, and was there more often."""
    return f" ({times} times)" if times > 1 else ""


def first_line(text: str) -> str:
    """The first line that says anything."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def first_said(text: str) -> str:
    """The first line of what an error says; with the next where it only tells whose words follow."""
    first, _, rest = text.strip().partition("\n")
    # BackendCompilerFailed (torch/_dynamo/exc.py): "backend='inductor' raised:", and what it raised.
    return f"{first.strip()} {first_line(rest)}".strip() if first.endswith(" raised:") else first.strip()


def middle(text: str, width: int) -> str:
    """Text no wider than `width`, without its middle: both ends of a test's name tell it from its neighbours."""
    if len(text) <= width:
        return text
    ahead = (width - 3) // 3
    return text[:ahead] + "..." + text[len(text) - (width - 3 - ahead) :]
