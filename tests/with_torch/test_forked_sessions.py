"""Sessions that are forked from a process which has imported torch: as a fresh Python would run them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.sessions import FRESH, PROCESSOR, SERVERS, ServerDiedError, Servers, run_session, runpytest_session

pytestmark = [
    pytest.mark.insides,
    pytest.mark.skipif(sys.platform != "linux", reason="sessions are forked on Linux alone"),
]

NO_MORE: Mapping[str, str] = {}
WAYS = pytest.mark.parametrize("way", [{}, {FRESH: "1"}], ids=["forked", "fresh"])


def ran(
    folder: Path, body: str, variables: Mapping[str, str] = NO_MORE, *, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """A session with this test, without what other plugins print."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(body)
    env = {**os.environ, **variables}
    if FRESH not in variables:
        assert SERVERS.find(env).why_fresh(str(folder), env) is None
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    return run_session(command, cwd=folder, env=env, timeout=timeout)


def gone(pid: int, seconds: float = 10) -> bool:
    """Whether there is no such process any more, or only one that nobody has waited for."""
    for _ in range(int(seconds * 20)):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


# As a process that was started for it


ABOUT = """
import atexit, json, os, resource, signal, sys, tempfile, threading
from pathlib import Path


def test_it():
    about = {
        "arguments": sys.argv[1:],
        "program": Path(sys.argv[0]).name,
        "cwd": os.getcwd(),
        "path": sys.path,
        "environ": dict(os.environ),
        "flags": list(sys.flags),
        "leads its group": os.getpgrp() == os.getpid(),
        "stdin": sys.stdin.read(),
        "encodings": [each.encoding for each in (sys.stdin, sys.stdout, sys.stderr)],
        "terminal": [each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr)],
        "files": sorted(int(each) for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")),
        "signals": {each.name: str(signal.getsignal(each)) for each in signal.Signals},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "threads": threading.active_count(),
        "umask": os.umask(0o22),
        "limits": resource.getrlimit(resource.RLIMIT_CORE),
        "temporary": tempfile.gettempdir(),
        "main": sys.modules["__main__"].__spec__.name,
        "plugins": sorted(each for each in sys.modules if each.startswith("pytest_compilecontract")),
    }
    atexit.register(Path("about.json").write_text, json.dumps(about))
"""


