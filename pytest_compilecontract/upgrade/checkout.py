"""The checkout: a project's commit, and whether its files change during a run. Only reads."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GIT_SECONDS = 60


# Of the changes to tracked files, one part a file. What installing the project writes there is no change to it.
_DIFF = (
    *("-c", "core.quotePath=false", "diff", "HEAD", "--binary", "--no-renames", "--relative"),
    *("--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/"),
    *("--", ".", ":(exclude)*.egg-info/*"),
)
_PART = b"diff --git "


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """The project's files at one moment. Equal objects mean equal files, as far as they matter to git and Python.

    `changes` are the files that differ from the commit, each with a digest.
    """

    commit: str
    dirty: bool
    changes: tuple[tuple[str, str], ...]

    def changed_since(self, before: Checkout) -> tuple[str, ...]:
        """The files that changed since an earlier moment, and the commit if it is another."""
        names = sorted({name for name, _ in {*self.changes} ^ {*before.changes}})
        return (*([f"commit {self.commit[:12]}"] if self.commit != before.commit else []), *names)


def checkout_of(project: Path) -> Checkout | None:
    """The project's files now; None outside of a git checkout.

    Untracked files only count if they are Python files: a run leaves others behind.
    """
    try:
        commit = _git(project, "rev-parse", "--verify", "HEAD").decode().strip()
        tracked = dict(_parts(_git(project, *_DIFF)))
        untracked = _git(project, "ls-files", "--others", "--exclude-standard", "-z", "--", "*.py")
    except (OSError, subprocess.SubprocessError):
        return None
    others: dict[str, str] = {}
    for name in filter(None, map(os.fsdecode, untracked.split(b"\0"))):
        with contextlib.suppress(OSError):
            found = (project / name).stat()
            others[name] = f"{found.st_size} {found.st_mtime_ns}"
    return Checkout(commit=commit, dirty=bool(tracked), changes=tuple(sorted((tracked | others).items())))


def _parts(diff: bytes) -> Iterator[tuple[str, str]]:
    """Each file of a diff, with a digest of its part. Lines of the files themselves never begin as a part does."""
    for part in (b"\n" + diff).split(b"\n" + _PART)[1:]:
        # Both names are the same: `a/NAME b/NAME`, in quotes if a character of it asks for them.
        both = os.fsdecode(part.partition(b"\n")[0])
        yield both[: len(both) // 2].removeprefix('"').removeprefix("a/").removesuffix('"'), _digest(part)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _git(project: Path, *words: str) -> bytes:
    # Inside a git hook, GIT_DIR and its like speak of the hook's repository.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(project), *words]
    return subprocess.run(
        command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_SECONDS, check=True
    ).stdout
