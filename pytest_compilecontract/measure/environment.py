"""Environments: what a measurement was taken with. Only reads, and never raises.

Take it once, at the session's start: torch sets some of its own environment variables when it first compiles.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, TypeVar

from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.facts.receipt import Environment, defaults_key

from .probes.settings import MODULES, RECORDED, Setting, has_settings, may_differ, settings_of, value_of

T = TypeVar("T")

LIBRARIES = ("numpy", "timm", "torchvision", "transformers")
TRITON = ("triton", "pytorch-triton", "triton-windows")
PREFIXES = ("TORCH", "PYTORCH", "TRITON", "CUDA")
# torch sets these two itself when it first compiles, and a lane does to have caches of its own: they say where the
# caches are, which changes no count.
CACHE_FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
LONGEST = 200
GIT_SECONDS = 10


def current_environment(root: Path, variables: Mapping[str, str] | None = None) -> Environment:
    """The environment of this process; `root` is the project's folder. What cannot be found is None.

    `variables` default to those of the process.
    """
    shown = _Folders(root)
    torch: Any = _found(lambda: import_module("torch"))
    commit, dirty = _found(lambda: _git(root)) or (None, None)
    processor = _found(_processor)
    cuda = _found(lambda: _cuda_device(torch)) or {}
    return Environment(
        torch=_found(lambda: str(torch.__version__)),
        triton=next(filter(None, map(version_of, TRITON)), None),
        cuda=_found(lambda: torch.version.cuda),
        cudnn=cuda.get("cudnn"),
        nccl=cuda.get("nccl"),
        driver=cuda.get("driver"),
        device=cuda.get("name") or processor,
        capability=cuda.get("capability"),
        device_count=_found(lambda: int(torch.cuda.device_count())),
        processor=processor,
        python=platform.python_version(),
        platform=_found(platform.platform),
        pytest=version_of("pytest"),
        plugin=plugin_version(),
        commit=commit,
        dirty=dirty,
        libraries={name: version for name in LIBRARIES if (version := version_of(name))},
        settings=_found(lambda: dict(_settings(shown))) if torch else None,
        variables={
            name: shown(value)
            for name, value in sorted((os.environ if variables is None else variables).items())
            if name not in CACHE_FOLDERS and (name.startswith(PREFIXES) or name == "OMP_NUM_THREADS")
        },
        defaults=defaults_key(defaults) if (defaults := torch_defaults()) else None,
    )


def with_overrides(env: Environment, overrides: Mapping[str, object]) -> Environment:
    """The environment of a session that overrides torch's defaults with these settings."""
    return replace(env, overrides={name: _written(value) for name, value in sorted(overrides.items())})


@cache
def torch_defaults() -> dict[str, str]:
    """torch's own default of each of its settings, by full name, as Python writes it; empty where there is no torch.

    Without values that cannot be set in another torch: functions, paths of this machine, torch's own bookkeeping.
    """
    return _found(lambda: dict(_defaults())) or {}


def _defaults() -> Iterator[tuple[str, str]]:
    for module_name in MODULES:
        module: object = _found(partial(import_module, module_name))
        for each in settings_of(module) if has_settings(module) else ():
            if not each.name.rpartition(".")[2].startswith("_"):
                text = _found(partial(_literal, each.default))
                if text is not None:
                    yield f"{module_name}.{each.name}", text


def _literal(value: object) -> str | None:
    if isinstance(value, str) and Path(value).is_absolute():
        return None
    text = _written(value)
    ast.literal_eval(text)
    return text if len(text) <= LONGEST else None


def plugin_version() -> str | None:
    """The version of this package that is installed."""
    return version_of("pytest-compilecontract")


def _found(read: Callable[[], T]) -> T | None:
    # A torch with a broken library or an old driver raises and warns in ways that no list could name, and a fact that
    # cannot be read must not cost the session its measurements.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read()
    except Exception:  # noqa: BLE001
        return None


def version_of(distribution: str) -> str | None:
    """The version of a package that is installed; None if it is not."""
    return _found(lambda: metadata.version(distribution))


def checkout_of(root: Path) -> tuple[str, bool] | None:
    """The commit that is checked out in a folder, and whether tracked files differ from it; None without git."""
    return _found(lambda: _git(root))


def without_folders(root: Path) -> Callable[[str], str]:
    """A function that replaces folders of this machine in a text by <root>, <home> and <tmp>, as in receipts."""
    return _Folders(root)


