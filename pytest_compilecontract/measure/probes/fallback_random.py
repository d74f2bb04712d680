"""Inductor's random numbers, drawn as eager draws them."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import Any


def drawn_as_eager() -> AbstractContextManager[object]:
    """Set Inductor's `fallback_random` for what is compiled inside."""
    config: Any = importlib.import_module("torch._inductor.config")
    patched: AbstractContextManager[object] = config.patch(fallback_random=True)
    return patched
