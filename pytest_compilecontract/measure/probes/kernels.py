"""Kernels: what the device runs in one step, by torch's profiler. Reading a profile needs no GPU."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pytest_compilecontract.facts.measurement import Kernels

Kind = Literal["triton", "library", "torch", "copy", "fill"]
LONGEST_NAME = 80
# The driver's rows, as CUPTI names them.
_COPY = re.compile(r"^mem(cpy|ory copy)", re.IGNORECASE)
_FILL = re.compile(r"^mem(set|ory set)", re.IGNORECASE)
# cuBLAS, CUTLASS and cuDNN name their kernels after the architecture, the instruction or the layout.
_LIBRARY = re.compile(
    r"gemm|gemv|gemmk|cublas|cutlass|cudnn|nvjet|splitk|xmma|wgmma|implicit_con|winograd|fmha|flash_(fwd|bwd)|"
    r"pytorch_flash|nccl|cufft|(regular|vector)_fft|cusparse|cusolver|nchw|nhwc",
    re.IGNORECASE,
)
_BARE = re.compile(r"^\w+$")
# Which attention ran: by kernel, the more telling first, since cuDNN's names say flash too; else by torch's operator.
_ATTENTION_KERNELS = (
    (re.compile(r"triton_\w*flex_(attention|decoding)"), "flex"),
    (re.compile(r"cudnn\w*(sdpa|attention|flash)", re.IGNORECASE), "cudnn"),
    (re.compile(r"flash_(fwd|bwd)|pytorch_flash|FlashAttn"), "flash"),
    (re.compile(r"fmha_cutlass|efficient_attention|AttentionKernel|AttentionBackwardKernel"), "efficient"),
)
_ATTENTION_OPS = re.compile(r"^aten::_scaled_dot_product_(?:(flash|efficient|cudnn)_attention|attention_(math))\b")
_LAUNCHES = "cudaGraphLaunch"
# Rows of the device that are no work: ranges that torch marks while it profiles.
_RANGES = ("ProfilerStep", "Torch-Compiled Region", "## ", "AOTDispatcher", "CompiledFunction", "Optimizer.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of a profile: what the device did, or what the CPU called."""

    name: str
    device: bool
    range: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """One step, as the profiler saw it: its kernels, and how many CUDA graphs the device was handed."""

    kernels: Kernels
    launches: int


def profiled(step: Callable[[], object]) -> list[Row]:
    """The rows of one step."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.11 warns of profiles of more than one cycle, which this is not
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as taken:
            step()
            torch.cuda.synchronize()
        events: Any = taken.events()
    return [
        Row(name=each.name, device="CUDA" in str(each.device_type), range=bool(getattr(each, "is_user_annotation", 0)))
        for each in events
    ]


def read_profile(rows: Iterable[Row]) -> Profile:
    """Count and name the kernels of the rows."""
    kinds: Counter[Kind] = Counter()
    names: Counter[str] = Counter()
    attention: dict[str, None] = {}
    launches = 0
    for row in rows:
        if not row.device:
            launches += row.name.startswith(_LAUNCHES)
            if found := _ATTENTION_OPS.match(row.name):
                attention[found[1] or found[2]] = None
            continue
        if row.range or row.name.startswith(_RANGES):
            continue
        kind = classify(row.name)
        kinds[kind] += 1
        if kind in ("copy", "fill"):
            continue
        names[short_name(row.name)] += 1
        if backend := attention_of(row.name):
            attention[backend] = None
    if len(attention) > 1:
        attention.pop("math", None)  # torch's math path asks the others first
    kernels = Kernels(
        total=kinds["triton"] + kinds["library"] + kinds["torch"],
        triton=kinds["triton"],
        library=kinds["library"],
        copies=kinds["copy"],
        fills=kinds["fill"],
        names=dict(sorted(names.items())),
        attention=tuple(attention),
    )
    return Profile(kernels=kernels, launches=launches)


def classify(name: str) -> Kind:
    """Which library, compiler or user a kernel comes from, by its name.

    A plain name that belongs to no library is a Triton kernel: C++ kernels are shown with their parameters, and Triton
    kernels, including the user's, by the name of the function.
    """
    if _COPY.match(name):
        return "copy"
    if _FILL.match(name):
        return "fill"
    if name.startswith("triton_"):
        return "triton"
    if attention_of(name) or _LIBRARY.search(_head(name)):
        return "library"
    return "triton" if _BARE.match(name) else "torch"


def attention_of(name: str) -> str | None:
    """The backend of attention that a kernel belongs to."""
    return next((backend for pattern, backend in _ATTENTION_KERNELS if pattern.search(name)), None)


def short_name(name: str) -> str:
    """A kernel's name without what C++ puts around it: return type, template arguments, parameters."""
    head = _head(name)
    return head if len(head) <= LONGEST_NAME else f"{head[: LONGEST_NAME - 3]}..."


def _head(name: str) -> str:
    name = name.replace("(anonymous namespace)", "{}")
    kept, depth = [], 0
    for char in name:
        if char == "<":
            depth += 1
        elif char == ">":
            depth -= 1
        elif char == "(" and depth == 0:
            break
        elif depth == 0:
            kept.append(char)
    return "".join(kept).replace("{}::", "").removeprefix("void ").strip() or name
