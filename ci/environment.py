"""Run Python in the project's own environment, which is created first if there is none.

    ci/python ci/environment.py -m pytest -k scenario

The arguments are those of Python. The environment is .venv: torch, this project as an editable
install, and the dependency groups of pyproject.toml. It is created once, and again if pyproject.toml or the Python has
changed, or if it does not work or was never finished. COMPILECONTRACT_TORCH=2.12.1 uses a separate environment for that
torch. Only Python's standard library and pip are needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
TORCH = "2.13.0"
# Code of other projects, for contracts that are skipped without it.
MODELS = "models"
KERNELS = "kernels"
# Has an environment of its own.
MUTANTS = "mutants"
NO_ENVIRONMENT = 2
SILENT_SECONDS = 30
# What every run imports most of.
LARGE = ("numpy", "sympy", "torch")
# Imports what a run needs at once, and prints where this project is installed from.
PROBE = "import pytest, msgspec, importlib.util as u; print(u.find_spec('pytest_compilecontract').origin)"


class NoEnvironment(Exception):  # noqa: N818 - says what there is none of
    """The environment cannot be created; the message says why."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the environment's Python, with these arguments."""
    torch = os.environ.get("COMPILECONTRACT_TORCH") or TORCH
    folder = ROOT / (".venv" if torch == TORCH else f".venv-torch-{torch}")
    try:
        notes = hold(folder, torch)
    except NoEnvironment as error:
        say(str(error))
        raise SystemExit(NO_ENVIRONMENT) from None
    say(f"using {folder.name} (Python {platform.python_version()}, torch {torch})")
    for note in notes:
        say(note)
    os.chdir(ROOT)
    os.execve(python_of(folder), [str(python_of(folder)), *arguments], surroundings(folder, os.environ))


