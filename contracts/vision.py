"""torchvision beside a build of torch that its compiled part does not fit.

PyPI has one build of torchvision for each release, and its operators load beside the same build of torch alone. Beside
another its import fails, as it gives rules to operators that are not there, and with it that of timm, which calls none
of them. Named before, without anything behind the name, they are no obstacle: who calls one is told that it cannot be
loaded.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import torch

# Those that torchvision gives a rule to, whether or not they are there (torchvision/_meta_registrations.py).
OPERATORS = ("nms", "qnms")
_library: list[torch.library.Library] = []


def name_operators() -> bool:
    """Name the operators where those of torchvision cannot be loaded; whether that was so."""
    found = find_spec("torchvision")
    if found is None or found.origin is None or _library:
        return bool(_library)
    # Read and not run: it imports all of torchvision.
    text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    if version is None or build_of(version[1]) == build_of(torch.__version__):
        return False
    # Kept: what a library has defined goes with it.
    _library.append(torch.library.Library("torchvision", "DEF"))
    for name in OPERATORS:
        _library[0].define(f"{name}() -> ()")
    return True


def build_of(version: str) -> str:
    """The build that a version names, as "cu130" of "2.13.0+cu130"."""
    return version.partition("+")[2]
