"""A process that has imported torch and forks sessions of pytest: what it does, and what a child of it does first.

Started by `support.sessions` as a program with the number of a socket, over which requests and answers go, a line of
JSON each. Nothing of the project and no plugin of pytest is imported here: a session imports those by itself.

The workers of pytest-xdist that a session starts are forked from here too.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

# What costs seconds, and what a first compile imports. No module that starts anything when it is imported.
MODULES = ("pytest", "msgspec", "jsonschema", "jinja2", "torch", "torch._dynamo", "torch._inductor.compile_fx")
# How the names of variables begin that are read when Python starts or torch is imported, and not again in a child.
READ_AT_START = (
    *("PYTHON", "LD_", "LC_", "LANG", "MALLOC_"),
    *("TORCH", "PYTORCH", "ATEN", "AOT", "INDUCTOR", "PT2_", "FX_", "TRITON", "NUMPY", "NPY_", "CI", "CC", "CXX"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "CUDA", "CUBLAS", "CUDNN", "NVIDIA", "HIP_", "ROCM", "ROCR_"),
)


def at_start(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that are read when Python starts or torch is imported; PYTHONPATH is each session's own."""
    return {name: value for name, value in env.items() if name.startswith(READ_AT_START) and name != "PYTHONPATH"}


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
    if refused is not None:
        return
    # What is here already is not looked at by a child's garbage collector.
    gc.collect()
    gc.freeze()
    with connection.makefile("rb") as lines:
        while line := lines.readline():
            serve(Request(**json.loads(line)), connection, kept)


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


# In the server


def serve(request: Request, connection: socket.socket, kept: list[str]) -> None:
    """Fork a session, and the workers that it asks for, until it is done or who asked for it has gone."""
    here, there = socket.socketpair()

    def session() -> int:
        streams = [os.open(os.devnull, os.O_RDONLY)]
        streams += [os.open(file, os.O_WRONLY | os.O_APPEND) for file in (request.stdout, request.stderr)]
        os.setpgid(0, 0)
        become(request.cwd, request.env, kept, streams)
        sys.argv[:] = [request.module, *request.arguments]
        Forked.take_the_place_of_popen(there)
        return run(request.module)

    child = fork(session, [connection.fileno(), here.fileno()])
    there.close()
    answer(connection, child=child)
    exited = os.pidfd_open(child)
    workers: dict[int, int] = {}
    asked = [here.fileno()]
    while exited not in (ready := select.select([exited, connection.fileno(), *asked, *workers], [], [])[0]):
        if connection.fileno() in ready:
            os.kill(child, signal.SIGKILL)
            break
        for each in workers.keys() & ready:
            os.close(each)
            os.waitpid(workers.pop(each), 0)
        if here.fileno() in ready:
            worker = fork_a_worker(child, here, [connection.fileno(), exited, *workers], kept)
            if worker is None:
                asked.clear()
            else:
                workers[os.pidfd_open(worker)] = worker
    # Not reaped before its group is gone: until then nothing else can have its number.
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    here.close()
    for each in (exited, *workers):
        os.close(each)
    for worker in workers.values():
        os.waitpid(worker, 0)
    answer(connection, code=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def fork_a_worker(session: int, asked: socket.socket, opened: Sequence[int], kept: list[str]) -> int | None:
    """Fork what a session asks for, with its folder, environment and streams; None where it asks for nothing more."""
    data, streams, _, _ = socket.recv_fds(asked, 1 << 20, 3)
    if not data:
        return None
    while not data.endswith(b"\n"):
        if not (more := asked.recv(1 << 20)):
            return None
        data += more
    wanted = json.loads(data)

    def worker() -> int:
        os.setpgid(0, session)
        become(wanted["cwd"], wanted["env"], kept, streams)
        sys.argv[:] = ["-c"]
        sys.path[0] = ""
        return program(lambda: exec(wanted["program"], {"__name__": "__main__"}))

    number = fork(worker, [*opened, asked.fileno()])
    for each in streams:
        os.close(each)
    asked.sendall(number.to_bytes(4, "big"))
    return number


def answer(connection: socket.socket, **said: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(json.dumps(said).encode() + b"\n")


def fork(body: Callable[[], int], opened: Sequence[int] = (), *, ends: Callable[[int], NoReturn] | None = None) -> int:
    """The number of a child that does this and ends (`end` by default); what is `opened` here is closed there."""
    child = os.fork()
    if not child:
        try:
            for each in opened:
                os.close(each)
            (ends or end)(body())
        finally:
            traceback.print_exc()
            os._exit(70)
    return child


# In a child


def say_in(file: Path) -> None:
    """Have this file hold what the child says, instead of its parent's output."""
    said = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(said, stream)
    os.close(said)


def become(cwd: str, env: Mapping[str, str], kept: Sequence[str], streams: Sequence[int]) -> None:
    """Be as a process is that Python was started in with `-m`."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    added = env.get("PYTHONPATH", "")
    folders = [os.path.abspath(each) for each in added.split(os.pathsep)] if added else []
    sys.path[:] = list(dict.fromkeys([*([] if sys.flags.safe_path else [os.getcwd()]), *folders, *kept]))
    importlib.invalidate_caches()
    tempfile.tempdir = None  # from the environment, once
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()  # as `random` does by itself


def run(module: str) -> int:
    """Run it as a program; its exit code."""
    return program(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


def program(body: Callable[[], object]) -> int:
    """The exit code of a program that does this."""
    try:
        body()
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


def end(code: int) -> NoReturn:
    """End as a program does, but for taking every module apart, which takes longer than many a session."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    end_at_once(code)


def end_at_once(code: int) -> NoReturn:
    """End without what the parent is to do at its own end, such as to remove its temporary folders."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


class Forked:
    """A worker that was forked by the server, as execnet wants a `subprocess.Popen` to be."""

    def __init__(self, asking: socket.socket, program: str) -> None:
        their_input, its_input = os.pipe()
        its_output, their_output = os.pipe()
        wanted = {"cwd": os.getcwd(), "env": dict(os.environ), "program": program}
        socket.send_fds(asking, [json.dumps(wanted).encode() + b"\n"], [their_input, their_output, 2])
        os.close(their_input)
        os.close(their_output)
        self.pid = int.from_bytes(asking.recv(4), "big")
        self.stdin: IO[bytes] = os.fdopen(its_input, "wb")
        self.stdout: IO[bytes] = os.fdopen(its_output, "rb")
        self._exited = os.pidfd_open(self.pid)

    def wait(self) -> int:
        select.select([self._exited], [], [])
        return 0

    def kill(self) -> None:
        signal.pidfd_send_signal(self._exited, signal.SIGKILL)

    @staticmethod
    def take_the_place_of_popen(asking: socket.socket) -> None:
        """Have execnet start its workers so, where nothing that is read at the start has changed in this process."""
        try:
            from execnet import gateway_base, gateway_io
        except ImportError:
            return
        before, start = at_start(os.environ), gateway_io.Popen2IOMaster.__init__

        def fork_or_start(self: Any, args: list[str], execmodel: Any) -> None:
            if args != [sys.executable, "-u", "-c", gateway_io.popen_bootstrapline] or at_start(os.environ) != before:
                start(self, args, execmodel)
                return
            self.popen = Forked(asking, gateway_io.popen_bootstrapline)
            gateway_base.Popen2IO.__init__(self, self.popen.stdin, self.popen.stdout, execmodel=execmodel)

        gateway_io.Popen2IOMaster.__init__ = fork_or_start  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
