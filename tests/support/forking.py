"""A process that has imported torch and forks sessions of pytest: what it does, and what a child of it does first.

Started by `support.sessions` as a program with the number of a socket, over which requests and answers go, a line of
JSON each. No plugin of pytest is imported here, and the project only for who imports it (`support.preloaded`): a
session imports those by itself.

What a session starts with its own Python is forked from here too, such as workers of pytest-xdist, ranks, and the
sessions of a command: see `support.stand_in`, which is what the session has started, as far as it can tell.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import hashlib
import importlib
import importlib.machinery
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

# What costs seconds, and what a first compile imports. No module that starts anything when it is imported.
MODULES = ("pytest", "msgspec", "jsonschema", "jinja2", "torch", "torch._dynamo", "torch._inductor.compile_fx")
# The same, where there is such a module.
OPTIONAL = (
    *("torch.distributed.tensor.experimental", "torch.export._trace", "torch._dynamo.repro.after_dynamo"),
    *("sympy.combinatorics", "sympy.tensor.tensor", "packaging.specifiers", "tomllib", "execnet", "pdb"),
)
# The word for a process in which nothing is imported: what it does with its children is the same.
BARE = "bare"
SUFFIXES = tuple(importlib.machinery.all_suffixes())
# How the names of variables begin that are read when Python starts or torch is imported, and not again in a child.
READ_AT_START = (
    *("PYTHON", "LD_", "LC_", "LANG", "MALLOC_"),
    *("TORCH", "PYTORCH", "ATEN", "AOT", "INDUCTOR", "PT2_", "FX_", "TRITON", "NUMPY", "NPY_", "CI", "CC", "CXX"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "CUDA", "CUBLAS", "CUDNN", "NVIDIA", "HIP_", "ROCM", "ROCR_"),
)


# What `Starts.become` sees to, where torch looks up each time that it compiles, and what torchrun tells a rank.
READ_IN_A_CHILD = ("PYTHONPATH", "PYTHONUNBUFFERED", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHELASTIC_")
READ_IN_A_CHILD += ("TORCH_NCCL_ASYNC_ERROR_HANDLING",)


def at_start(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that are read when Python starts or torch is imported, but for those that each session has read."""
    read = (name for name in env if name.startswith(READ_AT_START) and not name.startswith(READ_IN_A_CHILD))
    return {name: env[name] for name in read}


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A session: `python -m module *arguments`, its folder and environment, and the files that its output goes to."""

    module: str
    arguments: list[str]
    cwd: str
    env: dict[str, str]
    stdout: str
    stderr: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Child:
    """A process that was forked here, and who is told how it ends."""

    pid: int
    asker: socket.socket


def main() -> None:
    connection, asked, asking = (socket.socket(fileno=int(each)) for each in sys.argv[1:4])
    asking.set_inheritable(False)
    refused, preloaded = None, None
    # What is imported stays.
    gc.disable()
    if (package := sys.argv[4]) != BARE:
        refused = why_not()
        if refused is None and (known := json.loads(sys.argv[5])):
            know_the_processor(known)
        # This file's folder is the first of the path.
        preloaded = importlib.import_module("preloaded").preload(Path(package)) if refused is None else None
    answer(connection, refused=refused, loaded=sorted(loaded()))
    if refused is not None:
        return
    # What is here already is not looked at by a child's garbage collector.
    gc.collect()
    gc.freeze()
    gc.enable()
    starts = Starts(asking=asking, kept=tuple(sys.path[1:]), loaded=loaded(), preloaded=preloaded)
    Server(connection, asked, starts).serve()


def loaded() -> frozenset[str]:
    """The names of what is imported here, and of what Python itself looks for on its path."""
    return frozenset(name.partition(".")[0] for name in sys.modules) | {"sitecustomize", "usercustomize"}


def modules_in(folder: Path) -> set[str]:
    """The names of the modules and packages that can be imported from there."""
    if not folder.is_dir():
        return set()
    files = {file.name.partition(".")[0] for file in folder.iterdir() if file.name.endswith(SUFFIXES)}
    return files | {file.parent.name for file in folder.glob("*/__init__.*")}


def other_modules(cwd: str, env: Mapping[str, str], loaded: frozenset[str]) -> str | None:
    """What a process in this folder, with this environment, would import in place of what is loaded, or None."""
    for folder in (cwd, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))):
        if found := sorted(loaded & modules_in(Path(cwd, folder))):
            return f"{folder} has other modules of what is imported: {', '.join(found)}"
    return None


def leave_guards_untimed() -> None:
    """Have Dynamo not time the guards that it has made: it writes over the processor's caches first, which takes longer
    than the rest of many a small compile, and nothing but torch's own log has the figure."""
    guards: Any = importlib.import_module("torch._dynamo.guards")
    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = lambda *_: 0.0


