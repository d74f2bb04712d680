"""Bytes written whole or not at all, and cleaning up after a killed writer."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import time
from pathlib import Path

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.regular import is_folder, refuse_special, stands_there

LARGEST_BYTES = 256 * 1024 * 1024
# How old a file has to be, where there are no locks, until its writer must be gone.
STRAY_SECONDS = 3600
_STRAY = re.compile(r"\.[0-9a-f]{16}\.tmp")


def read_bytes(path: Path) -> bytes:
    """The file's bytes, at most `LARGEST_BYTES`.

    Raises:
        ReceiptError: the file cannot be read, or is larger.
    """
    try:
        refuse_special(path)
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise named(ReceiptError(f"cannot be read ({_cause(error)})"), str(path)) from error
    if len(data) > LARGEST_BYTES:
        raise named(ReceiptError(f"larger than {LARGEST_BYTES // 1024**2} MiB, too large for a receipt"), str(path))
    return data


def folders_in(folder: Path) -> list[Path]:
    """The folders in a folder, sorted; none if nothing has its name.

    Raises:
        ReceiptError: it cannot be read.
    """
    if not stands_there(folder):
        return []
    try:
        return sorted(each for each in folder.iterdir() if is_folder(each))
    except (OSError, ValueError) as error:
        raise named(ReceiptError(f"cannot be read ({_cause(error)})"), str(folder)) from error


def write_bytes(path: Path, data: bytes) -> None:
    """Write the file as a whole or not at all; missing folders are created.

    Raises:
        ReceiptError: the file cannot be written.
    """
    try:
        if not path.name:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.is_symlink():
            # What it leads to is replaced, and not the link.
            path = path.resolve()
        refuse_special(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_strays(path.parent)
        while not _written_beside(path, data):
            pass
    except (OSError, ValueError) as error:
        raise named(ReceiptError(f"cannot be written ({_cause(error)})"), str(path)) from error
    except RuntimeError as error:
        # So Python 3.11 and 3.12 say that a link leads to itself.
        raise ReceiptError(f"{path}: cannot be written (a symlink loop)") from error


def _written_beside(path: Path, data: bytes) -> bool:
    """Write a new file and move it to `path`; False if another process had removed it as a stray."""
    beside = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with beside.open("xb") as file:
            # While it is written its lock is held, by which others know that its writer lives. Who clears strays may
            # have been quicker.
            locked = _lock(file.fileno())
            if locked is False or not os.fstat(file.fileno()).st_nlink:
                return False
            file.write(data)
            file.flush()
            if locked:
                os.replace(beside, path)
                return True
        os.replace(beside, path)  # Windows, which has no such lock, moves no file that is open
        return True
    finally:
        beside.unlink(missing_ok=True)


def clear_strays(folder: Path) -> None:
    """Remove files that processes killed while writing have left in the folder: their locks are free.

    Never raises: a stray that cannot be removed stays.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for each in [each for each in found if _STRAY.fullmatch(each.name)]:
            with contextlib.suppress(OSError):
                if each.is_file(follow_symlinks=False):
                    _clear_stray(Path(each.path), time.time() - each.stat().st_mtime)


def _clear_stray(path: Path, age: float) -> None:
    with path.open("r+b") as file:
        locked = _lock(file.fileno())
        if locked:
            path.unlink()
    if locked is None and age > STRAY_SECONDS:
        path.unlink()


def _lock(file: int) -> bool | None:
    """Take the lock of an open file: True if it was free, False if another process has it, None if there are none."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def remove_file(path: Path) -> None:
    """Remove the file.

    Raises:
        ReceiptError: it cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise named(ReceiptError(f"cannot be removed ({_cause(error)})"), str(path)) from error


def _cause(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def named(error: ReceiptError, name: str) -> ReceiptError:
    named = ReceiptError(f"{one_line(name)}: {one_line(str(error))}")
    named.at = error.at
    return named
