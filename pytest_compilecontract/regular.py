"""Regular files: refuses pipes, sockets and devices where a file is expected."""

from __future__ import annotations

import os
from pathlib import Path


def refuse_special(path: Path) -> None:
    """Refuse a special file: opening a pipe waits for its other end, and a device would be replaced by a file.

    A folder or a missing file is not refused: opening either gives a clear error.

    Raises:
        ValueError: it is a pipe, a socket or a device.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError("not a regular file")


def stands_there(path: Path) -> bool:
    """Whether anything has this name, including a broken link or something that cannot be read."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True


def is_folder(path: Path) -> bool:
    """Whether it is a folder; False for one that cannot be accessed."""
    return os.path.isdir(path)
