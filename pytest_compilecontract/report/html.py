"""Self-contained HTML pages: no network, no other file. Nothing here writes.

The contents of receipts go into a page as data, each text once, and the page's own script creates the elements that are
shown. No text of a receipt is ever parsed as HTML: Jinja2 escapes what the template prints, the data is JSON without a
"<", the script only sets text, and the page's security policy allows no other script or style.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Hashable
from functools import cache
from importlib.resources import files

from pytest_compilecontract.escaping import one_line, printed_json, printed_xml

# Jinja2 is imported where it is used: only this needs it.

LONGEST = 2000
MOST_LINES = 40


def rendered(name: str, data: object, **values: object) -> str:
    """The page with this name: its template, style and script, based on those that all pages share."""
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = (_template(f"base.{kind}") + _template(f"{name}.{kind}") for kind in ("css", "js"))
    made: str = templates.get_template(f"{name}.html").render(
        style=_own(style),
        script=_own(script),
        style_hash=_digest(style),
        script_hash=_digest(script),
        data=_own(_json(data)),
        **values,
    )
    # The data has none left, and in a script an entity would be none.
    return printed_xml(made)


def _own(text: str) -> object:
    """Text from this package, which needs no escaping."""
    import markupsafe

    return markupsafe.Markup(text)


@cache
def _template(name: str) -> str:
    return files("pytest_compilecontract.report").joinpath("templates", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(data: object) -> str:
    """JSON that is safe inside an HTML element: characters that could end the element are escaped."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return printed_json(text)


def visible(text: str) -> str:
    """Text in which every character is visible: control characters and those that change the direction are escaped."""
    if len(text) <= LONGEST and text.isprintable():
        return text
    lines = text.splitlines()
    more = [f"... and {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
    return "\n".join([*(one_line(line, LONGEST) for line in lines[:MOST_LINES]), *more])


class Numbers:
    """Values and their numbers; equal values share one number."""

    def __init__(self) -> None:
        self.values: list[object] = []
        self._known: dict[Hashable, int] = {}

    def of(self, value: Hashable) -> int:
        """The number of a value."""
        number = self._known.get(value)
        if number is None:
            number = self._known[value] = len(self.values)
            self.values.append(value)
        return number


class Texts(Numbers):
    """Texts as a page shows them, and their numbers; each is escaped once."""

    def __init__(self) -> None:
        super().__init__()
        self._given: dict[str, int] = {}

    def of(self, value: Hashable) -> int:
        """The number of a text, given unescaped."""
        text = str(value)
        number = self._given.get(text)
        if number is None:
            number = self._given[text] = super().of(visible(text))
        return number
