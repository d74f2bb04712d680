"""Environments: created with uv or existing, and what is installed in them. No pytest or torch here.

An environment is resolved before it is created, and the second one prefers the versions of the first: then only the
requested packages differ, and those that they require.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from pytest_compilecontract import __version__
from pytest_compilecontract.errors import InstallError, UsageError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.processes import death, watched

from .progress import Progress
from .requirements import Wanted

PLUGIN = "pytest-compilecontract"
# Where a CUDA build of torch goes: some 5 GB in the environment, and as much again in uv's cache if that is elsewhere.
ROOM_BYTES = 12 * 1024**3
PROBE_SECONDS = 300
REASON = 400
NO_UV = (
    "uv creates the environments, and is not installed: pip install uv "
    "(or name interpreters that have everything the tests need: --python and --from-python)"
)
# Releases of these follow from torch's.
_COMPANIONS = re.compile(r"(nvidia|cuda)-.*|.*triton.*|torch(vision|audio|text|data|codec|ao)?")
# uv draws a tree of causes, or names each one, by its release.
_DECORATION = re.compile(r"^[\s\u00d7│]*(?:[╰├]─▶\s*(?=\S))?")
_CAUSE = re.compile(r"(?:error|cause|Caused by):\s*")
_PROBE = """
import importlib.metadata as metadata, json, os, platform
def say(**facts): print("\\n" + json.dumps({"probe": 1, **facts}), flush=True)
packages = {each.metadata["Name"]: each.version for each in metadata.distributions() if each.metadata["Name"]}
say(python=platform.python_version(), packages=packages)
try:
    import pytest, msgspec, pytest_compilecontract.plugin.events
    entries = metadata.entry_points(group="pytest11", name="compilecontract")
    say(plugin="", entered=bool(entries) or "pytest_compilecontract" in os.environ.get("PYTEST_PLUGINS", ""))
except Exception as error:
    say(plugin=f"{type(error).__name__}: {error}")
try:
    import torch
    say(torch=str(torch.__version__), failed="")