def surroundings(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The variables of a run. Bytecode is always written: without it, the sessions that tests start spend a third of
    their time compiling the package."""
    defaults = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return {**defaults, **{name: value for name, value in given.items() if name != "PYTHONDONTWRITEBYTECODE"}}


def hold(folder: Path, torch: str) -> list[str]:
    """Ensure a working environment that no other run replaces before this process ends; return its notes.

    A user of an environment holds a shared lock, its creator an exclusive one. The lock is an open file, which stays
    open when the process executes another program, and is released when it ends.
    """
    locks = ROOT / ".venv-locks"
    locks.mkdir(exist_ok=True)
    lock = os.open(locks / folder.name, os.O_RDWR | os.O_CREAT, 0o644)
    os.set_inheritable(lock, True)
    while True:
        take(lock, fcntl.LOCK_SH, folder)
        if (notes := made(folder, torch)) is not None:
            return notes
        take(lock, fcntl.LOCK_EX, folder)
        if made(folder, torch) is None:
            make(folder, torch)


def take(lock: int, how: int, folder: Path) -> None:
    """Take the lock, shared or exclusive; report if it has to wait."""
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"waiting for another run that has {folder.name}")
        fcntl.flock(lock, how)


def made(folder: Path, torch: str) -> list[str] | None:
    """The notes of an environment that is finished, up to date and works here; None if it is not."""
    try:
        first, *notes = (folder / "ready").read_text(encoding="utf-8").splitlines()
        if first != key(torch):
            return None
        probe = subprocess.run([python_of(folder), "-c", PROBE], capture_output=True, text=True, check=False)
    except (OSError, ValueError):
        return None
    works = probe.returncode == 0 and Path(probe.stdout.strip()).is_relative_to(ROOT)
    return notes if works else None


def key(torch: str) -> str:
    """What an environment was made from."""
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    return f"pyproject.toml {digest}, Python {platform.python_version()}, torch {torch}"


def make(folder: Path, torch: str) -> None:
    """Create the environment from scratch. The file that marks it as finished is written last, atomically.

    Raises:
        NoEnvironment: Python or pip failed.
    """
    started = time.monotonic()
    say(f"making {folder.name} with Python {platform.python_version()} and torch {torch}; this takes some minutes")
    shutil.rmtree(folder, ignore_errors=True)
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    wanted = [each for name, group in groups.items() if name not in (MODELS, KERNELS, MUTANTS) for each in group]
    call([sys.executable, "-m", "venv", str(folder)], "no virtual environment (on Debian: install python3-venv)")
    say(f"installing torch {torch}, this project, {', '.join(wanted)}")
    install(folder, torch, ["--editable", str(ROOT), *wanted])
    notes = [*add_models(folder, torch, groups[MODELS]), *add_kernels(folder, torch, groups[KERNELS])]
    compile_large(folder)
    partial = folder / "ready.partial"
    partial.write_text("\n".join([key(torch), *notes]) + "\n", encoding="utf-8")
    partial.replace(folder / "ready")
    say(f"made {folder.name} in {time.monotonic() - started:.0f} s")


def add_models(folder: Path, torch: str, wanted: Sequence[str]) -> list[str]:
    """Install the models; one that cannot be installed is a note, and the suite reports its contracts as unmeasured."""
    say(f"installing {', '.join(wanted)}")
    try:
        install(folder, torch, wanted)
    except NoEnvironment as error:
        return [f"without {', '.join(wanted)}: {error} (remove {folder.name} to try again)"]
    # torchvision's compiled part fits one build of torch alone, and PyPI has one build of torchvision. Beside another
    # its import fails, and so do those of timm, which needs it, and of transformers, which takes it where it is.
    # The contract suite can do without that part (contracts/vision.py).
    wanted_so = "from contracts.vision import name_operators; print(name_operators()); import torchvision"
    probe = subprocess.run([python_of(folder), "-c", wanted_so], cwd=ROOT, capture_output=True, text=True, check=False)
    if probe.returncode == 0:
        without = "torchvision's own operators do not fit this build of torch: the contracts do without them"
        return [without] if probe.stdout.startswith("True") else []
    said = probe.stderr.strip().splitlines() or [f"exit code {probe.returncode}"]
    call([*pip(folder), "uninstall", "--yes", "torchvision"], "pip could not remove torchvision")
    return [f"without torchvision, which does not work with this build of torch ({said[-1]})"]


def add_kernels(folder: Path, torch: str, wanted: Sequence[str]) -> list[str]:
    """Install Triton if torch's build does not include it; if that fails it is a note, as for the models."""
    probe = subprocess.run([python_of(folder), "-c", "import triton"], capture_output=True, check=False)
    if probe.returncode == 0:
        return []
    say(f"installing {', '.join(wanted)}")
    try:
        install(folder, torch, wanted)
    except NoEnvironment as error:
        return [f"without {', '.join(wanted)}: {error} (remove {folder.name} to try again)"]
    return []


def install(folder: Path, torch: str, wanted: Sequence[str]) -> None:
    """Install with pip; torch is always named, so that nothing changes it.

    pip would compile each of twelve thousand files to bytecode, on one core. Python does it when it imports one.
    """
    command = [*pip(folder), "install", "--no-compile", f"torch=={torch}", *wanted]
    call(command, f"pip could not install with torch {torch}")


def compile_large(folder: Path) -> None:
    """Compile the large packages on all cores: workers that import them at the same time would each do it."""
    say(f"compiling {', '.join(LARGE)}")
    there = [str(path) for name in LARGE for path in folder.glob(f"lib/python*/site-packages/{name}")]
    # It ends with 1 where a file is for another Python, as some of torch's are.
    with contextlib.suppress(NoEnvironment):
        call([str(python_of(folder)), "-m", "compileall", "-qq", "-j", "0", *there], "some files do not compile")


def pip(folder: Path) -> list[str]:
    return [str(python_of(folder)), "-m", "pip", "-qq", "--disable-pip-version-check"]


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def call(command: Sequence[str], otherwise: str) -> None:
    """Run a command, showing its output; `otherwise` is what its failure means."""
    # The command has the lock too: where this process is killed, nobody starts anew before the command has ended.
    started = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, close_fds=False) as running:
        while (code := _ended(running)) is None:
            say(f"... {time.monotonic() - started:.0f} s")
    if code:
        raise NoEnvironment(f"{otherwise}: {command[0]} ended with {code}")


def _ended(running: subprocess.Popen[bytes]) -> int | None:
    """The exit code, or None while it runs: a download of a gigabyte should not look like a hanging process."""
    try:
        return running.wait(SILENT_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def say(text: str) -> None:
    print(f"ci: {text}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
