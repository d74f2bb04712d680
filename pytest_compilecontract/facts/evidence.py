"""Evidence: the files that a lane that is not held leaves in a folder. Nothing here reads or writes files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

TRACE = "trace.log"
# What torch logs of each kind, by the backends that have it (https://docs.pytorch.org/docs/stable/logging.html).
_LOGS = ("graph_breaks", "recompiles", "guards", "graph_code")
_LOGS_OF_AOT = ("aot_graphs",)
_LOGS_OF_INDUCTOR = ("post_grad_graphs", "output_code")
# A kind of file, by the first word of its name, and what is in it.
KINDS = {
    "trace": "torch's structured trace: tlparse trace.log",
    "graph": "what Dynamo captured, as code",
    "aot_joint": "AOTAutograd's joint graph",
    "aot_forward": "AOTAutograd's forward graph",
    "aot_backward": "AOTAutograd's backward graph",
    "aot_inference": "AOTAutograd's graph of a call without gradients",
    "post_grad": "the graph that Inductor lowers",
    "code": "Inductor's output code",
    "runnable": "a program that runs one graph by itself",
    "guards": "the guards of compiled code",
    "break": "torch's message for a graph break",
    "recompiled": "the guards that failed",
    "minified": "torch's minified program",
}
# A graph as code: what two sides are compared in.
GRAPHS = ("graph", "aot_joint", "aot_forward", "aot_backward", "aot_inference", "post_grad")
_SLUG = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The evidence of a lane. `folder` is relative to that of the receipt, with slashes; `files` are names in it.

    It comes from one more run of the lane, whose outcome is `shown`. `left_out` is what is missing, and why.
    """

    folder: str
    shown: str = ""
    files: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def folder_name(test: str, lane: str) -> str:
    """A folder name for one lane of one test: readable and unique."""
    whole = test if lane in test else f"{test}[{lane}]"
    words = re.sub(r"[^A-Za-z0-9.]+", "-", whole.rpartition("/")[2]).strip("-.")[:_SLUG].rstrip("-.")
    return f"{words}-{hashlib.sha256(f'{test} {lane}'.encode()).hexdigest()[:8]}"


def kind_of(file: str) -> str:
    """The kind of a file by its name; empty for one that is not evidence."""
    stem = file.partition(".")[0]
    return next((kind for kind in sorted(KINDS, key=len, reverse=True) if re.fullmatch(rf"{kind}(-\w+)*", stem)), "")


def is_aot(backend: str) -> bool:
    """Whether a backend of this name has AOTAutograd's graphs."""
    return backend.startswith("aot") or is_inductor(backend)


def is_inductor(backend: str) -> bool:
    return backend == "inductor"


def logs(backend: str) -> str:
    """The value of TORCH_LOGS that shows the same while the lane runs; for an unknown backend, all of it."""
    known = bool(backend)
    names = [*_LOGS]
    names += _LOGS_OF_AOT if not known or is_aot(backend) else ()
    names += _LOGS_OF_INDUCTOR if not known or is_inductor(backend) else ()
    return ",".join(names)


def lacking(kinds: Collection[str], backend: str) -> Iterator[str]:
    """The kinds of evidence that are missing, and why."""
    if "graph" not in kinds:
        yield "FX graphs: Dynamo handed none to a backend"
    if not any(each.startswith("aot") for each in kinds):
        none = not backend or is_aot(backend)
        yield f"AOT graphs: {'torch traced none' if none else f'backend {backend!r} has none'}"
    if "code" not in kinds:
        none = not backend or is_inductor(backend)
        yield f"output code: {'Inductor wrote none' if none else f'backend {backend!r} writes none'}"
    if "guards" not in kinds:
        yield "guards: no frame was compiled to its end"
