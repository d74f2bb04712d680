"""The page of a session beside its receipt, and the session's command without secrets. No pytest here."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_compilecontract.compare.drift import LaneComparison
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import one_line, typed
from pytest_compilecontract.facts.receipt import Receipt
from pytest_compilecontract.measure.environment import plugin_version, without_folders

from .started import start

# Options of other plugins, whose values are not to be shown.
_SECRET = re.compile(r"(?i)--?[\w-]*(?:token|secret|passw|credential|api-?key|auth)[\w-]*")
_HIDDEN = "..."


def write_run_page(
    path: Path,
    receipt: Receipt,
    root: Path,
    drifted: Mapping[tuple[str, str], LaneComparison],
    start: Sequence[str],
) -> str:
    """Write the page; returns why it could not be written, as one line, or an empty text.

    `start` are the words that start pytest in the shell.

    An error here fails nothing: the receipt is written by now, and the page can be made from it later.
    """
    # Jinja2 is not for those who ask for no page.
    from pytest_compilecontract.files.pages import write_page
    from pytest_compilecontract.files.sources import read_sources
    from pytest_compilecontract.report.run_page import run_page
    from pytest_compilecontract.report.run_view import named_files, run_view

    try:
        view = run_view(receipt, read_sources(root, named_files(receipt)), drifted)
        plugin = plugin_version() or ""
        made = run_page(view, receipt, root=root.name, plugin=plugin, created=receipt.created, start=start)
        write_page(path, made)
    except ReceiptError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the tests have run and their verdicts stand
        return f"{one_line(str(path))}: could not be made ({type(error).__name__}: {one_line(str(error))})"
    return ""


def command_of(arguments: Sequence[str], root: Path) -> str:
    """The command of this session, without this machine's folders and possible secrets."""
    return typed([*start(sys.argv), *map(without_folders(root), _shown(arguments))])


def _shown(arguments: Sequence[str]) -> Iterator[str]:
    hidden = False
    for each in arguments:
        name, equals, _ = each.partition("=")
        if hidden and not each.startswith("-"):
            yield _HIDDEN
            hidden = False
            continue
        secret = _SECRET.fullmatch(name) is not None
        hidden = secret and not equals
        yield f"{name}={_HIDDEN}" if secret and equals else each
