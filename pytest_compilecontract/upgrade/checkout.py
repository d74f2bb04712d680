"""The checkout: a project's commit, and whether its files change during a run. Only reads."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

GIT_SECONDS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """The project's files at one moment. Equal objects mean equal files, as far as they matter to git and Python."""

    commit: str
    dirty: bool
    digest: str


def checkout_of(project: Path) -> Checkout | None:
    """The project's files now; None outside of a git checkout.

    Untracked files only count if they are Python files: a run leaves others behind.
    """
    try:
        commit = _git(project, "rev-parse", "--verify", "HEAD").decode().strip()
        changes = _git(project, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--", ".")
        untracked = _git(project, "ls-files", "--others", "--exclude-standard", "-z", "--", "*.py")
    except (OSError, subprocess.SubprocessError):
        return None
    digest = hashlib.sha256(changes)
    for name in sorted(filter(None, untracked.split(b"\0"))):
        try:
            found = (project / os.fsdecode(name)).stat()
        except OSError:
            continue
        digest.update(b"%b %d %d" % (name, found.st_size, found.st_mtime_ns))
    return Checkout(commit=commit, dirty=bool(changes), digest=digest.hexdigest())


def _git(project: Path, *words: str) -> bytes:
    # Inside a git hook, GIT_DIR and its like speak of the hook's repository.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(project), *words]
    return subprocess.run(
        command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_SECONDS, check=True
    ).stdout
