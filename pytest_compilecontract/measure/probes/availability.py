"""Whether a lane can run here, and if not, why: asked before anything is compiled."""

from __future__ import annotations

import importlib.util
import inspect
import os
import shutil
from types import CodeType, FunctionType
from typing import Any

import torch

from pytest_compilecontract.facts.lanes import Lane

from ..isolation import missing_setting
from .device import device_of
from .source import Paths
from .taps import beneath
from .xla_packages import no_xla


def unavailable(lane: Lane) -> str | None:
    """Why the lane cannot run in this process, or None."""
    for package in lane.requires:
        if not _installed(package):
            return f"package {package!r} is not installed"
    if lane.needs_cuda and not torch.cuda.is_available():
        return "no CUDA device here"
    if (reason := _no_device(lane)) is not None:
        return reason
    if lane.reference:
        return None
    if lane.is_xla:
        return no_xla(lane)
    known = inspect.signature(torch.compile).parameters
    for parameter in lane.compile_options():
        if parameter not in known:
            return f"torch.compile of torch {torch.__version__} has no parameter {parameter!r}"
    if (reason := missing_setting(lane)) is not None:
        return reason
    if lane.backend not in torch._dynamo.list_backends(exclude_tags=()):
        return f"torch {torch.__version__} has no backend {lane.backend!r}"
    try:
        # Nothing is compiled yet; torch only looks at its options.
        torch.compile(_nothing, **lane.compile_options())  # type: ignore[call-overload]
    except Exception as error:  # noqa: BLE001 - whatever torch has against them is the reason
        return f"torch.compile refuses the lane's options: {' '.join(str(error).split())}"
    return _no_inductor(device_of(lane).type) if lane.backend == "inductor" else None


def _nothing() -> None: ...


def _no_device(lane: Lane) -> str | None:
    try:
        device = device_of(lane)
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            return f"no device {str(device)!r} here ({torch.cuda.device_count()} CUDA devices)"
        if device.type == "meta":
            return "tensors on device 'meta' have no values to compare"
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        return f"no device {lane.device!r} here ({next(iter(str(error).splitlines()), type(error).__name__)})"
    return None


def _no_inductor(device: str) -> str | None:
    if device == "cpu":
        named = os.environ.get("CXX")
        compilers = [named] if named else ["g++", "clang++", "c++", "icpx", "cl"]
        if not any(shutil.which(each) for each in compilers):
            return f"Inductor needs a C++ compiler on the CPU (looked for {', '.join(compilers)})"
    elif device == "cuda" and not _installed("triton"):
        return "Inductor needs triton on CUDA"
    return None


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def replaced_compile(paths: Paths) -> str:
    """What stands in place of torch.compile, and where it is; empty where it is torch's own.

    A wrapper has torch's name and not torch's code.
    """
    found: Any = beneath(torch.compile)
    code = getattr(found, "__code__", None)
    if isinstance(found, FunctionType) and code is not None and _is_torchs(code):
        return ""
    kind = type(found)
    if isinstance(code, CodeType):
        name = f"{found.__globals__.get('__name__', '?')}.{code.co_qualname}"
    else:
        name = f"a {kind.__module__}.{kind.__qualname__}"
        code = getattr(vars(kind).get("__call__"), "__code__", None)
    return f"{name} ({paths.name(code.co_filename)}:{code.co_firstlineno})" if isinstance(code, CodeType) else name


def _is_torchs(code: CodeType) -> bool:
    return code.co_name == "compile" and os.path.realpath(code.co_filename) == os.path.realpath(str(torch.__file__))