class _Folders:
    """Replaces this machine's folders in text."""

    def __init__(self, root: Path) -> None:
        named = {"<root>": root, "<home>": _found(Path.home), "<tmp>": _found(lambda: Path(tempfile.gettempdir()))}
        folders: dict[str, str] = {}
        for name, given in named.items():
            for path in filter(None, (given, given and _found(given.resolve))):
                # A home of "/" would turn every path into nonsense.
                if path.is_absolute() and path != Path(path.anchor):
                    folders.setdefault(str(path), name)
        inner_first = sorted(folders.items(), key=lambda each: -len(each[0]))
        self._patterns = [(_whole(folder), name) for folder, name in inner_first]

    def __call__(self, text: str) -> str:
        for pattern, name in self._patterns:
            text = pattern.sub(name, text)
        return one_line(text, LONGEST)


def _whole(folder: str) -> re.Pattern[str]:
    # Not "/home/al" in "/home/alice", nor "/tmp" in "/var/tmp"; but "/home/al" in "-I/home/al/include".
    return re.compile(rf"(?:(?<![\w.-])|(?<=-[A-Za-z])){re.escape(folder)}(?![\w-]|\.\w)")


def _settings(shown: _Folders) -> Iterator[tuple[str, str]]:
    """Each setting of torch whose value is not torch's default, by its full name."""
    for module_name in RECORDED:
        module = import_module(module_name)
        # All that an alias may stand for is in these modules.
        for each in settings_of(module):
            if may_differ(module, each.name):
                text = _found(partial(_changed, module, each))
                if text is not None:
                    yield f"{module_name}.{each.name}", shown(text)


def _changed(module: object, setting: Setting) -> str | None:
    value = value_of(module, setting.name)
    if _found(lambda: bool(value == setting.default)):
        return None
    return _found(partial(_written, value)) or f"<{type(value).__name__}>"


def _written(value: object) -> str:
    """`repr` that is the same in every process: sets and dicts in order, no addresses."""
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_written, value)))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{_written(key)}: {_written(item)}' for key, item in value.items()))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _cuda_device(torch: Any) -> dict[str, str | None] | None:
    """The device that CUDA lanes use, and the libraries that only matter with one."""
    if not torch.cuda.is_available():
        return None
    device = torch.cuda.current_device()
    return {
        "name": _found(lambda: str(torch.cuda.get_device_name(device))),
        "capability": _found(lambda: ".".join(map(str, torch.cuda.get_device_capability(device)))),
        "cudnn": _found(lambda: _cudnn(torch.backends.cudnn.version())),
        "nccl": _found(lambda: ".".join(map(str, torch.cuda.nccl.version()))),
        "driver": _found(_driver),
    }


def _cudnn(number: int) -> str:
    # One number: 8902 is 8.9.2; since cuDNN 9 the major has five digits, 91002 is 9.10.2.
    major = number // 10_000 or number // 1000
    rest = number % (10_000 if number >= 10_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _driver() -> str | None:
    return _found(_driver_of_kernel) or _found(_driver_of_nvml)


def _driver_of_kernel() -> str:
    text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    return re.search(r"NVRM version:.*?\s(\d+\.[\d.]+)\s", text)[1]  # type: ignore[index]


def _driver_of_nvml() -> str | None:
    import ctypes

    nvml = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    text = ctypes.create_string_buffer(96)
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        failed = nvml.nvmlSystemGetDriverVersion(text, len(text))
    finally:
        nvml.nvmlShutdown()
    return None if failed else text.value.decode()


def _processor() -> str | None:
    name = _found(_processor_of_kernel) if sys.platform == "linux" else None
    if name is None and sys.platform == "darwin":
        name = _found(lambda: _output(["sysctl", "-n", "machdep.cpu.brand_string"]).strip())
    return name or platform.processor() or platform.machine() or None


def _processor_of_kernel() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    return re.search(r"^model name\s*:\s*(.+?)\s*$", text, re.MULTILINE)[1]  # type: ignore[index]


def _git(root: Path) -> tuple[str, bool] | None:
    """The commit that is checked out, and whether tracked files differ from it."""
    command = ["git", "--no-optional-locks", "-C", str(root), "status", "--porcelain=v2", "--branch", "-uno"]
    commit, dirty = None, False
    for line in _output(command).splitlines():
        if line.startswith("# branch.oid "):
            commit = line.split()[-1]
        elif not line.startswith("#"):
            dirty = True
    return None if commit in (None, "(initial)") else (str(commit), dirty)


def _output(command: list[str]) -> str:
    # Inside a git hook, GIT_DIR and its like speak of the hook's repository, not of `root`.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    ran = subprocess.run(
        command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_SECONDS, check=True
    )
    return ran.stdout.decode(errors="replace")
