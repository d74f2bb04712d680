"""HTML pages as files: written whole, and never over a page of another tool."""

from __future__ import annotations

from pathlib import Path

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import one_line

from .whole import write_bytes

# What each page of this package says of itself, in its head.
SIGN = b'<meta name="generator" content="pytest-compilecontract'
_HEAD_BYTES = 4096


def write_page(path: Path, page: str) -> None:
    """Write the page, over an earlier one of this package.

    Raises:
        ReceiptError: it cannot be written, or another file is there.
    """
    if path.is_file() and not _is_ours(path):
        raise ReceiptError(f"{one_line(str(path))}: exists and is not a page written by this plugin")
    write_bytes(path, page.encode(errors="backslashreplace"))


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return SIGN in file.read(_HEAD_BYTES)
    except OSError:
        return False