except BaseException as error:
    say(torch=None, failed=f"{type(error).__name__}: {error}")
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What an interpreter has installed. `torch` is None if torch cannot be imported, and `failed` says why.

    `plugin` is why this plugin cannot be loaded there; empty if it can. `entered`: pytest loads it without being told.
    """

    python: str
    torch: str | None
    failed: str = ""
    plugin: str = ""
    entered: bool = True
    packages: Mapping[str, str] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class Uv:
    """uv, and the folder for its environments.

    `options` are uv's own, for finding packages; `python` is the version of Python for new environments.
    """

    program: str
    folder: Path
    options: Sequence[str]
    python: str
    progress: Progress

    def environment(
        self, name: str, specs: Mapping[str, str], wanted: Wanted, preferred: Mapping[str, str], log: Path
    ) -> Path:
        """The Python of an environment with these packages, created now or by an earlier run with the same request.

        Raises:
            InstallError: uv could not create it.
        """
        lines = [*specs.values(), *plugin_lines(wanted), *wanted.lines]
        key = self._key(lines, wanted, preferred)
        folder = self.folder / f"{_file_name(name)}-{key[:8]}"
        python = _python_of(folder)
        if (folder / "ready").is_file() and python.exists():
            self.progress.stage(f"{name}: using {folder.name}, which an earlier run created")
            return python
        shutil.rmtree(folder, ignore_errors=True)
        self._warn_of_room(name)
        self._run(
            name, "creating an environment", log, "interpreter", "venv", "--quiet", "--python", self.python, str(folder)
        )
        (folder / "wanted.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        # uv keeps to the versions that it finds in the file it is to write, where it can.
        locked = folder / "locked.txt"
        locked.write_text("".join(f"{each}=={v}\n" for each, v in sorted(preferred.items())), encoding="utf-8")
        target = ("--python", str(python), *self._finding(wanted))
        compile_ = ("pip", "compile", "--quiet", "--no-header", "--no-annotate", *target, "--output-file", str(locked))
        self._run(name, "resolving versions", log, "resolved", *compile_, str(folder / "wanted.txt"))
        count = sum(1 for line in locked.read_text(encoding="utf-8").splitlines() if line.strip())
        self.progress.stage(f"{name}: installing {count} packages; a CUDA build of torch is several GB")
        install = ("pip", "install", "--quiet", *target)
        self._run(name, f"installing {count} packages", log, "installed", *install, "--requirements", str(locked))
        for each in wanted.editable:
            self._run(name, "installing the project", log, "installed", *install, "--no-deps", "--editable", str(each))
        (folder / "ready").touch()
        return python

    def _finding(self, wanted: Wanted) -> tuple[str, ...]:
        # What the user says of a thing stands, whatever the project says of it.
        own = list(wanted.options)
        if "--torch-backend" in self.options and "--torch-backend" in own:
            at = own.index("--torch-backend")
            del own[at : at + 2]
        return (*own, *self.options)

    def _key(self, lines: Sequence[str], wanted: Wanted, preferred: Mapping[str, str]) -> str:
        files = [each / name for each in wanted.editable for name in ("pyproject.toml", "setup.py", "setup.cfg")]
        parts = {
            "lines": list(lines),
            "editable": [str(each) for each in wanted.editable],
            "options": list(self._finding(wanted)),
            "variables": {name: value for name, value in os.environ.items() if _chooses_packages(name)},
            "python": [self.python, sys.version],
            "preferred": dict(preferred),
            "files": [hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "" for file in files],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _warn_of_room(self, name: str) -> None:
        room = shutil.disk_usage(self.folder).free
        if room < ROOM_BYTES:
            needed = ROOM_BYTES // 1024**3
            self.progress.stage(
                f"{name}: {room / 1024**3:.1f} GB free in {self.folder}; a CUDA build of torch may take {needed}"
            )

    def _run(self, name: str, doing: str, log: Path, step: str, *words: str) -> None:
        command = [self.program, *words]
        start = log.stat().st_size if log.exists() else 0
        with log.open("a", encoding="utf-8") as file:
            file.write(f"$ {_without_credentials(' '.join(command))}\n")
        code = watched(
            command,
            log=log,
            cwd=self.folder,
            variables={**os.environ, "NO_COLOR": "1"},
            meanwhile=lambda: self.progress.now(f"{name}: {doing}"),
        )
        self.progress.clear()
        if code != 0:
            said = log.read_bytes()[start:].decode(errors="replace").partition("\n")[2]
            raise InstallError(reason_of(said) or f"uv {death(code or 0)}", step=step)


def uv_program() -> str:
    """The uv to use: on PATH, or beside the Python that runs.

    Raises:
        UsageError: there is none.
    """
    beside = shutil.which("uv", path=str(Path(sys.executable).parent))
    if program := shutil.which("uv") or beside:
        return program
    raise UsageError(NO_UV)


def plugin_lines(wanted: Wanted) -> list[str]:
    """The lines that install this plugin as it is installed here; none if it is the project itself."""
    source = Path(__file__).resolve().parents[2]
    if source in [each.resolve() for each in wanted.editable]:
        return []
    if (source / "pyproject.toml").is_file():
        return [f"-e {source}"]
    try:
        direct = json.loads(metadata.distribution(PLUGIN).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        direct = {}
    url = str(direct.get("url", ""))
    if url and "vcs_info" in direct:
        return [f"{PLUGIN} @ {direct['vcs_info']['vcs']}+{url}@{direct['vcs_info']['commit_id']}"]
    return [f"{PLUGIN} @ {url}"] if url else [f"{PLUGIN}=={__version__}"]


def probe(python: Path, cwd: Path, variables: Mapping[str, str]) -> Probe:
    """What this interpreter has installed, as the tests will see it.

    Raises:
        UsageError: it is not a working Python.
    """
    try:
        ran = subprocess.run(
            [str(python), "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=cwd,
            env=dict(variables),
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        said = getattr(error, "strerror", None) or f"no answer within {PROBE_SECONDS} s"
        raise UsageError(f"{python}: not a working Python ({said})") from error
    facts: dict[str, object] = {}
    for line in ran.stdout.decode(errors="replace").splitlines():
        if line.startswith('{"probe": 1'):
            facts |= json.loads(line)
    if "python" not in facts:
        said = one_line(reason_of(ran.stderr.decode(errors="replace")) or death(ran.returncode))
        raise UsageError(f"{python}: not a working Python ({said})")
    packages = facts["packages"]
    assert isinstance(packages, dict)
    return Probe(
        python=str(facts["python"]),
        torch=str(facts["torch"]) if facts.get("torch") else None,
        failed=one_line(str(facts.get("failed", f"the process {death(ran.returncode)}")), REASON),
        plugin=str(facts.get("plugin", "not known")),
        entered=bool(facts.get("entered", True)),
        packages={canonicalize_name(str(name)): str(version) for name, version in packages.items()},
    )


def variables_of(python: Path) -> dict[str, str]:
    """The environment variables of a process of this interpreter, as if it had been activated."""
    folder = str(python.parent)
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")}
    variables["PATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PATH"))))
    if (python.parent.parent / "pyvenv.cfg").is_file():
        variables["VIRTUAL_ENV"] = str(python.parent.parent)
    return variables


def preferences(packages: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """The versions for another environment to prefer: all except requested packages and those that torch determines."""
    return {
        name: version
        for name, version in packages.items()
        if name not in asked and name != PLUGIN and not _COMPANIONS.fullmatch(name)
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageChange:
    """A package whose version differs between two environments; None where it is not installed."""

    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        before, after = ("none" if each is None else each for each in (self.before, self.after))
        return f"{self.name} {before} -> {after}"


def differing(
    before: Mapping[str, str], after: Mapping[str, str], asked: Mapping[str, str]
) -> tuple[PackageChange, ...]:
    """The packages that differ unrequested; without those that torch determines."""
    names = sorted({*before, *after})
    return tuple(
        PackageChange(name=name, before=before.get(name), after=after.get(name))
        for name in names
        if before.get(name) != after.get(name) and name not in asked and not _COMPANIONS.fullmatch(name)
    )


def reason_of(said: str) -> str:
    """A program's error output as one line, without decoration and credentials."""
    parts: list[str] = []
    for line in said.splitlines():
        bare = _DECORATION.sub("", line).strip()
        if bare.startswith("hint:"):
            break
        if not bare or bare.startswith(("Using Python ", "warning:")):
            continue
        if _CAUSE.match(bare) or not parts:
            parts.append(_CAUSE.sub("", bare))
        else:
            # A sentence goes on on the next line.
            parts[-1] += f" {bare}"
    if "Traceback (most recent call last)" in said:
        parts = said.strip().splitlines()[-1:]
    return one_line(_without_credentials(": ".join(parts)), REASON)


def _without_credentials(text: str) -> str:
    return re.sub(r"//[^/@\s]+@", "//", text)


def _python_of(folder: Path) -> Path:
    return folder / "Scripts" / "python.exe" if os.name == "nt" else folder / "bin" / "python"


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+_-]+", "-", name).strip("-.") or "environment"


def _chooses_packages(name: str) -> bool:
    # Not where uv keeps things, nor how it talks.
    return name.startswith("UV_") and not name.startswith(("UV_CACHE", "UV_NO_PROGRESS", "UV_HTTP", "UV_CONCURRENT"))
