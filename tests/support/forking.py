"""A process that has imported torch and forks sessions of pytest: what it does, and what a child of it does first.

Started by `support.sessions` as a program with the number of a socket, over which requests and answers go, a line of
JSON each. Nothing of the project and no plugin of pytest is imported here: a session imports those by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What costs seconds, and what a first compile imports. No module that starts anything when it is imported.
MODULES = ("pytest", "msgspec", "jsonschema", "jinja2", "torch", "torch._dynamo", "torch._inductor.compile_fx")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A session: `python -m module *arguments`, its folder and environment, and the files that its output goes to."""

    module: str
    arguments: list[str]
    cwd: str
    env: dict[str, str]
    stdout: str
    stderr: str


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    kept = sys.path[1:]  # the first is this file's folder
    refused = why_not()
    loaded = sorted({name.partition(".")[0] for name in sys.modules} | {"sitecustomize", "usercustomize"})
    answer(connection, refused=refused, loaded=loaded)
    if refused is None:
        # What is here already is not looked at by a child's garbage collector.
        gc.collect()
        gc.freeze()
        if (request := serve(connection)) is not None:
            become(request, kept)
            end(run(request.module))


def why_not() -> str | None:
    """Import all that a session would; why no session can be forked from here, or None."""
    try:
        with warnings.catch_warnings():
            # A session warns of what it imports where it imports it; here nobody would see it.
            warnings.simplefilter("ignore")
            for name in MODULES:
                importlib.import_module(name)
    except ImportError as error:
        return f"{type(error).__name__}: {error}"
    if threading.active_count() > 1:
        return f"importing has started threads: {', '.join(each.name for each in threading.enumerate())}"
    if "libcuda.so" in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"):
        return "importing has loaded CUDA's driver, which cannot be used after a fork"
    return None


def serve(connection: socket.socket) -> Request | None:
    """Fork for each request; returns it in the child, and None here once nobody asks any more."""
    with connection.makefile("rb") as lines:
        while line := lines.readline():
            child = os.fork()
            if not child:
                break
            answer(connection, child=child)
            answer(connection, code=ended(child, connection))
        else:
            return None
    connection.close()
    return Request(**json.loads(line))


def ended(child: int, connection: socket.socket) -> int:
    """Wait till the child is done, or until who asked has gone; its exit code, and what it left running is killed."""
    exited = os.pidfd_open(child)
    try:
        if exited not in select.select([exited, connection.fileno()], [], [])[0]:
            os.kill(child, signal.SIGKILL)
        # Not reaped before its group is gone: until then nothing else can have its number.
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    finally:
        os.close(exited)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def answer(connection: socket.socket, **said: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(json.dumps(said).encode() + b"\n")


def become(request: Request, kept: list[str]) -> None:
    """Be the process that `python -m` would have started."""
    os.setsid()
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    for number, file in enumerate((os.devnull, request.stdout, request.stderr)):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND if number else os.O_RDONLY, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    added = request.env.get("PYTHONPATH", "")
    folders = [os.path.abspath(each) for each in added.split(os.pathsep)] if added else []
    sys.path[:] = list(dict.fromkeys([*([] if sys.flags.safe_path else [os.getcwd()]), *folders, *kept]))
    sys.argv[:] = [request.module, *request.arguments]
    importlib.invalidate_caches()
    tempfile.tempdir = None  # from the environment, once
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()  # as `random` does by itself


def run(module: str) -> int:
    """Run it as a program; its exit code."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as exit:
        if exit.code is None or isinstance(exit.code, int):
            return exit.code or 0
        sys.stderr.write(f"{exit.code}\n")
        return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 1
    return 0


def end(code: int) -> None:
    """End as a program does, but for taking every module apart, which takes longer than many a session."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