def about(folder: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    result = ran(folder, ABOUT, variables)
    assert result.returncode == 0, result.stdout + result.stderr
    found: dict[str, Any] = json.loads((folder / "about.json").read_text())
    return found


def test_a_session_finds_what_a_fresh_one_does(tmp_path: Path) -> None:
    variables = {"TMPDIR": str(tmp_path), "BESIDE": "1", "PYTHONPATH": os.pathsep.join([str(tmp_path), "relative"])}

    forked = about(tmp_path / "suite", variables)
    fresh = about(tmp_path / "suite", {**variables, FRESH: "1"})

    assert fresh["environ"].pop(FRESH) == "1"
    fresh["files"].append(forked["files"][-1])  # over which it asks for workers
    assert forked == fresh
    assert forked["temporary"] == str(tmp_path)


MODULES = """
import json, sys
from pathlib import Path


def test_it(compile_lane):
    compile_lane.run(abs, (-1,))
    found = {
        name: {
            "spec": [module.__spec__.name, module.__spec__.origin, module.__spec__.submodule_search_locations],
            "file": module.__file__,
            "package": module.__package__,
            "names": {key: getattr(value, "__name__", "") for key, value in vars(module).items()},
        }
        for name, module in sys.modules.items()
        if name.startswith("pytest_compilecontract")
    }
    Path("modules.json").write_text(json.dumps(found))
"""


def modules(folder: Path, variables: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """What a session that measures has imported of the package, and which names each module has."""
    options = {"PYTEST_ADDOPTS": "--compile-contracts --contract-lanes=capture", **variables}
    result = ran(folder, MODULES, options)
    assert (folder / "modules.json").exists(), result.stdout + result.stderr
    found: dict[str, dict[str, Any]] = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").unlink()
    for each in found.values():
        # A rewritten module has these.
        each["names"] = {name: each["names"][name] for name in sorted(each["names"]) if name[:3] not in ("@py", "__c")}
    return found


def test_a_session_imports_of_the_package_what_a_fresh_one_does(tmp_path: Path) -> None:
    forked, fresh = modules(tmp_path, {}), modules(tmp_path, {FRESH: "1"})

    assert "pytest_compilecontract.measure.compile_lane" in forked
    assert list(forked) == list(fresh)
    assert forked == fresh


CODES = {
    "exits": ("import os\n\ndef test_it():\n    os._exit(7)\n", 7),
    "segfault": ("import ctypes\n\ndef test_it():\n    ctypes.string_at(0)\n", -signal.SIGSEGV),
    "killed": ("import os, signal\n\ndef test_it():\n    os.kill(os.getpid(), signal.SIGKILL)\n", -signal.SIGKILL),
    "interrupted": ("import os, signal\n\ndef test_it():\n    os.kill(os.getpid(), signal.SIGINT)\n", 2),
    "fails": ("def test_it():\n    assert False\n", 1),
    "usage": ("import nowhere\n", 2),
    "exit with a word": ("import pytest\n\ndef test_it():\n    pytest.exit('enough', returncode=9)\n", 9),
}


@WAYS
@pytest.mark.parametrize("case", CODES)
def test_its_exit_code_is_that_of_a_process(tmp_path: Path, case: str, way: dict[str, str]) -> None:
    body, code = CODES[case]

    assert ran(tmp_path, body, way).returncode == code


@WAYS
def test_a_thread_that_is_left_is_waited_for_and_then_what_is_to_run_at_the_end(
    tmp_path: Path, way: dict[str, str]
) -> None:
    body = (
        "import atexit, threading, time\n\n"
        "def late():\n    time.sleep(0.5)\n    print('thread')\n\n"
        "def test_it():\n    atexit.register(print, 'end')\n    threading.Thread(target=late).start()\n"
    )

    result = ran(tmp_path, body, way)

    assert (result.returncode, result.stdout.splitlines()[-2:]) == (0, ["thread", "end"])


@WAYS
def test_output_is_whole_and_on_its_side(tmp_path: Path, way: dict[str, str]) -> None:
    body = (
        "import os, sys\n\ndef test_it():\n    print('o' * 1_000_000)\n    print('e' * 1_000_000, file=sys.stderr)\n"
        "    os.write(1, 'ü\\n'.encode())\n    os.system('echo from a child')\n"
    )

    result = ran(tmp_path, body, way)

    assert (result.stdout.count("o" * 1_000_000), result.stderr.strip()) == (1, "e" * 1_000_000)
    assert "ü" in result.stdout.split()
    assert "from a child" in result.stdout


def test_another_module_runs_as_its_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\n\nprint(__name__, sys.argv[1:])\nsys.exit('no')\n")

    result = run_session([sys.executable, "-m", "program", "a", "b"], cwd=tmp_path)

    assert (result.returncode, result.stdout, result.stderr) == (1, "__main__ ['a', 'b']\n", "no\n")


def test_pytester_gets_its_own_kind_of_result(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass\n\ndef test_other(): assert 0\n")

    result = runpytest_session(pytester)

    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


# Apart from one another


def test_two_sessions_do_not_see_one_another(tmp_path: Path) -> None:
    body = (
        "import os, sys\n\nimport torch\n\n"
        "def test_it():\n"
        "    assert 'LEFT' not in os.environ and 'left' not in sys.modules and not hasattr(torch, 'left')\n"
        "    assert torch.get_default_dtype() == torch.float32 and os.getcwd() == WHERE\n"
        "    os.environ['LEFT'] = sys.modules['left'] = torch.left = '1'\n"
        "    torch.set_default_dtype(torch.float64)\n"
        "    os.chdir('/')\n    sys.path.clear()\n"
    )
    for _ in range(2):
        result = ran(tmp_path, f"WHERE = {str(tmp_path)!r}\n{body}")

        assert result.returncode == 0, result.stdout


@WAYS
def test_random_numbers_are_not_the_same_in_each(tmp_path: Path, way: dict[str, str]) -> None:
    body = "import random, numpy\n\ndef test_it():\n    print('drawn', random.random(), numpy.random.random())\n"
    pytest.importorskip("numpy")

    drawn = [number for _ in range(2) for number in ran(tmp_path, body, way).stdout.split()[1:3]]

    assert len(set(drawn)) == 4


# With workers of pytest-xdist

IN_WORKERS = """
import os, sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", range(4))
def test_it(number):
    name = os.environ["PYTEST_XDIST_WORKER"]
    about = [os.environ.get("LATE"), os.getcwd(), sys.argv[1:], sys.path, os.getpgrp()]
    Path(f"{name}-{number}").write_text(repr(about))
    if os.environ.get("DIES") and number == 2:
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)
"""


def in_workers(folder: Path, variables: Mapping[str, str]) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """A session with two workers, and what each test saw of its own, without the number of its process group."""
    pytest.importorskip("xdist")
    folder.mkdir()
    result = ran(folder, IN_WORKERS, {**variables, "PYTEST_ADDOPTS": "-n2"})
    return result, {file.read_text().rpartition(",")[0].replace(str(folder), "") for file in folder.glob("gw*")}


def test_workers_find_what_fresh_ones_do(tmp_path: Path) -> None:
    forked, seen = in_workers(tmp_path / "forked", {})
    fresh, seen_fresh = in_workers(tmp_path / "fresh", {FRESH: "1"})

    assert seen == seen_fresh
    assert len(seen) == 1
    assert (forked.returncode, forked.stderr) == (fresh.returncode, fresh.stderr) == (0, "")
    assert "4 passed" in forked.stdout


@WAYS
def test_a_worker_that_dies_is_told_and_replaced(tmp_path: Path, way: dict[str, str]) -> None:
    result, _ = in_workers(tmp_path / "suite", {"DIES": "1", **way})

    assert "1 failed, 3 passed" in result.stdout
    assert "crashed while running 'test_it.py::test_it[2]'" in result.stdout
    assert "last words" in result.stdout + result.stderr
    assert result.returncode == 1


def test_workers_are_fresh_where_the_session_changes_what_is_read_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import os\n\nos.environ['LATE'] = 'parent'\nos.environ.setdefault('TRITON_INTERPRET', '1')\n"
    )
    body = "import os, sys\n\ndef test_it():\n    open(os.environ['LATE'], 'w').write(str(sys.orig_argv))\n"
    pytest.importorskip("xdist")

    result = ran(tmp_path, body, {"PYTEST_ADDOPTS": "-n1"})

    assert result.returncode == 0
    assert "forking.py" not in (tmp_path / "parent").read_text()


# With what it starts by its own Python

PROGRAM = """
import json, os, signal, sys, time

what = sys.argv[1]
if what == "exits":
    sys.exit(7)
if what == "dies":
    os.kill(os.getpid(), signal.SIGSEGV)
about = {
    "arguments": sys.argv[1:],
    "cwd": os.getcwd(),
    "path": sys.path,
    "environ": dict(os.environ),
    "stdin": sys.stdin.read(),
    "leads its group": os.getpgrp() == os.getpid(),
}
print(json.dumps({**about, "id": os.getpid(), "parent": os.getppid(), "forked": "forking.py" in str(sys.orig_argv)}))
print("last", file=sys.stderr)
if what == "stays":
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(5))
    print("ready", flush=True)
    time.sleep(600)
"""
STARTS = """
import json, os, signal, subprocess, sys
from pathlib import Path

PROGRAM = [sys.executable, "-m", "program"]


def test_it():
    env = {**os.environ, "GIVEN": "1", "PYTHONPATH": os.getcwd()}
    ran = subprocess.run([*PROGRAM, "says"], input="in", capture_output=True, text=True, cwd="other", env=env)
    text = [sys.executable, "-c", "import sys; print(sys.argv, sys.path[0])", "word"]
    about = [ran.returncode, ran.stderr, json.loads(ran.stdout), subprocess.check_output(text, text=True)]
    about += [subprocess.run([*PROGRAM, each]).returncode for each in ("exits", "dies")]
    script = [sys.executable, "-u", os.path.join("..", "program.py"), "says", "more"]
    about.append(json.loads(subprocess.check_output(script, stdin=-3, cwd="other")))
    ids = []
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL):
        child = subprocess.Popen([*PROGRAM, "stays"], stdin=-3, stdout=-1, start_new_session=True)
        ids.append(json.loads(child.stdout.readline())["id"])
        assert child.stdout.readline() == b"ready\\n"
        child.send_signal(number)
        about.append(child.wait())
    Path("about.json").write_text(json.dumps([os.getpid(), ids, about]))
"""


def test_what_a_session_starts_is_as_a_fresh_python_is(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "other").mkdir()
    seen = {}
    for way in ({}, {FRESH: "1"}):
        result = ran(tmp_path, STARTS, way)

        assert result.returncode == 0, result.stdout
        session, ids, about = json.loads((tmp_path / "about.json").read_text())
        assert [gone(each) for each in ids] == [True, True, True]
        for facts in (about[2], about[6]):
            assert (facts.pop("parent"), facts.pop("forked")) == (session, not way)
            assert facts.pop("id") != session
            for name in (FRESH, "PYTEST_CURRENT_TEST"):
                facts["environ"].pop(name, None)
        seen["fresh" if way else "forked"] = about

    assert seen["forked"] == seen["fresh"]
    assert seen["forked"][4:6] == [7, -signal.SIGSEGV]
    assert seen["forked"][7:] == [5, -signal.SIGTERM, -signal.SIGKILL]


def test_what_is_started_and_orphaned_sees_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import os, time\n\nopen('begun', 'w').close()\nwhile os.getppid() != 1:\n    time.sleep(0.05)\n"
        "os.rename('begun', 'orphaned')\n"
    )
    body = (
        "import os, subprocess, sys, time\n\ndef test_it():\n"
        "    subprocess.Popen([sys.executable, '-m', 'program'], start_new_session=True)\n"
        "    while not os.path.exists('begun'):\n        time.sleep(0.05)\n"
    )

    assert ran(tmp_path, body).returncode == 0
    for _ in range(200):
        if (tmp_path / "orphaned").exists():
            break
        time.sleep(0.05)
    assert (tmp_path / "orphaned").exists()


# What cannot be forked


@pytest.mark.parametrize(
    ("file", "name", "variables"),
    [
        ("torch.py", "torch", {}),
        ("other/torch/__init__.py", "torch", {"PYTHONPATH": "other"}),
        ("other/sitecustomize.py", "sitecustomize", {"PYTHONPATH": "other"}),
    ],
    ids=["torch-in-the-folder", "torch-on-the-path", "sitecustomize"],
)
def test_what_would_find_other_modules_is_run_by_a_fresh_python(
    tmp_path: Path, file: str, name: str, variables: dict[str, str]
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    server = SERVERS.find(os.environ)

    why = server.why_fresh(str(tmp_path), {**os.environ, **variables})

    assert why == f"{variables.get('PYTHONPATH', tmp_path)} has other modules of what is imported: {name}"


def test_what_is_read_at_the_start_has_a_server_of_its_own(tmp_path: Path) -> None:
    body = "def test_it():\n    import torch._inductor.config\n\n    print(torch._inductor.config.cpp.cxx)\n"

    result = ran(tmp_path, body, {"CXX": "/nonexistent"})

    assert result.stdout.splitlines()[0] == "(None, '/nonexistent')"
    assert SERVERS.find({**os.environ, "CXX": "/nonexistent"}) is not SERVERS.find(os.environ)
    assert SERVERS.find({**os.environ, "BESIDE": "1", "TORCHELASTIC_RUN_ID": "1"}) is SERVERS.find(os.environ)


PROCESSOR_ASKED = """
import json

import torch._inductor.cpu_vec_isa as processor
from support.forking import know_the_processor


def forget():
    caches = [processor.valid_vec_isa_list]
    for kind in (processor.VecISA, *map(type, processor.supported_vec_isa_list)):
        caches += [each for each in vars(kind).values() if hasattr(each, "cache_clear")]
    for each in caches:
        each.cache_clear()


def compiled(self, code):
    raise AssertionError("this answer is known")


def test_it():
    forget()
    processor.VecISA.check_build = lambda self, code: True
    yes = know_the_processor()
    usable = [str(each) for each in processor.valid_vec_isa_list()]
    forget()
    processor.VecISA.check_build = compiled
    again = know_the_processor(yes)
    assert (again, [str(each) for each in processor.valid_vec_isa_list()]) == (yes, usable)
    forget()
    know_the_processor(dict.fromkeys(yes, False))
    assert processor.valid_vec_isa_list() == [] or not yes
"""
PROCESSOR_TOLD = """
import torch._inductor.cpu_vec_isa as processor

del processor.VecISA.check_build


def test_it():
    print([(str(each), each.build_arch_flags()) for each in processor.valid_vec_isa_list()])
"""


def test_what_is_known_of_the_processor_is_not_asked_again(tmp_path: Path) -> None:
    result = ran(tmp_path, PROCESSOR_ASKED, {"PYTHONPATH": str(Path(__file__).parents[1])})

    assert result.returncode == 0, result.stdout


def test_a_session_is_told_what_the_process_before_it_knows_of_the_processor(tmp_path: Path) -> None:
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    if not PROCESSOR:
        pytest.skip("asked in workers of pytest-xdist alone (-n 2)")

    result = ran(tmp_path, PROCESSOR_TOLD)

    assert result.stdout.splitlines()[0] == str([(str(each), each.build_arch_flags()) for each in valid_vec_isa_list()])


# Where something ends before its time

HANGS = """
import os, subprocess, sys, time
from pathlib import Path


def test_it():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path("pids").write_text(f"{os.getpid()} {child.pid}")
    Path("pids").rename("here")
    time.sleep(WAIT)
"""


def pids(folder: Path) -> list[int]:
    for _ in range(1200):
        if (folder / "here").exists():
            return [int(each) for each in (folder / "here").read_text().split()]
        time.sleep(0.05)
    raise AssertionError("the session did not start")


@pytest.fixture
def servers() -> Iterator[Servers]:
    """Servers of their own, and bare: those of the other tests stay, whatever becomes of one here."""
    made = Servers(bare=True)
    yield made
    made.close()


@WAYS
def test_what_a_session_leaves_running_is_killed(tmp_path: Path, way: dict[str, str]) -> None:
    result = ran(tmp_path, f"WAIT = 0\n{HANGS}", way)

    assert result.returncode == 0
    assert [gone(each) for each in pids(tmp_path)] == [True, True]


@WAYS
def test_what_outlasts_its_time_is_killed_with_all_that_it_started(
    tmp_path: Path, way: dict[str, str], monkeypatch: pytest.MonkeyPatch, servers: Servers
) -> None:
    monkeypatch.setattr("support.sessions.SERVERS", servers)
    with pytest.raises(subprocess.TimeoutExpired):
        ran(tmp_path, f"WAIT = 600\nprint('so far', flush=True)\n{HANGS}", way, timeout=5)

    assert [gone(each) for each in pids(tmp_path)] == [True, True]
    assert ran(tmp_path, "def test_it(): pass\n", way).returncode == 0


def test_a_server_that_has_gone_is_another_server(servers: Servers) -> None:
    first = servers.find(os.environ)
    os.kill(first.pid, signal.SIGKILL)
    # Its first thread may have ended before the others: until then nobody can wait for it.
    assert gone(first.pid)
    first._running.wait(10)

    second = servers.find(os.environ)

    assert second is not first
    assert second.alive
    assert servers.find(os.environ) is second


def test_a_server_that_goes_while_a_session_runs_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: Servers
) -> None:
    monkeypatch.setattr("support.sessions.SERVERS", servers)
    server = servers.find(os.environ)
    body = f"import os, signal\n\nWAIT = 600\n{HANGS}".replace(
        "    time.sleep(", f"    os.kill({server.pid}, signal.SIGKILL)\n    time.sleep("
    )

    with pytest.raises(ServerDiedError) as caught:
        ran(tmp_path, body)

    assert str(caught.value) == "the process that forks sessions ended with -9, and said ''"
    assert [gone(each) for each in pids(tmp_path)] == [True, True]


def test_nothing_outlives_the_process_that_asked(tmp_path: Path) -> None:
    """As where a run of tests is killed, or a worker of pytest-xdist."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(f"WAIT = 600\n{HANGS}")
    asks = (
        "import os, sys\n\nfrom support import sessions\n\n"
        "sessions.SERVERS = sessions.Servers(bare=True)\n"
        "print(sessions.SERVERS.find(os.environ).pid, flush=True)\n"
        "sessions.run_session([sys.executable, '-m', 'pytest', '-s', '-p', 'no:cacheprovider'])\n"
    )
    paths = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen(
        [sys.executable, "-c", asks], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    ) as asking:
        assert asking.stdout is not None
        server = int(asking.stdout.readline())
        running = pids(tmp_path)
        asking.kill()

    assert [gone(each) for each in (server, *running)] == [True, True, True]
