"""Sessions of pytest in processes of their own, for tests of what a whole session does.

Most of the time of a session goes into importing torch. So a session is forked from a process that has imported it, of
which each process that runs tests has its own; see `support.forking`. What cannot be forked is run by a fresh Python:
`Server.why_fresh` says what that is. With COMPILECONTRACT_FRESH_SESSIONS=1, all are. Both ways have to show the same.

What is about starting up, importing, or one process beside another starts a Python by itself, and not here.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

import pytest_compilecontract

from .forking import BARE, at_start, fork_pythons, other_modules

PACKAGE_IN = Path(pytest_compilecontract.__file__).parents[1]
UNUSED = "-p no:hypothesispytest -p no:anyio"
FRESH = "COMPILECONTRACT_FRESH_SESSIONS"


# What Inductor has found out of the processor in this process, if anybody had it do so (`know_the_processor`).
PROCESSOR: dict[str, bool] = {}


class ServerDiedError(Exception):
    """The process that forks sessions has gone while a session ran."""


class Server:
    """A process that forks sessions which start with these variables; a `bare` one has imported nothing for them."""

    def __init__(self, env: Mapping[str, str], *, bare: bool = False) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        here, there = socket.socketpair()
        asked, self._asking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there, asked:
            passed = [each.fileno() for each in (there, asked, self._asking)]
            # Its Python has no PYTHONPATH: that is each session's own.
            self._running = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("forking.py")),
                    *map(str, passed),
                    BARE if bare else str(PACKAGE_IN),
                    json.dumps(PROCESSOR if at_start(env) == at_start(os.environ) else {}),
                ],
                cwd=tempfile.gettempdir(),
                env={name: value for name, value in env.items() if name != "PYTHONPATH"},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=passed,
                start_new_session=True,
            )
        self._connection = here
        self._starts_with = at_start(env)
        self._lines = here.makefile("rb")
        ready = self._answer()
        self.refused: str | None = ready["refused"]
        self._loaded = frozenset(ready["loaded"])

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def alive(self) -> bool:
        return self._connection.fileno() != -1 and self._running.poll() is None

    def why_fresh(self, cwd: str, env: Mapping[str, str]) -> str | None:
        """Why a session in this folder, with this environment, cannot be forked from here, or None."""
        if self.refused is not None:
            return self.refused
        return other_modules(cwd, env, self._loaded)

    def fork_pythons(self) -> Callable[[], None]:
        """Have this server fork what this process starts with its own Python; what ends that again."""
        return fork_pythons(self._asking, self._loaded, self._starts_with)

    def run(self, timeout: float | None, **request: Any) -> int | None:
        """The exit code of a session that is forked for this request; None where it was killed after so many seconds.

        Raises:
            ServerDiedError: the server has gone.
        """
        child = 0
        try:
            self._connection.sendall(json.dumps(request).encode() + b"\n")
            child = self._answer()["child"]
            self._connection.settimeout(timeout)
            code: int = self._answer()["code"]
        except TimeoutError:
            self.close()
            return None
        except BaseException:
            self.close()
            # Where the server is dead already, nobody else ends it.
            with contextlib.suppress(ProcessLookupError):
                if child:
                    os.killpg(child, signal.SIGKILL)
            raise
        self._connection.settimeout(None)
        return code

    def close(self) -> None:
        """Let it end, and the session that it has running: it sees that nobody asks any more."""
        self._lines.close()
        self._connection.close()
        self._asking.close()
        try:
            self._running.wait(10)
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._running.wait()
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
        except ConnectionError:
            line = b""
        if not line:
            ended = self._running.wait()
            self._log.seek(0)
            said = self._log.read().decode(errors="replace").strip()
            raise ServerDiedError(f"the process that forks sessions ended with {ended}, and said {said!r}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Servers:
    """The servers of this process, one for each set of variables that is read at the start; few, as each is large."""

    def __init__(self, most: int = 2, *, bare: bool = False) -> None:
        self._most = most
        self._bare = bare
        self._there: dict[tuple[object, ...], Server] = {}

    def find(self, env: Mapping[str, str]) -> Server:
        """The server for sessions with this environment; a new one where there is none, or where it has gone."""
        key = (os.getpid(), *sorted(at_start(env).items()))
        server = self._there.pop(key, None)
        if server is None or not server.alive:
            while len(self._there) >= self._most:
                self._there.pop(next(iter(self._there))).close()
            server = Server(env, bare=self._bare)
        self._there[key] = server  # the last to go
        return server

    def close(self) -> None:
        while self._there:
            self._there.popitem()[1].close()


SERVERS = Servers()
atexit.register(SERVERS.close)


@contextlib.contextmanager
def forked_pythons(env: Mapping[str, str] | None = None) -> Iterator[None]:
    """For as long as the `with` lasts, what this process starts with its own Python is forked where it can be.

    That is where it starts with what `env` (default: this process's) has of variables that are read at the start.
    """
    variables = os.environ if env is None else env
    if variables.get(FRESH) == "1" or sys.platform != "linux" or (server := SERVERS.find(variables)).refused:
        yield
        return
    put_back = server.fork_pythons()
    try:
        yield
    finally:
        put_back()


def run_session(
    command: Sequence[str | os.PathLike[str]],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of `sys.executable -m MODULE ...`, with its output captured as text and nothing on its input.

    What it leaves running is killed.

    Raises:
        subprocess.TimeoutExpired: it was killed after so many seconds.
        ServerDiedError: the process that it was forked from has gone while it ran.
    """
    words = [os.fspath(each) for each in command]
    assert words[:2] == [sys.executable, "-m"], words
    folder, variables = os.fspath(cwd or os.getcwd()), dict(os.environ if env is None else env)
    # Others' plugins, which take a while to import and are of no use to a session here.
    variables["PYTEST_ADDOPTS"] = f"{UNUSED} {variables.get('PYTEST_ADDOPTS', '')}".strip()
    with tempfile.TemporaryDirectory(prefix="session-") as kept:
        out, err = (Path(kept) / name for name in ("stdout", "stderr"))
        out.touch()
        err.touch()
        server = None if variables.get(FRESH) == "1" or sys.platform != "linux" else SERVERS.find(variables)
        if server is None or server.why_fresh(folder, variables) is not None:
            code = _run_fresh(words, folder, variables, timeout, out, err)
        else:
            _, _, module, *arguments = words
            code = server.run(
                timeout,
                module=module,
                arguments=arguments,
                cwd=folder,
                env=variables,
                stdout=str(out),
                stderr=str(err),
            )
        # As `text=True` reads a pipe.
        said, complained = (file.read_text(errors="replace") for file in (out, err))
    if code is None:
        assert timeout is not None
        raise subprocess.TimeoutExpired(words, timeout, said.encode(), complained.encode())
    return subprocess.CompletedProcess(words, code, said, complained)


def runpytest_session(
    pytester: pytest.Pytester, *arguments: str | os.PathLike[str], timeout: float | None = None
) -> pytest.RunResult:
    """`pytester.runpytest_subprocess`, forked where it can be."""
    paths = (str(Path.cwd()), os.environ.get("PYTHONPATH", ""))
    began = time.perf_counter()
    ran = run_session(
        [sys.executable, "-m", "pytest", f"--basetemp={pytester.path / 'runpytest-0'}", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        timeout=timeout,
    )
    # For who reads of a failure what the session said, as pytester shows it.
    sys.stdout.write(ran.stdout)
    sys.stderr.write(ran.stderr)
    code: int | pytest.ExitCode = ran.returncode
    with contextlib.suppress(ValueError):
        code = pytest.ExitCode(code)
    return pytest.RunResult(code, ran.stdout.splitlines(), ran.stderr.splitlines(), time.perf_counter() - began)


def _run_fresh(
    words: list[str], cwd: str, env: dict[str, str], timeout: float | None, out: Path, err: Path
) -> int | None:
    with out.open("wb") as out_file, err.open("wb") as err_file:
        running = subprocess.Popen(
            words,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out_file,
            stderr=err_file,
            start_new_session=True,
        )
    try:
        return running.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
