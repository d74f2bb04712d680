"""Regular files: what else may stand under a file's name, and is neither read nor written."""

from __future__ import annotations

import os
from pathlib import Path


def refuse_special(path: Path) -> None:
    """Refuse what is no file: opening a pipe waits for its other end, and a device would be replaced by a file.

    A folder is not refused, nor is what does not exist: opening either says so by itself.

    Raises:
        ValueError: a pipe, a socket or a device stands there.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError("not a regular file")


def stands_there(path: Path) -> bool:
    """Whether anything has this name, be it a link that leads nowhere, or a thing that cannot be looked at."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True


def is_folder(path: Path) -> bool:
    """Whether a folder is there; no is said of one that cannot be looked at."""
    return os.path.isdir(path)
