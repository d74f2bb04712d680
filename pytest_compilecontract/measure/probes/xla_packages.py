"""The Python that runs an XLA lane, what is installed there, and the command that installs what is not.

An XLA lane runs in a process of its own: importing torchax takes a device of torch's, after which Dynamo fails, and
torch_xla is built for one torch, which is another than the suite's.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_compilecontract.facts.lanes import TORCHAX, Lane
from pytest_compilecontract.facts.receipt import Environment
from pytest_compilecontract.facts.versions import version_key
from pytest_compilecontract.processes import beside, death

PYTHON_OF_TORCHAX = "COMPILECONTRACT_TORCHAX"
PYTHON_OF_TORCH_XLA = "COMPILECONTRACT_TORCH_XLA"
# The first release of torchax that imports with torch 2.13 and later is a pre-release.
LEAST_TORCHAX = "0.0.14.dev20261026"
INSTALL_TORCHAX = f"pip install --pre torchax=={LEAST_TORCHAX} jax==0.10.2"
INSTALL_TORCH_XLA = (
    "python -m venv .xla && .xla/bin/pip install torch==2.9.0 torch_xla==2.9.0 setuptools pytest-compilecontract && "
    f"export {PYTHON_OF_TORCH_XLA}=$PWD/.xla/bin/python"
)
PACKAGES = ("torch", "torchax", "jax", "jaxlib", "torch_xla", "numpy", "pytest-xdist")
# What means something in an XLA lane, besides its name.
KEYS = ("backend", "device", "requires", "cache", "dtype")
ASK_SECONDS = 60
# An answer is far shorter; what comes after is noise of who prints without end.
ANSWER_BYTES = 1024 * 1024
_ASK = f"""
import importlib.metadata, importlib.util, json, platform
found = {{}}
for name in {PACKAGES!r}:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
own = importlib.util.find_spec("pytest_compilecontract") is not None
print(json.dumps({{"python": platform.python_version(), "packages": found, "plugin": own}}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a Python has installed; `why` says why that is not known."""

    python: str = ""
    packages: tuple[tuple[str, str], ...] = ()
    plugin: bool = False
    why: str = ""

    def version(self, name: str) -> str:
        return dict(self.packages).get(name, "")


def python_of(lane: Lane) -> str:
    """The Python that runs an XLA lane: the one that a variable names, or this one."""
    return os.environ.get(_variable(lane)) or sys.executable


def has_xdist(python: str) -> bool:
    """Whether pytest-xdist is installed for a Python."""
    return bool(installed(python).version("pytest-xdist"))


def variables_of(lane: Lane) -> dict[str, str]:
    """What the process of an XLA lane has in its environment: it is the one, and it stays on the CPU."""
    return {_variable(lane): python_of(lane), "PJRT_DEVICE": "CPU", "JAX_PLATFORMS": "cpu"}


def no_xla(lane: Lane) -> str | None:
    """Why an XLA lane cannot run here, or None."""
    if others := [key for key in lane.to_dict() if key not in KEYS]:
        return f"backend {lane.backend!r} is not torch.compile's, and takes none of its settings: {', '.join(others)}"
    if lane.device != "cpu":
        return f"backend {lane.backend!r} runs on PJRT's CPU plugin alone: device has to be 'cpu'"
    found = installed(python_of(lane))
    if found.why:
        return found.why
    return _no_torchax(found) if lane.backend == TORCHAX else _no_torch_xla(found)


def environment_of(lane: Lane, own: Environment) -> Environment:
    """The environment of an XLA lane, for one whose process is in `own`: its packages, and that PJRT has a CPU."""
    python = python_of(lane)
    found = installed(python)
    named = ("torchax", "jax", "jaxlib") if lane.backend == TORCHAX else ("torch_xla",)
    libraries = {name: found.version(name) for name in ("numpy", *named) if found.version(name)} | {"pjrt": "cpu"}
    own = replace(own, cuda=None, cudnn=None, nccl=None, driver=None, triton=None, capability=None, device_count=None)
    own = replace(own, device=own.processor, libraries={**own.libraries, **libraries})
    if python == sys.executable:
        return own
    # What torch's settings are there, nobody has asked.
    return replace(own, torch=found.version("torch"), python=found.python, settings=None, defaults=None)


@functools.cache
def installed(python: str) -> Found:
    """What is installed for a Python, which is asked once."""
    with tempfile.TemporaryDirectory(prefix="compilecontract-asks-", ignore_cleanup_errors=True) as folder:
        # A file, and no pipe: whatever that Python starts may keep a pipe open.
        told = Path(folder) / "answer"
        try:
            with beside([([python, "-c", _ASK], told, os.environ)], cwd=Path.cwd()) as (child,):
                code = child.wait(ASK_SECONDS)
        except subprocess.TimeoutExpired:
            return Found(why=f"{python} did not answer in {ASK_SECONDS} seconds")
        except OSError as error:
            return Found(why=f"{python} cannot be run ({error.strerror})")
        if code != 0:
            return Found(why=f"{python} cannot say what is installed there (it {death(code)})")
        with told.open("rb") as file:
            return _answer(python, file.read(ANSWER_BYTES))


def _answer(python: str, printed: bytes) -> Found:
    """What it says in one of the lines that it printed; others are of what it starts with, such as a warning."""
    answers = {found for line in printed.splitlines() if (found := _found(line)) is not None}
    if len(answers) == 1:
        return answers.pop()
    return Found(why=f"{python} cannot say what is installed there (its answer is no JSON of ours)")


def _found(line: bytes) -> Found | None:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match told:
        case {"python": str(version), "packages": dict(packages), "plugin": bool(own), **others} if not others:
            texts = tuple(packages.items())
            if all(isinstance(each, str) and each.isprintable() for each in (version, *packages.values())):
                return Found(python=version, packages=texts, plugin=own)
    return None


def _variable(lane: Lane) -> str:
    return PYTHON_OF_TORCHAX if lane.backend == TORCHAX else PYTHON_OF_TORCH_XLA


def _no_torchax(found: Found) -> str | None:
    if absent := [name for name in ("torchax", "jax") if not found.version(name)]:
        return f"{' and '.join(absent)} not installed; to install: {INSTALL_TORCHAX}"
    here, least = version_key(found.version("torchax")), version_key(LEAST_TORCHAX)
    if here is None or (least is not None and here < least):
        return f"torchax {found.version('torchax')} is older than {LEAST_TORCHAX}; to install: {INSTALL_TORCHAX}"
    return _no_plugin(found, INSTALL_TORCHAX)


def _no_torch_xla(found: Found) -> str | None:
    if not found.version("torch_xla"):
        return f"torch_xla not installed, which needs torch 2.9 and so an environment of its own: {INSTALL_TORCH_XLA}"
    versions = [version_key(found.version(name)) for name in ("torch", "torch_xla")]
    torch, xla = versions
    if torch is None or xla is None or torch.release[:2] != xla.release[:2]:
        both = f"torch {found.version('torch')} and torch_xla {found.version('torch_xla')}"
        return f"{both} are not of one release: {INSTALL_TORCH_XLA}"
    return _no_plugin(found, INSTALL_TORCH_XLA)


def _no_plugin(found: Found, install: str) -> str | None:
    return None if found.plugin else f"pytest-compilecontract not installed beside it; to install: {install}"
