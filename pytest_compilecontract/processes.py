"""Long-running child processes: watched while they run, and ended together with all that they started."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

POLL_SECONDS = 0.1
GRACE_SECONDS = 5.0
ORPHAN_SECONDS = 0.5


def watched(
    command: Sequence[str],
    *,
    log: Path,
    cwd: Path,
    variables: Mapping[str, str],
    meanwhile: Callable[[], None],
    seconds: float | None = None,
) -> int | None:
    """Run a command with its output appended to `log`; return its exit code, or None if it took longer than allowed.

    `meanwhile` is called several times a second. Anything that ends the wait, such as Ctrl-C, ends the command.

    Raises:
        OSError: there is no such program.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    with (
        log.open("ab") as out,
        _started(command, out, cwd=cwd, variables=variables) as child,
    ):
        try:
            while True:
                try:
                    code = child.wait(POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    meanwhile()
                    if deadline is not None and time.monotonic() > deadline:
                        return None
                else:
                    return code
        finally:
            if child.returncode is None or child.returncode < 0:
                _end(child)


@contextlib.contextmanager
def beside(
    commands: Sequence[tuple[Sequence[str], Path, Mapping[str, str]]], *, cwd: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run commands in parallel, each with a file for its output and its environment variables.

    However the block ends, all commands are ended, with every process that they started.

    Raises:
        OSError: there is no such program.
    """
    with contextlib.ExitStack() as stack:
        children: list[subprocess.Popen[bytes]] = []
        stack.callback(_end_all, children)
        for command, log, variables in commands:
            with log.open("ab") as out:
                children.append(_started(command, out, cwd=cwd, variables=variables))
        yield children


def _started(
    command: Sequence[str], out: BinaryIO, *, cwd: Path, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own, so that what it starts ends with it."""
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd, env=variables, start_new_session=True
    )


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C: whoever ends this process wants the processes that it started to end, too."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def ends_with(parent: int, *, seconds: float, folder: Path) -> None:
    """In a child: end this process, what it started, and `folder`, once `parent` is gone or after `seconds`.

    A parent watches its children, but not after it was killed.
    """

    # On Windows a virtual environment's python starts another one, and the parent's id outlives the parent.
    grouped = hasattr(os, "killpg")

    def watch() -> None:
        deadline = time.monotonic() + seconds
        while (not grouped or os.getppid() == parent) and time.monotonic() < deadline:
            time.sleep(min(ORPHAN_SECONDS, max(0.0, deadline - time.monotonic())))
        shutil.rmtree(folder, ignore_errors=True)
        # Only a group of its own is this process's to end.
        if grouped and os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    # Native code that keeps the interpreter's lock stops the thread too, but not faulthandler's clock.
    faulthandler.dump_traceback_later(min(seconds + GRACE_SECONDS, threading.TIMEOUT_MAX), exit=True, file=2)
    threading.Thread(target=watch, name="compilecontract-ends-with", daemon=True).start()


def started(pid: int) -> str:
    """When a process was started, in clock ticks, since ids are reused. Empty where the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # What the program is called is in brackets, and may have any in it.
    return stat.rpartition(")")[2].split()[19]


def death(code: int) -> str:
    """How a process ended, for one that should have succeeded."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"died ({signal.Signals(-code).name})"
    except ValueError:
        return f"died (signal {-code})"


def _end(child: subprocess.Popen[bytes]) -> None:
    _send(child, signal.SIGTERM)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_SECONDS)
    finally:
        # What the child started may have outlived it, and a second Ctrl-C does not wait.
        _send(child, getattr(signal, "SIGKILL", signal.SIGTERM))
    child.wait()


def _end_all(children: Sequence[subprocess.Popen[bytes]]) -> None:
    for child in children:
        if child.poll() is None:
            _send(child, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    try:
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for child in children:
            _send(child, getattr(signal, "SIGKILL", signal.SIGTERM))
            child.wait()


def _send(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
    elif child.poll() is None:
        child.send_signal(number)