def know_the_processor(known: Mapping[str, bool] | None = None) -> dict[str, bool]:
    """Have Inductor find out which instructions it may use in C++: what it asks, and the answers, some of them `known`.

    For each answer it starts a Python that loads a program made for it: a second in each session that writes C++, and
    twenty up to torch 2.12, whose Python imports torch for that.
    """
    answers: dict[str, bool] = {}
    # Where it cannot be told here, a session finds out for itself why not.
    with contextlib.suppress(Exception):
        processor: Any = importlib.import_module("torch._inductor.cpu_vec_isa")
        check = processor.VecISA.check_build

        def answer_once(self: Any, code: str) -> bool:
            asked = f"{self.build_arch_flags()} {hashlib.sha256(code.encode()).hexdigest()}"
            answers[asked] = (known or {})[asked] if asked in (known or {}) else check(self, code)
            return answers[asked]

        processor.VecISA.check_build = answer_once
        try:
            processor.valid_vec_isa_list()
        finally:
            processor.VecISA.check_build = check
    return answers


def import_all() -> None:
    """Import what takes a session long."""
    with warnings.catch_warnings():
        # A session warns of what it imports where it imports it; here nobody would see it.
        warnings.simplefilter("ignore")
        for name in MODULES:
            importlib.import_module(name)
        for name in OPTIONAL:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def why_not() -> str | None:
    """Import all that a session would; why no session can be forked from here, or None."""
    try:
        import_all()
    except ImportError as error:
        return f"{type(error).__name__}: {error}"
    leave_guards_untimed()
    if threading.active_count() > 1:
        return f"importing has started threads: {', '.join(each.name for each in threading.enumerate())}"
    if "libcuda.so" in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"):
        return "importing has loaded CUDA's driver, which cannot be used after a fork"
    return None


# In the server


class Server:
    """Forks one session after the other, and what these start by `support.stand_in`, and says how each ends."""

    def __init__(self, connection: socket.socket, asked: socket.socket, starts: Starts) -> None:
        self._connection = connection
        self._asked = asked
        self._starts = starts
        self._children: dict[int, Child] = {}  # by what says that it has ended

    def serve(self) -> None:
        """Go on until nobody is there who asks for sessions."""
        while True:
            askers = {child.asker: child for child in self._children.values() if child.asker is not self._connection}
            ready = select.select([self._connection, self._asked, *self._children, *askers], [], [])[0]
            for each in self._children.keys() & ready:
                self._end(each)
            for child in (askers[each] for each in askers.keys() & ready):
                # Who asked for it says nothing more: it has gone.
                kill_all_of(child.pid)
            if self._asked in ready:
                self._fork_what_is_asked_for()
            if self._connection in ready and not self._goes_on():
                break
        for child in self._children.values():
            kill_all_of(child.pid)

    def _goes_on(self) -> bool:
        """Fork the session that is asked for; whether somebody did."""
        running = any(child.asker is self._connection for child in self._children.values())
        if running or not (line := line_of(self._connection)):
            return False
        request, starts = Request(**json.loads(line)), self._starts

        def session() -> int:
            streams = [os.open(os.devnull, os.O_RDONLY)]
            streams += [os.open(file, os.O_WRONLY | os.O_APPEND) for file in (request.stdout, request.stderr)]
            starts.become(request.cwd, request.env, streams)
            sys.argv[:] = [request.module, *request.arguments]
            return run(request.module)

        answer(self._connection, child=self._fork(session, self._connection))
        return True

    def _fork_what_is_asked_for(self) -> None:
        _, (number, *_), _, _ = socket.recv_fds(self._asked, 1, 1)
        asker, starts = socket.socket(fileno=number), self._starts
        _, streams, _, _ = socket.recv_fds(asker, 1, 3)
        wanted = json.loads(line_of(asker) or b"null")

        def python() -> int:
            with contextlib.suppress(PermissionError):  # of another session of processes
                os.setpgid(0, wanted["group"])
            starts.become(wanted["cwd"], wanted["env"], streams)
            os.getppid = functools.partial(parent_or_none, os.pidfd_open(wanted["parent"]), wanted["parent"])
            return run_words(wanted["words"])

        if wanted is None:
            asker.close()
        else:
            asker.sendall(b"%d\n" % self._fork(python, asker))
        for each in streams:
            os.close(each)

    def _fork(self, body: Callable[[], int], asker: socket.socket) -> int:
        def in_a_group_of_its_own() -> int:
            os.setpgid(0, 0)
            return body()

        sockets = {self._connection, self._asked, asker, *(child.asker for child in self._children.values())}
        pid = fork(in_a_group_of_its_own, [*(each.fileno() for each in sockets), *self._children])
        self._children[os.pidfd_open(pid)] = Child(pid=pid, asker=asker)
        return pid

    def _end(self, exited: int) -> None:
        """What it leaves running is killed, and who asked for it hears its exit code."""
        child = self._children.pop(exited)
        os.close(exited)
        # Not reaped before its group is gone: until then nothing else can have its number.
        kill_all_of(child.pid)
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        if child.asker is self._connection:
            answer(self._connection, code=code)
        else:
            with contextlib.suppress(BrokenPipeError), child.asker:
                child.asker.sendall(b"%d\n" % code)


