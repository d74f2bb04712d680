"""Child processes: whoever gives up on the parent, by a request or by force, leaves no child and no folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SECONDS = 20.0
# A `check` whose child runs the generated test as a script and never ends, and tells its process id.
HANGS = """\
import sys
from pathlib import Path

from pytest_compilecontract import processes
from pytest_compilecontract.cli import check as checking
from pytest_compilecontract.cli import main

# The child never does what it is asked to.
processes.GRACE_SECONDS = 0.2
CHILD = (
    "import os, runpy, signal, sys, time; from pathlib import Path; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "runpy.run_path(sys.argv[1]); Path('child').write_text(f'{os.getpid()} '); time.sleep(600)"
)
generated = checking._command


def command(folder, chosen, options):
    return [sys.executable, "-c", CHILD, generated(folder, chosen, options)[-1]]


checking._command = command
sys.exit(main(["check", "blocks:sample", *sys.argv[1:]]))
"""
DEADLINE = """\
import os, signal, sys, time
from pathlib import Path
from pytest_compilecontract.processes import ends_with
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ends_with(os.getppid(), seconds=0.5, folder=Path(sys.argv[1]))
time.sleep(600)
"""


def until(happened: Callable[[], object]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def runs(process: int) -> bool:
    try:
        # One that has ended and that nobody waits for is still there by its id.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "hangs.py").write_text(HANGS)
    (tmp_path / "temporary").mkdir()
    return tmp_path


@pytest.fixture
def check(project: Path) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, "TMPDIR": str(project / "temporary")}
    child = project / "child"
    with subprocess.Popen([sys.executable, "hangs.py"], cwd=project, env=env) as running:
        try:
            assert until(lambda: child.is_file() and child.read_text().endswith(" "))
            yield running
        finally:
            running.kill()
            running.wait()
            if child.is_file() and runs(process := int(child.read_text())):
                os.kill(process, signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=["request to end", "ctrl-c", "killed hard"]
)
def test_a_check_that_is_ended_leaves_nothing(
    number: signal.Signals, check: subprocess.Popen[bytes], project: Path
) -> None:
    child = int((project / "child").read_text())
    assert runs(child)

    check.send_signal(number)
    code = check.wait(SECONDS)

    assert until(lambda: not runs(child))
    assert until(lambda: not list((project / "temporary").iterdir()))
    assert code == (-signal.SIGKILL if number is signal.SIGKILL else 130)


def test_a_child_ends_by_itself_after_its_time(tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()

    ran = subprocess.run(
        [sys.executable, "-c", DEADLINE, str(folder)], check=False, timeout=SECONDS, start_new_session=True
    )

    assert ran.returncode == -signal.SIGKILL
    assert not folder.exists()
