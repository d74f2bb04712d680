"""How a `triton_op` of ours names its kernels, so that the same operator also runs where Triton only interprets."""

from __future__ import annotations

from typing import Any

import torch
from triton.runtime.interpreter import InterpretedFunction


def wrap_triton(kernel: Any) -> Any:
    """torch.library.wrap_triton, or the kernel itself where TRITON_INTERPRET=1 made it a Python function.

    It has torch's name because torch looks for a call of that name in an operator's source, to make a kernel's text
    part of the compile cache's key.
    """
    return kernel if isinstance(kernel, InterpretedFunction) else torch.library.wrap_triton(kernel)
