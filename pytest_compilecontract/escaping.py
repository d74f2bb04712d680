"""Escaping: text from outside, made safe where it is shown or run. One function per medium; no files, no pytest.

| medium | function |
| --- | --- |
| part of a line for a terminal | `plain` |
| a whole line, printed where a CI workflow may read it | `printed` |
| a message, a cell of XML or HTML: unprintable characters become visible | `one_line` |
| GitHub's Markdown | `markdown` |
| JSON or XML, printed where a CI workflow may read it | `printed_json`, `printed_xml` |
| the arguments of pytest | `as_tests` |
| a command for people to copy | `typed` |
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Sequence

# Colors, hyperlinks and window titles: gone as a whole, or their remains would read as text.
_ESCAPES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)")
# Controls, invisible and text-turning characters, lone surrogates, line and paragraph separators.
_UNPRINTABLE = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
# A line that begins with :: is a command to GitHub's runner, and so is what follows ##[ anywhere in one; Azure's and
# TeamCity's have a word between (actions/runner, src/Runner.Common/ActionCommand.cs).
_AT_START = re.compile(r"\s*(?=::)")
_ANYWHERE = re.compile(r"##(?=\w*\[)")
_MARKUP = re.compile(r"[\\`*_\[\]|~#@<>&$!]")
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;", "#": "&#35;", "|": "&#124;"}
# What makes of a paragraph a list, a heading or a line.
_BLOCK = re.compile(r"[-+=:]|\d+[.)]")


def plain(text: str) -> str:
    """Text from outside as one line, without escape sequences and control characters."""
    spaced = re.sub(r"\s", " ", _ESCAPES.sub("", text))
    return "".join(each for each in spaced if unicodedata.category(each) not in _UNPRINTABLE)


def printed(line: str) -> str:
    """A finished line as it is printed: no CI workflow takes it for a command."""
    start = _AT_START.match(line)
    safe = line if start is None else f"{start[0]}\\{line[start.end() :]}"
    return _ANYWHERE.sub(r"#\\#", safe)


def one_line(text: str, longest: int = 300) -> str:
    """`text` as one line that a terminal can show: unprintable characters are escaped, and it is cut to `longest`."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def markdown(text: str) -> str:
    """Text that Markdown shows literally: no markup, no named link, no formula, no @-mention."""
    return _MARKUP.sub(lambda found: _ENTITIES.get(found[0], "\\" + found[0]), plain(text))


def markdown_paragraph(text: str) -> str:
    """The same at the start of a line, where some characters and numbers would make a list or a heading."""
    shown = markdown(text).lstrip()
    found = _BLOCK.match(shown)
    return shown if found is None else f"{found[0][:-1]}\\{found[0][-1]}{shown[found.end() :]}"


def printed_json(text: str) -> str:
    """An equal JSON document, without what a CI workflow takes for a command, or a terminal for an escape sequence."""
    # Indentation alone is a control outside texts, and inside them JSON itself escapes those of ASCII.
    lines = (line if line.isprintable() else "".join(map(_seen, line)) for line in text.split("\n"))
    safe = "\n".join(lines)
    return _ANYWHERE.sub(r"#\\u0023", safe)


def _seen(char: str) -> str:
    return char if char.isprintable() else _escaped(char)


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


def printed_xml(text: str) -> str:
    """An equal XML or HTML document, without what a CI workflow takes for a command."""
    return re.sub(r"(?m)^([ \t]*):(?=:)", r"\1&#58;", _ANYWHERE.sub("#&#35;", text))


def leads_out(name: str) -> bool:
    """Whether the path of a file or test, as read from a document, leads out of the folder that it is relative to.

    On any system: an absolute path, a drive, a step upward, or something that is not a path.
    """
    path = name.partition("::")[0].replace("\\", "/")
    return path.startswith("/") or ".." in path.split("/") or re.match("[A-Za-z]:", path) is not None or "\0" in name


def as_tests(*names: str) -> list[str]:
    """Names of tests or files as the last arguments of pytest, none of which is taken for an option or an options file.

    pytest-xdist drops the "--" for its workers, and a name that begins with "@" is read before it.
    """
    return ["--", *(f"./{name}" if name.startswith(("-", "@")) else name for name in names)]


def typed(words: Sequence[str]) -> str:
    """A command for a POSIX shell, quoted where needed, without escape sequences.

    It is cleaned before it is quoted: afterwards, a name could take a quote away.
    """
    return shlex.join(plain(word) for word in words)