def kill_all_of(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(group, signal.SIGKILL)


def line_of(asker: socket.socket) -> bytes:
    """The line that it sends; empty where it has gone."""
    with contextlib.suppress(ConnectionError), asker.makefile("rb") as lines:
        return lines.readline()
    return b""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Starts:
    """What a child starts from: over what it asks for others, what stays on its path, what is imported, and what has
    its modules of the package (`support.preloaded`)."""

    asking: socket.socket
    kept: tuple[str, ...]
    loaded: frozenset[str]
    preloaded: Any

    def become(self, cwd: str, env: Mapping[str, str], streams: Sequence[int]) -> None:
        """Be as a process is that Python was started in with `-m`."""
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        added = env.get("PYTHONPATH", "")
        folders = [os.path.abspath(each) for each in added.split(os.pathsep)] if added else []
        sys.path[:] = list(dict.fromkeys([*([] if sys.flags.safe_path else [os.getcwd()]), *folders, *self.kept]))
        importlib.invalidate_caches()
        if self.preloaded is not None:
            self.preloaded.install()
        if env.get("PYTHONUNBUFFERED"):
            for stream in (sys.stdout, sys.stderr):
                stream.reconfigure(write_through=True)  # type: ignore[union-attr]
        tempfile.tempdir = None  # from the environment, once
        if spawning := sys.modules.get("multiprocessing.process"):
            spawning.ORIGINAL_DIR = os.getcwd()  # where a script is, for the processes that it spawns
        if numpy := sys.modules.get("numpy.random"):
            numpy.seed()  # as `random` does by itself
        fork_pythons(self.asking, self.loaded, at_start(os.environ))


# As it is given to a Popen whose process may be a forked one: nothing of it is about the process itself.
PLAIN = {"stdin", "stdout", "stderr", "cwd", "env", "text", "encoding", "errors", "bufsize", "start_new_session"}
PLAIN |= {"universal_newlines"}
STAND_IN = str(Path(__file__).with_name("stand_in.py"))


def fork_pythons(asking: socket.socket, loaded: frozenset[str], before: Mapping[str, str]) -> Callable[[], None]:
    """Have what this process starts with its own Python be forked by the server; what ends that again.

    A Python is started where anything that is read at its start is not as `before`, or it would import other modules.
    """
    start = subprocess.Popen.__init__

    def can_be_forked(words: list[Any], options: Mapping[str, Any]) -> bool:
        if words[:1] != [sys.executable] or options.keys() - PLAIN:
            return False
        kind = next(iter(words[2:3] if words[1:2] == ["-u"] else words[1:2]), "")
        if kind not in ("-m", "-c") and (kind.startswith("-") or not kind.endswith(".py")):
            return False
        env = os.environ if (given := options.get("env")) is None else given
        cwd = os.path.abspath(options.get("cwd") or os.getcwd())
        first = cwd if kind.startswith("-") else folder_of(os.path.join(cwd, kind))
        return at_start(env) == before and other_modules(first, env, loaded) is None

    @functools.wraps(start)
    def fork_or_start(self: Any, args: Any, *positional: Any, **options: Any) -> None:
        if positional or not isinstance(args, (list, tuple)) or not can_be_forked([*args], options):
            start(self, args, *positional, **options)
            return
        words = [sys.executable, "-I", "-S", STAND_IN, str(asking.fileno()), *args[1:]]
        start(self, words, **options, pass_fds=[asking.fileno()])
        self.args = args

    def put_back() -> None:
        subprocess.Popen.__init__ = start  # type: ignore[method-assign]

    subprocess.Popen.__init__ = fork_or_start  # type: ignore[method-assign]
    return put_back


def parent_or_none(exited: int, parent: int) -> int:
    """The process that would be this one's parent, had it not been forked; 1 once that has gone, as of any orphan."""
    return 1 if select.select([exited], [], [], 0)[0] else parent


def folder_of(script: str) -> str:
    """The first folder that a script imports from."""
    return os.path.dirname(os.path.realpath(script))


def run_words(words: Sequence[str]) -> int:
    """Run what Python's own arguments say: `-m module ...`, `-c program ...` or `script.py ...`; its exit code."""
    kind, *rest = words[1:] if words[0] == "-u" else words
    if not kind.startswith("-"):
        sys.argv[:] = [kind, *rest]
        sys.path[:] = [folder_of(kind), *sys.path[1:]]
        return program(lambda: runpy.run_path(kind, run_name="__main__"))
    what, *arguments = rest
    if kind == "-m":
        sys.argv[:] = [what, *arguments]
        return run(what)
    sys.argv[:] = ["-c", *arguments]
    sys.path[0] = ""
    return program(lambda: exec(what, {"__name__": "__main__"}))


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


if __name__ == "__main__":
    main()
